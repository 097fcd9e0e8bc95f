"""Attention as an operator of torch, so that compiled models call it without breaking their graph.

The operator gets a prepared plan as a tensor that holds its number, and gives a tensor that holds
the number of the call: compilers pass tensors through, and guard on no value of theirs, so another
batch is no other program. Defined on the library directly: the decorator ``custom_op`` loads the
compiler with the first call, a second in processes that never compile.
"""

from typing import Any, cast

import torch
from torch import Tensor

from dcp_runtime.errors import RunError
from dcp_runtime.execute.handles import OpenCall, find
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.execute.tensor_checks import Softmax
from dcp_runtime.kernels.kernel import accumulator_dtype, row_delta


def _keys(k: Tensor, v: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
    return k if v is None else (k, v)


def _forward(
    plan: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    sinks: Tensor | None,
    scale: float | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    prepared = cast(PreparedPlan, find(plan))
    with torch.autocast(q.device.type, enabled=False):
        out, lse = prepared.forward(q, _keys(k, v), Softmax(scale, softcap, sinks))
    call = OpenCall(prepared)
    prepared.batch.note_call(call)
    return out, lse, call.handle()


def _backward(  # noqa: PLR0913 - the operator's schema
    call: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    prepared = cast(PreparedPlan, cast(OpenCall, find(call)).plan)
    with torch.autocast(q.device.type, enabled=False):
        dq, *dkv = prepared.backward(q, _keys(k, v), out, lse, dout, scale)
        dsinks = q.new_empty(0) if sinks is None else _sink_gradient(sinks, lse, out, dout)
    return dq, dkv[0], dkv[1] if v is not None else q.new_empty(0), dsinks


def _sink_gradient(sinks: Tensor, lse: Tensor, out: Tensor, dout: Tensor) -> Tensor:
    """Sum ``p (0 - delta)`` over the rows: the weight of the sink, whose value is 0."""
    weights = torch.exp(sinks.to(lse.dtype) - lse).nan_to_num_(0.0)  # nan: neither key nor sink
    return -(weights * row_delta(out, dout)).sum(0).to(sinks.dtype)


def _forward_shapes(plan: Tensor, q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    lse = q.new_empty(q.shape[:2], dtype=accumulator_dtype(q.dtype))
    return q.new_empty(q.shape), lse, torch.empty_like(plan)


def _backward_shapes(
    call: Tensor, q: Tensor, k: Tensor, v: Tensor | None, sinks: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def empty(tensor: Tensor | None) -> Tensor:
        return q.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

    return empty(q), empty(k), empty(v), empty(sinks)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, *tensors, scale, _ = inputs
    out, lse, call = output
    ctx.set_materialize_grads(False)
    ctx.scale = scale
    ctx.save_for_backward(call, *tensors, out, lse)


def _gradients(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    call, q, k, v, sinks, out, lse = ctx.saved_tensors
    dq, dk, dv, dsinks = attention_backward(call, q, k, v, sinks, out, lse, dout, ctx.scale)
    return (
        None, dq, dk, None if v is None else dv, None if sinks is None else dsinks, None, None
    )  # fmt: skip


def _refuse(*_: Any) -> None:
    raise RunError("DCP attention has no second derivative: nothing can differentiate it twice")


_QKV = "Tensor q, Tensor k, Tensor? v, Tensor? sinks"
_SCHEMAS = {
    "attention": (
        f"(Tensor plan, {_QKV}, float? scale, float? softcap) -> (Tensor, Tensor, Tensor)"
    ),
    "attention_backward": (
        f"(Tensor call, {_QKV}, Tensor out, Tensor lse, Tensor dout, float? scale)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    ),
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"dcp_runtime::{_name}", _schema, tags=(torch.Tag.pt2_compliant_tag,))
for _name, _run, _shapes in (
    ("attention", _forward, _forward_shapes),
    ("attention_backward", _backward, _backward_shapes),
):
    torch.library.impl(f"dcp_runtime::{_name}", "CompositeExplicitAutograd", _run)
    torch.library.register_fake(f"dcp_runtime::{_name}", _shapes)
torch.library.register_autograd("dcp_runtime::attention", _gradients, setup_context=_save)
torch.library.register_autograd("dcp_runtime::attention_backward", _refuse)

attention = torch.ops.dcp_runtime.attention.default
attention_backward = torch.ops.dcp_runtime.attention_backward.default
