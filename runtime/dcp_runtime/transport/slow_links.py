"""A slow network on a fast machine: messages are held back as if the link were narrow.

For tests and measurements of overlap, like netem, but inside the process and without privileges:
each rank's outgoing messages queue for a link of so many bytes per second, and arrive after a
latency on top. Nothing computes while it waits; a thread sleeps.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.transport.clock import Timeline
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.transport import Parcel, Transport


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """What a rank's outgoing link is held down to.

    Attributes:
        bytes_per_s: rate, shared by all messages of the rank.
        latency_s: seconds that each message takes on top.

    Raises:
        RunError: if the rate is not above 0 or the latency below 0.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and 0 <= self.latency_s < 60):
            raise RunError(
                "expected a link of more than 0 bytes per second and a latency of 0 to 60 s, got "
                f"{self.bytes_per_s:g} and {self.latency_s:g}"
            )


class SlowLink:
    """Calls back when a message would have crossed the link; in order."""

    def __init__(self, limit: LinkLimit) -> None:
        self._limit = limit
        self._free_s = 0.0
        self._queue: queue.SimpleQueue[tuple[float, Callable[[], None]] | None]
        self._queue = queue.SimpleQueue()
        self._lock = threading.Lock()
        # A daemon: a message that waits must not keep a failed process alive.
        self._thread = threading.Thread(target=self._deliver, name="slow link", daemon=True)
        self._thread.start()

    def send(self, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Call `deliver` once so many bytes have crossed, behind all that is under way."""
        with self._lock:
            start_s = max(time.monotonic(), self._free_s)
            self._free_s = start_s + size_bytes / self._limit.bytes_per_s
            self._queue.put((self._free_s + self._limit.latency_s, deliver))

    def _deliver(self) -> None:
        while (item := self._queue.get()) is not None:
            due_s, deliver = item
            time.sleep(max(0.0, due_s - time.monotonic()))
            deliver()

    def close(self) -> None:
        """End the thread once everything has been delivered."""
        self._queue.put(None)
        self._thread.join(timeout=1)


class NoOverlapTransport:
    """Holds messages back until this rank waits.

    Args:
        inner: moves them.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self._held: list[Parcel] = []

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Keep the parcels for the next wait."""
        self._held.extend(parcels)

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Start all that was kept and wait for all of it."""
        held, self._held = self._held, []
        self._inner.start(held)
        self._inner.wait(held, direction)  # of `parcels`, those not held were waited for before

    def report(self, place: str, division: int, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on."""
        self._inner.report(place, division, error)

    def exchange_notes(self, note: str, place: str) -> list[str]:
        """Give the notes of all ranks in rank order; collective."""
        return self._inner.exchange_notes(note, place)

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Give the events of all ranks on one clock to rank 0, ``None`` to others; collective."""
        return self._inner.gather_timeline(recorder)

    def close(self) -> None:
        """End what runs beside the program."""
        self._inner.close()
