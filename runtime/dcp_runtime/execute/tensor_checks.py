"""Checks of tensors: their shapes fit the plan, and their values are finite.

The check of values is optional, because it reads every tensor once more:
``DCPExecutor(check_finite=True)``. With it, receive buffers are filled with NaN before anything
arrives, so that a row that is read too early, or never written, is found as well.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.transport import Parcel

Keys: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""kv ``[T, 2, Hkv, D]``, or k and v ``[T, Hkv, D]`` apart."""


class Softmax(NamedTuple):
    """The choices of a layer's softmax; see `DCPAttn.apply`."""

    scale: float | None = None
    cap: float | None = None
    sinks: Tensor | None = None

    def check(self, q: Tensor) -> None:
        """Check them beside the queries."""
        if self.scale is not None and not 0 < self.scale < inf:
            raise RunError(f"expected a softmax_scale above 0, got {self.scale}")
        if self.cap is not None and not 0 < self.cap < inf:
            raise RunError(f"expected a soft cap above 0, got {self.cap}")
        sinks = self.sinks
        if sinks is not None and (tuple(sinks.shape), sinks.device) != (q.shape[1:2], q.device):
            raise RunError(
                f"expected a sink per query head, {list(q.shape[1:2])} on {q.device}, got "
                f"{list(sinks.shape)} on {sinks.device}"
            )


PLAIN = Softmax()


def check_tensors(part: DevicePlan, q: Tensor, kv: Keys) -> None:
    """Check what a forward call gets. Any strides will do; so will a mixed ``requires_grad``."""
    shape, tokens = part.heads.shape, part.num_local // part.heads.groups
    given = {"q": q, **(dict(zip("kv", kv, strict=True)) if isinstance(kv, tuple) else {"kv": kv})}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise RunError(f"expected {name} to be a tensor, got {type(value).__name__}")
    packed = (2,) if len(given) == 2 else ()
    want_keys = (tokens, *packed, shape.kv_heads, shape.head_dim)
    wanted = dict.fromkeys(given, want_keys) | {"q": (tokens, shape.q_heads, shape.head_dim)}
    last = [*given.values()][-1]
    if any(tuple(given[name].shape) != wanted[name] for name in given):
        way_out = "take the rows plan.local_tokens(rank) of the packed batch"
        if (q.ndim, last.ndim, len(q), len(last)) == (3, len(want_keys), tokens, tokens):
            way_out = (
                "plan for the heads of your model: Planning(ModelShape("
                f"q_heads={q.shape[1]}, kv_heads={last.shape[-2]}, head_dim={q.shape[2]}))"
            )
        raise RunError(
            f"rank {part.device} owns {tokens} tokens of this plan: expected "
            f"{' and '.join(f'{name} {list(wanted[name])}' for name in given)}, got "
            f"{' and '.join(str(list(value.shape)) for value in given.values())}; {way_out}"
        )
    if len({(value.dtype, value.device) for value in given.values()}) > 1:
        raise RunError(
            f"{' and '.join(given)} must share dtype and device, got "
            f"{' and '.join(f'{value.dtype} on {value.device}' for value in given.values())}; "
            "convert one of them"
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
