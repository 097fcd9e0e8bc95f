"""Time the compiling of the planner, apart from planning, and print a line before it begins.

Compiling happens once per installation, at the first import or the first plan.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from numba.core import event

SOME_SECONDS = "some 15 s on a free core"
"""Time to compile everything."""


@dataclass(slots=True)
class Stopwatch:
    """Seconds of a piece of work.

    Attributes:
        seconds: without compiling.
        compile_s: seconds of compiling.
    """

    seconds: float = 0.0
    compile_s: float = 0.0


class CompileClock(event.Listener):
    """Hears when numba compiles a watched function; adds up the seconds, thread by thread.

    Attributes:
        is_kept: whether what is compiled stays for other processes.
    """

    def __init__(self) -> None:
        self.is_kept = True
        self._watched: set[Callable[..., Any]] = set()
        self._has_told = False
        self._own = threading.local()
        event.register("numba:compile", self)  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        """Seconds of compiling on this thread so far."""
        return getattr(self._own, "seconds", 0.0)

    def watch(self, function: Callable[..., Any]) -> None:
        """Count the compiling of a function."""
        self._watched.add(function)

    def on_start(self, event: event.Event) -> None:
        """Begin to count; before the first function of this process is compiled, say so."""
        if not event.data or event.data["dispatcher"].py_func not in self._watched:
            return
        if not self._has_told:
            self._has_told = True
            print(self._words(), file=sys.stderr, flush=True)
        self._own.depth = getattr(self._own, "depth", 0) + 1
        if self._own.depth == 1:  # one function may compile others
            self._own.since = perf_counter()

    def on_end(self, event: event.Event) -> None:
        """Count a finished compilation."""
        if not event.data or event.data["dispatcher"].py_func not in self._watched:
            return
        self._own.depth -= 1
        if self._own.depth == 0:
            self._own.seconds = self.seconds + perf_counter() - self._own.since

    def _words(self) -> str:
        if self.is_kept:
            return f"compiling the planner once per installation, {SOME_SECONDS}"
        return (
            f"compiling the planner, {SOME_SECONDS}, in every process: it cannot be kept in "
            f"{os.path.dirname(__file__)}, in HOME or in a private folder for temporary files; "
            "set NUMBA_CACHE_DIR to a folder that can be written"
        )


COMPILE_CLOCK = CompileClock()


def compile_seconds() -> float:
    """Return the seconds that this thread has spent compiling the planner so far."""
    return COMPILE_CLOCK.seconds


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measure a piece of work; its seconds are there once it is done.

    >>> with stopwatch() as watch:
    ...     total = sum(range(1000))
    >>> watch.seconds > 0, watch.compile_s
    (True, 0.0)
    """
    found = Stopwatch()
    start, compiled = perf_counter(), COMPILE_CLOCK.seconds
    try:
        yield found
    finally:
        found.compile_s = COMPILE_CLOCK.seconds - compiled
        found.seconds = perf_counter() - start - found.compile_s
