"""Worker processes as their owner sees them: started when needed, timed, ended, replaced."""

import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from dcp_dsl import DCPError
from dcp_planner.workers.process import WorkerProcess, WorkerProgram
from dcp_planner.workers.program import Answer, FrameError, pack_frame

START_LIMIT_S = 300.0
"""Time to load libraries; the first plan of an installation also compiles the planner."""


class WorkerLost(DCPError):
    """A worker process that ended, was closed, cannot be started or sent no frame.

    Attributes:
        log: its last output.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class WorkerOverdue(WorkerLost):
    """A worker process that took too long and was ended."""


class TaskError(DCPError):
    """A request that the worker refused with a `DCPError`; the worker goes on.

    Attributes:
        kinds: names of the class of that error and of its bases.
    """

    def __init__(self, message: str, kinds: Sequence[str]) -> None:
        super().__init__(message)
        self.kinds = tuple(kinds)


class Worker:
    """A process that answers one request at a time; calls from several threads wait in line.

    Args:
        program: what it runs.
        title: of the process, for messages.
        max_failed_starts: processes in a row that end before they are ready, after which none is
            started; ``None`` for any number.
    """

    def __init__(
        self,
        program: WorkerProgram,
        title: str = "the worker",
        max_failed_starts: int | None = None,
    ) -> None:
        self.program, self.title = program, title
        self._max_failed_starts, self._failed_starts = max_failed_starts, 0
        # Reentrant: the garbage collector may close a worker anywhere on the thread that uses it.
        self._turn, self._lock = threading.RLock(), threading.RLock()
        self._process: WorkerProcess | None = None
        self._end_process: Callable[[], object] = lambda: None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of its process, ``None`` while there is none."""
        process = self._process
        return process.pid if process is not None and process.is_running else None

    @property
    def cannot_start(self) -> bool:
        """Return whether its processes end again and again before they are ready."""
        return self._max_failed_starts is not None and (
            self._failed_starts >= self._max_failed_starts
        )

    def start(self) -> WorkerProcess:
        """Start the process if there is none, without waiting until it is ready."""
        with self._lock:
            self._refuse()
            if self._process is None or not self._process.is_running:
                self._end_process()
                try:
                    self._process = WorkerProcess(self.program)
                except OSError as error:
                    self._failed_starts += 1
                    raise WorkerLost(f"{self.title} cannot be started: {error}") from error
                self._end_process = weakref.finalize(self, self._process.end)
                self._refuse()  # closed meanwhile, by the garbage collector
            return self._process

    def _refuse(self) -> None:
        if self._is_closed:
            self._end_process()
            raise WorkerLost(f"{self.title} was closed; make a new one")
        if self.cannot_start:
            raise WorkerLost(f"{self.title} ended {self._failed_starts} times before it was ready")

    def call(
        self,
        message: Mapping[str, Any],  # Any: JSON values
        limit_s: float = math.inf,
        *,
        blob: bytes = b"",
        on_note: Callable[[Any], object] = lambda _: None,
    ) -> Answer:
        """Send a request and return the answer; `on_note` gets each note that comes before it.

        `limit_s` counts from when the process is ready; after it the process is ended.
        """
        frame = pack_frame(message, blob)
        with self._turn:
            process = self.start()
            try:
                if not process.is_ready:
                    self._await_start(process)
                process.send(frame, limit_s)
                while "note" in (answer := process.receive())[0]:
                    on_note(answer[0]["note"])
            except (EOFError, OSError, FrameError) as error:
                raise self._lost(process, error) from error
            except BaseException:
                # Otherwise the late answer would be taken for that of the next request.
                process.end()
                raise
        if "error" in answer[0]:
            raise TaskError(str(answer[0]["error"]), answer[0].get("kinds", ()))
        return answer

    def _await_start(self, process: WorkerProcess) -> None:
        self._failed_starts += 1  # until it is ready
        process.send(b"", START_LIMIT_S)
        process.receive()
        process.is_ready, self._failed_starts = True, 0

    def _lost(self, process: WorkerProcess, error: EOFError | OSError | FrameError) -> WorkerLost:
        """End a process that cannot be used any more, and return the error that says why."""
        named = f"{self.title} (process {process.pid})"
        if isinstance(error, TimeoutError):
            process.end()
            return WorkerOverdue(f"{named} took longer than {error} and was ended")
        if isinstance(error, FrameError):
            how = f"sent no frame: {error}"
        elif isinstance(error, EOFError | ConnectionError):
            how = process.wait()
        else:  # the fault is on this side: the process has no reason to end
            how = f"cannot be reached: {error.strerror}"
        process.end()
        return WorkerLost(f"{named} {how}", process.log)

    def end(self) -> None:
        """Kill the process, whatever it does; the next call starts another."""
        process = self._process
        if process is not None:
            # Not `process.end`: a call on another thread may be reading the socket.
            process.kill()

    def close(self) -> None:
        """End the process and free its socket and pipes; waiting and later calls are refused."""
        with self._lock:
            self._is_closed = True
        self.end()
        with self._turn, self._lock:
            self._end_process()


_T = TypeVar("_T")
# Any: each future has a type of its own
_Tasks: TypeAlias = "SimpleQueue[tuple[Callable[[Worker], Any], Future[Any]] | None]"


class WorkerPool:
    """Some workers, each with a thread that talks to it.

    The workers are closed by `close`, when no reference to the pool is left, and when this process
    ends.

    Args:
        workers: used by this pool only; each starts with its first task.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self._tasks: _Tasks = SimpleQueue()
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Neither the threads nor this finalizer refer to the pool, so it can be collected.
        self._close = weakref.finalize(
            self, _close, self._tasks, self.workers, self._threads, os.getpid()
        )

    def submit(self, task: Callable[[Worker], _T]) -> "Future[_T]":
        """Run a task with the next free worker; the future has its result or its exception."""
        if self.is_closed:
            raise WorkerLost("these worker processes are closed; make new ones")
        with self._starting:
            for worker in self.workers[len(self._threads) :]:
                thread = threading.Thread(target=_serve, args=(self._tasks, worker), daemon=True)
                thread.start()
                self._threads.append(thread)
        future: Future[_T] = Future()
        self._tasks.put((task, future))
        return future

    @property
    def is_closed(self) -> bool:
        """True if the workers have been closed."""
        return not self._close.alive

    def close(self) -> None:
        """End the workers, whatever they do; unfinished tasks raise `WorkerLost`."""
        self._close()


def _serve(tasks: _Tasks, worker: Worker) -> None:
    while (found := tasks.get()) is not None:
        task, future = found
        if future.set_running_or_notify_cancel():
            try:
                result = task(worker)
            except BaseException as error:  # whoever waits for the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)
        del found, task, future  # they may refer to the pool


def _close(
    tasks: _Tasks, workers: Sequence[Worker], threads: Sequence[threading.Thread], owner: int
) -> None:
    if os.getpid() != owner:  # a fork has a copy of the pool, but not its threads and processes
        return
    for worker in workers:
        worker.close()  # tasks that have not begun will be refused
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
