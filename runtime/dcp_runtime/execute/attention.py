"""`DCPAttn`, the attention of a model over the ranks of a plan, and `LayerPlans`, its plans."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dcp_planner import Plan
from dcp_planner.plan import PlanPart
from dcp_runtime.errors import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.plans.batch_plans import BatchPlan, StackedPlans


@dataclass(frozen=True, slots=True)
class LayerPlans:
    """The plans of one batch, layer by layer.

    In a model::

    layers = LayerPlans.prepare(executor, plan)
    out = DCPAttn.apply(layers.of(0), q, kv)  # layer 0
    """

    layers: tuple[PreparedPlan, ...]
    cycle: tuple[int, ...]

    @classmethod
    def prepare(
        cls,
        executor: DCPExecutor,
        plans: BatchPlan | Sequence[Plan | PlanPart],
        cycle: Sequence[int] = (0,),
    ) -> "LayerPlans":
        """Make the plans of a batch ready; collective.

        Args:
            executor: of the ranks that share the batch.
            plans: what a `DCPDataloader` yields: one plan for all layers, or the plans of a stack,
                which bring their cycle along; or the distinct plans one by one, all with the same
                owners of tokens.
            cycle: which of the plans each layer runs, repeated over the layers: ``(0, 0, 0, 0, 0,
                1)`` for Gemma 3, whose plan 0 is the local mask and plan 1 the global one.

        Raises:
            RunError: if the plans place tokens differently, the cycle names one that is not there,
                or a plan is not the one of the other ranks.
        """
        if not isinstance(plans, StackedPlans):
            found = (plans,) if isinstance(plans, Plan | PlanPart) else tuple(plans)
            plans = StackedPlans(found, tuple(cycle))
        return cls(executor.prepare_stack(plans), plans.cycle)

    def of(self, layer: int) -> PreparedPlan:
        """Return the plan that a layer runs, by its number from 0."""
        return self.layers[self.cycle[layer % len(self.cycle)]]


class DCPAttn:
    """Exact attention under the mask of a prepared plan.

    ``out = DCPAttn.apply(prepared, q, kv)`` with what ``executor.prepare(plan)`` or
    ``layers.of(layer)`` gave, q ``[T_local, Hq, D]``, kv
    ``[T_local, 2, Hkv, D]`` and out ``[T_local, Hq, D]``, rows in the order of
    ``plan.local_tokens(rank)``. The softmax scale is ``1 / sqrt(D)``. A token that sees no key gets
    0 and passes no gradient. Collective: all ranks call it in the same order, and so do their
    backwards. Layers keep their plan: others may be prepared before their backward.

    The executor itself stands for its plan where no other can be meant: while one batch at a time
    is prepared, run forward and run backward, without a stack and without activation checkpointing.
    Everywhere else the executor is refused.

    Under autocast, q and kv are cast as torch's own attention casts them, and gradients come back
    in the dtype of the arguments. ``torch.compile`` breaks the graph here and compiles around it.
    """

    @staticmethod
    def apply(prepared: PreparedPlan | DCPExecutor, q: Tensor, kv: Tensor) -> Tensor:
        """Compute out of q and kv.

        Raises:
            RunError: if the tensors do not fit the prepared plan, another rank fails, or an
                executor is given that may mean several plans.
        """
        if "torch._dynamo" in sys.modules:  # loading the compiler for its sake would take a second
            run = torch.compiler.disable(_apply)  # type: ignore[no-untyped-call]
            return cast(Tensor, run(prepared, q, kv))
        return _apply(prepared, q, kv)


def _apply(given: PreparedPlan | DCPExecutor, q: Tensor, kv: Tensor) -> Tensor:
    plan = given.prepared if isinstance(given, DCPExecutor) else given
    if not isinstance(plan, PreparedPlan):
        raise RunError(
            "expected a prepared plan, as executor.prepare(plan) or layers.of(layer) gives it, got "
            f"{type(given).__name__}"
        )
    return cast(Tensor, _Attention.apply(plan, q, kv))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    # Any: torch's base class fixes neither the context nor the arguments.
    @staticmethod
    def forward(ctx: Any, prepared: PreparedPlan, q: Tensor, kv: Tensor) -> Tensor:
        """Run the forward program of the prepared plan."""
        device = q.device.type if isinstance(q, Tensor) else "cpu"
        if torch.is_autocast_enabled(device):
            q, kv = (_cast(x, torch.get_autocast_dtype(device)) for x in (q, kv))
        with torch.autocast(device, enabled=False):
            out, lse = prepared.forward(q, kv)
        ctx.prepared, ctx.call = prepared, prepared.batch.open_call()
        ctx.save_for_backward(q, kv, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[None, Tensor, Tensor]:
        """Run the backward program of the plan that forward ran."""
        q, kv, out, lse = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            dq, dkv = ctx.prepared.backward(q, kv, out, lse, dout)
        ctx.call = None
        return None, dq, dkv  # autograd casts them to what the arguments were


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # As autocast does: float64 and non-float tensors are unchanged.
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
