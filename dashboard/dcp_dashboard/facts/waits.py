"""Who waits where for whom: the wait lanes of a trace, summed by device, division and direction."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_planner import LANES, Direction, Trace

WAIT, SEND, RECEIVE = (LANES.index(lane) for lane in ("wait", "send", "receive"))


@dataclass(frozen=True, slots=True)
class Wait:
    """The waits of one device in one division and direction.

    Attributes:
        device, division, direction: where.
        seconds: their sum.
        start_ns, end_ns: the longest of them.
        peer: the other device of the message that ended the longest, -1 if none is known.
        is_sent: whether that message went to the peer, instead of coming from it.
        message: its name in the trace, for example ``"kv 12"``; empty if none is known.
        event: its row in the trace, -1 if none is known.
    """

    device: int
    division: int
    direction: Direction
    seconds: float
    start_ns: int
    end_ns: int
    peer: int = -1
    is_sent: bool = False
    message: str = ""
    event: int = -1


def find_waits(
    trace: Trace, limit: int, *, device: int | None = None, division: tuple[int, bool] | None = None
) -> list[Wait]:
    """Give the longest sums of waits, longest first; O(E log E) once, O(E) for each one given.

    Args:
        trace: of any source.
        limit: how many to give at most.
        device: only this one.
        division: only this one, and whether it is of backward.
    """
    chosen = trace.lane == WAIT
    if device is not None:
        chosen &= trace.device == device
    if division is not None:
        chosen &= (trace.division == division[0]) & (trace.is_backward == division[1])
    waits = np.flatnonzero(chosen)
    if not len(waits):
        return []
    place = trace.device[waits].astype(np.int64) << 32 | (trace.division[waits] + 1)
    _, group = np.unique(place * 2 + trace.is_backward[waits], return_inverse=True)
    length = (trace.end_ns - trace.start_ns)[waits]
    total = np.bincount(group, weights=length)
    found = []
    for index in np.argsort(-total, kind="stable")[:limit]:
        members = np.flatnonzero(group == index)
        longest = int(waits[members[length[members].argmax()]])
        found.append(_wait(trace, longest, float(total[index]) / 1e9))
    return found


def _wait(trace: Trace, longest: int, seconds: float) -> Wait:
    place = (
        int(trace.device[longest]),
        int(trace.division[longest]),
        direction_of(trace, longest),
        seconds,
        int(trace.start_ns[longest]),
        int(trace.end_ns[longest]),
    )
    event = released_by(trace, longest)
    if event is None:
        return Wait(*place)
    is_sent = bool(trace.lane[event] == SEND)
    return Wait(*place, int(trace.peer[event]), is_sent, trace.name[event], event)


def direction_of(trace: Trace, event: int) -> Direction:
    """Give the direction of an event."""
    return "backward" if trace.is_backward[event] else "forward"


def released_by(trace: Trace, wait: int) -> int | None:
    """Give the message of the waiting device that ends last within the wait, or ``None``."""
    is_message = (trace.lane == SEND) | (trace.lane == RECEIVE)
    ends_inside = (trace.end_ns > trace.start_ns[wait]) & (trace.end_ns <= trace.end_ns[wait])
    chosen: NDArray[np.intp] = np.flatnonzero(
        is_message
        & ends_inside
        & (trace.device == trace.device[wait])
        & (trace.is_backward == trace.is_backward[wait])
        & (trace.peer >= 0)
    )
    return int(chosen[trace.end_ns[chosen].argmax()]) if len(chosen) else None
