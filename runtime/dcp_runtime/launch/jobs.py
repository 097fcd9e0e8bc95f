"""One job of a process of `ProcessWorld`: run a plan on random tensors, as a model would.

A process is one rank, or all of them as threads (`loopback`).
"""

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from dcp_planner import Plan
from dcp_planner.plan import encode_plan
from dcp_planner.tables import CommWait
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.launch.results import RankResult
from dcp_runtime.transport.limits import LinkLimit
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.torch_transport import GlooTransport, NcclTransport
from dcp_runtime.transport.transport import NoOverlapTransport, Transport
from dcp_runtime.verify.inputs import DTYPES, Inputs, random_inputs

TransportName: TypeAlias = Literal["gloo", "nccl", "loopback"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a plan.

    Attributes:
        kernel, dtype, seed, layers: see `RunConfig`.
        device: ``"cpu"`` or ``"cuda"``.
        check_finite: see `DCPExecutor`.
        link: bytes per second and latency of slowed-down links, or ``None``.
        overlap: send while computing.
        keeps_tensors: whether the results hold the outputs and gradients.
    """

    kernel: str | None
    dtype: str
    seed: int
    layers: int
    device: str = "cpu"
    check_finite: bool = False
    link: tuple[float, float] | None = None
    overlap: bool = True
    keeps_tensors: bool = True


class Progress:
    """How far the ranks of this process are; a rank that waits for another one does not count.

    Args:
        recorders: of the ranks that are watched from the beginning.
    """

    def __init__(self, recorders: Sequence[Recorder] = ()) -> None:
        self._recorders = list(recorders)

    def start(self) -> None:
        """Forget the ranks of the job before."""
        self._recorders.clear()

    def watch(self, recorder: Recorder) -> None:
        """Watch a rank from now on; any thread may call this."""
        self._recorders.append(recorder)

    def state(self) -> dict[str, object]:
        """Return the instructions begun so far, and what a rank that computes is doing."""
        state: dict[str, object] = {"steps": sum(r.steps for r in self._recorders), "doing": None}
        for recorder in self._recorders:
            doing = recorder.doing
            if doing is not None and not isinstance(doing.instruction, CommWait):
                found = {"doing": str(doing), "division": doing.division, "rank": recorder.device}
                return state | found
        return state


def run_job(
    job: Job, plan: Plan, transport: TransportName, timeout_s: float, progress: Progress
) -> list[RankResult]:
    """Run a job on this process's rank, or on all ranks if they are threads.

    Args:
        job: how to run it.
        plan: what to run.
        transport: how blocks travel.
        timeout_s: how long a rank may keep another one waiting.
        progress: watches the ranks of this process while they run.

    Raises:
        RunError: if a rank died, stalled or failed.
    """

    def run_rank(transport: Transport) -> RankResult:
        return _run_rank(transport, job, plan, progress)

    if transport == "loopback":
        return LoopbackWorld(plan.num_devices, timeout_s, lockstep=True).run(run_rank)
    if transport == "nccl":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
        return [run_rank(NcclTransport(None, timeout_s))]
    limit = None if job.link is None else LinkLimit(*job.link)
    return [run_rank(GlooTransport(None, timeout_s, limit))]


def _run_rank(transport: Transport, job: Job, plan: Plan, progress: Progress) -> RankResult:
    if not job.overlap:
        transport = NoOverlapTransport(transport)
    executor = DCPExecutor(kernel=job.kernel, transport=transport, check_finite=job.check_finite)
    start_s = time.perf_counter()
    prepared = executor.prepare(plan)
    progress.watch(prepared.recorder)
    prepare_s = time.perf_counter() - start_s
    blocks = plan.local_blocks(transport.rank).tolist()
    layers = [
        random_inputs(plan, blocks, n, job.seed, DTYPES[job.dtype]).to(_device(job, transport))
        for n in range(job.layers)
    ]
    transport.exchange_notes("", "barrier before the first layer")
    found = _attend(prepared, layers)
    tensors = _as_npz(found) if job.keeps_tensors else b""
    timeline = executor.gather_timeline()
    executor.close()
    if timeline is None:
        return RankResult(prepare_s, tensors=tensors)
    trace = encode_plan(plan, (timeline.trace,))
    return RankResult(prepare_s, timeline.uncertainty_s, tensors, trace)


def _device(job: Job, transport: Transport) -> torch.device:
    if job.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RunError("device 'cuda' was asked for, and torch finds none; use device 'cpu'")
    is_shared = isinstance(transport, LoopbackTransport)
    return torch.device("cuda", 0 if is_shared else transport.rank % torch.cuda.device_count())


def _attend(prepared: PreparedPlan, layers: list[Inputs]) -> dict[str, torch.Tensor | None]:
    """Run all layers forward, then all layers backward, as a model does."""
    leaves = [(x.q.requires_grad_(), x.kv.requires_grad_()) for x in layers]
    outs = [DCPAttn.apply(prepared, q, kv) for q, kv in leaves]
    for out, inputs in reversed(list(zip(outs, layers, strict=True))):
        torch.autograd.backward(out, inputs.dout)
    results: dict[str, torch.Tensor | None] = {}
    for n, (out, (q, kv)) in enumerate(zip(outs, leaves, strict=True)):
        results |= {f"out{n}": out.detach(), f"dq{n}": q.grad, f"dkv{n}": kv.grad}
    return results


def _as_npz(tensors: dict[str, torch.Tensor | None]) -> bytes:
    arrays: dict[str, Any] = {}  # Any: savez mixes arrays with options in its signature
    for name, tensor in tensors.items():
        assert tensor is not None, f"backward gave {name}"
        wide = tensor if tensor.dtype == torch.float64 else tensor.float()
        arrays[name] = wide.cpu().numpy()
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
