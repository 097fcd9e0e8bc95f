"""`DCPAttn`: the attention of a model, as an autograd function over the ranks of an executor."""

import sys
from typing import Any, Protocol, cast

import torch
from torch.autograd.function import once_differentiable

from dcp_runtime.executor import PreparedPlan


class Prepared(Protocol):
    """What has a plan that layers run now: a `DCPExecutor`, or one layer's share of it."""

    @property
    def prepared(self) -> PreparedPlan:
        """The plan."""


class DCPAttn:
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

    @staticmethod
    def apply(executor: Prepared, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Give out of q and kv.

        Raises:
            RunError: if the tensors do not fit the prepared plan, or another rank fails.
        """
        if "torch._dynamo" in sys.modules:  # loading the compiler for its sake would take a second
            run = torch.compiler.disable(_apply)  # type: ignore[no-untyped-call]
            return cast(torch.Tensor, run(executor, q, kv))
        return _apply(executor, q, kv)


def _apply(executor: Prepared, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, _Attention.apply(executor, q, kv))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    # Any: torch's base class fixes neither the context nor the arguments.
    @staticmethod
    def forward(ctx: Any, executor: Prepared, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Run the forward program of the prepared plan."""
        prepared = executor.prepared
        device = q.device.type if isinstance(q, torch.Tensor) else "cpu"
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
            dq, dkv = ctx.prepared.backward(q, kv, out, lse, dout)
        return None, dq, dkv  # autograd casts them to what the arguments were


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # As autocast does: float64 and what is no floating point stay as they are.
    if not isinstance(tensor, torch.Tensor) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
