"""A plan and its traces as columns: the tables of a plan file, and the part of each device.

A part is the message that a planner sends to one rank. It keeps the row numbers of tiles and
transfers, because both ends of a message name it by its row; rows of other devices are blank. It
holds no provenance.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs, printable
from dcp_dsl.arrays import Bools, Indices, Ints
from dcp_dsl.forms import BlockKind, PlacedForm, form_of, items_of
from dcp_planner.errors import PlanFileError
from dcp_planner.model.cluster import Cluster, ModelShape, devices_of_json
from dcp_planner.model.problem import PlanWarning
from dcp_planner.simulation.trace import COLUMNS, EVENT_KINDS, Source, Trace, index_names
from dcp_planner.tables.plan import (
    SCHEMA,
    Blocks,
    ComputeBlocks,
    Plan,
    Provenance,
    Transfers,
    columns_of,
)
from dcp_planner.tables.programs import (
    OPS,
    ProgramTable,
    digest,
    restore_programs,
    tabulate_programs,
)

if TYPE_CHECKING:  # pyarrow: ranks that read their part need none
    from dcp_planner.plan.arrow_tables import Columns

_DIRECTIONS = ("forward", "backward")
_MOST = 2**53  # nanoseconds: 104 days, and whole numbers up to here are exact as float64
_SLABS = ("q_start", "q_end", "kv_start", "kv_end", "start_slope", "end_slope")


def columns_of_plan(plan: Plan) -> "dict[str, Columns]":
    """Lay out every table of a plan except `events`; `forms` only if the plan has some."""
    cu, programs = plan.cu_seqlens, tabulate_programs(plan)
    forms = {"forms": _columns_of_forms(plan.forms)} if plan.forms else {}
    # The columns `sequence`, `block` and `transfer` number the rows for other readers of the file;
    # reading checks these numbers and drops them.
    return {
        **forms,
        "sequences": {"sequence": np.arange(len(cu) - 1), "start": cu[:-1], "end": cu[1:]},
        "blocks": {"block": np.arange(len(plan.blocks)), **columns_of(plan.blocks)},
        "tiles": dict(columns_of(plan.tiles)),
        "transfers": {"transfer": np.arange(len(plan.transfers)), **columns_of(plan.transfers)},
        "instructions": {
            "direction": [_DIRECTIONS[b] for b in programs.is_backward.astype(int).tolist()],
            "device": programs.device,
            "position": programs.position,
            "op": [OPS[op] for op in programs.op.tolist()],
            "key": programs.key,
            "division": programs.division,
            "items": (programs.item_ptr, programs.items),
        },
        "slabs": {name: getattr(plan.slabs, name) for name in _SLABS},
    }


def columns_of_traces(traces: tuple[Trace, ...]) -> "Columns":
    """Lay out the `events` table: all traces one behind the other."""
    too_long = [trace for trace in traces if (trace.end_ns >= _MOST).any()]
    if too_long:
        longest_ns = max(int(trace.end_ns.max()) for trace in too_long)
        raise PlanFileError(
            f"a plan file holds traces of at most {_MOST / 8.64e13:.0f} days, got one of "
            f"{longest_ns / 8.64e13:,.0f}; plan fewer tokens, or more devices"
        )
    # The empty array stands for a file without traces: numpy concatenates at least one.
    columns: Columns = {
        name: np.concatenate([np.empty(0, np.int64), *(getattr(t, name) for t in traces)])
        for name in COLUMNS
    }
    columns["is_backward"] = columns["is_backward"].astype(np.bool_)
    columns["source"] = [t.source for t in traces for _ in range(len(t))]
    columns["kind"] = [EVENT_KINDS[kind] for t in traces for kind in t.kind.tolist()]
    columns["name"] = [t.names[name] for t in traces for name in t.name.tolist()]
    return columns


def plan_of_columns(
    tables: "dict[str, Columns]",
    cluster: Cluster,
    shape: ModelShape,
    partitioner: str,
    provenance: Provenance | None,
    warnings: tuple[PlanWarning, ...],
    head_groups: int,
) -> Plan:
    """Build a plan from its tables; it is not validated yet."""
    # In a plan the number of a row is its position; a file could number its rows otherwise.
    for name, key in (("sequences", "sequence"), ("blocks", "block"), ("transfers", "transfer")):
        if not np.array_equal(tables[name][key], np.arange(len(tables[name][key]))):
            raise ValueError(f"{name}.{key}: expected 0, 1, 2, ...")
    sequences = tables["sequences"]
    cu = np.append(0, sequences["end"])
    if not np.array_equal(cu[:-1], sequences["start"]):
        raise ValueError("sequences: expected each start at the end before it")
    forms = _forms_of(tables["forms"], int(cu[-1])) if "forms" in tables else ()
    forward, backward = restore_programs(
        _program_table(tables["instructions"]), cluster.num_devices
    )
    return Plan(
        cluster=cluster,
        shape=shape,
        cu_seqlens=cu,
        blocks=Blocks(**_without(tables["blocks"], "block")),
        tiles=ComputeBlocks(**tables["tiles"]),
        transfers=Transfers(**_without(tables["transfers"], "transfer")),
        slabs=Slabs(int(cu[-1]), **tables["slabs"]),
        forward=forward,
        backward=backward,
        partitioner=partitioner,
        provenance=provenance,
        warnings=warnings,
        head_groups=head_groups,
        forms=forms,
    )


def traces_of_columns(
    events: "Columns", sources: Sequence[str], sizes: Sequence[int], plan: Plan
) -> tuple[Trace, ...]:
    """Cut the `events` table into traces of the given sources and numbers of events."""
    if sum(sizes) != len(events["source"]):
        raise ValueError(f"events: expected {sum(sizes)} rows in all traces, got fewer or more")
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return tuple(
        _trace(events, source, slice(end - size, end), plan)
        for source, size, end in zip(sources, sizes, ends, strict=True)
    )


def _trace(events: "Columns", source: str, part: slice, plan: Plan) -> Trace:
    others = set(events["source"][part]) - {source}
    if others:
        raise ValueError(f"events: expected the source {source!r}, got {min(others)!r}")
    if source not in get_args(Source):
        raise ValueError(f"events: expected a source of {get_args(Source)}, got {source!r}")
    kinds = events["kind"][part]
    unknown = set(kinds) - set(EVENT_KINDS)
    if unknown:
        raise ValueError(f"events.kind: expected one of {EVENT_KINDS}, got {min(unknown)!r}")
    numbers = {name: events[name][part] for name in COLUMNS if name != "kind"}
    devices = plan.num_devices
    ranges = {"device": (0, devices), "peer": (-1, devices), "transfer": (-1, len(plan.transfers))}
    for column, values in numbers.items():
        least, end = ranges.get(column, (0, _MOST))
        if len(values) and not least <= values.min() <= values.max() < end:
            raise ValueError(
                f"events.{column}: expected {least} to {end - 1}, got {values.min()} to "
                f"{values.max()}"
            )
    name, names = index_names(list(map(printable, events["name"][part])))
    kind = np.array([EVENT_KINDS.index(kind) for kind in kinds], np.uint8)
    trace = Trace(cast("Source", source), kind=kind, name=name, names=names, **numbers)
    # Already sorted if a stable sort leaves every row where it is.
    order = np.lexsort((trace.start_ns, trace.lane, trace.device))
    if (np.diff(order) < 0).any():
        raise ValueError("events: expected each trace sorted by (device, lane, start)")
    return trace


def _columns_of_forms(forms: Sequence[PlacedForm]) -> "Columns":
    """Lay out the `forms` table: a row for each form, its numbers as a list of any length."""
    kinds, items = zip(*(items_of(placed.form) for placed in forms), strict=True)
    return {
        "kind": list(kinds),
        "q_start": np.array([placed.q_start for placed in forms]),
        "kv_start": np.array([placed.kv_start for placed in forms]),
        "tokens": np.array([placed.form.num_tokens for placed in forms]),
        "items": (np.cumsum([0, *map(len, items)]), np.concatenate(items)),
    }


def _forms_of(columns: "Columns", num_tokens: int) -> tuple[PlacedForm, ...]:
    pointers, items = columns["items"]
    tokens = columns["tokens"].tolist()
    if any(not 0 < own <= num_tokens for own in tokens):
        raise ValueError(f"forms.tokens: expected 1 to {num_tokens}, got {tokens[:8]}")
    places = zip(columns["q_start"].tolist(), columns["kv_start"].tolist(), strict=True)
    return tuple(
        PlacedForm(form_of(kind, own, items[first:last]), *place)
        for kind, own, place, first, last in zip(
            columns["kind"], tokens, places, pointers[:-1], pointers[1:], strict=True
        )
    )


def _program_table(columns: "Columns") -> ProgramTable:
    for name, known in (("direction", _DIRECTIONS), ("op", OPS)):
        unknown = set(columns[name]) - set(known)
        if unknown:
            raise ValueError(f"instructions.{name}: expected one of {known}, got {min(unknown)!r}")
    item_ptr, items = columns["items"]
    return ProgramTable(
        is_backward=np.array([d == "backward" for d in columns["direction"]], np.bool_),
        device=columns["device"],
        position=columns["position"],
        op=np.array([OPS.index(op) for op in columns["op"]], np.uint8),
        key=columns["key"],
        division=columns["division"],
        item_ptr=item_ptr,
        items=items,
    )


def _without(columns: "Columns", key: str) -> "Columns":
    return {name: column for name, column in columns.items() if name != key}


_META = "meta"
# Errors that zipfile, zlib and numpy raise for damaged bytes, and our own code for damaged values.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, EOFError,
            RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)  # fmt: skip
_BLANK = {"kind": BlockKind.FULL, "device": -1, "source": -1, "target": -1}
"""Values in the rows of other devices; 0 in the columns that are not named."""

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PlanPart:
    """The part of a plan that one device needs."""

    device: int  # the device that needs it
    digest: str  # of the whole plan; equal on all ranks that run it
    # the plan, with blank rows for other devices: unfit for `validate`, `measure` and `simulate`
    plan: Plan

    @property
    def num_devices(self) -> int:
        """Devices of the whole plan."""
        return self.plan.num_devices

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed batch."""
        return self.plan.num_tokens

    @property
    def cu_seqlens(self) -> Indices:
        """Sequences of the packed batch, int32 ``[S+1]``."""
        return self.plan.cu_seqlens

    def local_tokens(self, device: int) -> Ints:
        """Return packed positions of the tokens that a device owns: this one or another."""
        return self.plan.local_tokens(device)


def encode_parts(plan: Plan) -> list[bytes]:
    """Encode every device's part of a plan as bytes for `decode_part`, in device order."""
    name, programs = digest(plan), tabulate_programs(plan)
    return [_encode(plan, device, name, programs) for device in range(plan.num_devices)]


def _encode(plan: Plan, device: int, name: str, programs: ProgramTable) -> bytes:
    transfers = plan.transfers
    mine = (transfers.source == device) | (transfers.target == device)
    arrays: Arrays = {"cu_seqlens": plan.cu_seqlens}
    # All blocks travel: a rank asks for the tokens of any device (`PlanPart.local_tokens`).
    _add(arrays, "blocks", plan.blocks, np.arange(len(plan.blocks)))
    _add(arrays, "tiles", plan.tiles, np.flatnonzero(plan.tiles.device == device))
    _add(arrays, "transfers", transfers, np.flatnonzero(mine))
    own_steps = programs.chosen(np.flatnonzero(programs.device == device))
    arrays |= {f"programs.{name}": values for name, values in own_steps.items()}
    arrays["slabs"] = plan.slabs.table()[_slabs_met(plan, arrays["tiles.q_block"])]
    forms: list[tuple[str, int, int, int]] = []
    for placed in plan.forms:
        if _meets(placed, plan, arrays["tiles.q_block"]):
            kind, arrays[f"forms.{len(forms)}"] = items_of(placed.form)
            forms.append((kind, placed.q_start, placed.kv_start, placed.form.num_tokens))
    meta: dict[str, Any] = {  # Any: a JSON document
        "schema": SCHEMA,
        "device": device,
        "digest": name,
        "partitioner": plan.partitioner,
        "cluster": plan.cluster.to_json(),
        "shape": plan.shape.to_json(),
        "rows": {"tiles": len(plan.tiles), "transfers": len(transfers)},
    }
    if plan.head_groups > 1:
        meta["head_groups"] = plan.head_groups
    if forms:
        meta["forms"] = forms
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]  # a keyword has another type
    return data.getvalue()


def decode_part(data: bytes) -> PlanPart:
    """Read the bytes of a part that `encode_parts` wrote."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays: Arrays = {name: found[name] for name in found.files}
        meta = json.loads(arrays[_META].tobytes())
        if meta["schema"] != SCHEMA:
            raise PlanFileError(f"expected a part of a {SCHEMA!r} plan, got {meta['schema']!r}")
        return PlanPart(int(meta["device"]), str(meta["digest"]), _restore(arrays, meta))
    except _DAMAGED as error:
        raise PlanFileError(f"expected a part of a plan, got {len(data)} bytes: {error}") from error


def _restore(arrays: Arrays, meta: dict[str, Any]) -> Plan:  # Any: a JSON document
    given = meta["cluster"]
    if "devices" in given:
        given["devices"] = devices_of_json(given["devices"])
    cluster, cu = Cluster(**given), arrays["cu_seqlens"]
    rows = meta["rows"]
    # Any: columns of several types, which the table checks
    steps: dict[str, Any] = {f.name: arrays[f"programs.{f.name}"] for f in fields(ProgramTable)}
    forward, backward = restore_programs(ProgramTable(**steps), cluster.num_devices)
    return Plan(
        cluster=cluster,
        shape=ModelShape(**meta["shape"]),
        cu_seqlens=cu.astype(np.int32),
        blocks=Blocks(**_table(arrays, "blocks", len(arrays["blocks.row"]))),
        tiles=ComputeBlocks(**_table(arrays, "tiles", int(rows["tiles"]))),
        transfers=Transfers(**_table(arrays, "transfers", int(rows["transfers"]))),
        slabs=Slabs(int(cu[-1]), *arrays["slabs"].T),
        forward=forward,
        backward=backward,
        partitioner=meta["partitioner"],
        head_groups=int(meta.get("head_groups", 1)),
        forms=tuple(
            PlacedForm(form_of(kind, own, arrays[f"forms.{n}"].astype(np.int64)), q_start, kv_start)
            for n, (kind, q_start, kv_start, own) in enumerate(meta.get("forms", ()))
        ),
    )


def _add(arrays: Arrays, name: str, table: Blocks | ComputeBlocks | Transfers, rows: Ints) -> None:
    arrays[f"{name}.row"] = rows
    for column, values in columns_of(table).items():
        arrays[f"{name}.{column}"] = values[rows]


# Any: columns of several types
def _table(arrays: Arrays, name: str, size: int) -> dict[str, Any]:
    """Rebuild the columns of a whole table; rows that did not travel are blank."""
    rows = arrays[f"{name}.row"]
    columns = {}
    for key, values in arrays.items():
        table, _, column = key.partition(".")
        if table == name and column != "row":
            whole = np.full(size, _BLANK.get(column, 0), values.dtype)
            whole[rows] = values
            columns[column] = whole
    return columns


def _meets(placed: PlacedForm, plan: Plan, q_blocks: NDArray[np.generic]) -> bool:
    """Check whether some of the given blocks have queries of a form."""
    start = plan.blocks.start[q_blocks]
    return bool(((placed.q_start <= start) & (start < placed.q_end)).any())


def _slabs_met(plan: Plan, q_blocks: NDArray[np.generic]) -> Bools:
    """Find the slabs that have rows in some of the given blocks; O(slabs log blocks)."""
    is_mine = np.zeros(len(plan.blocks), np.int64)
    is_mine[q_blocks] = 1
    # A slab covers the blocks `first` to `last - 1`; prefix sums count the given ones among them.
    before = np.append(0, np.cumsum(is_mine))
    first = np.searchsorted(plan.blocks.end, plan.slabs.q_start, side="right")
    last = np.searchsorted(plan.blocks.start, plan.slabs.q_end, side="left")
    met: Bools = before[last] > before[first]
    return met
