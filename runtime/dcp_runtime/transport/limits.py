"""Limits of a run: how long ranks wait for each other, and links slowed down on purpose.

A slow link is for tests and measurements of overlap. It works like Linux' netem, but inside the
process and without privileges: the outgoing messages of a rank queue for a link of a given rate,
and arrive a given latency later. While a message waits a thread sleeps, so no core is busy.

This module loads no torch: commands check their options with it.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dcp_runtime.errors import RunError

MAX_TIMEOUT_S = 86_400.0
"""Longest wait for a rank, a day: gloo and the clocks of the operating system accept it."""


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout that no clock accepts.

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
    """Describe how long a rank waited, from an error message of gloo or of the store.

    Of an unknown message the first line is returned.

    >>> describe_wait("[/src/buffer.cc:78] Timed out waiting 1ms for recv to complete", 0.001)
    '0.001 s long'
    """
    if "Timed out" in error or "timeout" in error:
        return f"{timeout_s:g} s long"
    if "onnection" in error:  # with a capital letter or a small one
        return "until its connection broke"
    return error.splitlines()[0] if error else "for an unknown reason"


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """The rate and the latency of a rank's slowed outgoing link.

    Attributes:
        bytes_per_s: rate, shared by all messages of the rank.
        latency_s: seconds that each message takes in addition.
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
    """Delivers each message when it would have crossed the link, in the order of sending."""

    def __init__(self, limit: LinkLimit) -> None:
        self._limit = limit
        self._free_s = 0.0  # when all that was sent so far has left the link
        self._queue: queue.SimpleQueue[tuple[float, Callable[[], None]] | None]
        self._queue = queue.SimpleQueue()
        self._lock = threading.Lock()
        # A daemon: a message that waits must not keep a failed process alive.
        self._thread = threading.Thread(target=self._deliver, name="slow link", daemon=True)
        self._thread.start()

    def send(self, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Call `deliver` once so many bytes have crossed, behind all that is under way."""
        with self._lock:  # relays are sent by the threads that received them
            start_s = max(time.monotonic(), self._free_s)
            self._free_s = start_s + size_bytes / self._limit.bytes_per_s
            # The latency holds the message back and not the link: the next one may start.
            self._queue.put((self._free_s + self._limit.latency_s, deliver))

    def _deliver(self) -> None:
        # All messages have one latency, so the first in the queue is the first that is due.
        while (item := self._queue.get()) is not None:
            due_s, deliver = item
            time.sleep(max(0.0, due_s - time.monotonic()))
            deliver()

    def close(self) -> None:
        """End the thread once everything has been delivered."""
        self._queue.put(None)
        self._thread.join(timeout=1)
