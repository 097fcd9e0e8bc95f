"""A pool of workers: whatever is submitted runs on a thread, with the worker that is free."""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from dcp_planner.workers.worker import Worker, WorkerLost

_T = TypeVar("_T")
# Any: each future has a type of its own
_Tasks: TypeAlias = "SimpleQueue[tuple[Callable[[Worker], Any], Future[Any]] | None]"


class WorkerPool:
    """Some workers, each with a thread that talks to it.

    The workers are closed with `close`, when nobody holds the pool any more, and when this process
    ends.

    Args:
        workers: of the pool alone; each starts when there is something to do for it.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self._tasks: _Tasks = SimpleQueue()
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Neither the threads nor this finalizer hold the pool.
        self._close = weakref.finalize(
            self, _close, self._tasks, self.workers, self._threads, os.getpid()
        )

    def submit(self, task: Callable[[Worker], _T]) -> "Future[_T]":
        """Run a task with the next free worker; the future has its result or its exception.

        Raises:
            WorkerLost: if the pool is closed.
        """
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
        """Return whether the workers have been closed."""
        return not self._close.alive

    def close(self) -> None:
        """End the workers, whatever they are doing; the tasks that are left raise `WorkerLost`."""
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
        del found, task, future  # they may hold the pool


def _close(
    tasks: _Tasks, workers: Sequence[Worker], threads: Sequence[threading.Thread], owner: int
) -> None:
    if os.getpid() != owner:  # a fork has a copy of the pool, but not its threads and processes
        return
    for worker in workers:
        worker.close()  # what has not begun will be refused
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
