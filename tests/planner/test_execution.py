"""Plans run by a slow interpreter that knows the format only from its document.

Messages take as long as they like; a sum is the multiset of tiles that it holds. At the end every
owner must hold exactly the tiles of each of its blocks.
"""

import random
from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Reduction

KV, Q, OUT, DQ, DKV = range(5)
QUERY = {KV: False, Q: True, OUT: True, DQ: True, DKV: False}  # side of the tiles by kind


class Machine:
    """All devices of one direction."""

    def __init__(self, plan, direction, seed):
        self.plan, self.random = plan, random.Random(seed)
        self.is_backward = direction == "backward"
        self.programs = [p.instructions for p in plan.programs(direction)]
        self.at = [0] * plan.num_devices
        table = plan.transfers
        self.rows = [
            {
                n: int(getattr(table, n)[x])
                for n in ("kind", "block", "source", "target", "division", "hop", "slot")
            }
            for x in range(len(table))
        ]
        self.tokens, self.owner = plan.blocks.num_tokens.tolist(), plan.blocks.owner.tolist()
        # By device, kind and block: the transfers that bring it, by division.
        self.visits = defaultdict(list)
        own = [x for x, b in enumerate(table.is_backward.tolist()) if b == self.is_backward]
        for x in sorted(own, key=lambda x: self.rows[x]["division"]):
            row = self.rows[x]
            self.visits[row["target"], row["kind"], row["block"]].append((row["division"], x))
        self.tiles = list(
            zip(plan.tiles.q_block.tolist(), plan.tiles.kv_block.tolist(), strict=True)
        )
        tiles = plan.tiles
        self.division = (tiles.backward_division if self.is_backward else tiles.division).tolist()
        # Per device: the transfer that lies in each row of each buffer; sums of own blocks, by (of
        # queries, block), and of visits, by the transfer that began them.
        self.buffer = [{} for _ in self.programs]
        self.sums = [{} for _ in self.programs]
        self.keys = [{} for _ in self.programs]
        self.launched, self.payload, self.arrived = {}, {}, set()

    def is_local(self, device, block):
        return self.owner[block] == device

    def visit(self, device, kind, block, division):
        """The transfer whose rows a device uses for a block in a division, None for its own."""
        if self.is_local(device, block):
            return None
        return [x for at, x in self.visits[device, kind, block] if at <= division][-1]

    def holds(self, device, kind, block, division):
        """Ask if the block is the device's own or lies whole where its transfer put it."""
        x = self.visit(device, kind, block, division)
        return x is None or all(self.buffer[device].get((kind, row)) == x for row in self.span(x))

    def sums_of(self, device, kind, block, division):
        """Name the sums of a block that a device adds to in a division."""
        x = self.visit(device, kind, block, division)
        return (QUERY[kind], block) if x is None else x

    def sums_sent(self, x):
        row = self.rows[x]
        kind = Q if QUERY[row["kind"]] else KV
        return self.sums_of(row["source"], kind, row["block"], row["division"])

    def span(self, x):
        row = self.rows[x]
        return range(row["slot"], row["slot"] + self.tokens[row["block"]])

    def launch(self, device, x):
        row = self.rows[x]
        self.launched.setdefault(x, set()).add(device)
        if row["target"] == device:
            for place in self.span(x):
                old = self.buffer[device].get((row["kind"], place))
                self.buffer[device][row["kind"], place] = ("on its way", x)
                if row["kind"] in (Q, KV):  # sums that lay here are reset
                    self.sums[device].pop(old, None)
        elif row["kind"] in (Q, KV) and not self.is_local(device, row["block"]):
            brought = self.visit(device, row["kind"], row["block"], row["division"])
            assert device in self.launched.get(brought, ()), "passed on before its own launch"
        elif row["kind"] >= OUT:
            self.payload[x] = Counter(self.sums[device].get(self.sums_sent(x)))

    def can_leave(self, x):
        row = self.rows[x]
        if self.launched[x] != {row["source"], row["target"]}:
            return False
        return row["kind"] >= OUT or self.holds(
            row["source"], row["kind"], row["block"], row["division"]
        )

    def deliver(self, x):
        """Let a message arrive if its rows are there; say whether it arrived."""
        if not self.can_leave(x):
            return False
        row = self.rows[x]
        if row["kind"] >= OUT:  # a sender may read its sums until they have left
            sums = self.sums[row["source"]].get(self.sums_sent(x))
            assert Counter(sums) == self.payload[x], "sums were overwritten on their way"
        self.arrived.add(x)
        for place in self.span(x):
            key = row["kind"], place
            assert self.buffer[row["target"]][key] == ("on its way", x), "rows taken twice"
            self.buffer[row["target"]][key] = x
        return True

    def step(self, device):
        """Execute one instruction if it does not have to wait; say whether it was executed."""
        instruction = self.programs[device][self.at[device]]
        match instruction:
            case CommLaunch():
                self.keys[device][instruction.key] = instruction.transfers
                for x in instruction.transfers:
                    self.launch(device, x)
            case CommWait():
                if not set(self.keys[device][instruction.key]) <= self.arrived:
                    return False
            case Attention():
                for tile in instruction.tiles:
                    self.compute(device, tile)
            case Reduction():
                for x in instruction.transfers:
                    self.merge(device, x)
            case Copy():
                owned = [b for b in range(len(self.tokens)) if self.is_local(device, b)]
                assert list(instruction.blocks) == owned
        self.at[device] += 1
        return True

    def compute(self, device, tile):
        for kind, block in zip((Q, KV), self.tiles[tile], strict=True):
            division = self.division[tile]
            assert self.holds(device, kind, block, division), f"block {block} is not there"
            name = self.sums_of(device, kind, block, division)
            self.sums[device].setdefault(name, Counter())[tile] += 1

    def merge(self, device, x):
        row = self.rows[x]
        assert all(self.buffer[device][row["kind"], p] == x for p in self.span(x))
        name = QUERY[row["kind"]], row["block"]
        if not self.is_local(device, row["block"]):  # it goes on with the next result
            sent = [
                (other["division"], y)
                for y, other in enumerate(self.rows)
                if (other["source"], other["kind"], other["block"])
                == (device, row["kind"], row["block"])
            ]
            name = self.sums_sent(min(s for s in sent if s[0] >= row["division"])[1])
        self.sums[device].setdefault(name, Counter()).update(self.payload[x])
        for place in self.span(x):
            del self.buffer[device][row["kind"], place]

    def run(self):
        while True:
            moves = [d for d in range(len(self.at)) if self.at[d] < len(self.programs[d])]
            # Whoever can go on does, in any order; messages arrive at any time.
            choices = [(self.deliver, x) for x in self.launched if x not in self.arrived]
            choices += [(self.step, device) for device in moves]
            self.random.shuffle(choices)
            if not any(go_on(subject) for go_on, subject in choices):
                assert not moves, "everybody waits"
                return


def check(plan, direction, seed):
    machine = Machine(plan, direction, seed)
    machine.run()
    sides = (True, False) if direction == "backward" else (True,)
    for of_queries in sides:
        column = plan.tiles.q_block if of_queries else plan.tiles.kv_block
        wanted = {}
        for tile, block in enumerate(column.tolist()):
            wanted.setdefault(block, Counter())[tile] += 1
        owner = plan.blocks.owner.tolist()
        found = {
            block: machine.sums[owner[block]][of_queries, block]
            for block in range(len(owner))
            if (of_queries, block) in machine.sums[owner[block]]
        }
        assert found == wanted


@settings(max_examples=50)
@given(st.data(), st.integers(0, 2**16), st.sampled_from(["forward", "backward"]))
def test_every_owner_ends_with_each_tile_of_its_blocks_exactly_once(
    strategies, data, seed, direction
):
    check(data.draw(strategies.placed_plans()), direction, seed)
