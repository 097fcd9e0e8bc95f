"""Emit a plan: from placement and schedule to transfers and one program per device.

The module `routing` chooses the routes of blocks, `divisions` the order in which devices act,
`slots` the rows of arriving blocks. Empty launches, waits, attentions and reductions are left out.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dcp_dsl.arrays import Bytes, Indices, Ints, order_by, sealed
from dcp_planner.jit import IndexTable, IntTable, compiled
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.problem import DIRECTIONS, Direction, Placement, Workload
from dcp_planner.schedule.divisions import AHEAD, HOME, INTO, OUT, SEND, Schedule, stages_of
from dcp_planner.schedule.routing import MOST_HOPS, Needs, Stays, find_needs
from dcp_planner.schedule.slots import allocate_rows
from dcp_planner.tables.head_groups import expand_placement, fold_head_groups
from dcp_planner.tables.metrics import bytes_per_token
from dcp_planner.tables.plan import Blocks, ComputeBlocks, Plan, TransferKind, Transfers, columns_of
from dcp_planner.tables.programs import COPY, LAUNCH, REDUCTION, WAIT, Programs, ProgramTable

# Later than any division, with room to add to it in int64.
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """All tables of one direction of a plan."""

    # of this direction, sorted: inputs before results, division, hop, block, source, target, kind
    transfers: Transfers
    programs: ProgramTable  # instructions of all devices; their transfers are rows of `transfers`
    input_of_need: Ints  # `[N]`, the transfer that brings each need
    feeder: Ints  # `[X]`, the transfer that brought an input to its source, or -1


class _TransferRows(NamedTuple):
    """Columns of transfers, unsorted, with the divisions in which rows are taken and freed."""

    kind: Ints
    block: Ints
    source: Ints
    target: Ints
    division: Ints
    hop: Ints
    taken: Ints
    freed: Ints


def emit(
    direction: Direction,
    workload: Workload,
    placement: Placement,
    division: Indices,
    needs: Needs,
    num_devices: int,
    *,
    is_frugal: bool,
) -> Emission:
    """Write transfers and programs of one direction; O((W + X) log).

    The division of an input is the first that needs it, at its target or at a device that the
    target passes it on to. The division of a result is the last that adds to it, likewise.
    """
    is_backward = direction == "backward"
    inputs, results = _rows_of(needs, division, is_backward, is_frugal)
    rows = _TransferRows(*map(np.append, inputs, results))
    order = order_by(
        rows.kind >= TransferKind.OUT, rows.division, rows.hop, rows.block, rows.source,
        rows.target, rows.kind,
    )  # fmt: skip
    rows = _TransferRows(*(column[order] for column in rows))
    # Input i is the one of need i; `place` says where sorting puts it.
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    input_of_need = place[: len(needs.block)]
    feeder = np.full(len(order), -1)
    feeder[input_of_need] = np.where(needs.feeder >= 0, input_of_need[needs.feeder], -1)
    tokens = workload.block_tokens[rows.block]
    sizes = bytes_per_token(workload.shape, direction)
    slot = _slots(rows, tokens)
    transfers = Transfers(
        is_backward=sealed(np.full(len(rows.kind), is_backward)),
        kind=sealed(rows.kind.astype(np.uint8)),
        block=sealed(rows.block.astype(np.int32)),
        source=sealed(rows.source.astype(np.int32)),
        target=sealed(rows.target.astype(np.int32)),
        division=sealed(rows.division.astype(np.int32)),
        size_bytes=sealed(tokens * sizes[rows.kind]),
        hop=sealed(rows.hop.astype(np.uint8)),
        slot=sealed(slot.astype(np.int32)),
    )
    programs = _tabulate(rows, division, placement, num_devices, is_backward, is_frugal)
    return Emission(transfers, programs, input_of_need, feeder)


def _slots(rows: _TransferRows, tokens: Ints) -> Ints:
    """Find rows in the receive buffers: what comes from one device together lies together."""
    group = rows.target * len(TransferKind) + rows.kind
    order = order_by(group, rows.taken, rows.division, rows.hop, rows.source)
    columns = (column[order] for column in (group, rows.taken, rows.freed, tokens))
    slot = np.empty_like(order)
    slot[order] = allocate_rows(*columns)
    return slot


def _rows_of(
    needs: Needs, division: Indices, is_backward: bool, is_frugal: bool
) -> tuple[_TransferRows, _TransferRows]:
    """List inputs, one for each need, and results, one for each need that returns a result."""
    size = len(needs.block)
    spans = np.zeros((5, size), np.int64)
    _span(needs.need_of_tile, division.astype(np.int64), needs.feeder, needs.hop, spans)
    _, last, arrives, leaves, sent_on = spans
    # Times below are at most MOST_HOPS + 2 after the last division, so this is after all of them.
    forever = int(division.max(initial=0)) + 8
    # A result leaves its source once the partial results of all hops behind it are merged there.
    out_hop = needs.height
    if not is_frugal:
        sent_on[needs.height > 0] = forever
    freed = np.maximum(last + 1, sent_on)
    # Forward returns results for queries only, whose needs are listed before those of keys.
    sums = slice(None) if is_backward else slice(int(np.searchsorted(needs.is_keys, True)))
    # A partial sum leaves in division `leaves + out_hop` and is waited for in the next one, so
    # its rows are free from the second on.
    freed[sums] = np.maximum(freed, leaves + out_hop + 2 if is_frugal else forever)[sums]
    inputs = _TransferRows(
        kind=np.where(needs.is_keys, TransferKind.KV, TransferKind.Q),
        block=needs.block,
        source=needs.peer,
        target=needs.device,
        division=arrives,
        hop=needs.hop,
        # A block may arrive as soon as it is launched.
        taken=np.maximum(arrives - AHEAD[is_frugal], 0),
        freed=freed,
    )
    row = TransferKind.DQ if is_backward else TransferKind.OUT
    is_held = (needs.hop == 0) & (not is_frugal)  # results at home, which are merged at the end
    results = _TransferRows(
        kind=np.where(needs.is_keys, TransferKind.DKV, row),
        block=needs.block,
        source=needs.device,
        target=needs.peer,
        division=leaves,
        hop=out_hop,
        taken=leaves + out_hop,
        freed=np.where(is_held, forever, leaves + out_hop + 2),
    )
    return inputs, _TransferRows(*(column[sums] for column in results))


@compiled
def _span(need_of_tile: IntTable, division: Ints, feeder: Ints, hop: Ints, spans: IntTable) -> None:
    """Find the divisions in which needs are used; `spans` is int64 ``[5, N]``, from zeros.

    Its rows are: first and last division with a tile of the device; the first and last of these
    among the device and all that it feeds (arrives, leaves); and one more than the last division in
    which it is passed on, 0 if it is not.
    """
    first, last, arrives, leaves, sent_on = spans[0], spans[1], spans[2], spans[3], spans[4]
    first[:] = _NEVER
    for side in range(2):
        for tile in range(len(division)):
            need = need_of_tile[side, tile]
            if need >= 0:
                first[need] = min(first[need], division[tile])
                last[need] = max(last[need], division[tile])
    for need in range(len(feeder)):
        arrives[need], leaves[need] = first[need], last[need]
    # From the last hop back, so that a feeder sees all needs behind it, directly or not.
    for behind in range(MOST_HOPS, 0, -1):
        for need in range(len(feeder)):
            if hop[need] == behind:
                by = feeder[need]
                arrives[by] = min(arrives[by], arrives[need])
                leaves[by] = max(leaves[by], leaves[need])
                sent_on[by] = max(sent_on[by], arrives[need] + 1)


def _tabulate(
    rows: _TransferRows,
    division: Indices,
    placement: Placement,
    num_devices: int,
    is_backward: bool,
    is_frugal: bool,
) -> ProgramTable:
    """Sort the work of all devices by device and stage into one program for each."""
    is_home = rows.target == placement.device_of_data[rows.block]
    way = np.where(rows.kind < TransferKind.OUT, INTO, np.where(is_home, HOME, OUT))
    hops = [int(rows.hop[chosen].max(initial=0)) + 1 for chosen in (way == INTO, way != INTO)]
    stages = stages_of(int(division.max(initial=0)) + 1, (hops[0], hops[1]), is_frugal=is_frugal)
    width, cells = len(stages.op), num_devices * len(stages.op)
    # Every block is copied once, every tile computed once; a transfer has at most three steps.
    work = np.empty((2, len(placement.device_of_data) + len(division) + 3 * len(way)), np.int64)
    size = _list_work(
        (way, rows.target, rows.source, rows.division, rows.hop), stages.at,
        placement.device_of_data.astype(np.int64) * width,
        placement.device_of_compute.astype(np.int64) * width + stages.attention[division],
        width, work,
    )  # fmt: skip
    table, item_ptr = np.empty((3, cells), np.int32), np.empty(cells + 1, np.int64)
    items, count = np.empty(size, np.int32), np.zeros((2, cells), np.int64)
    length = _fill(work, size, stages.op, stages.key, count, table, item_ptr, items)
    device, stage, position = sealed(table)[:, :length]
    return ProgramTable(
        is_backward=sealed(np.full(length, is_backward)),
        device=device,
        position=position,
        op=sealed(stages.op[stage]),
        key=sealed(stages.key[stage]),
        division=sealed(stages.division[stage]),
        item_ptr=sealed(item_ptr)[: length + 1],
        items=sealed(items),
    )


@compiled
def _list_work(
    rows: tuple[Ints, Ints, Ints, Ints, Ints],
    at: Ints,
    copies: Ints,
    tiles: Ints,
    width: int,
    work: IntTable,
) -> int:
    """List all work as place (device and stage in one number) and item; return its amount.

    `rows` are the way, target, source, division and hop of every transfer.
    """
    way, target, source, division, hop = rows
    size = 0
    for places in (copies, tiles):
        for item in range(len(places)):
            work[0, size], work[1, size] = places[item], item
            size += 1
    for x in range(len(way)):
        for role in range(3):
            stage = at[way[x], role, division[x], hop[x]]
            if stage >= 0:
                device = source[x] if role == SEND else target[x]
                work[0, size], work[1, size] = device * width + stage, x
                size += 1
    return size


@compiled
def _fill(  # noqa: PLR0913 - a compiled kernel
    work: IntTable,
    size: int,
    op: Bytes,
    key: Indices,
    count: IntTable,
    table: IndexTable,
    item_ptr: Ints,
    items: Indices,
) -> int:
    """Write the instructions with their items in order; return how many there are.

    `table` is device, stage and position. A copy is written even without items. A wait has no
    items; it is written if its launch is.
    """
    for n in range(size):
        count[0, work[0, n]] += 1
    rows, begin, width = 0, 0, len(op)
    for device in range(count.shape[1] // width):
        before = rows
        for stage in range(width):
            place = device * width + stage
            of = key[stage] if op[stage] == WAIT else stage
            count[1, place] = begin
            if op[stage] == COPY or count[0, device * width + of] > 0:
                table[0, rows], table[1, rows], table[2, rows] = device, stage, rows - before
                item_ptr[rows] = begin
                rows += 1
            begin += count[0, place]
    # A stable counting sort: items of an instruction keep the order in which they were listed.
    item_ptr[rows] = begin
    for n in range(size):
        place = work[0, n]
        items[count[1, place]] = work[1, n]
        count[1, place] += 1
    return rows


def assemble(
    workload: Workload, cluster: Cluster, placement: Placement, schedule: Schedule, partitioner: str
) -> Plan:
    """Emit the plan of a placed and scheduled workload, without validating it."""
    groups, real = placement.head_groups, workload
    # Head groups are emitted as a batch G times as long, and folded at the end.
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
        warnings=placement.warnings,
    )
    return plan if groups == 1 else fold_head_groups(plan, real, groups)


def _find_needs(
    workload: Workload, placement: Placement, cluster: Cluster, schedule: Schedule
) -> list[Needs]:
    """Find the needs of both directions: the same where no block is striped or fetched again."""
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
