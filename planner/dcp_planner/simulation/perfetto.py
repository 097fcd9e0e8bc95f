"""Traces as JSON for https://ui.perfetto.dev, in the format of Chrome's trace events.

A device is a process, a lane one of its threads, an event a slice, and a message an arrow from its
send to its receive. Slices of a thread must nest, so messages that overlap in a lane get separate
rows. A counter for each device shows how many received bytes wait to be used.

pyarrow writes the text column by column: about 1 s of CPU for a million events.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.simulation.trace import LANES, Trace, number_divisions, pair_messages

pc: Any = pyarrow.compute  # its stubs miss most of these functions
_SEND, _RECEIVE, _COMPUTE = (LANES.index(lane) for lane in ("send", "receive", "compute"))
_MOST_ROWS = 4_000_000  # pyarrow joins at most 2 GiB of text at a time
_TITLES = {"simulated": "predicted", "measured": "measured"}


def to_perfetto(trace: Trace, *more: Trace) -> bytes:
    """Write traces as one JSON file; each is a group of processes, on one clock. O(E log E).

    Slices carry direction and division, those of messages also peer and bytes. With several traces
    the names of processes tell the trace.
    """
    parts: list[bytes] = []
    process, flow = 1, 0  # the next trace goes on with these numbers: viewers join equal ones
    for each in (trace, *more):
        title = f" ({_TITLES[each.source]})" if more else ""
        flows = flow_numbers(each)
        parts += _events(each, process, np.where(flows > 0, flows + flow, 0), title)
        process += int(each.device.max(initial=-1)) + 1
        flow += int(flows.max(initial=0))
    return b'{"traceEvents":[\n' + b",\n".join(part for part in parts if part) + b"\n]}\n"


def _events(trace: Trace, process: int, flow: Ints, title: str) -> Iterator[bytes]:
    """Write names of processes and threads, then slices and counters; `process` is device 0's."""
    pid, tid = trace.device + process, rows_of_tracks(trace) * len(LANES) + trace.lane + 1
    for device in np.unique(trace.device).tolist():
        yield _name("process", f"device {device}{title}", pid=process + device)
    # Process and thread in one number: each pair is named once.
    for track in np.unique(pid.astype(np.int64) << 32 | tid).tolist():
        row, lane = divmod((track & (2**32 - 1)) - 1, len(LANES))
        name = LANES[lane] + (f" {row + 1}" if row else "")
        yield _name("thread", name, pid=track >> 32, tid=row * len(LANES) + lane + 1)
    # Three classes, each with the same JSON keys in all of its slices, so columns can be joined.
    has_peer = trace.peer >= 0
    for chosen in (~has_peer, has_peer & (flow == 0), has_peer & (flow > 0)):
        rows = np.flatnonzero(chosen)
        for part in np.array_split(rows, len(rows) // _MOST_ROWS + 1):
            yield _slices(trace, part, pid, tid, flow)
    device, time, size = unused_bytes(trace)
    yield _joined(
        len(time), '{"ph":"C","pid":', device + process, ',"ts":', _microseconds(time),
        ',"name":"received bytes not yet used","args":{"bytes":', size, "}}",
    )  # fmt: skip


def _slices(trace: Trace, rows: Ints, pid: Indices, tid: Ints, flow: Ints) -> bytes:
    """Write the slices of events of one class: all with a peer and a flow, or all without."""
    start = trace.start_ns[rows]
    names: Any = pa.array([json.dumps(name) for name in trace.names], pa.string())
    columns = [
        '{"ph":"X","pid":', pid[rows], ',"tid":', tid[rows],
        ',"ts":', _microseconds(start), ',"dur":', _microseconds(trace.end_ns[rows] - start),
        ',"name":', names.take(pa.array(trace.name[rows])),
    ]  # fmt: skip
    if len(rows) and flow[rows[0]]:
        end = pc.if_else(trace.lane[rows] == _SEND, "out", "in")
        columns += [',"bind_id":', flow[rows], ',"flow_', end, '":true']
    direction = pc.if_else(trace.is_backward[rows], "backward", "forward")
    columns += [',"args":{"direction":"', direction, '","division":', trace.division[rows]]
    if len(rows) and trace.peer[rows[0]] >= 0:
        columns += [',"peer":', trace.peer[rows], ',"bytes":', trace.size_bytes[rows]]
    return _joined(len(rows), *columns, "}}")


def _name(what: str, name: str, **ids: int) -> bytes:
    event = {"ph": "M", **ids, "name": f"{what}_name", "args": {"name": name}}
    return json.dumps(event).encode()


def _microseconds(time_ns: Ints) -> Any:  # Any: as above
    # Three decimals as text: floats would lose nanoseconds in long traces.
    rest = pc.utf8_lpad(pa.array(time_ns % 1000).cast(pa.string()), 3, "0")
    return pc.binary_join_element_wise(pa.array(time_ns // 1000).cast(pa.string()), rest, ".")


def _joined(size: int, *columns: Any) -> bytes:  # Any: texts, numbers, pyarrow's columns
    """Write one event for each row: its columns side by side."""
    if not size:
        return b""
    # `binary_join` joins the texts of one list, so all rows become the only list of an array.
    texts = [pa.array(c).cast(pa.string()) if isinstance(c, np.ndarray) else c for c in columns]
    rows = pc.binary_join_element_wise(*texts, "")
    lists = pa.ListArray.from_arrays(pa.array([0, size], pa.int32()), rows)
    return bytes(pc.binary_join(lists, ",\n")[0].as_buffer())


def rows_of_tracks(trace: Trace) -> Ints:
    """Assign each event a row of its (device, lane) on which no two overlap, int64 ``[E]``.

    There are as many rows as events overlap at one time; 0 is the first. An event that starts when
    another ends may share its row, unless both start at one time. O(E log E), and Python loops over
    lanes only.
    """
    lane = trace.device.astype(np.int64) * len(LANES) + trace.lane
    order = np.lexsort((trace.end_ns, trace.start_ns, lane))
    start, end, lane = trace.start_ns[order], trace.end_ns[order], lane[order]
    rows = np.zeros(len(order), np.int64)
    borders = np.flatnonzero(np.diff(lane)) + 1
    for first, past in zip([0, *borders.tolist()], [*borders.tolist(), len(order)], strict=True):
        part = slice(first, past)
        begins = start[part]
        # Lanes without an overlap stay on row 0.
        if ((begins[1:] < end[part][:-1]) | (begins[1:] == begins[:-1])).any():
            rows[part] = _spread(start[part], end[part])
    result = np.empty_like(rows)
    result[order] = rows
    return result


def _spread(start: Ints, end: Ints) -> Ints:
    """Assign rows to events sorted by start: each takes the row that was left first, if any is.

    Interval partitioning without a loop over events. Let c[i] be the ends until start i. The number
    of rows taken over up to event i is q[i + 1] = min(q[i] + 1, c[i]), a running minimum. Where it
    grows, event i takes over the row of the q[i]-th event to end. Rows follow from these links by
    pointer doubling.
    """
    size = len(start)
    place = np.arange(size)
    by_end = np.lexsort((place, end))
    # Events of no length leave their row to events that start later, not at the same time.
    instants = np.concatenate([[0], np.cumsum(start == end)])
    first, past = (np.searchsorted(start, start, side=side) for side in ("left", "right"))
    ended = np.searchsorted(end[by_end], start, side="right") - (instants[past] - instants[first])
    # q[i] - i is the running minimum of c[j] - (j + 1) for j < i, and of 0.
    taken = np.concatenate([[0], np.minimum(0, np.minimum.accumulate(ended - (place + 1)))])
    taken += np.arange(size + 1)
    takes_over = taken[1:] > taken[:-1]
    origin = np.where(takes_over, by_end[np.minimum(taken[:-1], size - 1)], place)
    rows = np.where(takes_over, 0, np.cumsum(~takes_over) - 1)
    while True:
        further = origin[origin]
        if (further == origin).all():
            return np.asarray(rows[origin])
        origin = further


def flow_numbers(trace: Trace) -> Ints:
    """Number sends and receives of one message alike, from 1 on, int64 ``[E]``; 0: none."""
    send, receive = pair_messages(trace)
    known = trace.transfer[send] >= 0
    numbers = np.zeros(len(trace), np.int64)
    numbers[send[known]] = numbers[receive[known]] = np.arange(1, known.sum() + 1)
    return numbers


def unused_bytes(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Count the received bytes that every device holds for work that is not done yet.

    Bytes count from the arrival of their message until the device has finished the message's
    division; bytes that arrive later than that count for no time. Returns device, time in ns, and
    bytes from then on; int64 ``[C]`` each, by device and time.
    """
    got = np.flatnonzero((trace.lane == _RECEIVE) & (trace.size_bytes > 0))
    work = np.flatnonzero(trace.lane == _COMPUTE)
    chosen = np.concatenate([got, work])
    if not len(got):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    step = number_divisions(trace)[chosen]
    done = np.full(len(trace), np.iinfo(np.int64).min)  # there are no more steps than events
    np.maximum.at(done, step[len(got) :], trace.end_ns[work])
    left = np.maximum(done[step[: len(got)]], trace.end_ns[got])
    device = np.tile(trace.device[got].astype(np.int64), 2)
    time = np.concatenate([trace.end_ns[got], left])
    change = np.concatenate([trace.size_bytes[got], -trace.size_bytes[got]])
    order = np.lexsort((time, device))
    device, time, change = device[order], time[order], change[order]
    # Of several changes at one moment only the sum after the last one shows.
    last = np.append((device[1:] != device[:-1]) | (time[1:] != time[:-1]), True)
    return device[last], time[last], np.cumsum(change)[last]
