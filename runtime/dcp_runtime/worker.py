"""One rank of `ProcessWorld`: ``python -m dcp_runtime.worker FOLDER RANK SIZE TIMEOUT_S``.

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

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # torch.distributed.FileStore, with its type

from dcp_dsl import DCPError
from dcp_planner import read_plan, write_plan
from dcp_runtime.attention import attend
from dcp_runtime.errors import RunError
from dcp_runtime.executor import DCPExecutor
from dcp_runtime.inputs import DTYPES, Inputs, random_inputs
from dcp_runtime.waiting import explain

HEARTBEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """What to run; the plan lies in the folder as ``<name>.dcpplan``."""

    name: str
    kernel: str | None
    dtype: str
    seed: int
    layers: int


class _Replies:
    """Standard output as a channel for JSON lines; anything else that prints goes to the log."""

    def __init__(self) -> None:
        self._stream: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
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
            self.send(kind="alive")
            time.sleep(HEARTBEAT_S)


def _read_jobs(jobs: "queue.SimpleQueue[Job]", folder: Path) -> None:
    for line in sys.stdin:
        jobs.put(Job(**json.loads(line)))
    # The parent is gone: one that is done kills its ranks instead. Nothing may hold this one back.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


@contextmanager
def _collective(what: str, timeout_s: float) -> Iterator[None]:
    """Turn the loss of contact during a collective into an error that blames nobody."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            f"lost contact with another rank while {what}: {explain(str(error), timeout_s)}"
        ) from error


def _run(job: Job, folder: Path, rank: int, timeout_s: float) -> dict[str, Any]:
    plan = read_plan(folder / f"{job.name}.dcpplan").plan
    with _collective("making the process groups", timeout_s):
        executor = DCPExecutor(kernel=job.kernel, timeout_s=timeout_s)
    start_s = time.perf_counter()
    executor.prepare(plan)
    prepare_s = time.perf_counter() - start_s
    blocks, dtype = plan.local_blocks(rank).tolist(), DTYPES[job.dtype]
    layers = [random_inputs(plan, blocks, n, job.seed, dtype) for n in range(job.layers)]
    with _collective("meeting before the first layer", timeout_s):
        dist.barrier()
    _save(folder / f"{job.name}-{rank}.npz", _attend(executor, layers))
    with _collective("gathering the trace", timeout_s):
        timeline = executor.gather_timeline()
    executor.close()
    if timeline is None:
        return {"prepare_s": prepare_s}
    write_plan(folder / f"{job.name}-trace.dcpplan", plan, (timeline.trace,))
    return {"prepare_s": prepare_s, "clock_uncertainty_s": timeline.uncertainty_s}


def _attend(executor: DCPExecutor, layers: list[Inputs]) -> dict[str, torch.Tensor | None]:
    """Run all layers forward, then all layers backward, as a model does."""
    leaves = [(x.q.requires_grad_(), x.kv.requires_grad_()) for x in layers]
    outs = [attend(executor, q, kv) for q, kv in leaves]
    for out, inputs in reversed(list(zip(outs, layers, strict=True))):
        torch.autograd.backward(out, inputs.dout)
    results: dict[str, torch.Tensor | None] = {}
    for n, (out, (q, kv)) in enumerate(zip(outs, leaves, strict=True)):
        results |= {f"out{n}": out.detach(), f"dq{n}": q.grad, f"dkv{n}": kv.grad}
    return results


def _save(path: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    arrays: dict[str, Any] = {}  # Any: savez mixes arrays with options in its signature
    for name, tensor in tensors.items():
        assert tensor is not None, f"backward gave {name}"
        arrays[name] = (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()
    np.savez(path, **arrays)


def _serve(job: Job, folder: Path, rank: int, size: int, timeout_s: float) -> dict[str, Any]:
    """Run a job; whatever goes wrong becomes a reply, so that the parent can say it."""
    try:
        if not dist.is_initialized():
            _join(folder, rank, size, timeout_s)
        return {"kind": "done", **_run(job, folder, rank, timeout_s)}
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
            f"rank {rank} cannot work in the folder {folder}: {error.strerror or error}; make room "
            "there, or point TMPDIR at another folder"
        )
        return {"kind": "failed", "message": message, "is_own": True}
    except Exception as error:  # a bug: the parent shows the log
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return {"kind": "failed", "message": text, "is_own": True, "is_bug": True}


def _join(folder: Path, rank: int, size: int, timeout_s: float) -> None:
    with _collective("starting", timeout_s):
        dist.init_process_group(
            "gloo",
            store=FileStore(str(folder / "store"), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
    # The first backward of a process loads modules for some 0.3 s, which is no part of a plan.
    x = torch.zeros(1, requires_grad=True)
    torch.autograd.backward(x.exp(), torch.ones(1))


def main() -> None:
    """Serve jobs until standard input ends."""
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    timeout_s = float(sys.argv[4])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once and says no more than its name
    replies = _Replies()
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs, folder), name="jobs", daemon=True).start()
    torch.set_num_threads(1)
    while True:
        job = jobs.get()
        with replies.heartbeat():
            reply = _serve(job, folder, rank, size, timeout_s)
        replies.send(**reply)


if __name__ == "__main__":
    main()
