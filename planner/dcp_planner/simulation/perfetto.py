"""Traces as Perfetto protobuf: https://ui.perfetto.dev opens them, from one event to millions.

A device is a process, a lane a thread of it, an event a slice, and a message an arrow from its send
to its receive. Perfetto wants slices of a track to nest, so messages that overlap in a lane get
rows of their own. A counter per device says how many received bytes wait to be used.

Format: packets of type TracePacket with a TrackDescriptor or a TrackEvent, as
https://perfetto.dev/docs/reference/synthetic-track-event describes; written by hand, since protobuf
would be a dependency for few lines and takes many seconds for a million events. Here packets of one
sort have one size (numbers fill the widest varint of their column, texts are interned), are made as
a matrix of bytes, and copied to their places in the order of time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dcp_planner.arrays import Ints
from dcp_planner.simulation.protobuf import (
    Bytes,
    column,
    constant,
    fixed64_column,
    joined,
    message,
    number,
    place_rows,
    text,
)
from dcp_planner.simulation.trace import LANES, Trace

_SEND, _RECEIVE, _COMPUTE = LANES.index("send"), LANES.index("receive"), LANES.index("compute")


def rows_of_tracks(trace: Trace) -> Ints:
    """Assign each event a row of its (device, lane) on which no two overlap, int64 ``[E]``.

    As few rows as events overlap at one time; 0 is the first. An event that starts when another
    ends may share its row, unless both start at one time. O(E log E), a loop over lanes only.
    """
    lane = trace.device.astype(np.int64) * len(LANES) + trace.lane
    order = np.lexsort((trace.end_ns, trace.start_ns, lane))
    start, end, lane = trace.start_ns[order], trace.end_ns[order], lane[order]
    rows = np.zeros(len(order), np.int64)
    borders = np.flatnonzero(np.diff(lane)) + 1
    for first, past in zip([0, *borders.tolist()], [*borders.tolist(), len(order)], strict=True):
        part = slice(first, past)
        begins = start[part]
        if ((begins[1:] < end[part][:-1]) | (begins[1:] == begins[:-1])).any():
            rows[part] = _spread(start[part], end[part])
    result = np.empty_like(rows)
    result[order] = rows
    return result


def _spread(start: Ints, end: Ints) -> Ints:
    """Assign rows to events sorted by start: each takes the row that was left first, if any is.

    With c[i] ends until start i, the number of rows taken over before event i is
    q[i + 1] = min(q[i] + 1, c[i]), a running minimum; event i then takes over from the q[i]-th to
    end, and rows follow from these links by pointer doubling.
    """
    size = len(start)
    place = np.arange(size)
    by_end = np.lexsort((place, end))
    # Events of no length leave their row to events that start later, not at the same time.
    instants = np.concatenate([[0], np.cumsum(start == end)])
    first, past = (np.searchsorted(start, start, side=side) for side in ("left", "right"))
    ended = np.searchsorted(end[by_end], start, side="right") - (instants[past] - instants[first])
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
    """Number sends and receives of one message alike, from 1 on, int64 ``[E]``; 0: none.

    Layers use a transfer again: its n-th send belongs to its n-th receive.
    """
    numbers = np.zeros(len(trace), np.int64)
    is_message = (trace.lane == _SEND) | (trace.lane == _RECEIVE)
    rows = np.flatnonzero(is_message & (trace.transfer >= 0))
    if not len(rows):
        return numbers
    side = trace.transfer[rows].astype(np.int64) * 2 + (trace.lane[rows] == _SEND)
    order = np.lexsort((trace.start_ns[rows], side))
    ends, side = rows[order], side[order]
    first = np.append(True, side[1:] != side[:-1])
    ordinal = np.arange(len(side)) - np.flatnonzero(first)[np.cumsum(first) - 1]
    message, is_send = side >> 1 << 32 | ordinal, side % 2 == 1
    _, sent, received = np.intersect1d(
        message[is_send], message[~is_send], assume_unique=True, return_indices=True
    )
    numbers[ends[is_send][sent]] = numbers[ends[~is_send][received]] = np.arange(1, len(sent) + 1)
    return numbers


def unused_bytes(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Count the received bytes that every device holds for work that is not done yet.

    They come when a message has arrived and go when the device has finished the division that the
    message was for; bytes that came later than that are gone at once.

    Returns:
        Device, time in ns, and bytes from then on; int64 ``[C]`` each, by device and time.
    """
    got = np.flatnonzero((trace.lane == _RECEIVE) & (trace.size_bytes > 0))
    work = np.flatnonzero(trace.lane == _COMPUTE)
    chosen = np.concatenate([got, work])
    if not len(got):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    key = trace.device[chosen].astype(np.int64) << 33
    key += (trace.division[chosen].astype(np.int64) + 2**31) * 2 + trace.is_backward[chosen]
    _, step = np.unique(key, return_inverse=True)
    done = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(done, step[len(got) :], trace.end_ns[work])
    left = np.maximum(done[step[: len(got)]], trace.end_ns[got])
    device = np.tile(trace.device[got].astype(np.int64), 2)
    time = np.concatenate([trace.end_ns[got], left])
    change = np.concatenate([trace.size_bytes[got], -trace.size_bytes[got]])
    order = np.lexsort((time, device))
    device, time, change = device[order], time[order], change[order]
    last = np.append((device[1:] != device[:-1]) | (time[1:] != time[:-1]), True)
    return device[last], time[last], np.cumsum(change)[last]


# Numbers of fields, as perfetto's trace.proto states them.
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
_NOTE, _TYPE, _NAME_ID, _TRACK, _COUNTER_VALUE, _FLOW = 4, 9, 10, 11, 30, 47
_BEGIN, _END, _COUNTER = 1, 2, 4
_CLEARED, _NEEDS_STATE = 1, 2
_NOTES = ("direction", "division", "peer", "bytes")
_DIRECTIONS = ("forward", "backward")
_TITLES = {"simulated": "predicted", "measured": "measured"}


def to_perfetto(trace: Trace, *more: Trace) -> bytes:
    """Encode traces as one Perfetto file; each is a group of processes, on one clock.

    Slices carry the direction, the division, and of messages the peer and the bytes. With several
    traces the processes say which one they belong to. O(E log E), about 1 s for a million events.
    """
    groups, first_process, first_track, first_flow = [], 0, 1_000_000, 0
    for each in (trace, *more):
        group = _Group(each, first_process, first_track, first_flow, is_named=bool(more))
        first_process += group.num_devices
        first_track += group.num_tracks + group.num_devices
        first_flow += int(group.flow.max(initial=0))
        groups.append(group)
    names = sorted({name for group in groups for name in group.trace.names})
    code = {name: i + 1 for i, name in enumerate(names)}
    head = [_interned(names), *(part for group in groups for part in group.descriptors())]
    return b"".join([*head, _in_order([part for group in groups for part in group.parts(code)])])


@dataclass(frozen=True, slots=True, eq=False)
class _Packets:
    """Packets of one sort: bytes ``[N, size]``, their times and what comes first at one time."""

    rows: Bytes
    time_ns: Ints
    phase: Ints


class _Group:
    """A trace as rows, flows and packets."""

    def __init__(
        self, trace: Trace, process: int, track: int, flow: int, *, is_named: bool
    ) -> None:
        self.trace, self.process, self.is_named = trace, process, is_named
        self.num_devices = int(trace.device.max(initial=-1)) + 1
        lane_row = rows_of_tracks(trace)
        key = (trace.device.astype(np.int64) * len(LANES) + trace.lane) << 32 | lane_row
        self.keys, event_track = np.unique(key, return_inverse=True)
        self.num_tracks = len(self.keys)
        self.first_track = track
        self.track = event_track + track
        numbers = flow_numbers(trace)
        self.flow = np.where(numbers > 0, numbers + flow, 0)

    def descriptors(self) -> Iterator[bytes]:
        """Describe devices as processes, rows as their threads and counters of their bytes."""
        title = f" ({_TITLES[self.trace.source]})" if self.is_named else ""
        for device in np.unique(self.trace.device).tolist():
            pid = self.process + device + 1
            process = number(1, pid) + text(6, f"device {device}{title}")
            yield _descriptor(number(1, pid) + message(3, process))
            counter = number(1, self._counter(device)) + number(5, pid)
            counter += text(2, "received bytes not yet used") + message(8, number(3, 3))
            yield _descriptor(counter)
        for i, key in enumerate(self.keys.tolist()):
            lane, row = key >> 32, key & (2**32 - 1)
            pid, uuid = self.process + lane // len(LANES) + 1, self.first_track + i
            name = LANES[lane % len(LANES)] + (f" {row + 1}" if row else "")
            thread = number(1, pid) + number(2, uuid) + text(5, name)
            yield _descriptor(number(1, uuid) + number(5, pid) + message(4, thread))

    def _counter(self, device: int) -> int:
        return self.first_track + self.num_tracks + device

    def parts(self, code: dict[str, int]) -> Iterator[_Packets]:
        """Encode begins of slices, with and without a peer, their ends, and the counters."""
        trace = self.trace
        # At one time: ends, then begins, then the ends of slices that last no time.
        ended = np.where(trace.end_ns > trace.start_ns, 0, 2)
        name = np.array([code[text] for text in trace.names], np.int64)[trace.name]
        is_linked, has_peer = self.flow > 0, trace.peer >= 0
        for chosen in (has_peer & is_linked, has_peer & ~is_linked, ~has_peer):
            rows = np.flatnonzero(chosen)
            if len(rows):
                events = self._begins(rows, name[rows])
                time = trace.start_ns[rows]
                yield _Packets(_event_packets(events, time), time, np.ones(len(rows), np.int64))
        if len(trace):
            ends = joined(constant(number(_TYPE, _END), len(trace)), column(_TRACK, self.track))
            yield _Packets(_event_packets(ends, trace.end_ns), trace.end_ns, ended)
        device, time, size = unused_bytes(trace)
        if len(device):
            track = self._counter(0) + device
            counts = joined(
                constant(number(_TYPE, _COUNTER), len(device)),
                column(_TRACK, track), column(_COUNTER_VALUE, size),
            )  # fmt: skip
            yield _Packets(_event_packets(counts, time), time, np.full(len(device), 3))

    def _begins(self, rows: Ints, name: Ints) -> Bytes:
        """Encode the events that begin the slices of some events; all alike in what they carry."""
        trace, size = self.trace, len(rows)
        way = column(17, trace.is_backward[rows].astype(np.int64) + 1)
        parts = [
            constant(number(_TYPE, _BEGIN), size),
            column(_TRACK, self.track[rows]),
            column(_NAME_ID, name),
            _note(1, way),
            _note(2, column(4, trace.division[rows])),
        ]
        if trace.peer[rows[0]] >= 0:
            parts.append(_note(3, column(4, trace.peer[rows])))
            parts.append(_note(4, column(4, trace.size_bytes[rows])))
        if self.flow[rows[0]]:
            parts.append(fixed64_column(_FLOW, self.flow[rows]))
        return joined(*parts)


def _note(name: int, value: Bytes) -> Bytes:
    """Encode a debug annotation per row, its name interned."""
    head = number(1, name)
    return joined(
        constant(number(_NOTE << 3 | 2, len(head) + value.shape[1], is_raw=True), len(value)),
        constant(head, len(value)),
        value,
    )


def _event_packets(events: Bytes, time_ns: Ints) -> Bytes:
    """Encode the packets of events of one size."""
    size = len(events)
    inner = joined(
        column(_TIMESTAMP, time_ns),
        constant(number(_SEQUENCE, 1) + number(_FLAGS, _NEEDS_STATE), size),
        constant(number(_TRACK_EVENT << 3 | 2, events.shape[1], is_raw=True), size),
        events,
    )
    return joined(constant(number(_PACKET << 3 | 2, inner.shape[1], is_raw=True), size), inner)


def _in_order(parts: list[_Packets]) -> bytes:
    """Sort all packets by time, and at one time by phase."""
    if not parts:
        return b""
    sizes = np.concatenate([np.full(len(part.rows), part.rows.shape[1]) for part in parts])
    time = np.concatenate([part.time_ns for part in parts])
    phase = np.concatenate([part.phase for part in parts])
    order = np.lexsort((phase, time))
    begins = np.empty(len(order), np.int64)
    begins[order] = np.cumsum(sizes[order]) - sizes[order]
    out, done = np.zeros(int(sizes.sum()), np.uint8), 0
    for part in parts:
        place_rows(out, part.rows, begins[done : done + len(part.rows)])
        done += len(part.rows)
    return out.tobytes()


def _interned(names: list[str]) -> bytes:
    """Encode the packet that maps numbers of later packets to texts."""
    entries = [message(2, number(1, i + 1) + text(2, name)) for i, name in enumerate(names)]
    entries += [message(3, number(1, i + 1) + text(2, name)) for i, name in enumerate(_NOTES)]
    entries += [message(29, number(1, i + 1) + text(2, way)) for i, way in enumerate(_DIRECTIONS)]
    return _packet(number(_FLAGS, _CLEARED) + message(_INTERNED, b"".join(entries)))


def _descriptor(fields: bytes) -> bytes:
    return _packet(message(_DESCRIPTOR, fields))


def _packet(fields: bytes) -> bytes:
    return message(_PACKET, fields + number(_SEQUENCE, 1))
