"""One job of a process of `ProcessWorld`: run a plan on random tensors, as a model would.

A process is one rank, or all of them as threads (`loopback`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from dcp_planner import CommWait, Plan, read_plan, write_plan
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.transport.limits import LinkLimit
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.torch_transport import GlooTransport, NcclTransport
from dcp_runtime.transport.transport import NoOverlapTransport, Transport
from dcp_runtime.verify.inputs import DTYPES, Inputs, random_inputs

TransportName: TypeAlias = Literal["gloo", "nccl", "loopback"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a plan; the plan lies in the folder as ``<name>.dcpplan``.

    Attributes:
        name: of this job's files.
        kernel, dtype, seed, layers: see `RunConfig`.
        transport: how blocks travel.
        device: ``"cpu"`` or ``"cuda"``.
        check_finite: see `DCPExecutor`.
        link: bytes per second and latency of slowed-down links, or ``None``.
        overlap: send while computing.
    """

    name: str
    kernel: str | None
    dtype: str
    seed: int
    layers: int
    transport: TransportName = "gloo"
    device: str = "cpu"
    check_finite: bool = False
    link: tuple[float, float] | None = None
    overlap: bool = True


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
    job: Job, folder: Path, rank: int, timeout_s: float, progress: Progress
) -> dict[str, Any]:
    """Run a job on this process's rank, or on all ranks if they are threads.

    Args:
        job: what to run.
        folder: where the plan lies and results go.
        rank: of this process.
        timeout_s: how long a rank may keep another one waiting.
        progress: watches the ranks of this process while they run.

    Returns:
        What the parent wants to know, ready for JSON.

    Raises:
        RunError: if a rank died, stalled or failed.
    """
    plan = read_plan(folder / f"{job.name}.dcpplan").plan

    def run_rank(transport: Transport) -> dict[str, Any]:
        return _run_rank(transport, job, plan, folder, progress)

    if job.transport == "loopback":
        world = LoopbackWorld(plan.num_devices, timeout_s, lockstep=True)
        replies = world.run(run_rank)
        slowest_s = max(reply["prepare_s"] for reply in replies)
        return {**replies[0], "prepare_s": slowest_s}
    return run_rank(_make_transport(job, rank, timeout_s))


def _make_transport(job: Job, rank: int, timeout_s: float) -> Transport:
    if job.transport == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
        return NcclTransport(None, timeout_s)
    limit = None if job.link is None else LinkLimit(*job.link)
    return GlooTransport(None, timeout_s, limit)


def _run_rank(
    transport: Transport, job: Job, plan: Plan, folder: Path, progress: Progress
) -> dict[str, Any]:
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
    _save(folder / f"{job.name}-{transport.rank}.npz", _attend(prepared, layers))
    timeline = executor.gather_timeline()
    executor.close()
    reply: dict[str, Any] = {"prepare_s": prepare_s}  # Any: whatever JSON can hold
    if timeline is not None:
        write_plan(folder / f"{job.name}-trace.dcpplan", plan, (timeline.trace,))
        reply["clock_uncertainty_s"] = timeline.uncertainty_s
    return reply


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


def _save(path: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    arrays: dict[str, Any] = {}  # Any: savez mixes arrays with options in its signature
    for name, tensor in tensors.items():
        assert tensor is not None, f"backward gave {name}"
        wide = tensor if tensor.dtype == torch.float64 else tensor.float()
        arrays[name] = wide.cpu().numpy()
    np.savez(path, **arrays)
