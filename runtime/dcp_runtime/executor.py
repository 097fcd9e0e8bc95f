"""`DCPExecutor`: the ranks of a process group, a kernel, and the plan that they run next."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from dcp_planner import Plan, Trace
from dcp_runtime.backward_pass import BackwardPass
from dcp_runtime.clock import Timeline, gather_timeline
from dcp_runtime.device_plan import DevicePlan, prepare_device
from dcp_runtime.errors import RunError
from dcp_runtime.forward_pass import ForwardPass
from dcp_runtime.interpreter import Interpreter
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.kernels.kernel import QueryRows, accumulator_dtype
from dcp_runtime.recorder import Recorder, make_trace
from dcp_runtime.transport import TorchTransport, Transport
from dcp_runtime.waiting import check_timeout

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan made ready on this rank; a layer keeps it from its forward to its backward."""

    part: DevicePlan
    transport: Transport
    recorder: Recorder
    wanted_kernel: str | None

    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give out ``[T_local, Hq, D]`` and lse ``[T_local, Hq]`` of this rank's tokens.

        Raises:
            RunError: if the tensors do not fit the plan, or another rank fails.
        """
        _check_tensors(self.part, q, kv)
        current = ForwardPass(self.part, q, kv)
        self._interpreter(q).run(current)
        return current.result()

    def backward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give dq and dkv of this rank's tokens, from what forward took and gave.

        Raises:
            RunError: if another rank fails.
        """
        sums = accumulator_dtype(q.dtype)
        delta = (dout.to(sums) * out.to(sums)).sum(-1)
        current = BackwardPass(self.part, QueryRows(q, dout, lse, delta), kv)
        self._interpreter(q).run(current)
        return current.result()

    def _interpreter(self, q: torch.Tensor) -> Interpreter:
        kernel = choose_kernel(q.dtype, q.device, self.wanted_kernel).kernel
        return Interpreter(self.part, kernel, self.transport, self.recorder)


def _check_tensors(part: DevicePlan, q: torch.Tensor, kv: torch.Tensor) -> None:
    for name, value in (("q", q), ("kv", kv)):
        if not isinstance(value, torch.Tensor):
            raise RunError(f"expected {name} to be a tensor, got {type(value).__name__}")
    shape, tokens = part.plan.shape, part.num_local
    want_q = (tokens, shape.q_heads, shape.head_dim)
    want_kv = (tokens, 2, shape.kv_heads, shape.head_dim)
    if tuple(q.shape) != want_q or tuple(kv.shape) != want_kv:
        raise RunError(
            f"rank {part.device} owns {tokens} tokens of this plan: expected q {list(want_q)} and "
            f"kv {list(want_kv)}, got {list(q.shape)} and {list(kv.shape)}; take the rows "
            "plan.local_tokens(rank) of the packed batch"
        )
    if q.dtype != kv.dtype or q.device != kv.device:
        raise RunError(
            f"q and kv must share dtype and device, got {q.dtype} on {q.device} and {kv.dtype} on "
            f"{kv.device}"
        )


class DCPExecutor:
    """Runs plans on the ranks of a process group; rank r is device r of the plan.

    Making one is collective: every rank of the group makes its executor at the same time, and
    afterwards all ranks run the same layers in the same order.

    Args:
        group: ranks that share the attention, ``None`` for all.
        kernel: name of the kernel, ``None`` for the fastest that can compute.
        timeout_s: how long a rank may keep another one waiting before it counts as stalled.

    Raises:
        RunError: if ``torch.distributed`` is not initialised, this rank is none of the group's, or
            the timeout is not above 0 and at most a day.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        kernel: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        if not dist.is_initialized():
            raise RunError(
                "DCPExecutor needs a process group: call torch.distributed.init_process_group "
                "first (torchrun sets what it needs), also for a single process"
            )
        check_timeout(timeout_s)
        if kernel is not None:
            choose_kernel(
                torch.float32, wanted=kernel
            )  # a misspelt name fails here, not in forward
        self._kernel = kernel
        self._transport = TorchTransport(group, timeout_s)
        self._prepared: PreparedPlan | None = None

    @property
    def rank(self) -> int:
        """This rank within the group."""
        return self._transport.rank

    def prepare(self, plan: Plan) -> PreparedPlan:
        """Make a plan ready; the following layers run it. Local: no communication.

        Raises:
            RunError: if it is no plan, or for another number of devices than the group has ranks.
        """
        if not isinstance(plan, Plan):
            raise RunError(
                f"expected a Plan, got {type(plan).__name__}; a file gives one by "
                "read_plan(path).plan"
            )
        if plan.num_devices != self._transport.size:
            raise RunError(
                f"the plan is for {plan.num_devices} devices, the process group has "
                f"{self._transport.size} ranks; start {plan.num_devices} ranks, or plan for a "
                f"cluster of {self._transport.size} devices"
            )
        segment_rows = choose_kernel(torch.float32, wanted=self._kernel).kernel.segment_rows
        self._prepared = PreparedPlan(
            prepare_device(plan, self.rank, segment_rows),
            self._transport,
            Recorder(self.rank),
            self._kernel,
        )
        return self._prepared

    @property
    def prepared(self) -> PreparedPlan:
        """The plan that layers run now.

        Raises:
            RunError: before the first `prepare`.
        """
        if self._prepared is None:
            raise RunError(
                "no plan is prepared; call executor.prepare(plan) before the first layer"
            )
        return self._prepared

    def trace(self) -> Trace:
        """Give what this rank did since `prepare`; times count from its own first event."""
        return make_trace(*self.prepared.recorder.table())

    def gather_timeline(self) -> Timeline | None:
        """Give what all ranks did since `prepare`, on one clock.

        Collective; ``None`` on every rank but 0.
        """
        return gather_timeline(self._transport.control_group, self.prepared.recorder)

    def close(self) -> None:
        """End the threads that watch messages; the executor cannot run after that."""
        self._transport.close()
