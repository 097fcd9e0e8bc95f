"""What happens on this rank, when: filled while a plan runs, read as a `Trace`."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from dcp_planner import LANES, Lane, Trace
from dcp_runtime.transport.device_clock import Clock, HostClock, Moment

EventTable: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Events as int64 ``[E, 8]``: the columns of `Trace` but the name."""


class Event(NamedTuple):
    """One event on this process's monotonic clock; the columns of a `Trace`."""

    lane: Lane
    start: Moment
    end: Moment
    is_backward: bool
    division: int
    name: str
    peer: int = -1
    size_bytes: int = 0


@dataclass(slots=True)
class Recorder:
    """The events of one prepared plan on one rank; several layers follow one another.

    Attributes:
        device: the rank.
        events: what has ended, in the order of its ends.
        doing: what the rank does now, as a place in words, and the division; ``None`` between
            calls.
        steps: instructions begun so far: a watcher sees by it whether the rank moves.
        clock: of the device that computes.
    """

    device: int
    events: list[Event] = field(default_factory=list)
    doing: tuple[str, int] | None = None
    steps: int = 0
    clock: Clock = field(default_factory=HostClock)

    def begin(self, doing: tuple[str, int] | None) -> None:
        """Note what the rank does from now on."""
        self.doing = doing
        self.steps += 1

    def add(self, event: Event) -> None:
        """Append an event; list appends are atomic, so any thread may call this."""
        self.events.append(event)

    def table(self) -> tuple[EventTable, tuple[str, ...]]:
        """Give the events as int64 ``[E, 8]`` (columns of `Trace` but the name) and their names.

        Waits for a device that is still at work on them.
        """
        rows = [
            (
                self.clock.read_ns(e.start),
                self.clock.read_ns(e.end),
                self.device,
                LANES.index(e.lane),
                e.is_backward,
                e.division,
                e.peer,
                e.size_bytes,
            )
            for e in self.events
        ]
        return np.array(rows, np.int64).reshape(-1, 8), tuple(e.name for e in self.events)


def make_trace(table: EventTable, names: tuple[str, ...]) -> Trace:
    """Sort rows of `Recorder.table`, of one rank or of all, and count time from the first event."""
    order = np.lexsort((table[:, 0], table[:, 3], table[:, 2]))
    start, end, device, lane, is_backward, division, peer, size = table[order].T
    first = start.min() if len(start) else 0
    return Trace(
        source="measured",
        start_ns=start - first,
        end_ns=end - first,
        device=device.astype(np.int32),
        lane=lane.astype(np.uint8),
        is_backward=is_backward.astype(np.bool_),
        division=division.astype(np.int32),
        peer=peer.astype(np.int32),
        size_bytes=size,
        name=tuple(names[i] for i in order.tolist()),
    )
