"""Max-min fair shares of ports: streams that meet in a port send and receive in equal parts.

A stream sends through one port and receives through another, one message at a time. A stream that
gets less than its part of one port leaves the rest to the others. These shares are those of TCP
connections of one delay, and of a max-min fair allocation (Bertsekas and Gallager, Data Networks,
Sec. 6.5.2): no stream can get more without another, which has no more than it, getting less.

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


class Streams(NamedTuple):
    """Streams and the ports that they share. Work is counted in ns of a port that it has alone.

    Attributes:
        ports: int64 ``[2, S]``, port that each stream sends through (0) and receives through (1).
        left: float64 ``[S]``, work of its message that is left.
        share: float64 ``[S]``, of its ports, 0 to 1, while it is active.
        active: int64 ``[S]``, streams with a message under way, the first `count`, in no order.
        place: int64 ``[S]``, of each stream in `active`; -1: not there.
        open_streams: int64 ``[S]``, scratch: streams without a share.
        free: float64 ``[2, P]``, scratch: what is left of each port.
        waiting: int64 ``[2, P]``, scratch: streams of each port that have no share yet.
        state: int64 ``[2]``, streams that are active, and whether shares are out of date.
    """

    ports: IntTable
    left: Floats
    share: Floats
    active: Ints
    place: Ints
    open_streams: Ints
    free: FloatTable
    waiting: IntTable
    state: Ints

    @classmethod
    def of(cls, ports: IntTable, num_ports: int) -> "Streams":
        """Lay out streams, none of which is active yet; O(S + P).

        Args:
            ports: int64 ``[2, S]``, of each stream.
            num_ports: ports to send through, and as many to receive through.
        """
        size = ports.shape[1]
        return cls(
            np.ascontiguousarray(ports, np.int64), np.zeros(size), np.zeros(size),
            np.zeros(size, np.int64), np.full(size, -1, np.int64), np.zeros(size, np.int64),
            np.zeros((2, num_ports)), np.zeros((2, num_ports), np.int64), np.zeros(2, np.int64),
        )  # fmt: skip


@compiled
def start_stream(streams: Streams, s: int, work_ns: int) -> None:
    """Begin a message of an idle stream."""
    streams.left[s] = work_ns
    streams.place[s] = streams.state[0]
    streams.active[streams.state[0]] = s
    streams.state[0] += 1
    streams.state[1] = 1


@compiled
def end_stream(streams: Streams, s: int) -> None:
    """End the message of an active stream."""
    streams.state[0] -= 1
    last, gap = streams.active[streams.state[0]], streams.place[s]
    streams.active[gap] = last
    streams.place[last] = gap
    streams.place[s] = -1
    streams.state[1] = 1


@compiled
def share_ports(streams: Streams) -> None:
    """Give every active stream its max-min fair share; O(A L) for A streams at L shares."""
    count = streams.state[0]
    streams.state[1] = 0
    for k in range(count):
        s = streams.active[k]
        streams.open_streams[k] = s
        for side in range(2):
            streams.free[side, streams.ports[side, s]] = 1.0
            streams.waiting[side, streams.ports[side, s]] = 0
    for k in range(count):
        for side in range(2):
            streams.waiting[side, streams.ports[side, streams.active[k]]] += 1
    while count > 0:
        # The fullest port: its streams get an equal part, and none of them can get more.
        least = 2.0
        for k in range(count):
            s = streams.open_streams[k]
            for side in range(2):
                port = streams.ports[side, s]
                least = min(least, streams.free[side, port] / streams.waiting[side, port])
        kept = 0
        for k in range(count):
            s = streams.open_streams[k]
            a, b = streams.ports[0, s], streams.ports[1, s]
            most = min(
                streams.free[0, a] / streams.waiting[0, a],
                streams.free[1, b] / streams.waiting[1, b],
            )
            # What leaves a port takes at most an equal part of it, so parts of others never fall.
            if most <= least * (1.0 + _EPSILON):
                streams.share[s] = least
                streams.free[0, a] -= least
                streams.free[1, b] -= least
                streams.waiting[0, a] -= 1
                streams.waiting[1, b] -= 1
            else:
                streams.open_streams[kept] = s
                kept += 1
        count = kept


@compiled
def next_end(streams: Streams, now_ns: int) -> int:
    """Return when the first active message ends if nothing changes, `NEVER_NS` if none is active.

    Shares must be up to date.
    """
    soonest = 1e300
    for k in range(streams.state[0]):
        s = streams.active[k]
        soonest = min(soonest, streams.left[s] / streams.share[s])
    if soonest > 4e18:
        return NEVER_NS
    return int(now_ns + np.int64(np.ceil(soonest - _EPSILON)))


@compiled
def send_on(streams: Streams, duration_ns: int) -> None:
    """Let all active streams send for a while at their shares."""
    for k in range(streams.state[0]):
        s = streams.active[k]
        streams.left[s] -= streams.share[s] * duration_ns


@compiled
def first_ended(streams: Streams) -> int:
    """Return the active stream of the lowest number whose message has no work left, or -1."""
    found = -1
    for k in range(streams.state[0]):
        s = streams.active[k]
        if streams.left[s] <= _EPSILON and (found < 0 or s < found):
            found = s
    return found
