"""A second validator of plan files, written from docs/dcpplan.md alone.

It shares no code with dcp_planner. `check(path)` raises `Refused` for the first sentence of the
document that the file breaks. It lays the mask out as a dense matrix and runs the programs of all
devices, so it is for small plans.
"""

import io
import json
import re
import zipfile
from collections import defaultdict, namedtuple
from itertools import pairwise

import numpy as np
import pyarrow as pa

KV, Q, OUT, DQ, DKV = range(5)
TYPES = {"i": pa.int32(), "l": pa.int64(), "u": pa.uint8(), "b": pa.bool_(), "s": pa.string()}
TYPES |= {"I": pa.list_(pa.int32()), "L": pa.list_(pa.int64())}
COLUMNS = {
    "sequences": "sequence:i start:i end:i",
    "blocks": "block:i sequence:i start:l end:l owner:i",
    "tiles": "q_block:i kv_block:i kind:u pairs:l device:i division:i backward_division:i",
    "transfers": "transfer:i is_backward:b kind:u block:i source:i target:i division:i"
    " size_bytes:l hop:u slot:i",
    "instructions": "direction:s device:i position:i op:s key:i division:i items:I",
    "slabs": "q_start:l q_end:l kv_start:l kv_end:l start_slope:u end_slope:u",
    "forms": "kind:s q_start:l kv_start:l tokens:l items:L",
    "events": "source:s device:i kind:s name:s is_backward:b division:i peer:i size_bytes:l"
    " transfer:i ready_ns:l start_ns:l end_ns:l",
}
OPS = ("copy", "launch", "wait", "attention", "reduction")
LANES = {"attention": 0, "reduction": 0, "copy": 0, "send": 1, "receive": 2, "wait": 3}


class Refused(ValueError):
    """A sentence of docs/dcpplan.md does not hold."""


def need(holds, sentence):
    if not holds:
        raise Refused(sentence)


def paint_slabs(mask, values):
    """Set the pairs of slabs, six values each; a pair that is set twice breaks "disjoint"."""
    for q_start, q_end, kv_start, kv_end, *slopes in np.reshape(values, (-1, 6)).tolist():
        need(0 <= q_start < q_end <= len(mask) and {*slopes} <= {0, 1}, "slabs: ranges, slopes")
        for at in range(q_end - q_start):
            paint(mask, q_start + at, kv_start + slopes[0] * at, kv_end + slopes[1] * at)


def paint(mask, q, start, end):
    need(0 <= start < end <= len(mask), "mask: keys of the sequence")
    need(not mask[q, start:end].any(), "mask: disjoint")
    mask[q, start:end] = True


def paint_rows(mask, items):
    counts, total = items[: len(mask)], sum(items[: len(mask)])
    need(min(counts) >= 0 and len(items) == len(mask) + 2 * total, "rows: items")
    queries = np.repeat(np.arange(len(mask)), counts)
    last = {}
    for q, start, end in zip(queries, *np.reshape(items[len(mask) :], (2, -1)), strict=True):
        need(last.get(q, -1) < start, "rows: rising ranges apart")
        paint(mask, q, start, end)
        last[q] = end


def paint_strided(mask, items):
    tokens, at, seen = np.arange(len(mask)), 1, []
    need(2 <= items[0] <= 65536, "strided: period")
    while at < len(items):
        remainders, slabs = items[at : at + 2]
        middle, end = at + 2 + remainders, at + 2 + remainders + 6 * slabs
        need(min(remainders, slabs) >= 0 and end <= len(items), "strided: parts")
        part = np.zeros_like(mask)
        paint_slabs(part, items[middle:end])
        part &= np.isin(np.subtract.outer(tokens, tokens) % items[0], items[at + 2 : middle])
        seen += items[at + 2 : middle]
        mask |= part
        at = end
    need(len({*seen}) == len(seen) and {*seen} <= {*range(items[0])}, "strided: remainders")


PAINT = {"slabs": paint_slabs, "rows": paint_rows, "strided": paint_strided}


def dense_of(slabs):
    """Paint the slabs of a batch, `[T, T]`."""
    seen = np.zeros((slabs.num_tokens, slabs.num_tokens), bool)
    paint_slabs(seen, slabs.table())
    return seen


def check(path, masks=None):
    """Raise `Refused` unless all holds; `masks` are those of the spec by sequence, where known."""
    errors = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
    try:
        plan = Plan(path)
        plan.check_blocks()
        dense = plan.dense_mask()
        spans = [slice(row.start, row.end) for row in plan.sequences]
        for span, mask in zip(spans, masks or [], strict=masks is not None):
            need(np.array_equal(mask, dense[span, span]), "provenance: its mask")
        plan.check_tiles(dense)
        plan.check_transfers()
        for is_backward in (False, True):
            Direction(plan, is_backward).check()
        plan.check_events()
    except (*errors, zipfile.BadZipFile, pa.ArrowException) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


class Plan:
    """The tables of a file as lists of named tuples, and what `meta.json` says."""

    def __init__(self, path):
        with zipfile.ZipFile(path) as archive:
            self.meta = meta = json.loads(archive.read("meta.json"))
            for name in COLUMNS:
                absent = name == "forms" and name not in meta["tables"]
                setattr(self, name, [] if absent else self.read(archive, name))
        need(meta["schema"] == "dcp.plan/1", "schema")
        need(re.fullmatch("[0-9a-f]{64}", meta["digest"]), "digest: 64 hex digits")
        cluster, shape, self.groups = meta["cluster"], meta["shape"], meta.get("head_groups", 1)
        rates, most = cluster.get("devices", []), cluster["devices_per_node"]
        need(isinstance(rates, list), "cluster: lists")
        counts = list(map(len, rates)) or [most]
        need(max(counts) == most and len(rates) in (0, cluster["nodes"]), "cluster: devices")
        self.devices = sum(counts) if rates else most * cluster["nodes"]
        sizes = ("q_heads", "kv_heads", "head_dim", "dtype_bytes")
        self.q_heads, self.kv_heads, head_dim, dtype = (shape[key] for key in sizes)
        self.head_bytes = head_dim * dtype
        is_wide = shape.get("float32_partials", False)
        need(isinstance(is_wide, bool), "shape: true or false")
        self.home_bytes = head_dim * 4 if is_wide else self.head_bytes
        need(min(self.q_heads, self.kv_heads, head_dim, dtype) > 0, "shape: positive")
        need(self.q_heads % self.kv_heads == 0, "shape: query heads are a multiple")
        need("head_groups" not in meta or self.groups >= 2, "head_groups: 2 or more")
        rest = self.kv_heads % self.groups and self.groups % self.kv_heads
        need(self.q_heads % self.groups == rest == 0, "head_groups: divide the heads")

    def read(self, archive, name):
        types = dict(column.split(":") for column in COLUMNS[name].split())
        if "head_groups" in self.meta and name in ("tiles", "transfers"):
            types["group"] = "u"
        table = pa.ipc.open_file(io.BytesIO(archive.read(f"{name}.arrow"))).read_all()
        for column, kind in types.items():
            need(table.schema.field(column).type == TYPES[kind], f"{name}: columns")
            need(table[column].null_count == 0, f"{name}: no nulls")
        table.validate(full=True)
        need(len(table) == self.meta["tables"][name], f"{name}: rows")
        row = namedtuple(name, [*types, *([] if "group" in types else ["group"])], defaults=[0])
        columns = [table[column].to_pylist() for column in types]
        return [row(*values) for values in zip(*columns, strict=True)]

    def check_blocks(self):
        for name in ("sequences", "blocks"):
            rows = getattr(self, name)
            need(rows[0].start == 0, f"{name}: from 0")
            need([row[0] for row in rows] == list(range(len(rows))), f"{name}: numbers")
            least = 1 if name == "blocks" else 0
            need(all(row.end - row.start >= least for row in rows), f"{name}: ranges")
            need(all(a.end == b.start for a, b in pairwise(rows)), f"{name}: no gap")
        need(self.blocks[-1].end == self.sequences[-1].end, "blocks: tile the batch")
        for row in self.blocks:
            need(0 <= row.owner < self.devices and row.sequence >= 0, "blocks: owner, sequence")
            own = self.sequences[row.sequence]
            need(own.start <= row.start and row.end <= own.end, "blocks: cross a sequence")

    def dense_mask(self):
        mask = np.zeros((self.sequences[-1].end,) * 2, bool)
        spans, formed = {(row.start, row.end) for row in self.sequences}, set()
        for row in self.forms:
            span = (row.q_start, row.q_start + row.tokens)
            need(row.kv_start == row.q_start and span in spans - formed, "forms: a sequence each")
            formed.add(span)
            swapped, kind = row.kind.startswith("cols:"), row.kind.removeprefix("cols:")
            need(row.kind != "cols:strided", "forms: kind")
            own = mask[slice(*span), slice(*span)]
            PAINT[kind](own.T if swapped else own, row.items)
        for slab in self.slabs:
            span = next((s for s in spans if s[0] <= slab.q_start < s[1]), None)
            need(span is not None, "slabs: rows of a sequence")
            need(span not in formed, "slabs: none where there is a form")
            shifted = [value - span[0] for value in slab[:4]] + list(slab[4:6])
            paint_slabs(mask[slice(*span), slice(*span)], shifted)
        return mask

    def check_tiles(self, mask):
        need(all(0 <= row.group < self.groups for row in self.tiles), "tiles: group")
        order = [(row.group, row.q_block, row.kv_block) for row in self.tiles]
        need(all(a < b for a, b in pairwise(order)), "tiles: sorted")
        for row in self.tiles:
            need(min(row) >= 0 and row.device < self.devices, "tiles: not negative, device")
            q, kv = self.blocks[row.q_block], self.blocks[row.kv_block]
            cells = mask[q.start : q.end, kv.start : kv.end]
            need(0 < row.pairs == cells.sum(), "tiles: visible pairs")
            need(row.kind == (2 if cells.all() else 1), "tiles: kind")
        need(sum(row.pairs for row in self.tiles) == self.groups * mask.sum(), "tiles: every pair")

    def check_transfers(self):
        q_heads, kv_heads = self.q_heads // self.groups, max(1, self.kv_heads // self.groups)
        q, kv = self.head_bytes * q_heads, 2 * self.head_bytes * kv_heads
        for at, row in enumerate(self.transfers):
            need(row.transfer == at and min(row) >= 0, "transfers: numbers, not negative")
            need(max(row.source, row.target) < self.devices, "transfers: devices")
            need(row.source != row.target and row.group < self.groups, "transfers: ends, group")
            q_and_statistics = 2 * q + 8 * q_heads if row.is_backward else q
            dq, dkv = self.home_bytes * q_heads, 2 * self.home_bytes * kv_heads
            size = (kv, q_and_statistics, dq + 4 * q_heads, dq, dkv)[row.kind]
            need(row.size_bytes == size * self.tokens(row), "transfers: bytes")

    def tokens(self, row):
        return self.blocks[row.block].end - self.blocks[row.block].start

    def check_events(self):
        traces, at = self.meta["traces"], 0
        for trace in traces:
            rows = self.events[at : at + trace["events"]]
            at += trace["events"]
            need(trace["events"] >= 0 and len(rows) == trace["events"], "traces: events")
            need(trace["source"] in ("simulated", "measured"), "traces: source")
            need({row.source for row in rows} <= {trace["source"]}, "events: source")
            lanes = [(row.device, LANES[row.kind], row.start_ns) for row in rows]
            need(all(a <= b for a, b in pairwise(lanes)), "events: sorted")
        need(at == len(self.events), "traces: all events")
        for row in self.events:
            need(0 <= row.device < self.devices > row.peer >= -1, "events: devices")
            need(-1 <= row.transfer < len(self.transfers), "events: transfers")
            numbers = (row.division, row.size_bytes, row.ready_ns, row.start_ns, row.end_ns)
            need(min(numbers) >= 0 and max(numbers) < 2**53, "events: numbers")
            need(row.start_ns <= row.end_ns, "events: end before their start")


class Direction:
    """The programs of one direction, and where they launch, wait for, compute and merge what."""

    def __init__(self, plan, is_backward):
        self.plan, self.is_backward = plan, is_backward
        self.transfers = {t.transfer: t for t in plan.transfers if t.is_backward == is_backward}
        self.programs = defaultdict(list)
        for row in plan.instructions:
            need(row.direction in ("forward", "backward"), "instructions: direction")
            if (row.direction == "backward") == is_backward:
                self.programs[row.device].append(row)
        self.launched, self.waited, self.reduced, self.computed, self.copied = (
            {} for _ in range(5)
        )
        places = (self.copied, self.launched, self.waited, self.computed, self.reduced)
        self.places = dict(zip(OPS, places, strict=True))  # op -> (device, item) -> position
        self.waits = {}  # (device, position) -> transfers

    def check(self):
        order = [(row.direction == "backward", *row[1:3]) for row in self.plan.instructions]
        need(all(a < b for a, b in pairwise(order)), "instructions: sorted")
        need(len(self.programs) == self.plan.devices, "instructions: devices")
        need(0 <= min(self.programs) <= max(self.programs) < self.plan.devices, "their numbers")
        for device, program in self.programs.items():
            self.read_program(device, program)
        ends = {(end, at) for at, row in self.transfers.items() for end in (row.source, row.target)}
        need(self.launched.keys() == ends, "launch: both ends")
        results = {(row.target, at) for at, row in self.transfers.items() if row.kind >= OUT}
        need(self.reduced.keys() == results, "reduction: every result")
        need(len(self.computed) == len(self.plan.tiles), "attention: every tile")
        self.check_ways()
        self.check_order()
        self.check_waits_end()
        self.check_buffers()

    def read_program(self, device, program):
        launches = {}
        own = [row.block for row in self.plan.blocks if row.owner == device]
        copies = [(row.position, row.items) for row in program if row.op == "copy"]
        need(copies == [(0, own)], "copy: first, own blocks")
        for at, row in enumerate(program):
            need(row.position == at, "instructions: position")
            need(row.key >= 0 if row.op in ("launch", "wait") else row.key == -1, "key")
            need(row.division == -1 if row.op == "copy" else row.division >= 0, "division")
            need(min(row.items, default=0) >= 0, "items")
            if row.op == "launch":
                need(row.key not in launches, "launch: a key each")
                launches[row.key] = row.items
            elif row.op == "wait":
                self.waits[device, at] = launches[row.key]
                launches[row.key] = ()
            for item in self.waits.get((device, at), row.items):
                need((device, item) not in self.places[row.op], "instructions: once")
                self.places[row.op][device, item] = at
                if row.op == "attention":
                    tile = self.plan.tiles[item]
                    need((tile.device, self.when(tile)) == (device, row.division), "attention")
                elif row.op == "launch":
                    need(self.transfers[item].division == row.division, "launch: division")
        need(self.waited.keys() >= {key for key in self.launched if key[0] == device}, "wait")

    def when(self, tile):
        return tile.backward_division if self.is_backward else tile.division

    def data(self, row):
        """The data of a transfer: (is it of queries, block, group)."""
        return (row.kind in (Q, OUT, DQ), row.block, row.group)

    def visit(self, device, data, division):
        """The input that a device uses in a division: the last one by then, or the only one."""
        rows = sorted(self.arriving[device, data], key=lambda row: row.division)
        before = [row for row in rows if row.division <= division]
        return (before or rows[:1] or [None])[-1]

    def next_result(self, row):
        """The result that a partial is merged into: the next of its target, or the last."""
        rows = sorted(self.leaving[row.target, self.data(row)], key=lambda other: other.division)
        return next((other for other in rows if other.division >= row.division), rows[-1])

    def check_ways(self):
        plan, needed = self.plan, set()
        shared = max(1, plan.groups // plan.kv_heads)
        self.arriving, self.leaving = defaultdict(list), defaultdict(list)
        for row in self.transfers.values():
            kinds = (KV, Q, DQ, DKV) if self.is_backward else (KV, Q, OUT)
            need(row.kind in kinds, "transfers: kind of the direction")
            is_result = row.kind >= OUT
            side, end = (self.leaving, row.source) if is_result else (self.arriving, row.target)
            same = side[end, self.data(row)]
            need(row.division not in [other.division for other in same], "ways: once a division")
            same.append(row)
        self.reads = defaultdict(list)  # by input
        for at, tile in enumerate(plan.tiles):
            first = tile.group - tile.group % shared
            for data in ((True, tile.q_block, tile.group), (False, tile.kv_block, first)):
                if plan.blocks[data[1]].owner == tile.device:
                    continue
                needed.add((tile.device, data))
                visit = self.visit(tile.device, data, self.when(tile))
                need(visit is not None, "ways: inputs")
                self.reads[visit.transfer].append(self.computed[tile.device, at])
        need({place for place, rows in self.arriving.items() if rows} >= needed, "ways: needed")
        self.check_results()
        self.check_hops()

    def check_results(self):
        self.result_of = {}
        for (device, data), rows in self.leaving.items():
            for row in rows:
                visit = self.visit(device, data, row.division)
                need(visit is not None, "ways: results are of inputs")
                need(visit.transfer not in self.result_of, "ways: a result for each input")
                self.result_of[visit.transfer] = row

    def check_hops(self):
        self.feeder, self.merged = {}, defaultdict(list)
        for row in self.transfers.values():
            owner = self.plan.blocks[row.block].owner
            if row.kind < OUT:
                has_sums = self.is_backward or row.kind == Q
                need((row.transfer in self.result_of) == has_sums, "ways: results")
                if row.source != owner:
                    self.feeder[row.transfer] = self.visit(row.source, self.data(row), row.division)
                    need(self.feeder[row.transfer] is not None, "ways: source")
            elif row.target != owner:
                need(self.leaving[row.target, self.data(row)], "ways: end")
                self.merged[self.next_result(row).transfer].append(row)
        passed = {row.transfer for row in self.feeder.values()}
        inputs = {row.transfer for row in self.transfers.values() if row.kind < OUT}
        need(inputs <= passed | self.reads.keys(), "ways: every input is read or passed on")
        for row in self.transfers.values():
            brought = self.merged[row.transfer]
            if row.transfer in self.feeder:
                brought = [self.feeder[row.transfer]]
            hops = [other.hop for other in brought]
            need(row.hop > max(hops) if hops else row.hop == 0, "transfers: hop")

    def check_order(self):
        for item, row in self.transfers.items():
            if row.kind < OUT:
                at = self.waited[row.target, item]
                need(all(at < read for read in self.reads.get(item, ())), "order: arrives")
                if item in self.feeder:
                    pair = [self.launched[row.source, r.transfer] for r in (self.feeder[item], row)]
                    need(pair[0] < pair[1], "order: passed on after its launch")
        for item, row in self.result_of.items():
            device = row.source
            merged = [self.reduced[device, r.transfer] for r in self.merged[row.transfer]]
            added, leaves = self.reads.get(item, []) + merged, self.launched[device, row.transfer]
            need(added and max(added) < leaves, "order: a result leaves")
            begun = self.launched[device, item]
            need(all(begun < at for at in merged), "order: sums are begun before they are added to")
        for place, at in self.reduced.items():
            need(self.waited[place] < at, "order: a reduction merges what arrived")
        lanes = defaultdict(list)
        for device, item in self.launched:
            row = self.transfers[item]
            lanes[row.kind >= OUT, row.source, row.target, device == row.source].append(item)
        need(
            all(lanes[(*lane[:3], not lane[3])] == items for lane, items in list(lanes.items())),
            "order: ends",
        )
        # What travels together: by both ends, the sets of items that one instruction launches.
        together = defaultdict(set)
        for (device, item), at in self.launched.items():
            row = self.transfers[item]
            if row.kind >= OUT or row.hop == 0:
                pair = row.source, row.target, row.kind, row.hop
                together[(*pair, device == row.source, at)].add(item)
        sides = {True: set(), False: set()}
        for (*pair, is_source, _), items in together.items():
            sides[is_source].add((tuple(pair), frozenset(items)))
        need(sides[True] == sides[False], "order: together")

    def check_waits_end(self):
        """Run all programs at once: a launch goes on, a wait stands still."""
        at, moved = dict.fromkeys(self.programs, 0), True

        def arrived(row):
            ends = (row.source, row.target)
            before = self.feeder.get(row.transfer)
            return all(self.launched[end, row.transfer] < at[end] for end in ends) and (
                before is None or arrived(before)
            )

        while moved:
            moved = False
            for device, program in self.programs.items():
                while at[device] < len(program) and all(
                    arrived(self.transfers[item])
                    for item in self.waits.get((device, at[device]), ())
                ):
                    at[device] += 1
                    moved = True
        need(all(at[d] == len(program) for d, program in self.programs.items()), "order: stuck")

    def check_buffers(self):
        taken = defaultdict(list)  # (device, kind) -> (slot, its end, first position, last)
        for item, row in self.transfers.items():
            device = row.target
            reads = self.reads.get(item, ())
            until = [self.reduced[device, item]] if row.kind >= OUT else list(reads)
            if row.kind < OUT:
                sent = [self.transfers[x] for x, by in self.feeder.items() if by is row]
                sent += [self.result_of[item]] if item in self.result_of else []
                until += [self.waited[device, r.transfer] for r in sent]
            rows = (row.slot, row.slot + self.plan.tokens(row))
            taken[device, row.kind].append((*rows, self.launched[device, item], max(until)))
        for rows in taken.values():
            for at, (start, end, since, until) in enumerate(rows):
                for other in rows[:at]:
                    apart = end <= other[0] or other[1] <= start
                    need(apart or until < other[2] or other[3] < since, "buffers: rows taken")
