"""Tensors by token of a whole batch, cut to the tokens of a rank and put together again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan
from dcp_runtime.transport.group_store import Group, process_group


def dispatch(x: Tensor, plan: BatchPlan, group: Group | None = None) -> Tensor:
    """Return the rows of this rank's tokens, ``[T_local, ...]``, in the order of its plan.

    Sends nothing: every rank has the whole tensor. The gradient of `x` is that of this rank's rows
    and 0 elsewhere, to be **added** over ranks as all others are.

    Args:
        x: ``[T, ...]``, a row for every token of the packed batch.
        plan: of the batch, or this rank's part of it, as the loader gives it.
        group: ranks that share the batch, a group or a `DeviceMesh` of one dim; ``None`` for all.

    Raises:
        RunError: if the tensor has other rows, or the group another number of ranks.
    """
    rows = _rows(plan, process_group(group))
    own = rows[dist.get_rank(process_group(group))]
    if len(x) != plan.num_tokens:
        raise RunError(
            f"dispatch: expected a row for each of the {plan.num_tokens} tokens of the batch, got "
            f"shape {list(x.shape)}; tokens are the first dim, for [B, T, ...] dispatch x[0]"
        )
    return x.index_select(0, own.to(x.device))


def undispatch(x: Tensor, plan: BatchPlan, group: Group | None = None) -> Tensor:
    """Return the rows of all tokens, ``[T, ...]``, in packed order, on every rank.

    Collective, as its backward is: `x` gets the sum of what all ranks send back for its rows. Where
    every rank computes the same loss from the result, divide it by the number of ranks.

    Args:
        x: ``[T_local, ...]``, alike on all ranks but for the number of rows.
        plan: as for `dispatch`.
        group: as for `dispatch`.

    Raises:
        RunError: if the tensor has other rows, or the group another number of ranks.
    """
    chosen = process_group(group)
    rows = _rows(plan, chosen)
    own = rows[dist.get_rank(chosen)]
    if len(x) != len(own):
        raise RunError(
            f"undispatch: expected a row for each of this rank's {len(own)} tokens, got shape "
            f"{list(x.shape)}; tokens are the first dim, for [1, T_local, ...] undispatch x[0]"
        )
    return _Gathered.apply(x, rows, chosen)  # type: ignore[no-any-return, no-untyped-call]


def _rows(plan: BatchPlan, group: dist.ProcessGroup | None) -> list[Tensor]:
    size = dist.get_world_size(group)
    if plan.num_devices != size:
        raise RunError(
            f"the plan is for {plan.num_devices} devices, the process group has {size} ranks; "
            "give group=, the ranks that share the batch"
        )
    return [torch.from_numpy(np.array(plan.local_tokens(rank))) for rank in range(size)]


class _Gathered(torch.autograd.Function):
    """All rows on every rank; gradients of all ranks, added, for the own rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Sequence[Tensor], group: dist.ProcessGroup | None
    ) -> Tensor:  # Any: torch's
        ctx.own, ctx.group = rows[dist.get_rank(group)].to(x.device), group
        most = max(map(len, rows))
        padded = x.new_zeros(most, *x.shape[1:])
        padded[: len(x)] = x
        found = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(found, padded, group=group)
        whole = x.new_empty(sum(map(len, rows)), *x.shape[1:])
        for tokens, part in zip(rows, found, strict=True):
            whole[tokens.to(x.device)] = part[: len(tokens)]
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # Any: torch's
        added = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(added, group=ctx.group)
        return added.index_select(0, ctx.own), None, None
