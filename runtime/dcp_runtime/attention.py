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
    """

    # Any: torch's base class fixes neither the context nor the arguments.
    @staticmethod
    def forward(ctx: Any, executor: DCPExecutor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Run the forward program of the prepared plan."""
        prepared = executor.prepared
        out, lse = prepared.forward(q, kv)
        ctx.prepared = prepared
        ctx.save_for_backward(q, kv, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Run the backward program of the plan that forward ran."""
        q, kv, out, lse = ctx.saved_tensors
        dq, dkv = ctx.prepared.backward(q, kv, out, lse, dout.contiguous())
        return None, dq, dkv


def attend(executor: DCPExecutor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Call ``DCPAttn.apply`` with types: q ``[T_local, Hq, D]``, kv ``[T_local, 2, Hkv, D]``."""
    return cast(torch.Tensor, DCPAttn.apply(executor, q, kv))  # type: ignore[no-untyped-call]
