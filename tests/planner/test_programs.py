"""Transfers and programs against brute force over the tile table, and run by a slow interpreter."""

import json
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    PlanConfig,
    TransferKind,
    build_plan,
    digest,
    measure,
    predict,
    validate,
)
from dcp_planner.model.config import BUDGETS, OBJECTIVES
from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Reduction
from dcp_planner.tables.programs import restore_programs, tabulate_programs


@given(st.data())
@settings(max_examples=60)
def test_any_placement_makes_a_valid_plan(strategies, data):
    validate(data.draw(strategies.placed_plans(is_laid_out=False)))


@given(st.data())
@settings(max_examples=60)
def test_bytes_sent_equal_bytes_placed(strategies, data):
    once = strategies.manners(is_fetched_again=False, is_striped=False)
    plan = data.draw(strategies.placed_plans(ways=once))
    shape, owner = plan.shape, plan.blocks.owner.tolist()
    element, q_heads, kv_heads, dim = (
        shape.dtype_bytes, shape.q_heads, shape.kv_heads, shape.head_dim,
    )  # fmt: skip
    row, column = q_heads * dim * element, 2 * kv_heads * dim * element
    wider = 4 / element if shape.float32_partials else 1
    tiles = [getattr(plan.tiles, name).tolist() for name in ("q_block", "kv_block", "device")]
    rows = {(q, device) for q, _, device in zip(*tiles, strict=True) if owner[q] != device}
    columns = {(kv, device) for _, kv, device in zip(*tiles, strict=True) if owner[kv] != device}
    tokens = plan.blocks.num_tokens.tolist()
    row_tokens = sum(tokens[block] for block, _ in rows)
    column_tokens = sum(tokens[block] for block, _ in columns)
    found = measure(plan)
    assert found.forward.total_bytes == (
        row_tokens * ((1 + wider) * row + 4 * q_heads) + column_tokens * column
    )
    assert found.backward.total_bytes == (
        row_tokens * ((2 + wider) * row + 8 * q_heads) + column_tokens * (1 + wider) * column
    )
    for side in (found.forward, found.backward):
        assert sum(side.sent_bytes) == sum(side.received_bytes) == side.total_bytes
        assert sum(side.bytes_by_kind.values()) == side.total_bytes


@given(st.data())
@settings(max_examples=60)
def test_blocks_that_travel_once_cross_into_each_node_once_and_as_late_as_they_may(
    strategies, data
):
    plan = data.draw(strategies.placed_plans(ways=strategies.manners(is_fetched_again=False)))
    check_an_input_has_the_first_division_that_needs_it_and_a_result_the_last(plan)
    check_a_routed_block_crosses_into_each_node_once(plan)


def check_an_input_has_the_first_division_that_needs_it_and_a_result_the_last(plan):
    tiles, table = plan.tiles, plan.transfers
    for x in range(len(table)):
        kind = TransferKind(int(table.kind[x]))
        column = tiles.q_block if kind.name in ("Q", "OUT", "DQ") else tiles.kv_block
        division = tiles.backward_division if table.is_backward[x] else tiles.division
        workers = behind(table, x)
        divisions = division[(column == table.block[x]) & np.isin(tiles.device, list(workers))]
        assert table.division[x] == (divisions.max() if kind.is_result else divisions.min())


def behind(table, x):
    """Return the devices that a message brings its block to, or whose partials it takes home."""
    same = (
        (table.block == table.block[x])
        & (table.kind == table.kind[x])
        & (table.is_backward == table.is_backward[x])
    )
    is_result = TransferKind(int(table.kind[x])).is_result
    near, far = (table.target, table.source) if is_result else (table.source, table.target)
    found = {int(far[x])}
    while True:
        more = found | {int(far[y]) for y in np.flatnonzero(same) if int(near[y]) in found}
        if more == found:
            return found
        found = more


def check_a_routed_block_crosses_into_each_node_once(plan):
    table, tiles, per_node = plan.transfers, plan.tiles, plan.cluster.devices_per_node
    owner = plan.blocks.owner.tolist()
    is_routed = (table.hop[~table.is_backward] > 0).any()
    for kind, read in (
        (TransferKind.KV, tiles.kv_block), (TransferKind.Q, tiles.q_block),
        (TransferKind.OUT, tiles.q_block),
    ):  # fmt: skip
        pairs = zip(read.tolist(), tiles.device.tolist(), strict=True)
        needs = {(block, device) for block, device in pairs if owner[block] != device}
        away = {(b, d // per_node) for b, d in needs if d // per_node != owner[b] // per_node}
        chosen = ~table.is_backward & (table.kind == kind)
        sides = (table.target, table.source)[:: -1 if kind.is_result else 1]
        far, near = (side[chosen].tolist() for side in sides)
        blocks = table.block[chosen].tolist()
        crossing = Counter(
            (block, at // per_node)
            for block, at, to in zip(blocks, far, near, strict=True)
            if at // per_node != to // per_node
        )
        assert set(crossing) == away
        assert not is_routed or max(crossing.values(), default=1) == 1
        ends, passing = Counter(zip(blocks, far, strict=True)), {*zip(blocks, near, strict=True)}
        assert max(ends.values(), default=1) == 1
        assert needs <= set(ends) <= needs | passing


@given(st.data())
@settings(max_examples=60)
def test_transfers_are_sorted_as_documented_and_the_program_table_gives_programs_back(
    strategies, data
):
    plan = data.draw(strategies.placed_plans())
    table = plan.transfers
    keys = [
        (is_backward, kind >= TransferKind.OUT, *rest, kind)
        for is_backward, kind, *rest in zip(
            *(getattr(table, name).tolist() for name in (
                "is_backward", "kind", "division", "hop", "block", "source", "target")),
            strict=True,
        )
    ]  # fmt: skip
    assert keys == sorted(keys)
    restored = restore_programs(tabulate_programs(plan), plan.num_devices)
    assert restored == (plan.forward, plan.backward)


@pytest.fixture(scope="module")
def packed(masks):
    question = masks.shared_question(12, [16, 20, 16])
    return masks.pack([masks.causal(160), masks.sliding_window(90, 20), question], 8)


EVEN = Cluster(2, 2, flops_per_s=1e10, inter_bytes_per_s=1e8, intra_bytes_per_s=1e9)
UNEVEN = Cluster(2, 3, flops_per_s=1e10, inter_bytes_per_s=3e8, devices=((1, 1, 0.5), (1, 0.8)))
CHOICES = {
    **{name: (EVEN, {"partitioner": name}) for name in PARTITIONERS},
    **{f"{objective}, {budget}": (UNEVEN, {"objective": objective, "budget": budget})
       for objective in OBJECTIVES for budget in BUDGETS},
    "three nodes": (Cluster(3, 2, inter_bytes_per_s=1e9, flops_per_s=1e11), {}),
    "one node": (Cluster(1, 4, intra_bytes_per_s=1e9, flops_per_s=1e10), {"partials": "input"}),
    "two head groups": (EVEN, {"head_groups": 2}),
    "any head groups": (EVEN, {"head_groups": "auto", "budget": "fast"}),
    "little memory": (EVEN, {"memory_limit_bytes": 40_000}),
    "tight caps": (UNEVEN, {"partitioner": "native", "compute_tolerance": 0.01,
                            "token_tolerance": 0.0}),
    "direct": (UNEVEN, {"routing": "direct", "divisions": 4}),
    "dear tokens": (EVEN, {"token_seconds": 1e-6, "budget": "fast"}),
    "another seed": (EVEN, {"partitioner": "native", "seed": 5}),
}  # fmt: skip
GOLDEN = json.loads(Path(__file__).with_name("golden_plans.json").read_text())


@pytest.mark.parametrize("name", CHOICES)
def test_the_same_input_and_seed_give_the_plan_that_they_gave_before(packed, name):
    """The search is heuristic: any change of it, better or worse, shows here."""
    cluster, choices = CHOICES[name]
    plan = build_plan(packed, ModelShape(4, 2, 16), cluster, PlanConfig(**choices))
    took = predict(plan)
    assert [digest(plan)[:16], f"{took.forward_s:.6e} {took.backward_s:.6e}"] == GOLDEN[name]


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
