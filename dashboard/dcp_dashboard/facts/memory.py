"""The bytes that every device holds over the time of a trace.

The runtime allocates the buffers of a direction when it begins and gives them back when it ends
(`dcp_planner.tables.measure_memory`), so what a device holds has three levels: saved tensors alone,
forward, backward. How much of the buffers is filled changes with every message.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dcp_dashboard.facts.text import DIRECTIONS
from dcp_dashboard.facts.traces import RECEIVE, SEND
from dcp_dsl.arrays import Indices, Ints, Record
from dcp_planner import Plan, Trace
from dcp_planner.simulation import EVENT_KINDS
from dcp_planner.tables import (
    REDUCTION,
    DeviceMemory,
    accumulator_bytes,
    expand_head_groups,
    find_feeders,
    inputs_of_results,
    inputs_of_tiles,
    measure_memory,
    receive_buffer_bytes,
    sum_bytes_per_token,
    tabulate_programs,
)

_ATTENTION, _REDUCTION = EVENT_KINDS.index("attention"), EVENT_KINDS.index("reduction")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurves(Record):
    """Bytes that each device holds, and how full its buffers are.

    Attributes:
        levels: bytes held with saved tensors alone, in forward, in backward.
        buffers: int64 ``[2, R]``, bytes of receive buffers and partial sums in each direction, a
            part of `levels`.
        began_ns, ended_ns: int64 ``[2, R]``, first start and last end of each direction; equal
            where a device does nothing.
        ptr: int64 ``[R+1]``; the steps of device r are ``ptr[r]:ptr[r + 1]``.
        time_ns: int64 ``[N]``, ascending in each device.
        filled: int64 ``[N]``, bytes of the buffers in use from that time on.
    """

    levels: DeviceMemory
    buffers: Annotated[Ints, 2, "R"]
    began_ns: Annotated[Ints, 2, "R"]
    ended_ns: Annotated[Ints, 2, "R"]
    ptr: Annotated[Ints, "R+1"]
    time_ns: Annotated[Ints, "N"]
    filled: Annotated[Ints, "N"]


def memory_over_time(plan: Plan, trace: Trace) -> MemoryCurves:
    """Follow the bytes that each device holds through a trace of its plan; O((W + E) log E).

    Rows of a receive buffer, with the partial sums that lie at them, are in use from the start of
    the message that fills them to the last event that needs them: computing with them, passing them
    on, taking their sums home, merging them.
    """
    expanded = expand_head_groups(plan)
    transfers, devices = expanded.transfers, plan.num_devices
    arrives = np.flatnonzero((trace.lane == RECEIVE) & (trace.transfer >= 0))
    row = trace.transfer[arrives]
    # A transfer that the trace lacks never starts, and is left out below.
    start = np.full(len(transfers), np.iinfo(np.int64).max)
    np.minimum.at(start, row, trace.start_ns[arrives])
    end = _last_need(expanded, trace)
    np.maximum.at(end, row, trace.end_ns[arrives])
    tokens = expanded.blocks.num_tokens[transfers.block]
    sums = np.stack([sum_bytes_per_token(expanded.shape, way) for way in DIRECTIONS])
    held = transfers.size_bytes + tokens * sums[transfers.is_backward.astype(int), transfers.kind]
    seen = np.flatnonzero(start < end)
    device = transfers.target[seen]
    ptr, time, filled = _steps(device, start[seen], end[seen], held[seen], devices)
    began, ended = _spans(trace, devices)
    buffers = receive_buffer_bytes(plan) + accumulator_bytes(plan)
    return MemoryCurves(measure_memory(plan), buffers, began, ended, ptr, time, filled)


def _last_need(plan: Plan, trace: Trace) -> Ints:
    """Find when the last event ends that needs the rows of each transfer, int64 ``[X]``."""
    transfers, tiles = plan.transfers, plan.tiles
    until = np.zeros(len(transfers), np.int64)
    computed = _ends_of_attention(plan, trace)
    for inputs in inputs_of_tiles(tiles, transfers):
        chosen = inputs >= 0
        np.maximum.at(until, inputs[chosen], computed[chosen])
    sends = np.flatnonzero((trace.lane == SEND) & (trace.transfer >= 0))
    left = np.zeros(len(transfers), np.int64)
    np.maximum.at(left, trace.transfer[sends], trace.end_ns[sends])
    for source in (find_feeders(transfers), inputs_of_results(transfers)):
        chosen = source >= 0
        np.maximum.at(until, source[chosen], left[chosen])
    return np.maximum(until, _merged(plan, trace))


def _ends_of_attention(plan: Plan, trace: Trace) -> Ints:
    """Find when each tile is computed, int64 ``[2, W]``: forward, backward."""
    tiles, events = plan.tiles, np.flatnonzero(trace.kind == _ATTENTION)
    divisions = 1 + max(
        int(column.max(initial=0))
        for column in (tiles.division, tiles.backward_division, trace.division[events])
    )
    ends = np.zeros((2, plan.num_devices, divisions), np.int64)
    way = trace.is_backward[events].astype(int)
    place = way, trace.device[events], trace.division[events]
    # A division comes in every layer; its inputs are needed until the last one.
    np.maximum.at(ends, place, trace.end_ns[events])
    of_tiles = (tiles.division, tiles.backward_division)
    return np.stack([ends[way, tiles.device, of_tiles[way]] for way in (0, 1)])


def _merged(plan: Plan, trace: Trace) -> Ints:
    """Find when each result was merged, int64 ``[X]``; 0 where the trace does not say.

    A device merges in the order of its program, in every layer again, so its events and its
    instructions match one by one. A trace that lacks some of the events says of no result which.
    """
    programs, devices = tabulate_programs(plan), plan.num_devices
    merges = (programs.op == REDUCTION) & (np.diff(programs.item_ptr) > 0)
    rows = np.flatnonzero(merges)
    events = np.flatnonzero(trace.kind == _REDUCTION)
    way = trace.is_backward[events] * devices + trace.device[events]
    order = np.lexsort((trace.start_ns[events], way))
    events, way = events[order], way[order]
    wanted, seen = (
        np.bincount(each, minlength=2 * devices)
        for each in (programs.is_backward[rows] * devices + programs.device[rows], way)
    )
    number = np.arange(len(events)) - (np.cumsum(seen) - seen)[way]
    whole = (wanted > 0) & (seen % np.maximum(wanted, 1) == 0)
    kept = whole[way]
    events, way, number = events[kept], way[kept], number[kept]
    row = rows[(np.cumsum(wanted) - wanted)[way] + number % wanted[way]]
    ended = np.zeros(len(programs), np.int64)
    np.maximum.at(ended, row, trace.end_ns[events])
    of_item = programs.row_of_item()
    items = np.flatnonzero(merges[of_item])
    merged = np.zeros(len(plan.transfers), np.int64)
    merged[programs.items[items]] = ended[of_item[items]]
    return merged


def _steps(
    device: Indices, start: Ints, end: Ints, held: Ints, devices: int
) -> tuple[Ints, Ints, Ints]:
    """Sum what is held from start to end: pointer by device, times, bytes from each time on."""
    device, time = np.tile(device, 2), np.append(start, end)
    change = np.append(held, -held)
    order = np.lexsort((time, device))
    device, time, change = device[order], time[order], change[order]
    is_last = np.ones(len(time), np.bool_)  # of those at one time
    is_last[:-1] = (np.diff(time) != 0) | (np.diff(device) != 0)
    kept = np.flatnonzero(is_last)
    filled = np.cumsum(change)[kept]  # what a device holds ends at 0, so sums pass from one to next
    ptr = np.searchsorted(device[kept], np.arange(devices + 1))
    return ptr, time[kept], filled


def _spans(trace: Trace, devices: int) -> tuple[Ints, Ints]:
    """Find the first start and the last end of each device, forward and backward."""
    most = np.iinfo(np.int64).max
    began, ended = np.full((2, devices), most), np.zeros((2, devices), np.int64)
    place = trace.is_backward.astype(int), trace.device
    np.minimum.at(began, place, trace.start_ns)
    np.maximum.at(ended, place, trace.end_ns)
    return np.minimum(began, ended), ended
