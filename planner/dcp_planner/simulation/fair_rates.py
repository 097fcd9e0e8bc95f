"""Max-min fair shares of ports: streams that meet in a port send and receive in equal parts.

A stream sends through one port and receives through another, one message at a time. A stream that
gets less than its part of one port leaves the rest to the others. These shares are those of TCP
connections of one delay, and of a max-min fair allocation (Bertsekas and Gallager, Data Networks,
Sec. 6.5.2): no stream can get more without another, which has no more than it, getting less.

Streams that can never meet, directly or through others, are of different parts, and each part keeps
its own time. Links inside a node are a part, those between nodes are one.

The simulator and the runtime's emulation share this module.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.jit import FloatTable, IntTable, compiled

_EPSILON = 1e-9
"""Shares that differ by less are equal, and so much of a nanosecond's work is none."""
NEVER_NS = 1 << 62
"""Later than any event."""

# State of a part's shares; from `_LACKS` on: up to date, if the stream ``state - _LACKS`` goes on.
_FRESH, _STALE, _LACKS = 0, 1, 2


class Streams(NamedTuple):
    """Streams and the ports that they share. Work is counted in ns of a port that it has alone."""

    # int64 `[2, S]`, port that each stream sends through (0) and receives through (1)
    ports: IntTable
    part: Ints  # `[S]`, of each stream
    part_ptr: Ints  # `[C+1]`, where the streams of each part begin in `active`
    active: Ints  # `[S]`, of each part first the streams with a message under way, in no order
    size: Ints  # `[C]`, of those
    place: Ints  # `[S]`, of each stream in `active`
    left: Floats  # float64 `[S]`, work of its message that was left at `sent_ns` of its part
    share: Floats  # float64 `[S]`, of its ports, 0 to 1, while it is active
    sent_ns: Ints  # `[C]`
    next_ns: Ints  # `[C]`, when the first message of a part leaves; -1: not known
    state: Ints  # `[C]`, whether the shares of a part are up to date
    waiting_for: Ints  # `[S]`, scratch: streams without a share
    equal: FloatTable  # float64 `[2, P]`, scratch: equal parts of what is left of each port
    # float64 `[2, P]`, scratch: of the other ports of its streams the least equal part
    least: FloatTable
    free: FloatTable  # float64 `[2, P]`, scratch: what is left of each port
    waiting: IntTable  # int64 `[2, P]`, scratch: streams of each port that have no share yet

    @classmethod
    def of(cls, ports: IntTable, part: Ints, num_ports: int) -> "Streams":
        """Lay out streams, none of which is active yet; O(S + P). Unequal parts share no port."""
        size, parts = len(part), int(part.max(initial=-1)) + 1
        part_ptr = np.append(0, np.cumsum(np.bincount(part, minlength=parts)))

        def none(count: int) -> Ints:
            return np.zeros(count, np.int64)

        return cls(
            ports=ports, part=part, part_ptr=part_ptr, active=none(size), size=none(parts),
            place=none(size), left=np.zeros(size), share=np.zeros(size), sent_ns=none(parts),
            next_ns=np.full(parts, NEVER_NS), state=none(parts), waiting_for=none(size),
            equal=np.zeros((2, num_ports)), least=np.zeros((2, num_ports)),
            free=np.zeros((2, num_ports)), waiting=np.zeros((2, num_ports), np.int64),
        )  # fmt: skip


@compiled
def start_stream(streams: Streams, s: int, work_ns: int, now_ns: int) -> None:
    """Begin a message of an idle stream."""
    c = streams.part[s]
    _send_on(streams, c, now_ns)
    at = streams.part_ptr[c] + streams.size[c]
    streams.active[at], streams.place[s], streams.left[s] = s, at, work_ns
    streams.size[c] += 1
    # A stream that goes on with its next message takes nothing from others, and gives them nothing.
    streams.state[c] = _FRESH if streams.state[c] == _LACKS + s else _STALE
    streams.next_ns[c] = -1


@compiled
def end_stream(streams: Streams, s: int, now_ns: int) -> None:
    """End the message of an active stream."""
    c = streams.part[s]
    _send_on(streams, c, now_ns)
    streams.size[c] -= 1
    last, gap = streams.active[streams.part_ptr[c] + streams.size[c]], streams.place[s]
    streams.active[gap], streams.place[last] = last, gap
    streams.state[c] = _LACKS + s if streams.state[c] == _FRESH else _STALE
    streams.next_ns[c] = -1


@compiled
def next_end(streams: Streams, now_ns: int) -> int:
    """Return when the next message leaves if nothing changes; `NEVER_NS` if none is under way."""
    soonest = np.int64(NEVER_NS)
    for c in range(len(streams.size)):
        if streams.next_ns[c] < 0:
            _send_on(streams, c, now_ns)
            if streams.state[c] != _FRESH:
                _share_ports(streams, c)
            streams.next_ns[c] = _next_of(streams, c)
        soonest = min(soonest, streams.next_ns[c])
    return int(soonest)


@compiled
def first_ended(streams: Streams, now_ns: int) -> int:
    """Return an active stream whose message has no work left at this moment, or -1."""
    for c in range(len(streams.size)):
        # A part that has changed since may have others that end at the same moment.
        if streams.next_ns[c] > now_ns:
            continue
        _send_on(streams, c, now_ns)
        for k in range(streams.part_ptr[c], streams.part_ptr[c] + streams.size[c]):
            if streams.left[streams.active[k]] <= _EPSILON:
                return int(streams.active[k])
        streams.next_ns[c] = -1
    return -1


@compiled
def _send_on(streams: Streams, c: int, now_ns: int) -> None:
    """Bring a part to this moment, at the shares that held until now."""
    duration = now_ns - streams.sent_ns[c]
    if duration > 0:
        for k in range(streams.part_ptr[c], streams.part_ptr[c] + streams.size[c]):
            s = streams.active[k]
            streams.left[s] -= streams.share[s] * duration
        streams.sent_ns[c] = now_ns


@compiled
def _next_of(streams: Streams, c: int) -> int:
    """Return when the first message of a part leaves, at its present shares."""
    soonest = 1e300
    for k in range(streams.part_ptr[c], streams.part_ptr[c] + streams.size[c]):
        s = streams.active[k]
        soonest = min(soonest, streams.left[s] / streams.share[s])
    if soonest > 4e18:
        return NEVER_NS
    return int(streams.sent_ns[c] + max(np.int64(0), np.int64(np.ceil(soonest - _EPSILON))))


@compiled
def _share_ports(streams: Streams, c: int) -> None:
    """Set the max-min fair share of every active stream of a part.

    O(A L) for A streams: of a chain of ports, each with less room than the next, L can be settled
    only one after the other.
    """
    begin, count = streams.part_ptr[c], streams.size[c]
    ports, free, waiting = streams.ports, streams.free, streams.waiting
    for k in range(count):
        s = streams.active[begin + k]
        streams.waiting_for[k] = s
        for side in range(2):
            free[side, ports[side, s]] = 1.0
            waiting[side, ports[side, s]] = 0
    for k in range(count):
        for side in range(2):
            waiting[side, ports[side, streams.waiting_for[k]]] += 1
    while count > 0:
        _part_equally(streams, count)
        count = _settle(streams, count)
    streams.state[c] = _FRESH


@compiled
def _part_equally(streams: Streams, count: int) -> None:
    """Find the equal parts of ports, and the least equal part of the ports at their other ends."""
    ports, equal, least = streams.ports, streams.equal, streams.least
    for k in range(count):
        s = streams.waiting_for[k]
        for side in range(2):
            port = ports[side, s]
            equal[side, port] = streams.free[side, port] / streams.waiting[side, port]
            least[side, port] = 2.0
    for k in range(count):
        s = streams.waiting_for[k]
        a, b = ports[0, s], ports[1, s]
        least[0, a] = min(least[0, a], equal[1, b])
        least[1, b] = min(least[1, b], equal[0, a])


@compiled
def _settle(streams: Streams, count: int) -> int:
    """Set the shares of streams whose ports hold them up; return how many still wait for theirs.

    A port holds its streams up if no other port holds one of them up more: what leaves a port takes
    at most an equal part of it, so equal parts never fall.
    """
    kept, equal, least = 0, streams.equal, streams.least
    for k in range(count):
        s = streams.waiting_for[k]
        a, b = streams.ports[0, s], streams.ports[1, s]
        if equal[0, a] <= least[0, a] * (1.0 + _EPSILON):
            share = equal[0, a]
        elif equal[1, b] <= least[1, b] * (1.0 + _EPSILON):
            share = equal[1, b]
        else:
            streams.waiting_for[kept] = s
            kept += 1
            continue
        streams.share[s] = share
        for side, port in ((0, a), (1, b)):
            streams.free[side, port] -= share
            streams.waiting[side, port] -= 1
    return kept
