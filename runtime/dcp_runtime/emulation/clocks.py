"""The clock of an emulated cluster: virtual time, or real time slowed down.

Ranks are threads. They sleep for as long as their devices would compute, and wait for messages. In
virtual time the clock jumps to the next event once all ranks stand still, so the host's own work
takes no time at all. In dilated time a virtual second takes D real ones: whatever the host does
meanwhile makes ranks late, D times less than on the real clock.
"""

import heapq
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from dcp_planner.simulation import NEVER_NS
from dcp_runtime.emulation.fabric import Fabric
from dcp_runtime.errors import RunError
from dcp_runtime.transport.recorder import HostClock
from dcp_runtime.transport.transport import Parcel

POLL_S = 0.2  # seconds between looks whether the run has been stopped


class Stopped(Exception):
    """Ends a rank whose run another rank's failure, or the user, has ended."""


class _Bell:
    """Wakes one rank once it has been rung a number of times."""

    __slots__ = ("event", "missing")

    def __init__(self, missing: int) -> None:
        self.missing, self.event = missing, threading.Event()


class Clock(ABC, HostClock):
    """Time of all ranks, and the fabric between them; the lock is held by whoever changes that."""

    def __init__(self, size: int, fabric: Fabric) -> None:
        self.size, self.fabric, self.lock = size, fabric, threading.RLock()
        self._bells: set[_Bell] = set()
        self._meeting: list[_Bell] = []
        self._failure: BaseException | None = None

    @abstractmethod
    def now(self) -> int:
        """Return the virtual nanoseconds since the begin of the run."""

    @abstractmethod
    def sleep(self, duration_ns: int) -> None:
        """Let a rank stand still for a while."""

    def post(self, parcel: Parcel) -> None:
        """Note that an end of a message is ready to go."""
        with self.lock:
            self.fabric.post(parcel)

    def wait(self, parcels: Sequence[Parcel]) -> None:
        """Let a rank stand still until all parcels have left or arrived."""
        with self.lock:
            bell = self._hang(len(parcels))
            for parcel in parcels:
                parcel.then(lambda: self._ring(bell))
        self._stand(bell)

    def meet(self) -> None:
        """Let a rank stand still until all have come to this place."""
        with self.lock:
            self._meeting.append(self._hang(1))
            bell = self._meeting[-1]
            if len(self._meeting) == self.size:
                for each in self._meeting:
                    self._ring(each)
                self._meeting = []
        self._stand(bell)

    def run(self, work: Callable[[int], None]) -> None:
        """Call `work` for each rank, on a thread each; wait for all, then raise the first error."""
        threads = [
            threading.Thread(target=self._run_rank, args=(work, rank), name=f"rank {rank}")
            for rank in range(self.size)
        ]
        self._begin()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(POLL_S)
        except BaseException as error:
            self._stop(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _run_rank(self, work: Callable[[int], None], rank: int) -> None:
        try:
            self._enter(rank)
            work(rank)
        except Stopped:
            pass
        except BaseException as error:  # `run` raises it
            self._stop(error)
        finally:
            self._leave()

    def _stop(self, error: BaseException) -> None:
        """End all ranks where they stand, because of an error."""
        with self.lock:
            self._failure = self._failure or error
            for bell in self._bells:
                bell.event.set()

    def _hang(self, missing: int) -> _Bell:
        """Make a bell for the present rank; it is rung once more as the rank stands still."""
        bell = _Bell(missing + 1)
        self._bells.add(bell)
        if self._failure is not None:
            bell.event.set()
        return bell

    def _ring(self, bell: _Bell) -> None:
        with self.lock:
            bell.missing -= 1
            if bell.missing == 0:
                self._wake(bell)

    def _wake(self, bell: _Bell) -> None:
        bell.event.set()

    def _stand(self, bell: _Bell) -> None:
        """Let the present rank stand still until its bell has been rung."""
        self._ring(bell)
        self._wait_for(bell)

    def _wait_for(self, bell: _Bell) -> None:
        while not bell.event.wait(POLL_S):
            pass
        with self.lock:
            self._bells.discard(bell)
        if self._failure is not None:
            raise Stopped

    @abstractmethod
    def _begin(self) -> None:
        """Start the clock."""

    def _end(self) -> None:
        """Stop it."""

    def _enter(self, rank: int) -> None:
        """Note that a rank begins."""

    def _leave(self) -> None:
        """Note that a rank has ended."""


class VirtualClock(Clock):
    """Time that passes only while all ranks stand still.

    One rank goes on at a time, in the order in which they are woken, so that the same run gives the
    same times.
    """

    def __init__(self, size: int, fabric: Fabric) -> None:
        super().__init__(size, fabric)
        self._is_awake = True
        self._ready: deque[_Bell] = deque()
        self._entries: list[_Bell] = []
        self._alarms: list[tuple[int, int, _Bell]] = []
        self._turn = count()

    def now(self) -> int:
        """Return the virtual nanoseconds since the begin of the run."""
        return self.fabric.now_ns

    def sleep(self, duration_ns: int) -> None:
        """Let a rank stand still for a while."""
        if duration_ns <= 0:
            return
        with self.lock:
            bell = self._hang(1)
            due = self.fabric.now_ns + duration_ns
            heapq.heappush(self._alarms, (due, next(self._turn), bell))
        self._stand(bell)

    def _wake(self, bell: _Bell) -> None:
        self._ready.append(bell)

    def _stand(self, bell: _Bell) -> None:
        with self.lock:
            self._is_awake = False
            self._ring(bell)
            self._drive()
        self._wait_for(bell)

    def _drive(self) -> None:
        """Let time pass until a rank goes on; called with the lock."""
        while not self._is_awake and self._failure is None and self._bells:
            if self._ready:
                self._is_awake = True
                self._ready.popleft().event.set()
                return
            alarm = self._alarms[0][0] if self._alarms else NEVER_NS
            when = min(self.fabric.next_ns(), alarm)
            if when >= NEVER_NS:
                self._stop(RunError("all ranks wait for messages that never come; validate the "
                                    "plan (`dcpm validate`)"))  # fmt: skip
                return
            self.fabric.advance(when)
            while self._alarms and self._alarms[0][0] <= when:
                self._ring(heapq.heappop(self._alarms)[2])

    def _begin(self) -> None:
        with self.lock:
            self._entries = [self._hang(0) for _ in range(self.size)]
            for bell in self._entries:
                self._ring(bell)
            self._is_awake = False
            self._drive()

    def _enter(self, rank: int) -> None:
        self._wait_for(self._entries[rank])

    def _leave(self) -> None:
        with self.lock:
            self._is_awake = False
            self._drive()


class DilatedClock(Clock):
    """Real time, of which `dilation` seconds are one virtual second."""

    def __init__(self, size: int, fabric: Fabric, dilation: float) -> None:
        super().__init__(size, fabric)
        self._dilation, self._start_ns, self._is_over = dilation, 0, False
        self._changed = threading.Condition(self.lock)
        self._driver = threading.Thread(target=self._drive, name="fabric", daemon=True)

    def now(self) -> int:
        """Return the virtual nanoseconds since the begin of the run."""
        return int((time.perf_counter_ns() - self._start_ns) / self._dilation)

    def sleep(self, duration_ns: int) -> None:
        """Let a rank stand still for a while."""
        end_ns = time.perf_counter_ns() + duration_ns * self._dilation
        while (left_s := (end_ns - time.perf_counter_ns()) / 1e9) > 0:
            if self._failure is not None:
                raise Stopped
            time.sleep(min(left_s, POLL_S))

    def post(self, parcel: Parcel) -> None:
        """Note that an end of a message is ready to go: now, or when what it passes on arrived."""
        with self.lock:
            self.fabric.advance(self.now())
            self.fabric.post(parcel)
            self._changed.notify()

    def _drive(self) -> None:
        with self._changed:
            while not self._is_over:
                try:
                    self.fabric.advance(max(self.fabric.now_ns, self.now()))
                    left_ns = (self.fabric.next_ns() - self.now()) * self._dilation
                except Exception as error:
                    self._stop(error)
                    return
                self._changed.wait(min(max(left_ns / 1e9, 0.0), POLL_S))

    def _begin(self) -> None:
        self._start_ns = time.perf_counter_ns()
        self._driver.start()

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._driver.join()
