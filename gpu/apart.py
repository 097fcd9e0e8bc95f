"""Run work in a process of its own, whose death or lost device fails no other work."""

import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

Json = dict[str, Any]  # Any: a JSON document
Work = Callable[[], Json]


def attempt(work: Work) -> Json:
    """Return the result of `work`, or its error, so that others are still tried."""
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}


class Apart:
    """Attempts work in a process of its own, in a new one once that has died or lost its device.

    After an illegal access on a GPU, every later call of the process fails.
    """

    def __init__(self) -> None:
        self._process: Any = None  # Any: a process of a context has no public type
        self._pipe: Any = None

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def attempt(self, work: Work) -> Json:
        """Return the result of `work`, or its error; `work` is pickled."""
        if self._process is None:
            context = get_context("spawn")  # what a fork would inherit of CUDA is of no use
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(work)
            result, is_lost = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(10)
            result, is_lost = {"error": f"its process ended: {self._process.exitcode}"}, True
        if is_lost:
            self._end()
        return result

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _serve(pipe: Connection) -> None:
    while True:
        result = attempt(lambda: pipe.recv()())
        pipe.send((result, "error" in result and is_device_lost()))


def is_device_lost() -> bool:
    """Return whether the CUDA device of this process no longer computes."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:
        return True
    return False
