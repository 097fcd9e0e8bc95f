"""Checks of tensors: their shapes fit the plan, and their values are finite.

The check of values is optional, because it reads every tensor once more:
``DCPExecutor(check_finite=True)``. With it, receive buffers are filled with NaN before anything
arrives, so that a row that is read too early, or never written, is found as well.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.transport import Parcel


def check_tensors(part: DevicePlan, q: Tensor, kv: Tensor) -> None:
    """Check q and kv of a forward call. Any strides will do; so will a mixed ``requires_grad``."""
    for name, value in (("q", q), ("kv", kv)):
        if not isinstance(value, Tensor):
            raise RunError(f"expected {name} to be a tensor, got {type(value).__name__}")
    shape, tokens = part.heads.shape, part.num_local // part.heads.groups
    want_q = (tokens, shape.q_heads, shape.head_dim)
    want_kv = (tokens, 2, shape.kv_heads, shape.head_dim)
    if tuple(q.shape) != want_q or tuple(kv.shape) != want_kv:
        way_out = "take the rows plan.local_tokens(rank) of the packed batch"
        if (q.ndim, kv.ndim, len(q), len(kv)) == (3, 4, tokens, tokens):
            way_out = (
                "plan for the heads of your model: Planning(ModelShape("
                f"q_heads={q.shape[1]}, kv_heads={kv.shape[2]}, head_dim={q.shape[2]}))"
            )
        raise RunError(
            f"rank {part.device} owns {tokens} tokens of this plan: expected q {list(want_q)} and "
            f"kv {list(want_kv)}, got {list(q.shape)} and {list(kv.shape)}; {way_out}"
        )
    if q.dtype != kv.dtype or q.device != kv.device:
        raise RunError(
            f"q and kv must share dtype and device, got {q.dtype} on {q.device} and {kv.dtype} on "
            f"{kv.device}; convert one of them"
        )


def check_gradient(part: DevicePlan, out: Tensor, dout: Tensor) -> None:
    """Check the gradient of a backward call against the output of its forward."""
    if (dout.shape, dout.dtype, dout.device) != (out.shape, out.dtype, out.device):
        raise RunError(
            f"rank {part.device}: expected dout as out, {list(out.shape)} {out.dtype} on "
            f"{out.device}, got {list(dout.shape)} {dout.dtype} on {dout.device}"
        )


def poison(tensors: Sequence[Tensor]) -> None:
    """Fill tensors with NaN."""
    for tensor in tensors:
        tensor.fill_(torch.nan)


def check_arrived(parcel: Parcel, direction: Direction) -> None:
    """Check what another rank sent; -inf is what the lse of a row without keys looks like."""
    for tensor in parcel.tensors:
        if _is_bad(tensor):
            transfer = parcel.transfer
            raise RunError(
                f"rank {transfer.peer} sent {transfer.name} with NaN or infinite values in "
                f"division {parcel.division} of {direction}; look at the inputs of its attention",
                rank=transfer.peer,
                division=parcel.division,
            )


def check_result(rank: int, direction: Direction, **tensors: Tensor) -> None:
    """Check what a layer gives."""
    for name, tensor in tensors.items():
        finite = torch.isfinite(tensor)
        if not finite.all():
            count = int((~finite).sum())
            row = int((~finite).nonzero()[0, 0])
            raise RunError(
                f"rank {rank}: {name} has {count} values that are not finite after {direction}, "
                f"the first one at local token {row}; look at the inputs of this layer",
                rank=rank,
                division=0,
            )


def _is_bad(tensor: Tensor) -> bool:
    return bool((torch.isnan(tensor) | (tensor == torch.inf)).any())
