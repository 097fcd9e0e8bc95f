"""Traces as Perfetto protobuf: https://ui.perfetto.dev opens them, from one event to millions.

A device is a process, a lane a thread of it, an event a slice, and a message an arrow from its send
to its receive. Perfetto wants slices of a track to nest, so messages that overlap in a lane get
rows of their own.

Format: packets of type TracePacket with a TrackDescriptor or a TrackEvent, as
https://perfetto.dev/docs/reference/synthetic-track-event describes; written by hand, since protobuf
would be a dependency for forty lines.
"""

import heapq
from collections.abc import Iterator

from dcp_planner.trace import LANES, Trace

# Numbers of fields, as perfetto's trace.proto states them.
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60
_FLAGS, _INCREMENTAL_STATE_CLEARED = 13, 1
_SLICE_BEGIN, _SLICE_END = 1, 2


def to_perfetto(trace: Trace) -> bytes:
    """Give the trace as a Perfetto file.

    Slices carry the direction, the division, and of messages the peer and the bytes. O(E log E).
    """
    tracks = _Tracks()
    body = [_packet(_field(_FLAGS, _INCREMENTAL_STATE_CLEARED))]
    slices: list[tuple[int, int, int, bytes]] = []
    flows = _flows(trace)
    order = sorted(range(len(trace)), key=lambda i: int(trace.start_ns[i]))
    for i in order:
        start_ns, end_ns = int(trace.start_ns[i]), int(trace.end_ns[i])
        track = tracks.of(int(trace.device[i]), int(trace.lane[i]), start_ns, end_ns)
        event = _field(9, _SLICE_BEGIN) + _field(11, track) + _text(23, trace.name[i])
        event += b"".join(_bytes(4, note) for note in _notes(trace, i))
        if i in flows:
            event += _fixed64(47, flows[i])
        slices.append((start_ns, 1, len(slices), _event_packet(start_ns, event)))
        end = _field(9, _SLICE_END) + _field(11, track)
        slices.append(
            (end_ns, 0 if end_ns > start_ns else 2, len(slices), _event_packet(end_ns, end))
        )
    body.extend(tracks.packets())
    body.extend(packet for *_, packet in sorted(slices))
    return b"".join(body)


class _Tracks:
    """Rows of the picture: one per device and lane, more where events of a lane overlap."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._uuids: dict[tuple[int, int, int], int] = {}

    def of(self, device: int, lane: int, start_ns: int, end_ns: int) -> int:
        """Give the first row of a lane that is free when an event starts."""
        free = self._free.setdefault((device, lane), [])
        row = heapq.heappop(free)[1] if free and free[0][0] <= start_ns else len(free)
        heapq.heappush(free, (end_ns, row))
        return self._uuids.setdefault((device, lane, row), len(self._uuids) + 1_000_000)

    def packets(self) -> Iterator[bytes]:
        """Describe devices as processes and rows as their threads."""
        for device in sorted({device for device, *_ in self._uuids}):
            process = _field(1, device + 1) + _text(6, f"device {device}")
            yield _descriptor(_field(1, device + 1) + _bytes(3, process))
        for (device, lane, row), uuid in sorted(self._uuids.items()):
            name = LANES[lane] + (f" {row + 1}" if row else "")
            thread = _field(1, device + 1) + _field(2, uuid) + _text(5, name)
            order = _field(1, uuid) + _field(5, device + 1) + _bytes(4, thread)
            yield _descriptor(order)


def _flows(trace: Trace) -> dict[int, int]:
    """Give sends and receives of one message the same number: n-th send to n-th receive."""
    send, receive = LANES.index("send"), LANES.index("receive")
    ends: dict[tuple[object, ...], tuple[list[int], list[int]]] = {}
    for i in range(len(trace)):
        lane, device, peer = int(trace.lane[i]), int(trace.device[i]), int(trace.peer[i])
        if lane in (send, receive):
            way = (device, peer) if lane == send else (peer, device)
            key = (*way, trace.name[i], bool(trace.is_backward[i]))
            ends.setdefault(key, ([], []))[lane == receive].append(i)
    found, number = {}, 0
    for sent, received in ends.values():
        for a, b in zip(sent, received, strict=False):
            number += 1
            found[a] = found[b] = number
    return found


def _notes(trace: Trace, i: int) -> Iterator[bytes]:
    """Give the debug annotations of an event."""
    yield _text(10, "direction") + _text(6, "backward" if trace.is_backward[i] else "forward")
    yield _text(10, "division") + _field(4, int(trace.division[i]))
    if trace.peer[i] >= 0:
        yield _text(10, "peer") + _field(4, int(trace.peer[i]))
        yield _text(10, "bytes") + _field(4, int(trace.size_bytes[i]))


def _event_packet(time_ns: int, event: bytes) -> bytes:
    return _packet(_field(_TIMESTAMP, time_ns) + _bytes(_TRACK_EVENT, event))


def _descriptor(fields: bytes) -> bytes:
    return _packet(_bytes(_TRACK_DESCRIPTOR, fields))


def _packet(fields: bytes) -> bytes:
    return _bytes(1, fields + _field(_SEQUENCE, 1))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers as two's complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _fixed64(number: int, value: int) -> bytes:
    return _varint(number << 3 | 1) + value.to_bytes(8, "little")


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode())
