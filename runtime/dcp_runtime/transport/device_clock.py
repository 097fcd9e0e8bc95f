"""When something happened on the device, rather than when the host asked for it.

On the CPU both are the same. On CUDA the host only queues work: `StreamClock` queues events beside
it, and asks for their times once somebody reads the trace.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch


class StreamEvent(Protocol):
    """A point in a stream of work, as ``torch.cuda.Event(enable_timing=True)`` is one."""

    def record(self) -> None:
        """Queue it on the current stream."""

    def synchronize(self) -> None:
        """Wait until the stream has come to it."""

    def elapsed_time(self, end_event: Any) -> float:  # Any: as torch has it
        """Give the milliseconds from here to another one; both must have been reached."""


Moment: TypeAlias = "int | StreamEvent"
"""Nanoseconds of the host's monotonic clock, or an event whose time is not known yet."""


class Clock(Protocol):
    """Tells moments, and later their times."""

    def now(self) -> Moment:
        """Give this moment, without waiting for anything."""

    def read_ns(self, moment: Moment) -> int:
        """Give its time on the host's monotonic clock; waits until the device has come to it."""


class HostClock:
    """The host's own clock: work has ended when its call returns."""

    def now(self) -> Moment:
        """Give the time."""
        return time.perf_counter_ns()

    def read_ns(self, moment: Moment) -> int:
        """Give it back."""
        assert isinstance(moment, int), "this clock gave it"
        return moment


@dataclass(slots=True)
class StreamClock:
    """The clock of a device that works through a stream.

    One event is waited for when the clock is made, and ties the device's time to the host's: off by
    the time of that one call, some microseconds, and by the drift of the two since then.

    What is exposed comes out right: a wait begins when the stream has no work left, not when the
    host began to wait, and ends when the stream goes on.

    Attributes:
        make_event: gives a new event that can be timed.
    """

    make_event: Callable[[], StreamEvent]
    _first: StreamEvent = field(init=False)
    _first_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self._first = self.make_event()
        self._first.record()
        self._first.synchronize()
        self._first_ns = time.perf_counter_ns()

    def now(self) -> Moment:
        """Queue an event."""
        event = self.make_event()
        event.record()
        return event

    def read_ns(self, moment: Moment) -> int:
        """Give the time of an event of this clock."""
        if isinstance(moment, int):
            return moment
        moment.synchronize()
        return self._first_ns + round(1e6 * self._first.elapsed_time(moment))


def make_clock(device: torch.device, known: Clock | None = None) -> Clock:
    """Give the clock of a device: of its current stream on CUDA, else the host's.

    Args:
        device: where work runs.
        known: clock of the plan before; kept on CUDA, since a new one waits for the device.

    >>> make_clock(torch.device("cpu")).now() > 0
    True
    """
    if device.type != "cuda":
        return HostClock()
    if isinstance(known, StreamClock):
        return known
    with torch.cuda.device(device):
        # torch leaves its constructor without types.
        return StreamClock(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
