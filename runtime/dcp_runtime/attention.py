"""`DCPAttn`: the attention of a model, as an autograd function over the ranks of an executor."""

from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable

from dcp_runtime.executor import DCPExecutor


class DCPAttn(torch.autograd.Function):
    """Exact attention under the mask of the executor's prepared plan.

    ``out = DCPAttn.apply(executor, q, kv)`` with q ``[T_local, Hq, D]``, kv
    ``[T_local, 2, Hkv, D]`` and out ``[T_local, Hq, D]``, rows in the order of
    ``plan.local_tokens(rank)``. The softmax scale is ``1 / sqrt(D)``. A token that sees no key gets
    0 and passes no gradient. Collective: all ranks call it in the same order, and so do their
    backwards. Layers that were computed keep their plan: another one may be prepared before their
    backward.

    Under autocast, q and kv are cast as torch's own attention casts them, and gradients come back
    in the dtype of the arguments. ``torch.compile`` breaks the graph here and compiles around it.
    """

    # Any: torch's base class fixes neither the context nor the arguments.
    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Give ``out`` of ``(executor, q, kv)``."""
        return super().apply(*arguments)  # type: ignore[no-untyped-call]

    # What torch.compiler.disable sets; calling it would import the compiler, which takes a second.
    apply.__func__._torchdynamo_disable = True  # type: ignore[attr-defined]

    @staticmethod
    def forward(ctx: Any, executor: DCPExecutor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Run the forward program of the prepared plan."""
        prepared = executor.prepared
        device = q.device.type if isinstance(q, torch.Tensor) else "cpu"
        ctx.dtypes = [getattr(x, "dtype", None) for x in (q, kv)]
        if torch.is_autocast_enabled(device):
            q, kv = (_cast(x, torch.get_autocast_dtype(device)) for x in (q, kv))
        with torch.autocast(device, enabled=False):
            out, lse = prepared.forward(q, kv)
        ctx.prepared = prepared
        ctx.save_for_backward(q, kv, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Run the backward program of the plan that forward ran."""
        q, kv, out, lse = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            dq, dkv = ctx.prepared.backward(q, kv, out, lse, dout.contiguous())
        return None, dq.to(ctx.dtypes[0]), dkv.to(ctx.dtypes[1])


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # As autocast does: float64 and what is no floating point stay as they are.
    if not isinstance(tensor, torch.Tensor) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def attend(executor: DCPExecutor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Call ``DCPAttn.apply`` with types: q ``[T_local, Hq, D]``, kv ``[T_local, 2, Hkv, D]``."""
    return cast(torch.Tensor, DCPAttn.apply(executor, q, kv))
