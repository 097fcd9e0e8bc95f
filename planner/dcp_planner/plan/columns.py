"""A plan and its traces as the columns of a plan file's tables, and back."""

from collections.abc import Sequence
from typing import cast, get_args

import numpy as np

from dcp_dsl import Slabs, printable
from dcp_dsl.arrays import Indices
from dcp_dsl.forms import PlacedForm, form_of, items_of
from dcp_planner.errors import PlanFileError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.placement import PlanWarning
from dcp_planner.plan.arrow_tables import Columns
from dcp_planner.simulation.trace import COLUMNS, EVENT_KINDS, Source, Trace, index_names
from dcp_planner.tables.plan import Blocks, ComputeBlocks, Plan, Provenance, Transfers, columns_of
from dcp_planner.tables.programs import OPS, ProgramTable, restore_programs, tabulate_programs

_DIRECTIONS = ("forward", "backward")
_MOST = 2**53  # nanoseconds are 104 days, and exact as float64
_SLABS = ("q_start", "q_end", "kv_start", "kv_end", "start_slope", "end_slope")


def columns_of_plan(plan: Plan) -> dict[str, Columns]:
    """Lay out every table of a plan but `events`; `forms` only if the plan has some."""
    cu, programs = plan.cu_seqlens, tabulate_programs(plan)
    forms = {"forms": _columns_of_forms(plan.forms)} if plan.forms else {}
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


def columns_of_traces(traces: tuple[Trace, ...]) -> Columns:
    """Lay out the `events` table: all traces one behind the other.

    Raises:
        PlanFileError: if one lasts longer than a file can say.
    """
    longest_ns = max((int(trace.end_ns.max(initial=0)) for trace in traces), default=0)
    if longest_ns >= _MOST:
        raise PlanFileError(
            f"a plan file holds traces of at most {_MOST / 8.64e13:.0f} days, got one of "
            f"{longest_ns / 8.64e13:,.0f}; plan fewer tokens, or more devices"
        )
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
    tables: dict[str, Columns],
    cluster: Cluster,
    shape: ModelShape,
    partitioner: str,
    provenance: Provenance | None,
    warnings: tuple[PlanWarning, ...],
    head_groups: int = 1,
) -> Plan:
    """Build a plan from its tables; not validated yet.

    Raises:
        ValueError: if values do not fit their columns.
    """
    sequences = tables["sequences"]
    _check_numbers("sequences.sequence", sequences["sequence"])
    # Row i of our tables is number i and no column says so; that of a file could differ.
    for name, key in (("blocks", "block"), ("transfers", "transfer")):
        _check_numbers(f"{name}.{key}", tables[name][key])
    cu = np.append(0, sequences["end"])
    if not np.array_equal(cu[:-1], sequences["start"]):
        raise ValueError("sequences: expected each start at the end before it")
    slabs = tables["slabs"]
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
        slabs=Slabs(int(cu[-1]), *(slabs[name] for name in _SLABS)),
        forward=forward,
        backward=backward,
        partitioner=partitioner,
        provenance=provenance,
        warnings=warnings,
        head_groups=head_groups,
        forms=forms,
    )


def traces_of_columns(
    events: Columns, sources: Sequence[str], sizes: Sequence[int], plan: Plan
) -> tuple[Trace, ...]:
    """Cut the `events` table into traces of the given sources and numbers of events.

    Raises:
        ValueError: if the sizes do not add up, a source or kind is unknown, a number is out of its
            range, or an event names a device or transfer that the plan does not have.
    """
    if sum(sizes) != len(events["source"]):
        raise ValueError(f"events: expected {sum(sizes)} rows in all traces, got fewer or more")
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return tuple(
        _trace(events, source, slice(end - size, end), plan)
        for source, size, end in zip(sources, sizes, ends, strict=True)
    )


def _trace(events: Columns, source: str, part: slice, plan: Plan) -> Trace:
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
    order = np.lexsort((trace.start_ns, trace.lane, trace.device))
    if (np.diff(order) < 0).any():
        raise ValueError("events: expected each trace sorted by (device, lane, start)")
    return trace


def _columns_of_forms(forms: Sequence[PlacedForm]) -> Columns:
    kinds, items = zip(*(items_of(placed.form) for placed in forms), strict=True)
    return {
        "kind": list(kinds),
        "q_start": np.array([placed.q_start for placed in forms]),
        "kv_start": np.array([placed.kv_start for placed in forms]),
        "tokens": np.array([placed.form.num_tokens for placed in forms]),
        "items": (np.cumsum([0, *map(len, items)]), np.concatenate(items)),
    }


def _forms_of(columns: Columns, num_tokens: int) -> tuple[PlacedForm, ...]:
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


def _program_table(columns: Columns) -> ProgramTable:
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


def _without(columns: Columns, key: str) -> Columns:
    return {name: column for name, column in columns.items() if name != key}


def _check_numbers(name: str, column: Indices) -> None:
    if not np.array_equal(column, np.arange(len(column))):
        raise ValueError(f"{name}: expected 0, 1, 2, ...")
