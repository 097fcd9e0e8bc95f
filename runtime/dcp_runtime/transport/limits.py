"""Limits of a run: how long ranks wait for each other, and how fast links are made to be.

A slow link is for tests and measurements of overlap, like netem, but inside the process and without
privileges: each rank's outgoing messages queue for a link of so many bytes per second, and arrive
after a latency on top. Nothing computes while a message waits; a thread sleeps.

This module loads no torch: commands check their options by it.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dcp_runtime.errors import RunError

MAX_TIMEOUT_S = 86_400.0
"""Longest wait for a rank, a day: what gloo and the clocks of the operating system take."""


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout that no clock takes.

    >>> check_timeout(float("nan"))
    Traceback (most recent call last):
    ...
    dcp_runtime.errors.RunError: expected a timeout above 0 and at most 86400 s, got nan s
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise RunError(
            f"expected a timeout above 0 and at most {MAX_TIMEOUT_S:.0f} s, got {timeout_s:g} s"
        )


def describe_wait(error: str, timeout_s: float) -> str:
    """Describe how long a rank waited, from the text of an error of gloo or of the store.

    A text that is not known stays as it is.

    >>> describe_wait("[/src/buffer.cc:78] Timed out waiting 1ms for recv to complete", 0.001)
    '0.001 s long'
    """
    if "Timed out" in error or "timeout" in error:
        return f"{timeout_s:g} s long"
    if "onnection" in error:
        return "until its connection broke"
    return error.splitlines()[0] if error else "for an unknown reason"


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """The rate and the latency that a rank's outgoing link is held down to.

    Attributes:
        bytes_per_s: rate, shared by all messages of the rank.
        latency_s: seconds that each message takes on top.
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
