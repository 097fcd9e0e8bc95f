"""Planner processes: batches are planned there while this process trains.

The processes are started as programs of their own, not forked and not by importing the user's
script again, so that a training script needs no ``if __name__ == "__main__"``.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from dcp_dsl import DatasetError
from dcp_planner import read_plan
from dcp_runtime.data.plan_request import PlannedBatch, PlanRequest
from dcp_runtime.errors import RunError

MOST_FAILED_STARTS = 2
"""Processes in a row that ended before they had planned anything, after which none is started."""


class PlannerLostError(RunError):
    """A planner process died, took too long or said something that is no answer."""


class PlannerPool:
    """Some planner processes, each planning one batch at a time; they start when first needed.

    They end with `close`, when the pool is no longer used, and when this process ends.

    Args:
        size: number of processes, at least 1.
        time_limit_s: how long one plan may take before its process is ended.
    """

    def __init__(self, size: int, time_limit_s: float) -> None:
        self._crew = _Crew(time_limit_s)
        self._threads = [
            # No thread of a pool keeps the interpreter from ending, nor the pool from going.
            threading.Thread(target=_serve, args=(self._crew,), name="dcp-planner", daemon=True)
            for _ in range(size)
        ]
        self._end = weakref.finalize(self, _end, self._crew, self._threads, os.getpid())

    def submit(self, request: PlanRequest) -> "Future[tuple[PlannedBatch, float]]":
        """Plan a batch in one of the processes; the result is its plans and the seconds it took.

        The future raises `PlannerLostError` if the process is lost, and `DatasetError` or
        `RunError` with the planner's message if it refuses the batch.
        """
        return self._submit(_Task(request, "plan", _read_plans))

    def submit_parts(self, request: PlanRequest) -> "Future[tuple[list[bytes], float]]":
        """Plan a batch and cut its plans into one part per device, for `decode_batch`.

        The future raises as that of `submit` does.
        """
        return self._submit(_Task(request, "parts", _read_parts))

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._end()

    @property
    def is_closed(self) -> bool:
        """Return whether its processes have been ended."""
        return self._crew.is_closed

    @property
    def cannot_start(self) -> bool:
        """Return whether processes end again and again before they have planned anything."""
        return self._crew.failed_starts >= MOST_FAILED_STARTS

    @property
    def processes(self) -> tuple[int, ...]:
        """Process numbers of the planners that run."""
        with self._crew.lock:
            return tuple(planner.process.pid for planner in self._crew.planners)

    def _submit(self, task: "_Task") -> Future[Any]:  # Any: what the task gives
        if self._crew.is_closed:
            raise RunError("these planner processes are closed; make new ones")
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        self._crew.tasks.put(task)
        return task.future


@dataclass(slots=True)
class _Task:
    """A batch to plan, and how the result is read from the answer and the path of its files."""

    request: PlanRequest
    kind: str
    read: Callable[[dict[str, Any], Path], Any]  # Any: a JSON document; whatever is read
    future: Future[Any] = field(default_factory=Future)


class _Crew:
    """The state that the threads of a pool share."""

    def __init__(self, time_limit_s: float) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.planners: set[_Planner] = set()
        self.is_closed = False
        self.failed_starts = 0
        self.folder = tempfile.TemporaryDirectory(prefix="dcp-plans-")
        self._time_limit_s = time_limit_s
        self._numbers = count()

    def start(self) -> "_Planner":
        """Start a process.

        Raises:
            PlannerLostError: if none can be started, or the pool is closed.
        """
        with self.lock:
            if self.is_closed:
                raise PlannerLostError("the planner processes are closed")
            if self.failed_starts >= MOST_FAILED_STARTS:
                raise PlannerLostError("planner processes end before they have planned anything")
            planner = _Planner(self._time_limit_s)
            self.planners.add(planner)
        return planner

    def lose(self, planner: "_Planner | None") -> None:
        """Forget a process that is lost; count it if it never worked."""
        if planner is not None:
            planner.dispose()
        with self.lock:
            self.failed_starts += planner is None or not (planner.has_answered or planner.is_late)
            if planner is not None:
                self.planners.discard(planner)

    def carry_out(self, task: _Task, planner: "_Planner") -> Any:  # Any: what the task gives
        """Let a process plan; read what it says and the files that it wrote.

        Raises:
            PlannerLostError: if it dies or takes too long.
            DatasetError: if a row cannot be used.
            RunError: if the batch cannot be planned.
        """
        path = Path(self.folder.name, str(next(self._numbers)))
        order = {"request": task.request.to_json(), "path": str(path), "kind": task.kind}
        answer = planner.ask(order)
        self.failed_starts = 0
        if "error" in answer:
            message = str(answer["error"])
            raise DatasetError(message) if answer["is_data"] else RunError(message)
        try:
            return task.read(answer, path)
        finally:
            for file in (path, *path.parent.glob(f"{path.name}.*")):
                file.unlink(missing_ok=True)


def _serve(crew: _Crew) -> None:
    """Carry out tasks, one at a time, with one process; the work of a thread."""
    planner = None
    while (task := crew.tasks.get()) is not None:
        if not task.future.set_running_or_notify_cancel():
            continue
        try:
            planner = planner or crew.start()
            result = crew.carry_out(task, planner)
        except PlannerLostError as error:
            crew.lose(planner)
            planner = None
            task.future.set_exception(error)
        except BaseException as error:  # whoever waits for the plan raises it
            task.future.set_exception(error)
        else:
            task.future.set_result(result)
        del task  # what waits for it may hold the pool


def _end(crew: _Crew, threads: Sequence[threading.Thread], owner: int) -> None:
    """End the processes and threads of a pool."""
    if os.getpid() != owner:  # a fork holds a copy, the processes are not its own
        return
    with crew.lock:
        crew.is_closed = True
        for planner in crew.planners:
            planner.process.kill()
    with suppress(Empty):
        while True:
            task = crew.tasks.get_nowait()
            if task is not None:
                task.future.cancel()
    for _ in threads:
        crew.tasks.put(None)
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join()
    for planner in crew.planners:
        planner.dispose()
    crew.folder.cleanup()


def _read_plans(answer: dict[str, Any], path: Path) -> tuple[PlannedBatch, float]:
    plans = tuple(read_plan(f"{path}.{n}").plan for n in range(answer["plans"]))
    return PlannedBatch.with_notes(plans, answer), float(answer["seconds"])


def _read_parts(answer: dict[str, Any], path: Path) -> tuple[list[bytes], float]:
    data = path.read_bytes()
    ends = list(accumulate(answer["sizes"]))
    starts = [0, *ends[:-1]]
    parts = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    return parts, float(answer["seconds"])


class _Planner:
    """One process and the pipe to it."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self.has_answered = self.is_late = False
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dcp_runtime.data.planner_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches us alone; it ends when we do
            )
        except OSError as error:
            raise PlannerLostError(f"a planner process cannot be started: {error}") from error

    def ask(self, task: dict[str, str]) -> dict[str, Any]:  # Any: a JSON document
        """Send a task and wait for its answer.

        Raises:
            PlannerLostError: if it dies or takes too long.
        """
        started = time.monotonic()
        alarm = threading.Timer(self._time_limit_s, self.process.kill)
        alarm.start()
        try:
            line = self._exchange(json.dumps(task))
        finally:
            alarm.cancel()
        if not line.endswith("\n"):
            self.is_late = time.monotonic() - started >= self._time_limit_s
            if self.is_late:
                raise PlannerLostError(f"a plan took longer than {self._time_limit_s:g} s")
            status = self.process.wait()
            raise PlannerLostError(f"a planner process ended with status {status}")
        self.has_answered = True
        found: dict[str, Any] = json.loads(line)
        return found

    def _exchange(self, text: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return ""  # it is gone; what it said last does not matter
        return self.process.stdout.readline().decode()

    def dispose(self) -> None:
        """End the process and close the pipes to it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # an unfinished task was still to be sent
                pipe.close()
