"""The process of a rank of a `ProcessWorld`: it runs plans on random tensors, or times links.

A process is one rank, or holds all ranks as threads (`loopback`).
"""

import gc
import io
import statistics
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import FileStore  # torch.distributed.FileStore, with its type

from dcp_dsl import DCPError
from dcp_planner import Plan
from dcp_planner.plan import decode_plan, encode_plan
from dcp_planner.tables import CommWait
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.launch.launcher import RunConfig
from dcp_runtime.launch.world import WorldTransport
from dcp_runtime.transport.choice import make_transport
from dcp_runtime.transport.limits import describe_wait
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.transport import Transport, without_overlap
from dcp_runtime.verify.verification import DTYPES, Inputs, random_inputs

WARM_UP = 2


def measure_ring(
    transport: str, sizes: Sequence[int], counts: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Measure messages of every size and count, in the default process group."""
    device = "cpu"
    if transport == "nccl":
        device = f"cuda:{dist.get_rank()}"
        torch.cuda.set_device(device)
    return [
        {"size_bytes": size, "count": n, "seconds": _ring_seconds(repeats, device, size, n)}
        for size in sizes
        for n in counts
    ]


def _ring_seconds(repeats: int, device: str, size_bytes: int, count: int) -> float:
    """Measure the median seconds of `count` messages to the next rank and from the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = (
        [torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in range(count)]
        for _ in range(2)
    )
    operations = [
        dist.P2POp(operation, tensor, (rank + step) % size, tag=i)
        for operation, step, tensors in ((dist.irecv, -1, received), (dist.isend, 1, sent))
        for i, tensor in enumerate(tensors)
    ]
    seconds = []
    for _ in range(WARM_UP + repeats):
        dist.barrier()
        start = time.perf_counter()
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


def progress_of(recorders: Sequence[Recorder]) -> dict[str, object]:
    """Return how many instructions all ranks have begun, and the work of a rank that computes."""
    # A rank that waits for another does not compute.
    state: dict[str, object] = {"steps": sum(r.steps for r in recorders), "doing": None}
    for recorder in recorders:
        doing = recorder.doing
        if doing is not None and not isinstance(doing.instruction, CommWait):
            found = {"doing": str(doing), "division": doing.division, "rank": recorder.device}
            return state | found
    return state


def run_job(
    config: RunConfig, plan: Plan, timeout_s: float, recorders: list[Recorder]
) -> dict[str, NDArray[Any]]:
    """Run a plan on this process's rank, or on all ranks if they are threads.

    The recorder of each rank of this process is appended to `recorders` when the rank begins.
    Returns arrays by name: ``RANK/prepare_s``, ``RANK/kernel``, with ``config.verify``
    ``RANK/out0`` and so on, and from rank 0 ``clock_uncertainty_s`` and ``trace``, the bytes of a
    plan file.
    """

    def run_rank(transport: Transport) -> dict[str, NDArray[Any]]:
        return _run_rank(transport, config, plan, recorders)

    if config.device == "cuda":
        _select_gpu(config)
    if config.transport == "loopback":
        world = LoopbackWorld(plan.num_devices, timeout_s, lockstep=True)
        return dict(ChainMap(*world.run(run_rank)))
    return run_rank(make_transport(None, timeout_s, config.transport))


def _run_rank(
    transport: Transport, config: RunConfig, plan: Plan, recorders: list[Recorder]
) -> dict[str, NDArray[Any]]:
    rank = transport.rank
    if not config.overlap:
        transport = without_overlap(transport)
    executor = DCPExecutor(
        kernel=config.kernel, transport=transport, check_finite=config.check_finite
    )
    blocks = plan.local_blocks(rank).tolist()
    layers = [
        random_inputs(plan, blocks, n, config.seed, DTYPES[config.dtype]).to(
            torch.device(config.device)
        )
        for n in range(config.layers)
    ]

    def run_pass() -> tuple[PreparedPlan, float, dict[str, torch.Tensor | None]]:
        start_s = time.perf_counter()
        prepared = executor.prepare(plan)
        recorders.append(prepared.recorder)
        prepare_s = time.perf_counter() - start_s
        # Without this barrier the others would wait for a rank that prepares slowly in attention,
        # and the trace would show that time as exposed communication.
        transport.exchange_notes("", "barrier before the first layer")
        return prepared, prepare_s, _attend(prepared, layers)

    for _ in range(config.warmup):
        run_pass()
    recorded, prepare_s, tensors = run_pass()
    found = {f"{rank}/prepare_s": np.array(prepare_s)}
    if config.verify:
        found |= {f"{rank}/{name}": _as_array(tensor) for name, tensor in tensors.items()}
    choice = recorded.kernel_choice
    assert choice is not None, "its layers ran"
    found[f"{rank}/kernel"] = np.array(choice.kernel.name)
    timeline = executor.gather_timeline()
    executor.close()
    if timeline is not None:
        found["trace"] = np.frombuffer(encode_plan(plan, (timeline.trace,)), np.uint8)
        found["clock_uncertainty_s"] = np.array(timeline.uncertainty_s)
    return found


def _select_gpu(config: RunConfig) -> None:
    """Make this process's GPU the current one: kernels run there, whichever transport is used."""
    if not torch.cuda.is_available():
        raise RunError("device 'cuda' was asked for, and torch finds none; use device 'cpu'")
    rank = 0 if config.transport == "loopback" else dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())


def _attend(prepared: PreparedPlan, layers: list[Inputs]) -> dict[str, torch.Tensor | None]:
    """Run all layers forward, then all layers backward, as a model does."""
    leaves = [(x.q.detach().requires_grad_(), x.kv.detach().requires_grad_()) for x in layers]
    outs = [DCPAttn.apply(prepared, q, kv) for q, kv in leaves]
    for out, inputs in reversed(list(zip(outs, layers, strict=True))):
        torch.autograd.backward(out, inputs.dout)
    results: dict[str, torch.Tensor | None] = {}
    for n, (out, (q, kv)) in enumerate(zip(outs, leaves, strict=True)):
        results |= {f"out{n}": out.detach(), f"dq{n}": q.grad, f"dkv{n}": kv.grad}
    return results


def _as_array(tensor: torch.Tensor | None) -> NDArray[Any]:
    assert tensor is not None, "backward gave no gradient"
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    return wide.cpu().numpy()


HEARTBEAT_S = 0.5


def start(
    rank: str, size: str, timeout_s: str, transport: WorldTransport, store: str
) -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Load torch and return the function that runs jobs; see `WorkerProgram`."""
    torch.set_num_threads(1)
    # The first backward pass of a process loads modules for some 0.3 s, which no plan should pay.
    x = torch.zeros(1, device="cpu", requires_grad=True)
    torch.autograd.backward(x.exp(), torch.ones(1, device="cpu"))
    # Modules stay, and the collector's search through all of them stops a rank for some 0.15 s.
    gc.collect()
    gc.freeze()
    limit_s, recorders = float(timeout_s), list[Recorder]()

    def answer(
        message: dict[str, Any], blob: bytes, tell: Callable[[object], None]
    ) -> tuple[dict[str, Any], bytes]:  # Any: JSON values
        recorders.clear()
        try:
            with _heartbeat(recorders, tell):
                if transport != "loopback" and not dist.is_initialized():
                    _join(int(rank), int(size), limit_s, transport, f"/proc/self/fd/{store}")
                # Ranks settle errors of the run among themselves; a RuntimeError that is left is
                # lost contact.
                with _collective("running", limit_s):
                    if "ring" in message:
                        return {"ring": measure_ring(transport, **message["ring"])}, b""
                    return {}, _run(message["config"], blob, limit_s, recorders)
        except DCPError as error:  # an answer as well: the owner compares those of all ranks
            return {"failure": _failure(error)}, b""

    return answer


@contextmanager
def _heartbeat(recorders: Sequence[Recorder], tell: Callable[[object], None]) -> Iterator[None]:
    """Report to the owner every `HEARTBEAT_S` that this process lives, and its progress."""
    is_over = threading.Event()

    def beat() -> None:
        while True:
            tell(progress_of(recorders))
            if is_over.wait(HEARTBEAT_S):
                return

    # A thread, because the rank itself is inside torch. SIGSTOP stops it too, so a process that is
    # stopped falls silent.
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _collective(what: str, timeout_s: float) -> Iterator[None]:
    """Raise lost contact during a collective as an error that blames no rank."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            f"lost contact with another rank while {what}: {describe_wait(str(error), timeout_s)}"
        ) from error


def _run(values: dict[str, Any], blob: bytes, timeout_s: float, recorders: list[Recorder]) -> bytes:
    config, plan, file = RunConfig(**values), decode_plan(blob).plan, io.BytesIO()
    # Any: savez mixes arrays with options in its signature
    arrays: dict[str, Any] = run_job(config, plan, timeout_s, recorders)
    np.savez(file, **arrays)
    return file.getvalue()


def _failure(error: DCPError) -> dict[str, Any]:
    rank, division = getattr(error, "rank", None), getattr(error, "division", None)
    is_own = rank is None and not isinstance(error.__cause__, RuntimeError)  # see `_collective`
    return {"message": str(error), "rank": rank, "division": division, "is_own": is_own}


def _join(rank: int, size: int, timeout_s: float, transport: WorldTransport, store: str) -> None:
    """Make the process group of all ranks of the world."""
    found = torch.cuda.device_count() if dist.is_nccl_available() else 0
    if transport == "nccl" and found < size:
        raise RunError(
            f"transport 'nccl' needs a CUDA device for each of the {size} ranks, torch finds "
            f"{found}; use transport 'gloo' or 'loopback'"
        )
    with _collective("starting", timeout_s):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if transport == "nccl" else "gloo",
            store=FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
