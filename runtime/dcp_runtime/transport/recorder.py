"""The recorder of a rank: notes events with their times while a plan runs; they become a `Trace`.

On the CPU work has ended when its call returns. On CUDA the host only queues work: `StreamClock`
queues events beside it, and reads their times when a trace is made. CUDA tells times between two
events only, as float32 milliseconds: the longer, the coarser.

The events of all ranks are put on the clock of rank 0. It pings each rank a few times; the ping
with the shortest round trip gives the offset of that rank's clock, which is uncertain by half that
round trip (the rule of NTP). On one machine the monotonic clocks agree anyway, and the offsets only
show how small the error is.
"""

import io
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from dcp_planner import Direction, Trace
from dcp_planner.simulation import EVENT_KINDS, EventKind
from dcp_planner.tables import Attention, CommWait, Instruction
from dcp_runtime.transport.store_barrier import StoreBarrier

EventTable: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Events as int64 ``[E, 10]``: the columns of `Trace` from `start_ns` to `transfer`."""

Moment: TypeAlias = Any  # Any: no common type
"""Nanoseconds of the host's monotonic clock, or an event of a stream, whose time comes later."""


class HostClock:
    """The host's own clock: work has ended when its call returns."""

    def now(self) -> Moment:
        """Return this moment, without waiting for anything."""
        return time.perf_counter_ns()

    def read_ns(self, moments: Sequence[Moment]) -> list[int]:
        """Return times on the host's monotonic clock; waits until the device has come to all."""
        return [int(moment) for moment in moments]

    def is_captured(self) -> bool:
        """Return whether a CUDA graph captures the present work: then only replays run it."""
        return False


HOP_MS = 1000.0  # longest time between two events that CUDA tells to a tenth of a microsecond
TIES = 3  # events of which the fastest ties the device's time to the host's


class StreamClock(HostClock):
    """The clock of a device that works through a stream.

    The device's time is tied to the host's anew whenever times are read, by events on a stream
    without other work. So the two differ by the time of one such event, some microseconds, and by
    their drift since the oldest moment read. Nobody waits while moments are noted.

    So exposed communication is measured where it happens: a wait begins when the stream has no work
    left, not when the host began to wait, and ends when the stream goes on.
    """

    def __init__(
        self,
        make_event: Callable[[], Any],  # Any: see Moment
        make_stream: Callable[[], Any],  # Any: a stream of CUDA, or of a test
        is_capturing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make_event, self._make_stream = make_event, make_stream
        self._is_capturing = is_capturing
        self._idle_stream: Any = None  # Any: see above

    def now(self) -> Moment:
        """Queue an event."""
        event = self._make_event()
        event.record()
        return event

    def read_ns(self, moments: Sequence[Moment]) -> list[int]:
        """Return the times of events of this clock, nearly in order; moments of the host stay."""
        queued = [moment for moment in moments if not isinstance(moment, int)]
        if not queued:
            return list(moments)
        for moment in queued:
            moment.synchronize()
        # From the newest back, in hops: a long time would be coarse.
        known, known_ns = self._tie()
        found = []
        for moment in reversed(moments):
            if isinstance(moment, int):
                found.append(moment)
                continue
            age_ms: float = moment.elapsed_time(known)
            found.append(known_ns - round(1e6 * age_ms))
            if age_ms > HOP_MS:
                known, known_ns = moment, found[-1]
        return found[::-1]

    def _tie(self) -> tuple[Any, int]:  # Any: an event
        """Return an event and its time on the host's clock."""
        if self._idle_stream is None:
            self._idle_stream = self._make_stream()
        ties = []
        for _ in range(TIES):
            event, before_ns = self._make_event(), time.perf_counter_ns()
            event.record(self._idle_stream)
            event.synchronize()
            after_ns = time.perf_counter_ns()
            ties.append((after_ns - before_ns, (before_ns + after_ns) // 2, event))
        _, time_ns, event = min(ties, key=lambda tie: tie[0])
        return event, time_ns

    def is_captured(self) -> bool:
        """Return whether a CUDA graph captures the present work: CUDA gives no times of it."""
        return self._is_capturing()


def make_clock(device: torch.device, known: HostClock | None = None) -> HostClock:
    """Return the clock of a device: on CUDA of its stream, kept if known, else the host's."""
    if device.type != "cuda":
        return HostClock()
    if isinstance(known, StreamClock):
        return known
    return StreamClock(
        partial(torch.cuda.Event, enable_timing=True),
        partial(torch.cuda.Stream, device),
        torch.cuda.is_current_stream_capturing,
    )


class Event(NamedTuple):
    """One event on this process's monotonic clock; the columns of a `Trace`."""

    kind: EventKind
    start: Moment
    end: Moment
    is_backward: bool
    division: int
    name: str
    peer: int = -1
    size_bytes: int = 0
    transfer: int = -1


class Activity(NamedTuple):
    """The instruction of a division and direction on which a rank works."""

    instruction: Instruction
    division: int
    direction: Direction

    def __str__(self) -> str:
        what = type(self.instruction).__name__.lower()
        return f"{what} in division {self.division} of {self.direction}"


MAX_EVENTS = 2**18  # events that a recorder keeps: some 4,000 layers of a plan with 65 events each


@dataclass(slots=True)
class Recorder:
    """The events of one prepared plan on one rank; several layers follow one another.

    Times of the host are kept even where no event is.
    """

    device: int  # the rank
    is_on: bool  # whether events are kept
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    doing: Activity | None = None  # present work; None between calls
    steps: int = 0  # instructions begun so far, by which a watcher sees whether the rank moves
    clock: HostClock = field(default_factory=HostClock)
    calls: Counter[Direction] = field(default_factory=Counter)  # so far, of all layers
    attention_ns: int = 0
    other_ns: int = 0  # in everything but attention and waiting
    awaited_ns: Counter[int] = field(default_factory=Counter)  # by the rank whose message came last
    latest_peer: int = -1  # whose message came last in the wait under way
    _since_ns: int = 0

    def begin(self, doing: Activity | None) -> None:
        """Note the next work of the rank, and add the time of its work so far."""
        now_ns, before = time.perf_counter_ns(), self.doing
        if before is not None:
            kind = type(before.instruction)
            if kind is Attention:
                self.attention_ns += now_ns - self._since_ns
            elif kind is CommWait:
                self.awaited_ns[self.latest_peer] += now_ns - self._since_ns
            else:
                self.other_ns += now_ns - self._since_ns
            if doing is None:  # the call ends here
                self.calls[before.direction] += 1
        self.doing, self._since_ns = doing, now_ns
        self.steps += 1

    def spent_s(self) -> tuple[float, float, float] | None:
        """Return the seconds of attention, of other work and of waiting so far, of all layers."""
        # On CUDA they come from the events, None where none are kept or the device still works: the
        # host only queues work there.
        if not isinstance(self.clock, StreamClock):
            waiting_ns = self.awaited_ns.total()
            return self.attention_ns / 1e9, self.other_ns / 1e9, waiting_ns / 1e9
        # Messages end at times of the host; the stream's own events come in its order, so once the
        # last has passed all have. A copy of the deque: other threads may append meanwhile.
        ends = [event.end for event in tuple(self.events) if not isinstance(event.end, int)]
        if not ends or not ends[-1].query():
            return None
        table, _ = self.table()
        kinds, spent = table[:, 4], table[:, 1] - table[:, 0]
        sums = {kind: spent[kinds == n].sum() / 1e9 for n, kind in enumerate(EVENT_KINDS)}
        return sums["attention"], sums["reduction"] + sums["copy"], sums["wait"]

    def awaited(self) -> Counter[int]:
        """Return the time in waits so far, in ns, by the rank whose message came last."""
        # On CUDA it comes from the events, as in `spent_s`: streams wait there.
        if not isinstance(self.clock, StreamClock):
            return self.awaited_ns
        # Columns as in `table`: start, end, ready, device, kind, direction, division, peer, ...
        table, found = self.table()[0], Counter[int]()
        arrivals = table[table[:, 4] == EVENT_KINDS.index("receive")]
        for wait in table[table[:, 4] == EVENT_KINDS.index("wait")]:
            alike = arrivals[(arrivals[:, 5:7] == wait[5:7]).all(axis=1)]
            if len(alike):  # one for each layer and message: the arrival nearest to the wait's end
                peer = int(alike[np.abs(alike[:, 1] - wait[1]).argmin(), 7])
                found[peer] += int(wait[1] - wait[0])
        return found

    def add(self, event: Event) -> None:
        """Append an event and drop the oldest beyond the bound; any thread may call this."""
        # Nothing is noted of calls that a CUDA graph captures.
        if not self.clock.is_captured():
            self.events.append(event)

    def table(self) -> tuple[EventTable, tuple[str, ...]]:
        """Return the events as rows, and their names; waits for a device still at work on them."""
        rows = []
        events = tuple(self.events)
        times = self.clock.read_ns([moment for e in events for moment in (e.start, e.end)])
        for e, start, end in zip(events, times[::2], times[1::2], strict=True):
            kind = EVENT_KINDS.index(e.kind)
            rest = e.is_backward, e.division, e.peer, e.size_bytes, e.transfer
            # The third column, ready: only the simulator knows when an event could have begun.
            rows.append((start, end, start, self.device, kind, *rest))
        return np.array(rows, np.int64).reshape(-1, 10), tuple(e.name for e in events)


def make_trace(table: EventTable, names: tuple[str, ...]) -> Trace:
    """Sort rows of `Recorder.table`, of one rank or of all, and count time from the first event."""
    rows = table.copy()
    rows[:, :3] -= table[:, 0].min() if len(table) else 0
    return Trace.of_rows("measured", rows, names)


PINGS = 8
_PLACE = "gathering the trace"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A measured trace of all ranks."""

    trace: Trace
    uncertainty_s: float


def gather_timeline(
    group: dist.ProcessGroup, barrier: StoreBarrier, recorder: Recorder
) -> Timeline | None:
    """Collect the events of all ranks on rank 0, on its clock; collective; ``None`` elsewhere."""
    barrier.exchange_notes("", _PLACE)
    if dist.get_rank(group) != 0:
        data = _pack(*recorder.table())
        with barrier.waiting_for(0, _PLACE):
            _answer(group)
            _send(group, data)
        return None
    parts, uncertainties_ns = [recorder.table()], [0]
    for peer in range(1, dist.get_world_size(group)):
        with barrier.waiting_for(peer, _PLACE):
            offset_ns, uncertainty_ns = _ping(group, peer)
            table, names = _unpack(_receive(group, peer))
        table[:, :3] += offset_ns
        parts.append((table, names))
        uncertainties_ns.append(uncertainty_ns)
    return merge_timelines(parts, farthest_apart(uncertainties_ns) / 1e9)


def farthest_apart(uncertainties: Sequence[int]) -> int:
    """Return how far two clocks can be apart, given the error of each: the largest two may add up.

    >>> farthest_apart([0, 30, 20]), farthest_apart([0])
    (50, 0)
    """
    return sum(sorted(uncertainties)[-2:])


def merge_timelines(
    parts: Sequence[tuple[EventTable, tuple[str, ...]]], uncertainty_s: float
) -> Timeline:
    """Make one trace of the tables of all ranks (`Recorder.table`), which are on one clock."""
    table = np.concatenate([table for table, _ in parts])
    names = tuple(name for _, names in parts for name in names)
    return Timeline(make_trace(table, names), uncertainty_s)


def _ping(group: dist.ProcessGroup, peer: int) -> tuple[int, int]:
    """Return the offset that puts a rank's clock on this one, and a bound on its error, in ns."""
    best_ns = 0, np.iinfo(np.int64).max
    to = dist.get_global_rank(group, peer)
    answer = torch.zeros(1, dtype=torch.int64, device="cpu")
    for _ in range(PINGS):
        sent = time.perf_counter_ns()
        dist.send(answer, to, group)
        dist.recv(answer, to, group)
        back = time.perf_counter_ns()
        # Half the round trip, rounded up: a bound on the error of the offset.
        if (back - sent + 1) // 2 < best_ns[1]:
            best_ns = (sent + back) // 2 - int(answer), (back - sent + 1) // 2
    return best_ns


def _answer(group: dist.ProcessGroup) -> None:
    to = dist.get_global_rank(group, 0)
    ping = torch.zeros(1, dtype=torch.int64, device="cpu")
    for _ in range(PINGS):
        dist.recv(ping, to, group)
        dist.send(torch.tensor([time.perf_counter_ns()], device="cpu"), to, group)


def _pack(table: EventTable, names: tuple[str, ...]) -> bytes:
    data = io.BytesIO()
    np.savez(data, table=table, names=np.array(names, dtype=np.str_))
    return data.getvalue()


def _unpack(data: bytes) -> tuple[EventTable, tuple[str, ...]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return arrays["table"], tuple(arrays["names"].tolist())


def _send(group: dist.ProcessGroup, data: bytes) -> None:
    to = dist.get_global_rank(group, 0)
    dist.send(torch.tensor([len(data)], device="cpu"), to, group)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), to, group)


def _receive(group: dist.ProcessGroup, peer: int) -> bytes:
    source = dist.get_global_rank(group, peer)
    size = torch.zeros(1, dtype=torch.int64, device="cpu")
    dist.recv(size, source, group)
    data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    dist.recv(data, source, group)
    return data.numpy().tobytes()
