"""`PreparedPlan`: a plan that is ready on this rank, and the calls that layers make on it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.execute.interpreter import Interpreter
from dcp_runtime.execute.open_batches import PreparedBatch, handle_of
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.execute.tensor_checks import (
    PLAIN,
    Keys,
    Softmax,
    check_gradient,
    check_result,
    check_tensors,
)
from dcp_runtime.kernels.choice import KernelChoice, choose_kernel
from dcp_runtime.kernels.kernel import Kernel, QueryRows, TensorKind, accumulator_dtype
from dcp_runtime.plans.batch_plans import look_back
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.recorder import Recorder, make_clock
from dcp_runtime.transport.transport import Topic, Transport, agree

_KIND = Topic("kind of tensors", "give every rank tensors of the same kind")


@dataclass(frozen=True, slots=True)
class Engine:
    """The kernel that computes, and the kind of tensors that it has the plan's tables for."""

    kind: TensorKind
    kernel: Kernel
    choice: KernelChoice

    @classmethod
    def make(cls, kind: TensorKind, wanted: str | None, part: DevicePlan) -> "Engine":
        """Choose the kernel of a plan, and bring its tile tables to where the tensors are."""
        choice = choose_kernel(kind.dtype, kind.device, wanted, kind.head_dim, kind.softcap, part)
        engine = cls(kind, choice.kernel, choice)
        engine._load(part)
        return engine

    def take(self, part: DevicePlan, wanted: str | None) -> "Engine":
        """Load a further plan; return another engine if this kernel cannot compute it.

        Raises:
            RunError: if the kernel that was asked for cannot.
        """
        try:
            self._load(part)
        except RunError:
            if wanted is not None:
                raise
            return Engine.make(self.kind, wanted, part)
        return replace(self, choice=replace(self.choice, is_kept=True))

    def _load(self, part: DevicePlan) -> None:
        self.kernel.load(part.forward.tables, part.backward.tables, self.kind)

    def check(self, kind: TensorKind) -> None:
        """Check the tensors of a further layer."""
        if str(self.kind) != str(kind):
            raise RunError(
                f"all layers of a prepared plan share dtype, device and soft cap: expected "
                f"{self.kind}, got {kind}; prepare the plan again for other tensors"
            )


class PreparedPlan:
    """A plan made ready on this rank: `DCPExecutor.prepare` makes it, layers run it.

    ``DCPAttn.apply(prepared, q, kv)`` runs it, in as many layers as you like, also when a
    checkpoint runs them again after other plans were prepared. The `expected` engine, of the plan
    before, has this plan's tables already.
    """

    def __init__(
        self,
        part: DevicePlan,
        transport: Transport,
        batch: PreparedBatch,
        kernel: str | None,
        check_finite: bool,
        expected: Engine | None,
    ) -> None:
        self.part, self.batch, self.handle = part, batch, handle_of(self)
        self.recorder = Recorder(transport.rank, is_on=batch.is_traced)
        self._transport = transport
        self._kernel, self._check_finite = kernel, check_finite
        self._expected = expected
        self._engine: Engine | None = None

    @property
    def latest_engine(self) -> Engine | None:
        """The engine of this plan's layers, or of the plan before while no layer ran."""
        return self._engine or self._expected

    @property
    def kernel_choice(self) -> KernelChoice | None:
        """The kernel of the layers and why it is no other; ``None`` before any layer."""
        return None if self.latest_engine is None else self.latest_engine.choice

    @cached_property
    def longest_look_back(self) -> int:
        """The window that contains the mask, in tokens."""
        return look_back(self.part.plan)

    def forward(self, q: Tensor, kv: Keys, softmax: Softmax = PLAIN) -> tuple[Tensor, Tensor]:
        """Compute out ``[T_local, Hq, D]`` and lse ``[T_local, Hq]`` of this rank's tokens.

        The first layer compares dtype, device, scale and soft cap with those of the other ranks.
        With sinks, lse counts them.

        Raises:
            RunError: if the tensors do not fit the plan, or another rank fails.
        """
        # Before the checks: a layer that is refused was reached, and `close` need not say so.
        self.batch.is_reached = True
        self._check_tensors(q, kv, softmax)
        heads = self.part.heads
        current = ForwardPass(self.part, heads.split_q(q), self._split(kv), softmax.scale)
        self._interpreter().run(current)
        if softmax.sinks is not None:
            rows = softmax.sinks.to(accumulator_dtype(q.dtype)).expand(len(q), -1)
            current.add_sinks(heads.split_q(rows))
        out, lse = (heads.join_q(tensor) for tensor in current.result())
        self._check("forward", out=out)
        return out, lse

    def backward(
        self,
        q: Tensor,
        kv: Keys,
        out: Tensor,
        lse: Tensor,
        dout: Tensor,
        softmax_scale: float | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute dq and dkv, or dk and dv, from the arguments and results of forward.

        Raises:
            RunError: if dout does not fit out, or another rank fails.
        """
        with self._telling("backward"):
            check_gradient(self.part, out, dout)
        heads = self.part.heads
        tensors = (q, dout, lse, self._kernel_of_layers().delta(out, dout))
        rows = QueryRows(*(heads.split_q(tensor) for tensor in tensors))
        current = BackwardPass(self.part, rows, self._split(kv), softmax_scale)
        self._interpreter().run(current)
        dq, *dkv = current.result()
        results = heads.join_q(dq), *map(heads.join_kv, dkv)
        names = ("dq", "dkv") if len(dkv) == 1 else ("dq", "dk", "dv")
        self._check("backward", **dict(zip(names, results, strict=True)))
        return results

    def _split(self, kv: Keys) -> Keys:
        split = self.part.heads.split_kv
        return split(kv) if isinstance(kv, Tensor) else (split(kv[0]), split(kv[1]))

    def _check_tensors(self, q: Tensor, kv: Keys, softmax: Softmax = PLAIN) -> None:
        if self._engine is None:
            propose = partial(self._propose_engine, q, kv, softmax)
            self._engine = agree(self._transport, (_KIND,), "the first layer", propose)
            # Only now it is known where the tensors are, and so by which clock work is timed.
            self.recorder.clock = make_clock(q.device, self.recorder.clock)
            return
        with self._telling("forward"):
            check_tensors(self.part, q, kv)
            softmax.check(q)
            self._engine.check(_kind_of(q, softmax))

    def _propose_engine(
        self, q: Tensor, kv: Keys, softmax: Softmax
    ) -> tuple[Sequence[str], Engine]:
        check_tensors(self.part, q, kv)
        softmax.check(q)
        kind = _kind_of(q, softmax)
        scaled = "" if softmax.scale is None else f" with softmax_scale {softmax.scale:.9g}"
        return (f"{kind}{scaled}",), self._choose(kind)

    def _choose(self, kind: TensorKind) -> Engine:
        if self._expected is not None and self._expected.kind == kind:
            return self._expected
        return Engine.make(kind, self._kernel, self.part)

    def _kernel_of_layers(self) -> Kernel:
        assert self._engine is not None, "the first forward chose it"
        return self._engine.kernel

    def _interpreter(self) -> Interpreter:
        return Interpreter(
            self.part,
            self._kernel_of_layers(),
            self._transport,
            self.recorder,
            self._check_finite,
        )

    def _check(self, direction: Direction, **results: Tensor) -> None:
        if self._check_finite:
            with self._telling(direction):
                check_result(self.part.device, direction, **results)

    @contextmanager
    def _telling(self, direction: Direction) -> Iterator[None]:
        """Tell the other ranks of an error that this one meets alone."""
        try:
            yield
        except RunError as error:
            self._transport.report(direction, 0, error)
            raise


def _kind_of(q: Tensor, softmax: Softmax) -> TensorKind:
    return TensorKind(q.dtype, q.device, q.shape[-1], softmax.cap)
