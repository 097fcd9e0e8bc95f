"""`DCPAttn`, the attention of a model over the ranks of a plan, and `LayerPlans`, its plans.

The attention is an operator of torch, so that compiled models call it without breaking their graph.
It takes a prepared plan as a tensor that holds the plan's number, and returns a tensor that holds
the number of the call. Compilers pass tensors through without guards on their values, so another
batch runs the same compiled program.

The operators are defined on the library directly: the decorator ``custom_op`` would load the
compiler with the first call, a second in processes that never compile.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch.nn import Parameter
from torch.nn.functional import pad

from dcp_planner import Plan
from dcp_planner.plan import PlanPart
from dcp_runtime.errors import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.layer_limits import LayerLimits
from dcp_runtime.execute.model_checks import run_checks
from dcp_runtime.execute.passes import Keys
from dcp_runtime.execute.prepared_plan import (
    OpenCall,
    PreparedPlan,
    Softmax,
    find,
    find_call,
    plan_of_call,
)
from dcp_runtime.kernels.kernel import accumulator_dtype, row_delta
from dcp_runtime.plans.batch_plans import BatchPlan, StackedPlans


def _forward(plan: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, lse, call = _call(cast(PreparedPlan, find(plan)), *inputs)
    return out, lse, call.handle()


def _call(  # noqa: PLR0913 - the operator's schema
    prepared: PreparedPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    sinks: Tensor | None,
    scale: float | None,
    softcap: float | None,
    limits: list[int],
    layer: str,
    number: int,
) -> tuple[Tensor, Tensor, OpenCall]:
    """Run forward of a layer of a plan."""
    kv = k if v is None else (k, v)
    if limits:
        prepared.check_limits(LayerLimits(layer, *cast(Any, limits)))  # a bool is an int there
    if number >= 0:
        prepared.batch.note_layer(number)
    with _no_autocast(q):
        out, lse = prepared.forward(q, kv, Softmax(scale, softcap, sinks))
    call = OpenCall(prepared)
    prepared.batch.note_call(call)
    return out, lse, call


def _backward(call: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _gradients_of(plan_of_call(call), *inputs)


def _gradients_of(  # noqa: PLR0913 - the operator's schema
    prepared: PreparedPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run backward of a layer of a plan."""
    kv = k if v is None else (k, v)
    with _no_autocast(q):
        total, dsinks = lse, q.new_empty(0)
        if sinks is not None:
            wide = sinks.to(lse.dtype)
            total = torch.logaddexp(lse, wide)
            dsinks = _sink_gradient(wide, lse, out, dout).to(sinks.dtype)
        dq, *dkv = prepared.backward(q, kv, out, total, dout, scale)
    # Operators return only tensors: an empty tensor stands for None.
    return dq, dkv[0], dkv[1] if v is not None else q.new_empty(0), dsinks


def _no_autocast(q: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off: `DCPAttn.apply` has cast its arguments, and sums must stay wide."""
    device = q.device.type
    # Even a context that changes nothing takes the host longer than this question.
    is_on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


def _sink_gradient(sinks: Tensor, lse: Tensor, out: Tensor, dout: Tensor) -> Tensor:
    """Sum ``p (0 - delta)`` over the rows: p is the weight of the sink, 0 its value times dout."""
    # NaN is -inf - -inf: a row that sees no key, and a sink that is switched off.
    weights = torch.sigmoid(sinks - lse).nan_to_num_(0.0)
    return -(weights * row_delta(out, dout)).sum(0)


# For compilers, which trace the operators with tensors that have no values.
def _forward_shapes(plan: Tensor, q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    lse = q.new_empty(q.shape[:2], dtype=accumulator_dtype(q.dtype))
    return q.new_empty(q.shape), lse, plan.new_empty(2)


def _backward_shapes(
    call: Tensor, q: Tensor, k: Tensor, v: Tensor | None, sinks: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def empty(tensor: Tensor | None) -> Tensor:
        return q.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

    return empty(q), empty(k), empty(v), empty(sinks)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, *tensors, scale, _, _, _, _ = inputs
    # Hooks may save a copy of the handle, which keeps no call open.
    _save_call(ctx, tensors, output, scale, find_call(output[2]))


def _save_call(
    ctx: Any,
    tensors: Sequence[Tensor | None],
    output: tuple[Tensor, Tensor, Tensor],
    scale: float | None,
    call: OpenCall | None,
) -> None:
    out, lse, handle = output
    # lse and the call have no gradient; torch need not make zeros in their place.
    ctx.set_materialize_grads(False)
    ctx.scale, ctx.call = scale, call
    ctx.save_for_backward(handle, *tensors, out, lse)


def _gradients(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    handle, q, k, v, sinks, out, lse = ctx.saved_tensors
    found = attention_backward(handle, q, k, v, sinks, out, lse, dout, ctx.scale)
    ctx.call = None  # a graph that is kept has its handle
    return _as_inputs(found, v, sinks)


def _as_inputs(
    found: tuple[Tensor, Tensor, Tensor, Tensor], v: Tensor | None, sinks: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return a gradient or ``None`` for each argument of the operator."""
    dq, dk, dv, dsinks = found
    return (
        None, dq, dk, None if v is None else dv, None if sinks is None else dsinks, None, None,
        None, None, None,
    )  # fmt: skip


def _refuse(*_: Any) -> None:
    raise RunError("DCP attention has no second derivative: nothing can differentiate it twice")


_QKV = "Tensor q, Tensor k, Tensor? v, Tensor? sinks"
for _name, _schema, _run, _shapes in (
    (
        "attention",
        f"(Tensor plan, {_QKV}, float? scale, float? softcap, int[] limits, str layer, int number)"
        " -> (Tensor, Tensor, Tensor)",
        _forward, _forward_shapes,
    ),
    (
        "attention_backward",
        f"(Tensor call, {_QKV}, Tensor out, Tensor lse, Tensor dout, float? scale)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        _backward, _backward_shapes,
    ),
):  # fmt: skip
    torch.library.define(f"dcp_runtime::{_name}", _schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(f"dcp_runtime::{_name}", "CompositeExplicitAutograd", _run)
    torch.library.register_fake(f"dcp_runtime::{_name}", _shapes)
torch.library.register_autograd("dcp_runtime::attention", _gradients, setup_context=_save)
torch.library.register_autograd("dcp_runtime::attention_backward", _refuse)

attention = torch.ops.dcp_runtime.attention.default
attention_backward = torch.ops.dcp_runtime.attention_backward.default


class _Eager(torch.autograd.Function):
    """The operators without torch's dispatcher, which takes the host longer than a small layer."""

    @staticmethod
    def forward(ctx: Any, prepared: PreparedPlan, *inputs: Any) -> Any:  # Any: as the operator
        out, lse, call = _call(prepared, *inputs)
        output = out, lse, call.handle()
        ctx.mark_non_differentiable(*output[1:])
        _save_call(ctx, inputs[:4], output, inputs[4], call)
        return output

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        # The operator refuses where gradients are to be differentiated again.
        if torch.is_grad_enabled() or ctx.call is None:
            return _gradients(ctx, dout)
        _, q, k, v, sinks, out, lse = ctx.saved_tensors
        found = _gradients_of(ctx.call.plan, q, k, v, sinks, out, lse, dout, ctx.scale)
        ctx.call = None
        return _as_inputs(found, v, sinks)


_eager = cast(Any, _Eager.apply)


_PLAIN = Tensor, Parameter, type(None)


def _is_traced(*tensors: Tensor | None) -> bool:
    """Return whether somebody follows the operators: a compiler, a mode, a class of tensors."""
    return (
        torch.compiler.is_compiling()
        or any(type(x) not in _PLAIN for x in tensors)
        or torch._C._len_torch_dispatch_stack() > 0
        or maybe_current_level() is not None
    )


@dataclass(frozen=True)
class LayerPlan:
    """The plan of one layer, for `DCPAttn.apply`; all else is as the `PreparedPlan` has it."""

    plan: PreparedPlan
    number: int  # tells ranks that run different layers apart

    def __getattr__(self, name: str) -> Any:  # Any: whatever the plan has
        if name == "plan":  # compilers look at objects that have no fields yet
            raise AttributeError(name)
        return getattr(self.plan, name)


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

        Before the first batch it checks the models that an adapter has noted.

        Args:
            executor: of the ranks that share the batch.
            plans: as a `DCPDataloader` yields them: a plan for all layers, or the plans of a stack,
                which bring their cycle along. Or a sequence of the distinct plans, all with the
                same owners of tokens.
            cycle: which of the plans each layer runs, repeated over the layers: ``(0, 0, 0, 0, 0,
                1)`` for Gemma 3, whose plan 0 is the local mask and plan 1 the global mask.

        Raises:
            RunError: if the plans place tokens differently, the cycle names a plan that is missing,
                or a plan differs from that of the other ranks.
        """
        run_checks()
        if not isinstance(plans, StackedPlans):
            found = (plans,) if isinstance(plans, Plan | PlanPart) else tuple(plans)
            plans = StackedPlans(found, tuple(cycle))
        return cls(executor.prepare_stack(plans), plans.cycle)

    def of(self, layer: int) -> LayerPlan:
        """Return the plan that a layer runs, by its number from 0 in the whole model.

        Raises:
            RunError: if the layer is linear.
        """
        number = self.cycle[layer % len(self.cycle)]
        if number < 0:
            raise RunError(f"layer {layer} of the stack is linear: it attends to nothing")
        return LayerPlan(self.layers[number], layer)


class DCPAttn:
    """Exact attention under the mask of a prepared plan.

    ``out = DCPAttn.apply(prepared, q, kv)`` with what ``executor.prepare(plan)`` or
    ``layers.of(layer)`` gave, q ``[T_local, Hq, D]``, kv ``[T_local, 2, Hkv, D]``, or k and v apart
    as ``(k, v)``, and out ``[T_local, Hq, D]``, rows in the order of ``plan.local_tokens(rank)``.
    A token that sees no key gets 0 and passes no gradient. Collective: all ranks call it in the
    same order, and so do their backwards. Layers keep their plan: others may be prepared before
    their backward.

    The executor itself stands for its plan where no other can be meant: while one batch at a time
    is prepared, run forward and run backward, without a stack and without activation checkpointing.
    Everywhere else the executor is refused.

    Under autocast, tensors are cast as torch's own attention casts them, and gradients come back in
    the dtype of the arguments. ``torch.compile(fullgraph=True)`` keeps a layer with a prepared plan
    in its graph, and further batches run the same program.
    """

    @staticmethod
    def apply(
        prepared: LayerPlan | PreparedPlan | DCPExecutor,
        q: Tensor,
        kv: Keys,
        *,
        softmax_scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        limits: LayerLimits | None = None,
    ) -> Tensor:
        """Compute out of q and kv.

        Args:
            prepared: plan of the layer.
            q: ``[T_local, Hq, D]``.
            kv: ``[T_local, 2, Hkv, D]``, or ``(k, v)`` of ``[T_local, Hkv, D]`` each with any
                strides: they meet in the buffer where received keys arrive too, without a copy of
                their own. Where k and v have heads of two sizes (MLA), the plan's `head_dim` is the
                larger; the smaller is filled up with zeros, and out has the size of v.
            softmax_scale: factor of the scores; ``None`` for one over the root of q's `head_dim`.
                The same on all ranks.
            softcap: scores s become ``softcap * tanh(s / softcap)``, the same in all layers of the
                plan. Computed by the kernels ``"triton"`` and ``"reference"``.
            sinks: ``[Hq]``, a learned logit per query head that joins the denominator of every
                token; its gradient is the sum over this rank's tokens.
            limits: what the layer may see by the model's configuration; the plan's mask must stay
                within.

        Raises:
            RunError: if the tensors do not fit the prepared plan, another rank fails, an executor
                is given that may mean several plans, or no kernel can cap scores here.
        """
        number = -1
        if isinstance(prepared, LayerPlan):
            number = prepared.number
            prepared = prepared.plan
        plan = prepared.prepared if isinstance(prepared, DCPExecutor) else prepared
        if not isinstance(plan, PreparedPlan):
            raise RunError(
                "expected a prepared plan, as executor.prepare(plan) or layers.of(layer) gives it, "
                f"got {type(prepared).__name__}"
            )
        # `forward` refuses these on all ranks; the operator would raise on this rank alone, and
        # compute nothing from `meta`.
        if isinstance(kv, tuple) and len(kv) != 2:
            plan.forward(q, kv)
        k, v = kv if isinstance(kv, tuple) else (kv, None)
        for x in (q, k, k if v is None else v):
            if not isinstance(x, Tensor) or x.device.type == "meta":
                plan.forward(q, kv)
        q, k, v = _cast(q), _cast(k), None if v is None else _cast(v)
        qk_dim, v_dim = q.shape[-1], q.shape[-1] if v is None else v.shape[-1]
        scale = softmax_scale
        if v is not None and v_dim != qk_dim:
            # The scale of the size before padding: added zeros change no score.
            scale = qk_dim**-0.5 if scale is None else scale
            q, k, v = (_widen(x, max(v_dim, qk_dim)) for x in (q, k, v))
        layer, *numbers = ("",) if limits is None else limits
        numbers = list(map(int, numbers))
        rest = (q, k, v, sinks, scale, softcap, numbers, layer, number)
        is_traced = _is_traced(q, k, v, sinks)
        found = attention(plan.handle, *rest) if is_traced else _eager(plan, *rest)
        out = cast(Tensor, found[0])
        return out if out.shape[-1] == v_dim else out[..., :v_dim]


def _widen(x: Tensor, dim: int) -> Tensor:
    # `pad` by nothing copies x, and its gradient as well.
    return pad(x, (0, dim - x.shape[-1])) if x.shape[-1] < dim else x


def _cast(tensor: Tensor) -> Tensor:
    # As autocast does: float64 and non-float tensors stay as they are.
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device)) if tensor.is_floating_point() else tensor
