"""Plan files taken apart, and changes of any row of their tables.

`plan_tampers` says which change is about which sentence of docs/dcpplan.md.
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
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dcp_dsl import Sample, Spec
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, simulate
from dcp_planner.batches.batch import batch_of_samples
from dcp_planner.model.problem import DIRECTIONS, Placement, Workload, build_workload
from dcp_planner.plan.file import encode_plan
from dcp_planner.schedule.divisions import Manner, Schedule, Streaming, cut_streamed
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables.head_groups import expand_placement

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
    """Place a batch at random, so that every kind of transfer and passing on occurs.

    Half of the plans let go of blocks and receive them again. In the others, blocks cross through
    devices that do not need them: one device of each node has all data and tiles.
    """
    text, samples, shape, groups = SPECS[number]
    spec = Spec.from_text(text)
    (batch,) = batch_of_samples(spec, spec.mask("m"), samples, 6)
    workload, cluster = build_workload(batch.sparsity, shape), Cluster(2, 2)
    rng = np.random.default_rng(number + 5)
    sizes = (workload.num_blocks, workload.num_tiles * groups)
    placement = Placement(*(rng.integers(0, DEVICES, size) for size in sizes))
    placement = replace(placement, head_groups=groups)
    if number < 2:
        schedule = streamed(workload, placement)
    else:
        near = placement.device_of_data // 2 * 2, placement.device_of_compute // 2 * 2
        placement = Placement(*near, head_groups=groups)
        schedule = make_schedule(workload, placement, cluster, PlanConfig(divisions=3))
        manner = Manner("node", is_frugal=number == 2, is_striped=True)
        schedule = replace(schedule, manners=(manner, manner))
    plan = assemble(workload, cluster, placement, schedule, "any")
    return replace(plan, provenance=batch.provenance)


def streamed(workload: Workload, placement: Placement) -> Schedule:
    """Let go of blocks in every division that does without them: some are received twice."""
    placed = expand_placement(workload, placement)
    forward, backward = (
        cut_streamed(*placed, direction, 5, Streaming("keys", True, "pairs"))
        for direction in DIRECTIONS
    )
    manners = (Manner("node", is_frugal=True, idle=0), Manner("direct", is_frugal=True, idle=0))
    return Schedule(forward, backward, manners)


@cache
def held(number: int) -> bytes:
    plan = build(number)
    return pickle.dumps(File.of(encode_plan(plan, [simulate(plan)])))


def base(number: int) -> File:
    """Return a plan file that nothing was changed in."""
    return cast(File, pickle.loads(held(number)))


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
