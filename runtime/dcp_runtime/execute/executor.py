"""`DCPExecutor`: the ranks of a process group, a kernel, and the plan that they run next."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from dcp_planner import Direction, Plan, PlanPart, Trace
from dcp_runtime.errors import RunError
from dcp_runtime.execute.interpreter import Interpreter
from dcp_runtime.execute.open_batches import OpenBatches, PreparedBatch
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.execute.tensor_checks import check_gradient, check_result, check_tensors
from dcp_runtime.kernels.choice import choose_kernel, known_kernel, segment_rows
from dcp_runtime.kernels.kernel import Kernel, QueryRows, TensorKind, accumulator_dtype
from dcp_runtime.plans.batch_plans import StackedPlans, batch_name, digest_of
from dcp_runtime.plans.device_plan import DevicePlan, prepare_device
from dcp_runtime.transport.agreement import Proposal, Topic, agree
from dcp_runtime.transport.clock import Timeline
from dcp_runtime.transport.group_store import Group, check_timeout, process_group
from dcp_runtime.transport.recorder import Recorder, make_clock, make_trace
from dcp_runtime.transport.torch_transport import make_transport
from dcp_runtime.transport.transport import Transport

DEFAULT_TIMEOUT_S = 600.0

_BATCH = Topic(
    "batch of the data loader",
    "every rank prepares every batch that its loader yields, in order, and all loaders resume from "
    "the same state",
)
_DIGEST = Topic("plan digest", "give every rank the same plan")
_KIND = Topic("kind of tensors", "give every rank tensors of the same kind")


@dataclass(frozen=True, slots=True)
class _Engine:
    """The kernel that computes, and the kind of tensors that it has the plan's tables for."""

    kind: TensorKind
    kernel: Kernel

    def load(self, part: DevicePlan) -> None:
        """Bring the tile tables of a plan to where its tensors are."""
        self.kernel.load(part.forward.tables, part.backward.tables, self.kind)

    def check(self, kind: TensorKind) -> None:
        """Check the tensors of a further layer.

        Raises:
            RunError: if they are not of the kind of the first layer's.
        """
        if str(self.kind) != str(kind):
            raise RunError(
                f"all layers of a prepared plan share dtype and device: expected "
                f"{self.kind}, got {kind}; prepare the plan again for other tensors"
            )


@dataclass(frozen=True, slots=True)
class _Options:
    """The choices of an executor that its plans run by; see `DCPExecutor`."""

    kernel: str | None
    check_finite: bool


class PreparedPlan:
    """A plan made ready on this rank: `DCPExecutor.prepare` makes it, layers run it.

    ``DCPAttn.apply(prepared, q, kv)`` runs it, in as many layers as you like, also when a
    checkpoint runs them again after other plans were prepared.

    Args:
        part: this rank's part of the plan.
        transport: moves blocks between the ranks.
        batch: the plans that were prepared together.
        options: of the executor.
        before: the plan that was prepared before, whose engine has this plan's tables already;
            ``None`` for the first plan.
    """

    def __init__(
        self,
        part: DevicePlan,
        transport: Transport,
        batch: PreparedBatch,
        options: _Options,
        before: "PreparedPlan | None",
    ) -> None:
        self.part, self.batch = part, batch
        self.recorder = Recorder(transport.rank)
        if before is not None:
            self.recorder.clock = before.recorder.clock
        self._transport, self._options = transport, options
        self._expected = None if before is None else before.latest_engine
        self._engine: _Engine | None = None

    @property
    def latest_engine(self) -> _Engine | None:
        """The engine of this plan's layers, or of the plan before while no layer ran."""
        return self._engine or self._expected

    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute out ``[T_local, Hq, D]`` and lse ``[T_local, Hq]`` of this rank's tokens.

        The first layer compares dtype and device with those of the other ranks.

        Raises:
            RunError: if the tensors do not fit the plan, or another rank fails.
        """
        self.batch.is_reached = True
        self._check_tensors(q, kv)
        heads = self.part.heads
        current = ForwardPass(self.part, heads.split_q(q), heads.split_kv(kv))
        self._interpreter().run(current)
        out, lse = (heads.join_q(tensor) for tensor in current.result())
        self._check("forward", out=out)
        return out, lse

    def backward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute dq and dkv of this rank's tokens, from the arguments and results of forward.

        Raises:
            RunError: if dout does not fit out, or another rank fails.
        """
        try:
            check_gradient(self.part, out, dout)
        except RunError as error:
            self._transport.report("backward", 0, error)
            raise
        sums = accumulator_dtype(q.dtype)
        delta = (dout.to(sums) * out.to(sums)).sum(-1)
        heads = self.part.heads
        rows = QueryRows(*(heads.split_q(tensor) for tensor in (q, dout, lse, delta)))
        current = BackwardPass(self.part, rows, heads.split_kv(kv))
        self._interpreter().run(current)
        dq, dkv = current.result()
        dq, dkv = heads.join_q(dq), heads.join_kv(dkv)
        self._check("backward", dq=dq, dkv=dkv)
        return dq, dkv

    def _check_tensors(self, q: torch.Tensor, kv: torch.Tensor) -> None:
        if self._engine is None:
            propose = partial(self._propose_engine, q, kv)
            self._engine = agree(self._transport, (_KIND,), "the first layer", propose)
            self.recorder.clock = make_clock(q.device, self.recorder.clock)
            return
        try:
            check_tensors(self.part, q, kv)
            self._engine.check(_kind_of(q))
        except RunError as error:
            self._transport.report("forward", 0, error)
            raise

    def _propose_engine(self, q: torch.Tensor, kv: torch.Tensor) -> Proposal[_Engine]:
        check_tensors(self.part, q, kv)
        kind = _kind_of(q)
        return Proposal((str(kind),), self._choose(kind))

    def _choose(self, kind: TensorKind) -> _Engine:
        if self._expected is not None and self._expected.kind == kind:
            return self._expected
        wanted = self._options.kernel
        engine = _Engine(kind, choose_kernel(kind.dtype, kind.device, wanted, kind.head_dim).kernel)
        engine.load(self.part)
        return engine

    def _interpreter(self) -> Interpreter:
        assert self._engine is not None, "the first forward chose it"
        return Interpreter(
            self.part,
            self._engine.kernel,
            self._transport,
            self.recorder,
            self._options.check_finite,
        )

    def _check(self, direction: Direction, **results: torch.Tensor) -> None:
        if not self._options.check_finite:
            return
        try:
            check_result(self.part.device, direction, **results)
        except RunError as error:
            self._transport.report(direction, 0, error)
            raise


class DCPExecutor:
    """Runs plans on the ranks of a process group; rank r is device r of the plan.

    Making one is collective: every rank of the group makes its executor at the same time, and
    afterwards all ranks prepare the same plans and run the same layers in the same order.

    Args:
        group: ranks that share the attention, a group or a `DeviceMesh` of one dim; ``None`` for
            all. Messages travel over gloo, or over NCCL if the group's backend is NCCL: call
            ``torch.cuda.set_device`` first then.
        kernel: name of the kernel, ``None`` for the fastest that can compute.
        timeout_s: how long a rank may keep another one waiting before it counts as stalled.
        check_finite: raise if a tensor that arrives or results is not finite; costs a pass over it.
        transport: moves messages instead of one of the group's own.
        micro_batches: how many batches may be prepared before a layer runs the first of them: the
            micro-batches of a pipeline's step.

    Raises:
        RunError: if ``torch.distributed`` is not initialised, this rank is none of the group's, the
            timeout is not above 0 and at most a day, or `micro_batches` is no count.
    """

    def __init__(
        self,
        group: Group | None = None,
        kernel: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        check_finite: bool = False,
        transport: Transport | None = None,
        micro_batches: int = 1,
    ) -> None:
        check_timeout(timeout_s)
        if not isinstance(micro_batches, int) or micro_batches < 1:
            raise RunError(f"expected micro_batches to be at least 1, got {micro_batches!r}")
        if kernel is not None:
            known_kernel(kernel)  # a misspelt name fails here, not in forward
        self._options = _Options(kernel, check_finite)
        self._transport = transport or make_transport(_group_of(group), timeout_s)
        self._prepared: PreparedPlan | None = None
        self._batches = OpenBatches(micro_batches)

    @property
    def rank(self) -> int:
        """This rank within the group."""
        return self._transport.rank

    def prepare(self, plan: Plan | PlanPart) -> PreparedPlan:
        """Make the plan of a batch, or this rank's part of one, ready for the layers that run it.

        Collective: compares digests, so that no rank runs another plan than the others, and the
        numbers of the batches that the data loaders yielded, so that no rank skips one. Tables go
        to where the layers of the plan before had their tensors; those of the first plan follow
        with its first layer.

        Raises:
            RunError: if it is no plan, for another number of devices than the group has ranks, or
                not the one that the other ranks have; names the rank that differs. Also if no layer
                ran the plan that was prepared before.
        """
        return self._prepare((plan,), batch_name(plan))[0]

    def prepare_stack(self, stack: StackedPlans) -> tuple[PreparedPlan, ...]:
        """Make the plans of one batch ready, as `prepare` does; for `LayerPlans`.

        Raises:
            RunError: as `prepare`.
        """
        return self._prepare(stack.plans, batch_name(stack))

    def _prepare(self, plans: Sequence[Plan | PlanPart], name: str) -> tuple[PreparedPlan, ...]:
        propose = partial(self._propose_parts, plans, name)
        parts = agree(self._transport, (_BATCH, _DIGEST), "prepare", propose)
        batch, before = self._batches.add(name, len(plans)), self._prepared
        prepared = tuple(
            PreparedPlan(part, self._transport, batch, self._options, before) for part in parts
        )
        self._prepared = prepared[-1]
        return prepared

    def _propose_parts(
        self, plans: Sequence[Plan | PlanPart], name: str
    ) -> Proposal[list[DevicePlan]]:
        self._batches.check_room()
        parts = [self._make_ready(plan) for plan in plans]
        return Proposal((name, " ".join(map(digest_of, plans))), parts)

    def _make_ready(self, plan: Plan | PlanPart) -> DevicePlan:
        self._check_plan(plan)
        whole = plan.plan if isinstance(plan, PlanPart) else plan
        part = prepare_device(whole, self.rank, segment_rows(self._options.kernel))
        engine = None if self._prepared is None else self._prepared.latest_engine
        if engine is not None:
            engine.load(part)
        return part

    def _check_plan(self, plan: Plan | PlanPart) -> None:
        if isinstance(plan, PlanPart) and plan.device != self.rank:
            raise RunError(
                f"expected the part of rank {self.rank}, got that of rank {plan.device}; every "
                "rank prepares the part that was made for it"
            )
        if isinstance(plan, StackedPlans):
            raise RunError(
                f"expected one Plan, got {len(plan.plans)} of a stack; make them ready by "
                "LayerPlans.prepare(executor, plan)"
            )
        if not isinstance(plan, Plan | PlanPart):
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

    @property
    def prepared(self) -> PreparedPlan:
        """The plan that a layer runs which is given the executor in place of a prepared plan.

        Raises:
            RunError: before the first `prepare`, and wherever another plan might be meant: inside a
                backward pass, while another batch waits for its layers or its backward, and after
                a stack.
        """
        latest = self._latest()
        self._batches.check_only_one()
        return latest

    def _latest(self) -> PreparedPlan:
        if self._prepared is None:
            raise RunError(
                "no plan is prepared; call executor.prepare(plan) before the first layer"
            )
        return self._prepared

    def trace(self) -> Trace:
        """Return what this rank did since `prepare`; times count from its own first event."""
        return make_trace(*self._latest().recorder.table())

    def gather_timeline(self) -> Timeline | None:
        """Gather what all ranks did since `prepare`, on one clock.

        Collective; ``None`` on every rank but 0.
        """
        return self._transport.gather_timeline(self._latest().recorder)

    def close(self) -> None:
        """End the threads that watch messages; the executor cannot run after that.

        Raises:
            RunError: if no layer ran a plan that was prepared, unless another error is under way.
        """
        self._transport.close()
        self._batches.check_ended()


def _kind_of(q: torch.Tensor) -> TensorKind:
    return TensorKind(q.dtype, q.device, q.shape[-1])


def _group_of(group: Group | None) -> dist.ProcessGroup | None:
    if not dist.is_initialized():
        raise RunError(
            "DCPExecutor needs a process group: call torch.distributed.init_process_group first "
            "(torchrun sets what it needs), also for a single process"
        )
    return process_group(group)
