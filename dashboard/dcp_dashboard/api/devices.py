"""The data of the canvases of devices: timeline, critical path, memory, balance and traffic.

All are payloads of the wire format in `api.encoding`.

All times are on the clock of the trace, which begins at 0.

`dcp.timeline/1`: one row per event, in the order of the trace: (device, lane, start). Header:
`source`, `num_devices`, `node_starts`, `unit_ns`, `longest_ns`, `kinds`, `kind_names` (as people
read them) and `colours` (by code), `names` (distinct texts), `sequence_blocks` (the first block of
each sequence, then the number of all). Columns: `start`, `end` (u4, in `unit_ns`), `device`,
`lane` (index into `dcp_planner.LANES`), `kind` (index into `kinds`), `backward` (0 or 1),
`division`, `peer` (-1: none), `bytes`, `name` (index into `names`); `transfer` and `block`, rows of
the plan that a message belongs to (-1: none).
`unit_ns` is 1 up to 4.29 s, then a power of ten. `longest_ns` is the length of the longest trace of
the plan: the axis that all share.

`dcp.memory/1`. Header: `source`, `num_devices`, `unit_ns` and `longest_ns` as in the timeline;
`limit_bytes`, memory of a device. Columns: `saved`, `forward`, `backward` (f8, a value per device),
bytes held outside of both directions and in each; `buffers` and `began`, `ended` (forward of all
devices, then backward); `ptr`, where each device's steps begin in `time` and `filled`, which have a
value per step. The runtime allocates the buffers of a direction when it begins and gives them back
when it ends (`dcp_planner.tables.measure_memory`), so a device holds bytes at three levels. How
much of the buffers is filled changes with every message.

`dcp.path/1`: the chain of events that decided the end, one row per step, in time. Header: `source`
and `shares`, words that link to the longest step of each kind. Columns: `event` (row of the
timeline), `start`, `end` (f8, ns).

`dcp.devices/1`. Header: `num_devices`, `node_starts`, `rows`: the quantities of the balance
chart, each `{"id", "label", "meaning", "unit", "kind", "ratio", "mean"}`; unit is "count", "bytes"
or "seconds", kind names the colour, ratio is max/mean. Columns: one of type f8 per row, by its id,
a value per device; and the traffic: `source`, `target`, `bytes`, one row for every two devices
between which something moves.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.encoding import KIND_COLOURS, encode, narrow
from dcp_dashboard.facts.findings import balance, path_shares
from dcp_dashboard.facts.text import DIRECTIONS, EVENT_WORDS
from dcp_dashboard.facts.traces import RECEIVE, SEND, length_ns
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dsl.arrays import Indices, Ints, Record
from dcp_planner import Plan, Source, Trace
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

MAX_EVENTS = 4_000_000
"""Most events of a timeline that a browser is sent: about 20 bytes each, and as much in memory."""


def timeline_payload(trace: Trace, plan: Plan, longest_ns: int = 0) -> bytes:
    """Pack a trace for the timeline canvas; O(E)."""
    if len(trace) > MAX_EVENTS:
        raise DashboardError(
            f"expected at most {MAX_EVENTS:,} events in a timeline, the {trace.source} trace has "
            f"{len(trace):,}; open it in ui.perfetto.dev: dcpm run writes it with "
            "--trace FILE.pftrace, and the page of the timeline exports it"
        )
    span = int(trace.end_ns.max(initial=0))
    unit = time_unit_ns(span)
    header = {
        "source": trace.source,
        "num_devices": plan.num_devices,
        "node_starts": plan.cluster.node_ptr.tolist(),
        "unit_ns": unit,
        "longest_ns": max(span, longest_ns),
        "kinds": list(EVENT_KINDS),
        "kind_names": [EVENT_WORDS.get(kind, kind) for kind in EVENT_KINDS],
        "colours": [KIND_COLOURS[kind] for kind in EVENT_KINDS],
        "names": [EVENT_WORDS.get(name, name) for name in trace.names],
        "sequence_blocks": np.searchsorted(
            plan.blocks.sequence, np.arange(len(plan.cu_seqlens))
        ).tolist(),
    }
    columns = {
        # Rounded outwards: an event is never shorter than it was, and never nothing.
        "start": (trace.start_ns // unit).astype(np.uint32),
        "end": (-(-trace.end_ns // unit)).astype(np.uint32),
        "bytes": narrow(trace.size_bytes),
        "division": narrow(trace.division),
        "peer": narrow(trace.peer),
        "name": narrow(trace.name),
        "transfer": narrow(trace.transfer),
        # Events without a transfer have -1, which reads the appended -1.
        "block": narrow(np.append(plan.transfers.block, -1)[trace.transfer]),
        "device": narrow(trace.device),
        "lane": trace.lane,
        "kind": trace.kind,
        "backward": trace.is_backward.astype(np.uint8),
    }
    return encode("dcp.timeline/1", header, columns)


def path_payload(loaded: LoadedPlan, source: Source) -> bytes:
    """Pack the critical path of a trace; O(E log E)."""
    path = loaded.recorded[source].path
    shares = [link.to_json() for link in path_shares(loaded, source)]
    columns = {
        "event": narrow(path.event),
        "start": path.start_ns.astype(np.float64),
        "end": path.end_ns.astype(np.float64),
    }
    return encode("dcp.path/1", {"source": source, "shares": shares}, columns)


def time_unit_ns(span_ns: int) -> int:
    """Return the smallest power of ten in which a span fits into 32 bits."""
    unit = 1
    # Below the last number of 32 bits: ends are rounded up, by one at most.
    while span_ns // unit >= 2**32 - 1:
        unit *= 10
    return unit


def memory_payload(trace: Trace, plan: Plan, longest_ns: int = 0) -> bytes:
    """Pack the bytes that devices hold over the time of a trace; O((W + E) log E)."""
    curves, longest = memory_over_time(plan, trace), max(length_ns(trace), longest_ns)
    unit, levels = time_unit_ns(longest), curves.levels

    def ticks(time_ns: Ints) -> NDArray[np.uint32]:
        return (time_ns // unit).astype(np.uint32).ravel()

    header = {
        "source": trace.source,
        "num_devices": plan.num_devices,
        "unit_ns": unit,
        "longest_ns": longest,
        "limit_bytes": plan.cluster.memory_bytes,
    }
    columns: dict[str, NDArray[np.generic]] = {
        # Exact up to 2**53 bytes; numbers of a browser are float64, too.
        "saved": levels.saved.astype(np.float64),
        "forward": levels.forward.astype(np.float64),
        "backward": levels.backward.astype(np.float64),
        "buffers": curves.buffers.astype(np.float64).ravel(),
        "began": ticks(curves.began_ns),
        "ended": ticks(curves.ended_ns),
        "ptr": curves.ptr.astype(np.uint32),
        "time": ticks(curves.time_ns),
        "filled": curves.filled.astype(np.float64),
    }
    return encode("dcp.memory/1", header, columns)


def devices_payload(loaded: LoadedPlan) -> bytes:
    """Pack the loads of all devices and the traffic between them; O(R^2)."""
    bars = balance(loaded)
    rows = [
        {"id": row.name, "label": row.label, "meaning": row.meaning, "unit": row.unit,
         "kind": row.kind, "mean": row.mean, "ratio": row.ratio}
        for row in bars
    ]  # fmt: skip
    traffic = loaded.totals.traffic_bytes
    source, target = np.nonzero(traffic)
    columns: dict[str, NDArray[np.generic]] = {
        **{row.name: row.values for row in bars},
        "source": narrow(source),
        "target": narrow(target),
        "bytes": traffic[source, target].astype(np.float64),
    }
    header = {
        "num_devices": loaded.plan.num_devices,
        "node_starts": loaded.plan.cluster.node_ptr.tolist(),
        "rows": rows,
    }
    return encode("dcp.devices/1", header, columns)


_ATTENTION, _REDUCTION = EVENT_KINDS.index("attention"), EVENT_KINDS.index("reduction")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurves(Record):
    """Bytes that each device holds: three levels, and of the buffers in each direction every step.

    `buffers` are a part of `levels`. Directions last from `began_ns` to `ended_ns`, equal where a
    device does nothing. Device r has the steps ``ptr[r]:ptr[r + 1]``: `filled` bytes from then on.
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
    # A message of a plan with groups becomes one of a block of its group's copy of the batch.
    expanded = expand_head_groups(plan)
    transfers, devices = expanded.transfers, plan.num_devices
    arrives = np.flatnonzero((trace.lane == RECEIVE) & (trace.transfer >= 0))
    row = trace.transfer[arrives]
    # A transfer that the trace lacks never starts, and is left out below.
    start = np.full(len(transfers), np.iinfo(np.int64).max)
    np.minimum.at(start, row, trace.start_ns[arrives])
    end = _last_need(expanded, trace)
    np.maximum.at(end, row, trace.end_ns[arrives])
    # Partial sums lie at the rows of the inputs that they belong to, and live as long.
    tokens = expanded.blocks.num_tokens[transfers.block]
    sums = np.stack([sum_bytes_per_token(expanded.shape, way) for way in DIRECTIONS])
    held = transfers.size_bytes + tokens * sums[transfers.is_backward.astype(int), transfers.kind]
    seen = np.flatnonzero(start < end)
    device = transfers.target[seen]
    ptr, time, filled = _steps(device, start[seen], end[seen], held[seen], devices)
    # First start and last end of each device, forward and backward; a way without events is empty.
    began = np.full((2, devices), np.iinfo(np.int64).max)
    ended, way = np.zeros((2, devices), np.int64), trace.is_backward.astype(int)
    np.minimum.at(began, (way, trace.device), trace.start_ns)
    np.maximum.at(ended, (way, trace.device), trace.end_ns)
    buffers = receive_buffer_bytes(plan) + accumulator_bytes(plan)
    levels, began = measure_memory(plan), np.minimum(began, ended)
    return MemoryCurves(levels, buffers, began, ended, ptr, time, filled)


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
    instructions match one by one. Where a trace lacks some of a device's events, none are matched:
    nobody can tell which are missing.
    """
    programs, devices = tabulate_programs(plan), plan.num_devices
    # A reduction without items takes no time, so a trace has no event of it.
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
    # `way` counts devices, those of backward behind those of forward. `number` counts the events of
    # each: the n-th one belongs to the n-th instruction, in the second layer to the first again.
    number = np.arange(len(events)) - (np.cumsum(seen) - seen)[way]
    whole = (wanted > 0) & (seen % np.maximum(wanted, 1) == 0)
    kept = whole[way]
    events, way, number = events[kept], way[kept], number[kept]
    row = rows[(np.cumsum(wanted) - wanted)[way] + number % wanted[way]]
    # The buffers hold a result until the last layer has merged it.
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
    """Sum what is held over each device's time: pointer by device, times, bytes from then on."""
    # Rows of a buffer add their bytes when they fill and take them away when nobody needs them any
    # more. The running sum over these changes of a device, in time, is what it holds.
    device, time = np.tile(device, 2), np.append(start, end)
    change = np.append(held, -held)
    order = np.lexsort((time, device))
    device, time, change = device[order], time[order], change[order]
    # Of several changes at one time only the sum behind the last is a step of the curve.
    is_last = np.ones(len(time), np.bool_)
    is_last[:-1] = (np.diff(time) != 0) | (np.diff(device) != 0)
    kept = np.flatnonzero(is_last)
    # One sum runs over all devices: what a device holds ends at 0, so the next one begins at 0.
    filled = np.cumsum(change)[kept]
    ptr = np.searchsorted(device[kept], np.arange(devices + 1))
    return ptr, time[kept], filled
