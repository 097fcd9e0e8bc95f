"""One job of a process of `ProcessWorld`: run a plan on random tensors, as a model would.

A process is one rank, or all of them as threads (`loopback`).
"""

import time
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dcp_planner import Plan
from dcp_planner.plan import encode_plan
from dcp_planner.tables import CommWait
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.launch.config import RunConfig
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.torch_transport import GlooTransport, NcclTransport
from dcp_runtime.transport.transport import NoOverlapTransport, Transport
from dcp_runtime.verify.inputs import DTYPES, Inputs, random_inputs


class Progress:
    """Progress of the ranks of this process; a rank that waits for another does not count.

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
    config: RunConfig, plan: Plan, timeout_s: float, progress: Progress
) -> dict[str, NDArray[Any]]:
    """Run a plan on this process's rank, or on all ranks if they are threads.

    Args:
        config: how to run it.
        plan: what to run.
        timeout_s: how long a rank may keep another one waiting.
        progress: watches the ranks of this process while they run.

    Returns:
        Arrays by name: ``RANK/prepare_s``, with ``config.verify`` ``RANK/out0`` and so on, and from
        rank 0 ``clock_uncertainty_s`` and ``trace``, the bytes of a plan file.

    Raises:
        RunError: if a rank died, stalled or failed.
    """

    def run_rank(transport: Transport) -> dict[str, NDArray[Any]]:
        return _run_rank(transport, config, plan, progress)

    if config.device == "cuda":
        _select_gpu(config)
    if config.transport == "loopback":
        world = LoopbackWorld(plan.num_devices, timeout_s, lockstep=True)
        return dict(ChainMap(*world.run(run_rank)))
    if config.transport == "nccl":
        return run_rank(NcclTransport(None, timeout_s))
    return run_rank(GlooTransport(None, timeout_s, config.link))


def _run_rank(
    transport: Transport, config: RunConfig, plan: Plan, progress: Progress
) -> dict[str, NDArray[Any]]:
    rank = transport.rank
    if not config.overlap:
        transport = NoOverlapTransport(transport)
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

    def run_pass() -> tuple[float, dict[str, torch.Tensor | None]]:
        start_s = time.perf_counter()
        prepared = executor.prepare(plan)
        progress.watch(prepared.recorder)
        prepare_s = time.perf_counter() - start_s
        transport.exchange_notes("", "barrier before the first layer")
        return prepare_s, _attend(prepared, layers)

    for _ in range(config.warmup):
        run_pass()
    prepare_s, tensors = run_pass()
    found = {f"{rank}/prepare_s": np.array(prepare_s)}
    if config.verify:
        found |= {f"{rank}/{name}": _as_array(tensor) for name, tensor in tensors.items()}
    timeline = executor.gather_timeline()
    executor.close()
    if timeline is not None:
        found["trace"] = np.frombuffer(encode_plan(plan, (timeline.trace,)), np.uint8)
        found["clock_uncertainty_s"] = np.array(timeline.uncertainty_s)
    return found


def _select_gpu(config: RunConfig) -> None:
    """Make this process's GPU the current one: kernels are launched there, whatever moves data."""
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
