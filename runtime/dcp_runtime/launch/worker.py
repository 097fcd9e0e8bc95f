"""Run the jobs of one rank of a `ProcessWorld`.

Started as ``python -m dcp_runtime.launch.worker FOLDER RANK SIZE TIMEOUT_S``.

Jobs come as JSON lines on standard input, replies leave as JSON lines on standard output, tensors
go through files in the folder. The end of standard input ends the process at once, whatever it is
doing, and takes the folder with it: neither outlives the process that made them.
"""

import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # torch.distributed.FileStore, with its type

from dcp_dsl import DCPError
from dcp_runtime.errors import RunError
from dcp_runtime.launch.jobs import Job, Progress, run_job
from dcp_runtime.transport.limits import describe_wait

HEARTBEAT_S = 0.5


class _Replies:
    """Standard output as a channel for JSON lines; anything else that prints goes to the log."""

    def __init__(self, progress: Progress) -> None:
        self._stream: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._progress = progress
        self._lock = threading.Lock()
        self._is_busy = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def send(self, **reply: Any) -> None:  # Any: whatever JSON can hold
        with self._lock:
            self._stream.write(json.dumps(reply) + "\n")

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Tell the parent every now and then that this process is not stopped."""
        self._is_busy.set()
        try:
            yield
        finally:
            self._is_busy.clear()

    def _beat(self) -> None:
        while self._is_busy.wait():
            self.send(kind="alive", **self._progress.state())
            time.sleep(HEARTBEAT_S)


def _read_jobs(jobs: "queue.SimpleQueue[Job]", folder: Path) -> None:
    for line in sys.stdin:
        jobs.put(Job(**json.loads(line)))
    # The parent is gone: one that is done kills its ranks instead. Nothing may hold this one back.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of this process in its world: folder, number, count of processes, timeout."""

    folder: Path
    rank: int
    size: int
    timeout_s: float


@contextmanager
def _collective(what: str, timeout_s: float) -> Iterator[None]:
    """Turn the loss of contact during a collective into an error that blames nobody."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            f"lost contact with another rank while {what}: {describe_wait(str(error), timeout_s)}"
        ) from error


def _serve(job: Job, place: Place, progress: Progress) -> dict[str, Any]:
    """Run a job; whatever goes wrong becomes a reply, so that the parent can say it."""
    try:
        if job.transport != "loopback" and not dist.is_initialized():
            _join(job, place)
        # Errors of the run are settled among the ranks; what is left is lost contact.
        with _collective("running", place.timeout_s):
            reply = run_job(job, place.folder, place.rank, place.timeout_s, progress)
    except RunError as error:
        lost_contact = isinstance(error.__cause__, RuntimeError)
        return {
            "kind": "failed",
            "message": str(error),
            "rank": error.rank,
            "division": error.division,
            "is_own": error.rank is None and not lost_contact,
        }
    except DCPError as error:
        return {"kind": "failed", "message": str(error), "is_own": True}
    except OSError as error:
        message = (
            f"rank {place.rank} cannot work in the folder {place.folder}: "
            f"{error.strerror or error}; make room there, or point TMPDIR at another folder"
        )
        return {"kind": "failed", "message": message, "is_own": True}
    except Exception as error:  # a bug: the parent shows the log
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return {"kind": "failed", "message": text, "is_own": True, "is_bug": True}
    return {"kind": "done", **reply}


def _join(job: Job, place: Place) -> None:
    found = torch.cuda.device_count() if dist.is_nccl_available() else 0
    if job.transport == "nccl" and found < place.size:
        raise RunError(
            f"transport 'nccl' needs a CUDA device for each of the {place.size} ranks, torch finds "
            f"{found}; use transport 'gloo' or 'loopback'"
        )
    with _collective("starting", place.timeout_s):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if job.transport == "nccl" else "gloo",
            store=FileStore(str(place.folder / "store"), place.size),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=place.timeout_s),
        )


def main() -> None:
    """Serve jobs until standard input ends."""
    place = Place(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once and says no more than its name
    progress = Progress()
    replies = _Replies(progress)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    reader = threading.Thread(
        target=_read_jobs, args=(jobs, place.folder), name="jobs", daemon=True
    )
    reader.start()
    torch.set_num_threads(1)
    # The first backward of a process loads modules for some 0.3 s, which is no part of a plan.
    x = torch.zeros(1, requires_grad=True)
    torch.autograd.backward(x.exp(), torch.ones(1))
    while True:
        job = jobs.get()
        progress.start()
        with replies.heartbeat():
            reply = _serve(job, place, progress)
        replies.send(**reply)


if __name__ == "__main__":
    main()
