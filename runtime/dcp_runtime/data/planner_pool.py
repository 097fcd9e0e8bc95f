"""Planner processes: batches are planned there while this process trains.

The processes are started as programs of their own, not forked and not by importing the user's
script again, so that a training script needs no ``if __name__ == "__main__"``.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dcp_dsl import DatasetError
from dcp_planner import read_plan
from dcp_runtime.data.plan_request import PlanRequest
from dcp_runtime.data.planned_batch import PlannedBatch
from dcp_runtime.errors import RunError


class PlannerLostError(RunError):
    """A planner process died, took too long or said something that is no answer."""


class PlannerPool:
    """Some planner processes, each planning one batch at a time; they start when first needed.

    Args:
        size: number of processes, at least 1.
        time_limit_s: how long one plan may take before its process is ended.
    """

    def __init__(self, size: int, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="dcp-planner")
        self._folder = tempfile.TemporaryDirectory(prefix="dcp-plans-")
        self._idle: SimpleQueue[_Planner | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._all: set[_Planner] = set()
        self._count = 0
        self._is_closed = False
        for _ in range(size):
            self._idle.put(None)  # a process that is to be started

    def submit(self, request: PlanRequest) -> "Future[tuple[PlannedBatch, float]]":
        """Plan a batch in one of the processes; the result is its plans and the seconds it took.

        The future raises `PlannerLostError` if the process is lost, and `DatasetError` or
        `RunError` with the planner's message if it refuses the batch.
        """
        return self._threads.submit(self._plan, request)

    def submit_parts(self, request: PlanRequest) -> "Future[tuple[list[bytes], float]]":
        """Plan a batch and cut its plans into one part per device, for `decode_batch`.

        The future raises as that of `submit` does.
        """
        return self._threads.submit(self._plan_parts, request)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        with self._lock:
            self._is_closed = True
            for planner in self._all:
                planner.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for planner in self._all:
            planner.dispose()
        self._folder.cleanup()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process numbers of the planners that run."""
        with self._lock:
            return tuple(planner.process.pid for planner in self._all)

    def _plan(self, request: PlanRequest) -> tuple[PlannedBatch, float]:
        with self._answer(request, "plan") as (answer, path):
            plans = tuple(read_plan(f"{path}.{n}").plan for n in range(answer["plans"]))
        return PlannedBatch.with_notes(plans, answer), float(answer["seconds"])

    def _plan_parts(self, request: PlanRequest) -> tuple[list[bytes], float]:
        with self._answer(request, "parts") as (answer, path):
            data = path.read_bytes()
        ends = list(accumulate(answer["sizes"]))
        starts = [0, *ends[:-1]]
        parts = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        return parts, float(answer["seconds"])

    @contextmanager
    def _answer(
        self, request: PlanRequest, kind: str
    ) -> Iterator[tuple[dict[str, Any], Path]]:  # Any: a JSON document
        """Let a process plan; give what it says and the file that it wrote."""
        with self._lock:
            self._count += 1
            path = Path(self._folder.name, str(self._count))
        with self._planner() as planner:
            answer = planner.ask({"request": request.to_json(), "path": str(path), "kind": kind})
        if "error" in answer:
            message = str(answer["error"])
            raise DatasetError(message) if answer["is_data"] else RunError(message)
        try:
            yield answer, path
        finally:
            for file in (path, *path.parent.glob(f"{path.name}.*")):
                file.unlink(missing_ok=True)

    @contextmanager
    def _planner(self) -> "Iterator[_Planner]":
        """Take a process; one that is lost makes room for a fresh one."""
        planner = self._idle.get()
        try:
            if planner is None:
                planner = self._start()
            yield planner
        except PlannerLostError:
            if planner is not None:
                planner.dispose()
                with self._lock:
                    self._all.discard(planner)
            planner = None
            raise
        finally:
            self._idle.put(planner)

    def _start(self) -> "_Planner":
        with self._lock:
            if self._is_closed:
                raise PlannerLostError("the planner processes are closed")
            planner = _Planner(self._time_limit_s)
            self._all.add(planner)
        return planner


class _Planner:
    """One process and the pipe to it."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
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
            if time.monotonic() - started >= self._time_limit_s:
                raise PlannerLostError(f"a plan took longer than {self._time_limit_s:g} s")
            status = self.process.wait()
            raise PlannerLostError(f"a planner process ended with status {status}")
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
