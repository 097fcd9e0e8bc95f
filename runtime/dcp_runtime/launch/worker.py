"""Run the jobs of one rank of a `ProcessWorld`, inside its worker process."""

import gc
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # torch.distributed.FileStore, with its type

from dcp_dsl import DCPError
from dcp_planner.plan import decode_plan
from dcp_runtime.errors import RunError
from dcp_runtime.launch.config import RunConfig, TransportName
from dcp_runtime.launch.jobs import Progress, run_job
from dcp_runtime.launch.link_ring import measure_ring
from dcp_runtime.transport.limits import LinkLimit, describe_wait

HEARTBEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Settings that a rank joins its world with.

    Attributes:
        rank, size: its number, and how many there are.
        timeout_s: how long a rank may keep another one waiting.
        transport: how blocks travel.
        store: file through which the processes find each other.
    """

    rank: int
    size: int
    timeout_s: float
    transport: TransportName
    store: str


def start(
    rank: str, size: str, timeout_s: str, transport: TransportName, store: str
) -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Load torch and return what runs the jobs; see `WorkerProgram`."""
    torch.set_num_threads(1)
    # The first backward of a process loads modules for some 0.3 s, which is no part of a plan.
    x = torch.zeros(1, requires_grad=True)
    torch.autograd.backward(x.exp(), torch.ones(1))
    # Modules are no garbage, and a search through all of them stops a rank for some 0.15 s.
    gc.collect()
    gc.freeze()
    place = RankSetup(int(rank), int(size), float(timeout_s), transport, f"/proc/self/fd/{store}")
    return partial(_answer, place, Progress())


def _answer(
    place: RankSetup,
    progress: Progress,
    message: dict[str, Any],  # Any: JSON values
    blob: bytes,
    tell: Callable[[object], None],
) -> tuple[dict[str, Any], bytes]:
    progress.start()
    with _heartbeat(progress, tell):
        return _serve(message, blob, place, progress)


@contextmanager
def _heartbeat(progress: Progress, tell: Callable[[object], None]) -> Iterator[None]:
    """Tell the owner now and then that this process is not stopped, and how far it is."""
    is_over = threading.Event()

    def beat() -> None:
        while True:
            tell(progress.state())
            if is_over.wait(HEARTBEAT_S):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _collective(what: str, timeout_s: float) -> Iterator[None]:
    """Turn lost contact during a collective into an error that blames no rank."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            f"lost contact with another rank while {what}: {describe_wait(str(error), timeout_s)}"
        ) from error


def _serve(
    message: dict[str, Any], blob: bytes, place: RankSetup, progress: Progress
) -> tuple[dict[str, Any], bytes]:
    """Run a job; a failure is an answer, too, so that the owner can compare those of all ranks."""
    try:
        if place.transport != "loopback" and not dist.is_initialized():
            _join(place)
        # Errors of the run are settled among the ranks; what is left is lost contact.
        with _collective("running", place.timeout_s):
            if "ring" in message:
                return {"ring": measure_ring(place.transport, **message["ring"])}, b""
            values, file = message["config"], io.BytesIO()
            link = values["link"] and LinkLimit(**values["link"])
            config, plan = RunConfig(**{**values, "link": link}), decode_plan(blob).plan
            # Any: savez mixes arrays with options in its signature
            arrays: dict[str, Any] = run_job(config, plan, place.timeout_s, progress)
            np.savez(file, **arrays)
            return {}, file.getvalue()
    except DCPError as error:
        rank, division = getattr(error, "rank", None), getattr(error, "division", None)
        lost_contact = isinstance(error.__cause__, RuntimeError)
        failure = {
            "message": str(error),
            "rank": rank,
            "division": division,
            "is_own": rank is None and not lost_contact,
        }
        return {"failure": failure}, b""


def _join(place: RankSetup) -> None:
    found = torch.cuda.device_count() if dist.is_nccl_available() else 0
    if place.transport == "nccl" and found < place.size:
        raise RunError(
            f"transport 'nccl' needs a CUDA device for each of the {place.size} ranks, torch finds "
            f"{found}; use transport 'gloo' or 'loopback'"
        )
    with _collective("starting", place.timeout_s):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if place.transport == "nccl" else "gloo",
            store=FileStore(place.store, place.size),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=place.timeout_s),
        )
