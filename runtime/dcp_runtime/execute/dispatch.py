"""Cut tensors to a rank's tokens, and join them again.

A rank owns rows ``plan.local_tokens(rank)`` of the packed batch. `dispatch` cuts a whole tensor to
these, `undispatch` exchanges rows so that ranks get the tokens that they want.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from dcp_dsl.arrays import Ints
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan
from dcp_runtime.transport.group_store import Group, process_group

Placed: TypeAlias = Shard | Replicate


def dispatch(x: Tensor, plan: BatchPlan, group: Group | None = None) -> Tensor:
    """Return the rows of this rank's tokens, ``[T_local, ...]``, in the order of its plan.

    Sends nothing: every rank has the whole tensor. The gradient of `x` is that of this rank's rows
    and 0 elsewhere, to be **added** over ranks as all others are. A `DTensor` is gathered first,
    and its gradient is added already.

    Args:
        x: ``[T, ...]``, a row for every token of the packed batch.
        plan: of the batch, or this rank's part of it, as the loader gives it.
        group: ranks that share the batch, a group or a `DeviceMesh` of one dim; ``None`` for all,
            or for those of the mesh of a `DTensor`.

    Raises:
        RunError: if the tensor has other rows, or the group another number of ranks.
    """
    if isinstance(x, DTensor):
        group = x.device_mesh if group is None else group
        # The gradient of a rank is 0 outside its own rows, a part of the sum over ranks.
        x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    chosen = process_group(group)
    own = _rows(plan, chosen)[dist.get_rank(chosen)]
    if len(x) != plan.num_tokens:
        raise RunError(
            f"dispatch: expected a row for each of the {plan.num_tokens} tokens of the batch, got "
            f"shape {list(x.shape)}; tokens are the first dim, for [B, T, ...] dispatch x[0]"
        )
    return _take(x, own)


@overload
def undispatch(
    x: Tensor, plan: BatchPlan, group: DeviceMesh, wanted: Placed
) -> DTensor: ...  # pragma: no cover
@overload
def undispatch(
    x: Tensor, plan: BatchPlan, group: Group | None = None, wanted: Sequence[Ints] | None = None
) -> Tensor: ...  # pragma: no cover
def undispatch(
    x: Tensor,
    plan: BatchPlan,
    group: Group | None = None,
    wanted: Placed | Sequence[Ints] | None = None,
) -> Tensor:
    """Return rows of the batch in packed order: all rows, ``[T, ...]``, or the wanted rows.

    Collective, and so is its backward: the gradient of `x` is the sum of the gradients that all
    ranks send back for its rows. Where every rank computes the same loss from the result, divide it
    by the number of ranks, or let the result be a `DTensor`, whose gradient is that of one loss.

    Args:
        x: ``[T_local, ...]``; ranks differ in the number of rows only.
        plan: as for `dispatch`.
        group: as for `dispatch`; a `DeviceMesh` for a placement.
        wanted: by default every rank gets all rows. For each rank the tokens whose rows it gets, in
            that order. Or the placement of a `DTensor`: ``Shard(0)`` cuts the packed tokens evenly,
            ``Shard(1)`` gives every rank all tokens of its share of the heads.

    Raises:
        RunError: if the tensor has other rows, the group another number of ranks, a wanted token
            is not in the batch, or a dim does not divide among the ranks.
    """
    chosen = process_group(group)
    rows, rank = _rows(plan, chosen), dist.get_rank(chosen)
    if len(x) != len(rows[rank]):
        raise RunError(
            f"undispatch: expected a row for each of this rank's {len(rows[rank])} tokens, got "
            f"shape {list(x.shape)}; tokens are the first dim, for [1, T_local, ...] undispatch "
            "x[0]"
        )
    if isinstance(wanted, Shard | Replicate):
        return _placed(x, rows, group, wanted)
    if wanted is None:
        wanted = [np.arange(plan.num_tokens)] * len(rows)
    _check_wanted(wanted, plan.num_tokens, len(rows))
    return _collected(x, rows, wanted, chosen)


def _check_wanted(wanted: Sequence[Ints], tokens: int, ranks: int) -> None:
    """Refuse a missing list, and tokens out of range: numpy would count -1 from the end."""
    if len(wanted) != ranks:
        raise RunError(
            f"undispatch: expected wanted tokens for each of {ranks} ranks, got {len(wanted)} lists"
        )
    for rank, chosen in enumerate(wanted):
        if len(chosen) and not 0 <= np.min(chosen) <= np.max(chosen) < tokens:
            raise RunError(
                f"undispatch: expected wanted tokens 0 to {tokens - 1}, rank {rank} has "
                f"{np.min(chosen)} to {np.max(chosen)}"
            )


def _placed(x: Tensor, rows: Sequence[Ints], mesh: Group | None, placement: Placed) -> DTensor:
    if not isinstance(mesh, DeviceMesh):
        raise RunError(f"undispatch: {placement} needs a DeviceMesh as group, got {mesh}")
    group, size, tokens = mesh.get_group(), len(rows), sum(map(len, rows))
    dim = placement.dim % x.ndim if isinstance(placement, Shard) else 0
    if dim == 0:
        step = -(-tokens // size)  # as torch.chunk cuts, and so DTensor's Shard(0)
        every = np.arange(tokens)
        local = _collected(x, rows, [every[n * step : (n + 1) * step] for n in range(size)], group)
    elif x.shape[dim] % size:
        raise RunError(
            f"undispatch: expected dim {dim} to divide by {size}, got shape "
            f"{list(x.shape)}; Shard(0) cuts tokens, which need not divide"
        )
    else:
        # The exchange cuts along the first dim: rows of the heads of rank 0, then of rank 1, ...
        parts = torch.cat(x.chunk(size, dim))
        arrived = _exchanged(parts, [len(rows[mesh.get_local_rank()])] * size, rows, group)
        local = _take(arrived, np.argsort(np.concatenate(rows)))  # in packed order
    # Shards may differ in size, so `from_local` cannot guess the whole shape.
    shape = torch.Size((tokens, *x.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    found = DTensor.from_local(local, mesh, [Shard(dim)], shape=shape, stride=stride)
    return found.redistribute(placements=[placement])


def _rows(plan: BatchPlan, group: dist.ProcessGroup | None) -> list[Ints]:
    size = dist.get_world_size(group)
    if plan.num_devices != size:
        raise RunError(
            f"the plan is for {plan.num_devices} devices, the process group has {size} ranks; "
            "give group=, the ranks that share the batch"
        )
    return [plan.local_tokens(rank) for rank in range(size)]


def _take(x: Tensor, rows: Ints) -> Tensor:
    return x.index_select(0, torch.from_numpy(np.array(rows, np.int64)).to(x.device))


def _collected(
    x: Tensor, rows: Sequence[Ints], wanted: Sequence[Ints], group: dist.ProcessGroup | None
) -> Tensor:
    """Bring each rank the rows of the tokens that it wants, in the order in which it wants them."""
    # Of each packed token: the rank that owns it, and its row there.
    owner, place = np.empty((2, sum(map(len, rows))), np.int64)
    for rank, own in enumerate(rows):
        owner[own], place[own] = rank, np.arange(len(own))
    rank = dist.get_rank(group)
    sent = [place[tokens[owner[tokens] == rank]] for tokens in wanted]
    # Rows arrive by sender; `received` holds their places in the list of this rank.
    senders = owner[wanted[rank]]
    received = [np.flatnonzero(senders == other) for other in range(len(rows))]
    arrived = _exchanged(_take(x, np.concatenate(sent)), list(map(len, sent)), received, group)
    return _take(arrived, np.argsort(np.concatenate(received)))


def _exchanged(
    x: Tensor, sent: list[int], received: Sequence[Ints], group: dist.ProcessGroup | None
) -> Tensor:
    counts = list(map(len, received))
    return _Exchange.apply(x, sent, counts, group)  # type: ignore[no-any-return, no-untyped-call]


class _Exchange(torch.autograd.Function):
    """Rows to every rank and from every rank; gradients go the other way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
    ) -> Tensor:  # Any: torch's
        ctx.counts = received, sent, group
        found = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(found, x.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # Any: torch's
        return _Exchange.apply(gradient, *ctx.counts), None, None, None  # type: ignore[no-untyped-call]
