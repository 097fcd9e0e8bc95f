"""Plan files, taken apart and changed so that a sentence of docs/dcpplan.md may not hold.

Digests and counts of rows are made anew, so that only the sentence is broken. `tamper_of` makes the
file of a seed; `tamper_fuzz` judges it.
"""

import io
import json
import pickle
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import second_validator

from dcp_dsl import Sample, Spec
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, simulate
from dcp_planner.batches.batch import batch_of_samples
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import build_workload
from dcp_planner.plan.file import encode_plan
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule

DEVICES = 4
Row = dict[str, Any]
SPECS = (
    ("mask m = causal", [Sample({}, 27), Sample({}, 14)], ModelShape(2, 1, 4, 4), 1),
    (
        "segment part = question[question_len] answer[answer_lens]*\n"
        "mask m = causal and (k in question or same(answer))",
        [Sample({"question_len": 9, "answer_lens": [7, 10]}, 26)],
        ModelShape(4, 2, 4, 4),
        2,
    ),
    ("mask m = sliding(12) and (q - k) % 3 == 0", [Sample({}, 30)], ModelShape(4, 2, 4, 2), 4),
    (
        "mask m = causal and (q * 7 + k * 5) % 4 != 1",
        [Sample({}, 17), Sample({}, 12)],
        ModelShape(2, 2, 4, 4),
        1,
    ),
)


@dataclass
class File:
    """A plan file taken apart: `meta.json` and the rows of every table."""

    meta: dict[str, Any]
    tables: dict[str, list[Row]]
    schemas: dict[str, pa.Schema]

    @classmethod
    def of(cls, data: bytes) -> "File":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            meta = json.loads(archive.read("meta.json"))
            opened = {
                name: pa.ipc.open_file(io.BytesIO(archive.read(f"{name}.arrow"))).read_all()
                for name in meta["tables"]
            }
        tables = {name: table.to_pylist() for name, table in opened.items()}
        return cls(meta, tables, {name: table.schema for name, table in opened.items()})

    def write(self, path: Path | io.BytesIO) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("meta.json", json.dumps(self.meta))
            for name, rows in self.tables.items():
                sink = pa.BufferOutputStream()
                options = pa.ipc.IpcWriteOptions(compression="zstd")
                schema = self.schemas[name]
                with pa.ipc.new_file(sink, schema, options=options) as writer:
                    columns = [pa.array([row[c.name] for row in rows], c.type) for c in schema]
                    writer.write_batch(pa.record_batch(columns, schema=schema))
                archive.writestr(f"{name}.arrow", sink.getvalue().to_pybytes())

    def count(self) -> None:
        """Write to `meta.json` how many rows the tables have."""
        self.meta["tables"] = {name: len(rows) for name, rows in self.tables.items()}
        traces = self.meta["traces"]
        if len(traces) == 1:
            traces[0]["events"] = len(self.tables["events"])


def build(number: int) -> Plan:
    """Place a batch at random, so that every kind of transfer and passing on occurs."""
    text, samples, shape, groups = SPECS[number]
    spec = Spec.from_text(text)
    (batch,) = batch_of_samples(spec, spec.mask("m"), samples, 6)
    workload, cluster = build_workload(batch.sparsity, shape), Cluster(2, 2)
    rng = np.random.default_rng(number + 5)
    sizes = (workload.num_blocks, workload.num_tiles * groups)
    placement = Placement(*(rng.integers(0, DEVICES, size) for size in sizes))
    placement = replace(placement, head_groups=groups)
    schedule = make_schedule(workload, placement, cluster, PlanConfig(divisions=3))
    plan = assemble(workload, cluster, placement, schedule, "any")
    return replace(plan, provenance=batch.provenance)


@cache
def held(number: int) -> bytes:
    plan = build(number)
    return pickle.dumps(File.of(encode_plan(plan, [simulate(plan)])))


def base(number: int) -> File:
    """Return a plan file that nothing was changed in."""
    return cast(File, pickle.loads(held(number)))


# Tampers: each changes the rows of a file so that a sentence may not hold any more.

Tamper = Callable[[File, random.Random], None]
ODD = (-2, -1, 0, 1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**53, -(2**53), 2**62)


def pick(rng: random.Random, rows: list[Any]) -> Any:
    if not rows:
        raise Undone
    return rng.choice(rows)


class Undone(Exception):
    """This file has nothing that the tamper could change."""


def change(table: str, *columns: str) -> Tamper:
    """Set another value in one row: near, of another row, or odd."""

    def tamper(file: File, rng: random.Random) -> None:
        row, column = pick(rng, file.tables[table]), rng.choice(columns)
        value, other = row[column], rng.choice(file.tables[table])[column]
        if isinstance(value, bool):
            row[column] = not value
        elif isinstance(value, int):
            near = (value + 1, value - 1, value + rng.randrange(-8, 9))
            row[column] = rng.choice((*near, other, other, rng.choice(ODD)))
        else:
            row[column] = other

    return tamper


def drop(table: str) -> Tamper:
    def tamper(file: File, rng: random.Random) -> None:
        rows = file.tables[table]
        rows.remove(pick(rng, rows))
        renumber(file, table)

    return tamper


def double(table: str) -> Tamper:
    def tamper(file: File, rng: random.Random) -> None:
        rows = file.tables[table]
        at = rng.randrange(len(rows)) if rows else 0
        rows.insert(at, dict(pick(rng, rows)))
        renumber(file, table)

    return tamper


def swap(table: str, *, is_near: bool = False) -> Tamper:
    def tamper(file: File, rng: random.Random) -> None:
        rows = file.tables[table]
        if len(rows) < 2:
            raise Undone
        a, b = rng.sample(range(len(rows)), 2)
        if is_near:
            b = a + 1 if a + 1 < len(rows) else a - 1
        rows[a], rows[b] = rows[b], rows[a]
        renumber(file, table)

    return tamper


NUMBERS = {"sequences": "sequence", "blocks": "block", "transfers": "transfer"}


def renumber(file: File, table: str) -> None:
    """Number rows and positions again, so that only what they hold has changed."""
    rows = file.tables[table]
    if table in NUMBERS:
        for at, row in enumerate(rows):
            row[NUMBERS[table]] = at
    if table == "instructions":
        places = Counter[tuple[str, int]]()
        for row in rows:
            place = (row["direction"], row["device"])
            row["position"] = places[place]
            places[place] += 1


def programs(file: File) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in file.tables["instructions"]:
        found.setdefault((row["direction"], row["device"]), []).append(row)
    return found


def store(file: File, found: dict[tuple[str, int], list[Row]]) -> None:
    file.tables["instructions"] = [row for rows in found.values() for row in rows]
    renumber(file, "instructions")


def move(*ops: str, far: int = 30) -> Tamper:
    """Move an instruction inside its program."""

    def tamper(file: File, rng: random.Random) -> None:
        found = programs(file)
        place = pick(rng, [p for p, rows in found.items() if any(r["op"] in ops for r in rows)])
        rows = found[place]
        row = pick(rng, [row for row in rows if row["op"] in ops])
        at = rows.index(row)
        rows.remove(row)
        rows.insert(min(len(rows), max(0, at + rng.choice((-1, 1)) * rng.randrange(1, far))), row)
        store(file, found)

    return tamper


def items_of(*ops: str) -> Tamper:
    """Change the items of an instruction: leave out, double, add, swap, hand to another."""

    def tamper(file: File, rng: random.Random) -> None:
        rows = [row for row in file.tables["instructions"] if row["op"] in ops]
        row, other = pick(rng, [row for row in rows if row["items"]]), pick(rng, rows)
        items, at = row["items"], rng.randrange(len(row["items"]))
        match rng.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.insert(at, rng.choice(items))
            case 2:
                items[at] += rng.choice((-1, 1, 2, 1000))
            case 3:
                rng.shuffle(items)
            case 4:
                other["items"].append(items.pop(at))
            case 5:
                items[at] = pick(rng, other["items"])

    return tamper


def new_key(file: File, rng: random.Random) -> None:
    """Set another key in a launch and its wait: one of the device, of another, or below 0."""
    found = programs(file)
    rows = found[pick(rng, list(found))]
    key = pick(rng, [row["key"] for row in rows if row["op"] == "launch"])
    keys = [row["key"] for row in file.tables["instructions"]]
    other = rng.choice((*keys, -1, -2, key + 1000, 2**31 - 1))
    chosen = rng.choice((("launch",), ("wait",), ("launch", "wait")))
    for row in rows:
        if row["key"] == key and row["op"] in chosen:
            row["key"] = other


def cut_launch(file: File, rng: random.Random) -> None:
    """Cut a launch in two, each with a wait of its own, perhaps in the other order."""
    found = programs(file)
    place = pick(rng, list(found))
    rows = found[place]
    row = pick(rng, [row for row in rows if row["op"] == "launch" and len(row["items"]) > 1])
    wait = next(r for r in rows if r["op"] == "wait" and r["key"] == row["key"])
    at = rng.randrange(1, len(row["items"]))
    key = max(row["key"] for row in rows) + 1
    second = {**row, "key": key, "items": row["items"][at:]}
    row["items"] = row["items"][:at]
    rows.insert(rows.index(row) + rng.randrange(2), second)
    rows.insert(rows.index(wait) + rng.randrange(2), {**wait, "key": key})
    store(file, found)


def join_launches(file: File, rng: random.Random) -> None:
    """Launch what two neighbouring launches do in one."""
    found = programs(file)
    rows = found[pick(rng, list(found))]
    pairs = [(a, b) for a, b in pairwise(rows) if (a["op"], b["op"]) == ("launch", "launch")]
    a, b = pick(rng, pairs)
    a["items"] += b["items"]
    rows.remove(b)
    rows.remove(next(r for r in rows if r["op"] == "wait" and r["key"] == b["key"]))
    store(file, found)


def launch_order(file: File, rng: random.Random) -> None:
    """Swap two transfers between the same devices, at one end or at both."""
    rows, transfers = file.tables["instructions"], file.tables["transfers"]
    row = pick(rng, [r for r in rows if r["op"] == "launch" and len(r["items"]) > 1])
    a, b = rng.sample(row["items"], 2)
    is_both = rng.random() < 0.5
    same = transfers[a]["source"], transfers[a]["target"]
    chosen = [r for r in rows if r is row or (is_both and r["device"] in same)]
    for other in chosen:
        if other["op"] == "launch" and {a, b} <= {*other["items"]}:
            i, j = other["items"].index(a), other["items"].index(b)
            other["items"][i], other["items"][j] = b, a


def move_tile(file: File, rng: random.Random) -> None:
    """Let another device, or another division, compute a tile: in the table and in programs."""
    at = rng.randrange(len(file.tables["tiles"]))
    tile = file.tables["tiles"][at]
    is_far = rng.random() < 0.6
    for direction, column in (("forward", "division"), ("backward", "backward_division")):
        rows = [
            row
            for row in file.tables["instructions"]
            if row["direction"] == direction and row["op"] == "attention"
        ]
        now = next(row for row in rows if at in row["items"])
        others = [row for row in rows if (row["device"] != now["device"]) == is_far]
        now["items"].remove(at)
        new = pick(rng, others)
        if is_far and direction == "backward":
            new = pick(rng, [row for row in rows if row["device"] == tile["device"]])
        new["items"].append(at)
        tile["device"], tile[column] = new["device"], new["division"]


def move_owner(file: File, rng: random.Random) -> None:
    """Move a block to another device, and copies with it."""
    block = pick(rng, file.tables["blocks"])
    old, block["owner"] = block["owner"], rng.randrange(DEVICES)
    for row in file.tables["instructions"]:
        if row["op"] == "copy" and row["device"] == old:
            row["items"].remove(block["block"])
        if row["op"] == "copy" and row["device"] == block["owner"]:
            row["items"] = sorted([*row["items"], block["block"]])


def reroute(file: File, rng: random.Random) -> None:
    """Let a transfer come from, or go to, another device, and launch it there."""
    transfer = pick(rng, file.tables["transfers"])
    end = rng.choice(("source", "target"))
    old, new = transfer[end], rng.randrange(DEVICES)
    transfer[end] = new
    transfer["hop"] = rng.choice((transfer["hop"], 0, 1, 2))
    direction = "backward" if transfer["is_backward"] else "forward"
    rows = [r for r in file.tables["instructions"] if r["direction"] == direction]
    for row in rows:
        if row["op"] == "launch" and row["device"] == old and transfer["transfer"] in row["items"]:
            row["items"].remove(transfer["transfer"])
    fits = [r for r in rows if (r["op"], r["device"]) == ("launch", new)]
    fits = [r for r in fits if r["division"] == transfer["division"]]
    pick(rng, fits)["items"].append(transfer["transfer"])
    if transfer["kind"] > 1 and end == "target":
        for row in rows:
            if row["op"] == "reduction" and transfer["transfer"] in row["items"]:
                row["items"].remove(transfer["transfer"])
        fits = [r for r in rows if (r["op"], r["device"]) == ("reduction", new)]
        pick(rng, fits)["items"].append(transfer["transfer"])


def slots(file: File, rng: random.Random) -> None:
    """Let a transfer take rows of another one in the same buffer."""
    row = pick(rng, file.tables["transfers"])
    same = [r for r in file.tables["transfers"] if r["target"] == row["target"]]
    row["slot"] = max(0, pick(rng, same)["slot"] + rng.choice((0, 0, 0, 1, -1, 5)))


def both_hops(file: File, rng: random.Random) -> None:
    """Shift the hops of all transfers of a block."""
    row = pick(rng, file.tables["transfers"])
    by = rng.choice((1, 2))
    for other in file.tables["transfers"]:
        if (other["block"], other["kind"]) == (row["block"], row["kind"]) and other["hop"]:
            other["hop"] += by


def launch_division(file: File, rng: random.Random) -> None:
    """Put a whole launch, its transfers and waits, into another division."""
    found = programs(file)
    rows = found[pick(rng, list(found))]
    row = pick(rng, [r for r in rows if r["op"] == "launch"])
    new = rng.randrange(0, 5)
    moved = {*row["items"]}
    for item in moved:
        file.tables["transfers"][item]["division"] = new
    for other in file.tables["instructions"]:
        is_same = (other["op"], other["direction"]) == ("launch", row["direction"])
        if is_same and {*other["items"]} & moved:
            other["division"] = new


def attention_division(file: File, rng: random.Random) -> None:
    """Put the tiles of an attention into another division, in both tables."""
    row = pick(rng, [r for r in file.tables["instructions"] if r["op"] == "attention"])
    row["division"] = rng.randrange(0, 5)
    column = "division" if row["direction"] == "forward" else "backward_division"
    for item in row["items"]:
        file.tables["tiles"][item][column] = row["division"]


def mask_and_pairs(file: File, rng: random.Random) -> None:
    """Change slabs or forms, and pairs and kinds of all tiles with them."""
    table = pick(rng, [name for name in ("slabs", "forms") if file.tables.get(name)])
    row = pick(rng, file.tables[table])
    if table == "slabs":
        column = rng.choice([c for c in row if c != "q_start"])
        row[column] = max(0, row[column] + rng.choice((-1, 1)))
    else:
        row["items"][rng.randrange(len(row["items"]))] += rng.choice((-1, 1))
    recount(file)


def recount(file: File) -> None:
    """Count the pairs of every tile anew under the mask that the file holds."""
    mask = dense_of(file)
    blocks = file.tables["blocks"]
    for tile in file.tables["tiles"]:
        q, kv = blocks[tile["q_block"]], blocks[tile["kv_block"]]
        cells = mask[q["start"] : q["end"], kv["start"] : kv["end"]]
        tile["pairs"], tile["kind"] = int(cells.sum()), 2 if cells.all() else 1


def dense_of(file: File) -> np.ndarray:
    plan = second_validator.Plan.__new__(second_validator.Plan)
    for name, rows in file.tables.items():
        named = second_validator.namedtuple(name, rows[0]) if rows else tuple
        setattr(plan, name, [named(**row) for row in rows])
    plan.forms = getattr(plan, "forms", [])
    try:
        return plan.dense_mask()
    except (ValueError, IndexError, KeyError, StopIteration):
        raise Undone from None


def cut_slab(file: File, rng: random.Random) -> None:
    """Split a slab in two: nothing may change."""
    slabs = file.tables["slabs"]
    row = pick(rng, [r for r in slabs if r["q_end"] - r["q_start"] > 1])
    at = rng.randrange(1, row["q_end"] - row["q_start"])
    other = {**row, "q_start": row["q_start"] + at}
    other["kv_start"] += at * row["start_slope"]
    other["kv_end"] += at * row["end_slope"]
    row["q_end"] = other["q_start"]
    slabs.insert(slabs.index(row) + 1, other)
    rng.shuffle(slabs)


def see_another_sequence(file: File, rng: random.Random) -> None:
    """Let a query see a key of another sequence."""
    rows = file.tables["sequences"]
    if len(rows) < 2:
        raise Undone
    border = rows[0]["end"]
    row = pick(rng, file.tables["slabs"])
    if row["q_start"] < border:
        row["kv_end"] = border + rng.randrange(1, 4)
    else:
        row["kv_start"] = border - rng.randrange(1, 4)


def join_sequences(file: File, rng: random.Random) -> None:
    """Call two sequences one, or put the border elsewhere, or add an empty one."""
    rows = file.tables["sequences"]
    match rng.randrange(3):
        case 0 if len(rows) > 1:
            rows[0]["end"] = rows.pop()["end"]
            for block in file.tables["blocks"]:
                block["sequence"] = 0
        case 1 if len(rows) > 1:
            rows[0]["end"] = rows[1]["start"] = rows[0]["end"] + rng.choice((-1, 1, 6))
        case _:
            rows.append({"sequence": len(rows), "start": rows[-1]["end"], "end": rows[-1]["end"]})
            if rng.random() < 0.5:
                samples = file.meta["provenance"]["samples"]
                empty = {
                    k: [] if isinstance(v, list) else 0 for k, v in json.loads(samples[0]).items()
                }
                samples.append(json.dumps(empty))


def move_border(file: File, rng: random.Random) -> None:
    """Move the border of two blocks, with or without a new count of pairs and bytes."""
    blocks = file.tables["blocks"]
    at = rng.randrange(1, len(blocks))
    border = blocks[at]["start"] + rng.choice((-2, -1, 1, 2))
    blocks[at]["start"] = blocks[at - 1]["end"] = border
    if rng.random() < 0.7:
        recount(file)
        for row in file.tables["transfers"]:
            old = base_tokens(file, row["block"])
            block = blocks[row["block"]]
            row["size_bytes"] = row["size_bytes"] // old * (block["end"] - block["start"])


def base_tokens(file: File, block: int) -> int:
    row = file.meta["blocks"][block]
    return int(row[1] - row[0])


def set_meta(*keys: str) -> Tamper:
    """Set another number or text in `meta.json`."""

    def tamper(file: File, rng: random.Random) -> None:
        place = file.meta
        for key in keys[:-1]:
            place = place[key]
        value = place.get(keys[-1])
        choices: tuple[Any, ...] = (None, -1, 0, 1, 2, 3, 4, 8, "", "x", [], {}, True, 10**9, 1.5)
        if isinstance(value, int):
            choices = (*choices, value * 2, value + 1, value - 1)
        place[keys[-1]] = rng.choice(choices)

    return tamper


MASKS = ("causal", "m", "m and q - k < 5", "m or q == k", "full", "sliding(100) and m", "q == k")


def provenance(file: File, rng: random.Random) -> None:
    """Name another mask, sample or text than the one that the plan was made from."""
    source = file.meta["provenance"]
    match rng.randrange(4):
        case 0:
            source["mask"] = rng.choice(MASKS)
        case 1:
            sample = json.loads(source["samples"][0])
            key = pick(rng, sorted(sample))
            if isinstance(sample[key], list):
                sample[key] = sample[key][::-1]
            else:
                sample[key] += rng.choice((-1, 1))
            source["samples"][0] = json.dumps(sample)
        case 2:
            swaps = (("causal", "full"), ("== 0", "== 1"), ("12", "13"), ("!= 1", "!= 2"))
            swaps += (("question or", "answer or"), ("and", "or"))
            source["spec"] = source["spec"].replace(*rng.choice(swaps))
        case 3:
            source["origin"] = "elsewhere"


def merge_events(file: File, rng: random.Random) -> None:
    """Cut the events into traces of other sizes."""
    total = len(file.tables["events"])
    at = rng.randrange(-1, total + 2)
    source = file.meta["traces"][0]["source"]
    file.meta["traces"] = [{"source": source, "events": n} for n in (at, total - at)]


# Each sentence stands in docs/dcpplan.md as it is here; `test_tampers.py` sees to that.
SENTENCES: tuple[tuple[str, tuple[Tamper, ...]], ...] = (
    ("number of head groups, 2 or more; absent for one", (set_meta("head_groups"),)),
    ("rows of every table", (set_meta("tables", "tiles"), set_meta("tables", "events"))),
    ("how the rows of `events` are cut into traces, in order", (merge_events,)),
    ("the tables need `nodes`", (set_meta("cluster", "nodes"), set_meta("cluster", "devices"))),
    (
        "`q_heads`, `kv_heads`",
        tuple(set_meta("shape", k) for k in ("q_heads", "kv_heads", "head_dim", "dtype_bytes")),
    ),
    ("`float32_partials` (absent: false)", (set_meta("shape", "float32_partials"),)),
    (
        "compiles the mask from `provenance`, compares it with the plan's, pair by pair",
        (provenance, provenance),
    ),
    ("equals the next start", (change("sequences", "start", "end", "sequence"),)),
    ("No token sees another sequence", (see_another_sequence, join_sequences)),
    (
        "they tile the batch in order and never cross a sequence",
        (
            change("blocks", "block", "sequence", "start", "end"),
            swap("blocks"),
            drop("blocks"),
            double("blocks"),
            move_border,
        ),
    ),
    (
        "device that holds q, k, v, out and lse of these tokens",
        (change("blocks", "owner"), move_owner),
    ),
    ("sorted by (`q_block`, `kv_block`)", (swap("tiles", is_near=True), swap("tiles"))),
    ("Non-empty tiles of the attention matrix", (drop("tiles"), double("tiles"))),
    ("row of `blocks` whose queries it holds", (change("tiles", "q_block", "kv_block"),)),
    ("1 partial, 2 full", (change("tiles", "kind"),)),
    ("visible (query, key) pairs", (change("tiles", "pairs"),)),
    ("who computes it, forward and backward", (change("tiles", "device"), move_tile)),
    (
        "the step of forward that computes it",
        (change("tiles", "division", "backward_division"), move_tile, attention_division),
    ),
    (
        "head group, only with `head_groups`",
        (change("tiles", "q_block", "group"), change("transfers", "block", "group")),
    ),
    ("any order says the same", (swap("transfers", is_near=True), swap("transfers"))),
    (
        "2 OUT (with lse; only forward), 3 DQ, 4 DKV (both only backward)",
        (change("transfers", "kind", "is_backward"),),
    ),
    ("another device |", (change("transfers", "source", "target"),)),
    ("of the block's tokens and all heads", (change("transfers", "size_bytes", "block"),)),
    ("0: the source has the data of its own", (change("transfers", "hop"), both_hops)),
    (
        "first row that it takes in the target's receive buffer",
        (change("transfers", "slot"), slots),
    ),
    ("receives it exactly once", (drop("transfers"), double("transfers"), reroute)),
    ("Results are the same tree\nbackwards", (reroute,)),
    ("first instruction of every device is its only `copy`", (items_of("copy"), move("copy"))),
    ("each is in one such instruction of its device, with its division", (items_of("attention"),)),
    (
        "both ends launch\neach transfer once, in its division",
        (items_of("launch"), launch_division),
    ),
    ("is launched in the same order at both ends", (launch_order, move("launch", far=4))),
    ("A device launches a key once", (new_key, cut_launch, join_launches)),
    (
        "have arrived and left; no wait stands still for ever",
        (move("wait"), move("wait", far=3), move("launch")),
    ),
    ("A tile reads inputs that have been waited for", (move("attention"), move("wait"))),
    ("it leaves when it is there", (move("launch"), both_hops)),
    ("launched after the last tile that adds to it", (move("launch"), move("attention", far=3))),
    ("that have been waited for, each once", (items_of("reduction"), move("reduction"))),
    (
        "from the launch of its receive\nuntil the last instruction that reads it",
        (slots, move("launch", far=5)),
    ),
    ("its rows stay taken until the result of that block has left", (slots, move("wait", far=6))),
    (
        "The program of every device in each direction",
        (
            change("instructions", "direction", "device", "position"),
            drop("instructions"),
            double("instructions"),
            swap("instructions"),
        ),
    ),
    (
        "at least 0 for a launch, and for the wait of the same device",
        (change("instructions", "key"), new_key),
    ),
    (
        "at least 0; -1 for a copy",
        (change("instructions", "division"), change("instructions", "op")),
    ),
    ("empty for a wait", (items_of("launch", "attention", "reduction", "wait"),)),
    (
        "The exact mask, as disjoint slabs",
        (
            change("slabs", "q_start", "q_end", "kv_start", "kv_end", "start_slope", "end_slope"),
            drop("slabs"),
            double("slabs"),
            mask_and_pairs,
            cut_slab,
            swap("slabs"),
        ),
    ),
    (
        "Their sequences have no rows in `slabs`",
        (
            change("forms", "kind", "q_start", "kv_start", "tokens"),
            drop("forms"),
            double("forms"),
            mask_and_pairs,
        ),
    ),
    ("`items` by `kind`", (mask_and_pairs,)),
    (
        "within a trace sorted by (device, lane, start)",
        (swap("events"), change("events", "start_ns", "kind", "source")),
    ),
    (
        "Devices and transfers are those of the plan; divisions, bytes and times",
        (
            change(
                "events",
                "device",
                "peer",
                "transfer",
                "division",
                "size_bytes",
                "ready_ns",
                "end_ns",
            ),
        ),
    ),
)


UNDONE = (Undone, KeyError, IndexError, ValueError, StopIteration, pa.ArrowException, OverflowError)


def tamper_of(seed: int) -> tuple[File, str]:
    """Make the file of one seed, and the sentence it is about."""
    rng = random.Random(f"tamper {seed}")
    while True:
        number = rng.randrange(len(SPECS))
        file, before = base(number), base(number)
        file.meta["blocks"] = [(b["start"], b["end"]) for b in file.tables["blocks"]]
        sentence, tampers = rng.choice(SENTENCES)
        try:
            rng.choice(tampers)(file, rng)
            del file.meta["blocks"]
            if file == before:
                continue
            if all(file.meta[key] == before.meta[key] for key in ("tables", "traces")):
                file.count()
            file.write(io.BytesIO())  # whatever Arrow cannot hold is drawn anew
        except UNDONE:
            continue
        return file, sentence
