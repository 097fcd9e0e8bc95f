"""Emit a plan: from placement and schedule to transfers and one program per device.

`routing` chooses the ways of blocks, `stages` the order in which everybody acts, `slots` the rows
of arriving blocks. Empty launches, waits, attentions and reductions are left out.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import DIRECTIONS, Direction, Workload
from dcp_planner.schedule.divisions import Schedule
from dcp_planner.schedule.routing import Needs, Stays, find_needs
from dcp_planner.schedule.slots import allocate_rows
from dcp_planner.schedule.stages import AHEAD, Stages
from dcp_planner.tables.head_groups import expand_placement, fold_head_groups
from dcp_planner.tables.memory import bytes_per_token
from dcp_planner.tables.plan import (
    Blocks,
    ComputeBlocks,
    Plan,
    Provenance,
    TransferKind,
    Transfers,
    columns_of,
)
from dcp_planner.tables.programs import LAUNCH, REDUCTION, Programs, ProgramTable


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """All tables of one direction of a plan.

    Attributes:
        transfers: of this direction, sorted: inputs before results, division, hop, block, source,
            target, kind.
        programs: instructions of all devices; their transfers are rows of `transfers`.
    """

    transfers: Transfers
    programs: ProgramTable


@dataclass(frozen=True, slots=True, eq=False)
class _TransferRows:
    """Transfers in the making, with the span of divisions in which their rows are taken."""

    kind: Ints
    block: Ints
    source: Ints
    target: Ints
    division: Ints
    hop: Ints
    taken: Ints
    freed: Ints

    @classmethod
    def joined(cls, parts: "list[_TransferRows]") -> "_TransferRows":
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def sorted(self, num_blocks: int, num_devices: int) -> "_TransferRows":
        """Bring the rows into the order of a plan's table."""
        is_result = self.kind >= TransferKind.OUT
        span = int(self.division.max(initial=0)) + 1
        first = ((is_result * span + self.division) * 256 + self.hop) * num_blocks + self.block
        order = np.lexsort(((self.source * num_devices + self.target) * 8 + self.kind, first))
        return _TransferRows(*(getattr(self, f.name)[order] for f in fields(self)))


def emit(
    direction: Direction,
    workload: Workload,
    placement: Placement,
    division: Indices,
    needs: tuple[Needs, Needs],
    num_devices: int,
    *,
    is_frugal: bool,
) -> Emission:
    """Write transfers and programs of one direction; O((W + X) log).

    An input is listed under the first division that needs it at its target or behind it, a result
    under the last division that adds to it at its source or behind it.
    """
    is_backward = direction == "backward"
    rows = _TransferRows.joined(
        [
            part
            for side, need in zip(("q", "kv"), needs, strict=True)
            for part in _rows_of(side, need, division, is_backward, is_frugal)
        ]
    ).sorted(workload.num_blocks, num_devices)
    tokens = workload.block_tokens[rows.block]
    sizes = bytes_per_token(workload.shape, direction)
    group = rows.target * len(TransferKind) + rows.kind
    transfers = Transfers(
        is_backward=np.full(len(rows.kind), is_backward),
        kind=rows.kind.astype(np.uint8),
        block=rows.block.astype(np.int32),
        source=rows.source.astype(np.int32),
        target=rows.target.astype(np.int32),
        division=rows.division.astype(np.int32),
        size_bytes=tokens * sizes[rows.kind],
        hop=rows.hop.astype(np.uint8),
        slot=allocate_rows(group, rows.taken, rows.freed, tokens).astype(np.int32),
    )
    programs = _tabulate(
        rows, division, placement, num_devices, is_backward=is_backward,
        is_frugal=is_frugal,
    )  # fmt: skip
    return Emission(transfers, programs)


def _rows_of(
    side: str, needs: Needs, division: Indices, is_backward: bool, is_frugal: bool
) -> list[_TransferRows]:
    """List inputs and results of one side of the tiles."""
    first, last = _first_and_last(needs, division)
    size, is_gateway = len(needs.block), needs.height > 0
    arrives, leaves, sent_on = first, last.copy(), np.zeros(size, np.int64)
    for hop in range(int(needs.hop.max(initial=0)), 0, -1):
        fed = np.flatnonzero(needs.hop == hop)
        for function, values, of in (
            (np.minimum, arrives, arrives), (np.maximum, leaves, leaves),
            (np.maximum, sent_on, arrives + 1),
        ):  # fmt: skip
            function.at(values, needs.feeder[fed], of[fed])
    forever = int(division.max(initial=0)) + 8
    has_result = side == "q" or is_backward
    out_hop = needs.height
    if not is_frugal:
        sent_on[:] = forever
    freed = np.where(is_gateway, np.maximum(last + 1, sent_on), last + 1)
    if has_result:
        freed = np.maximum(freed, leaves + out_hop + 2 if is_frugal else forever)
    inputs = _TransferRows(
        kind=np.full(size, TransferKind.Q if side == "q" else TransferKind.KV, np.int64),
        block=needs.block,
        source=needs.peer,
        target=needs.device,
        division=arrives,
        hop=needs.hop,
        taken=np.maximum(arrives - AHEAD[is_frugal], 0),
        freed=freed,
    )
    if not has_result:
        return [inputs]
    kind = (TransferKind.DQ if is_backward else TransferKind.OUT) if side == "q" else (
        TransferKind.DKV
    )  # fmt: skip
    is_held = (needs.hop == 0) & (not is_frugal)  # came home, merged at the end
    results = _TransferRows(
        kind=np.full(size, kind, np.int64),
        block=needs.block,
        source=needs.device,
        target=needs.peer,
        division=leaves,
        hop=out_hop,
        taken=leaves + out_hop,
        freed=np.where(is_held, forever + 8, leaves + out_hop + 2),
    )
    return [inputs, results]


def _first_and_last(needs: Needs, division: Indices) -> tuple[Ints, Ints]:
    """Return the first and the last division that computes with each need."""
    remote = np.flatnonzero(needs.need_of_tile >= 0)
    of, at = needs.need_of_tile[remote], division[remote].astype(np.int64)
    size = len(needs.block)
    first, last = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(first, of, at)
    np.maximum.at(last, of, at)
    return first, last


def _tabulate(
    rows: _TransferRows,
    division: Indices,
    placement: Placement,
    num_devices: int,
    *,
    is_backward: bool,
    is_frugal: bool,
) -> ProgramTable:
    """Sort what has to be done by device and stage."""
    into = rows.kind < TransferKind.OUT
    home = ~into & (rows.target == placement.device_of_data[rows.block])
    out = ~into & ~home
    hops = [int(rows.hop[chosen].max(initial=0)) + 1 for chosen in (into, ~into)]
    stages = Stages(int(division.max(initial=0)) + 1, hops[0], hops[1], is_frugal)
    transfer, blocks = np.arange(len(rows.kind)), np.arange(len(placement.device_of_data))
    parts: list[tuple[NDArray[np.integer], ...]] = [
        (placement.device_of_data, np.zeros(len(blocks), np.int64), blocks)
    ]
    parts.append(
        (placement.device_of_compute, stages.attention[division], np.arange(len(division)))
    )
    for chosen, device, stage in (
        (into, rows.target, stages.take_in), (into, rows.source, stages.send_in),
        (out, rows.target, stages.take_out), (out, rows.source, stages.send_out),
        (home, rows.target, stages.take_home), (home, rows.source, stages.send_home),
        (out, rows.target, stages.merge_out), (home, rows.target, stages.merge_home),
    ):  # fmt: skip
        x = transfer[chosen]
        parts.append((device[x], stage[rows.division[x], rows.hop[x]], x))
    device, stage, item = (np.concatenate([p[n] for p in parts]).astype(np.int64) for n in range(3))
    return _table_of(device * len(stages.op) + stage, item, stages, num_devices, is_backward)


def _table_of(
    place: Ints, item: Ints, stages: Stages, num_devices: int, is_backward: bool
) -> ProgramTable:
    """Make instructions of items; `place` is device and stage in one number."""
    width = len(stages.op)
    both = np.sort(place << 32 | item)
    place, item = both >> 32, both & 0xFFFFFFFF
    starts = np.flatnonzero(np.diff(place, prepend=-1) != 0)
    held = place[starts]
    sizes = np.diff(np.append(starts, len(place)))
    wait_of = np.array(stages.wait_of)[held % width]
    waits = (held - held % width + wait_of)[wait_of >= 0]
    copies = np.setdiff1d(np.arange(num_devices) * width, held[held % width == 0])
    every = np.concatenate([held, waits, copies])
    counts = np.concatenate([sizes, np.zeros(len(waits) + len(copies), np.int64)])
    order = np.argsort(every)
    device, stage = np.divmod(every[order], width)
    index = np.arange(len(order), dtype=np.int32)
    is_first = np.diff(device, prepend=-1) != 0
    return ProgramTable(
        is_backward=np.full(len(order), is_backward),
        device=device,
        position=index - np.maximum.accumulate(np.where(is_first, index, 0)),
        op=np.array(stages.op)[stage],
        key=np.array(stages.key)[stage],
        division=np.array(stages.division)[stage],
        item_ptr=np.append(0, np.cumsum(counts[order])),
        items=item.astype(np.int32),
    )


def assemble(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    schedule: Schedule,
    partitioner: str,
    provenance: Provenance | None = None,
) -> Plan:
    """Emit the plan of a placed and scheduled workload, without validating it."""
    groups, real = placement.head_groups, workload
    workload, placement = expand_placement(workload, placement)
    forward, backward = (
        emit(
            direction, workload, placement, schedule.of(direction), needs, cluster.num_devices,
            is_frugal=manner.is_frugal,
        )
        for direction, manner, needs in zip(
            DIRECTIONS, schedule.manners, _find_needs(workload, placement, cluster, schedule),
            strict=True,
        )
    )  # fmt: skip
    devices = cluster.num_devices
    plan = Plan(
        cluster=cluster,
        shape=workload.shape,
        cu_seqlens=workload.cu_seqlens,
        blocks=Blocks(
            workload.block_sequence,
            workload.block_start,
            workload.block_end,
            placement.device_of_data,
        ),
        tiles=ComputeBlocks(
            workload.compute_q,
            workload.compute_kv,
            workload.compute_kind,
            workload.compute_pairs,
            placement.device_of_compute,
            schedule.division,
            schedule.backward_division,
        ),
        transfers=_joined(forward, backward),
        slabs=workload.slabs,
        forms=workload.forms,
        forward=Programs(forward.programs, devices),
        backward=Programs(_shifted(backward.programs, len(forward.transfers)), devices),
        partitioner=partitioner,
        provenance=provenance,
        warnings=placement.warnings,
    )
    return plan if groups == 1 else fold_head_groups(plan, real, groups)


def _find_needs(
    workload: Workload, placement: Placement, cluster: Cluster, schedule: Schedule
) -> list[tuple[Needs, Needs]]:
    """Find the needs of both directions; the same ones where blocks travel once, the same way."""
    first, second = schedule.manners
    are_same = first == second and first.idle is None and not first.is_striped
    found = [
        find_needs(
            workload, placement, cluster, manner.routing, Stays.of(schedule.of(d), manner.idle),
            d if manner.is_striped else None,
        )
        for d, manner in zip(DIRECTIONS[: 1 if are_same else 2], schedule.manners, strict=False)
    ]  # fmt: skip
    return found if len(found) > 1 else 2 * found


def _joined(forward: Emission, backward: Emission) -> Transfers:
    first, second = (columns_of(emission.transfers) for emission in (forward, backward))
    # Any: columns of several types, which the table checks
    both: dict[str, Any] = {name: np.concatenate([first[name], second[name]]) for name in first}
    return Transfers(**both)


def _shifted(programs: ProgramTable, by: int) -> ProgramTable:
    """Renumber the transfers of a program so that they follow `by` others."""
    names_transfers = np.isin(programs.op, (LAUNCH, REDUCTION))
    items = programs.items + by * names_transfers[programs.row_of_item()]
    return replace(programs, items=items)
