"""`sum_gradients`: the gradients of a model as sums over all ranks, however it is parallelised.

Ranks divide their losses by the targets of the whole batch, so gradients are sums over ranks, not
means.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dcp_runtime.errors import RunError
from dcp_runtime.kernels.kernel import accumulator_dtype
from dcp_runtime.transport.group_store import Group, process_group

BUCKET = 1 << 24
"""Elements of gradients that travel together: few messages, and little memory for the copy."""
_SWITCHES = ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms")
_summing = weakref.WeakSet[torch.nn.Module]()  # FSDP modules that sum already


def sum_gradients(
    model: torch.nn.Module, group: Group | None = None, *, reproducible: bool = False
) -> None:
    """Make the gradients of a model sums over all ranks; collective.

    Call it after the last backward of a step, before gradients are clipped::

        loss.backward()
        sum_gradients(model)
        optimizer.step()

    What it does depends on who holds a parameter. Nobody: it adds the gradients of the ranks up; a
    rank without one, for example without tokens, counts as zeros. `DistributedDataParallel`, which
    takes the mean: it multiplies. FSDP2, which takes the mean inside the backward, module by
    module: it has all modules sum from then on, so call it once before the first backward, too.

    Args:
        model: the model, wrapped or not.
        group: ranks over which nothing has added up: those that share the model's own parameters,
            ``None`` for all. Where it is given, also the gradients that DDP or FSDP reduced over
            other ranks are added up over it.
        reproducible: add the ranks up one after the other, wide, instead of in an order that the
            network chooses. Equal gradients of the ranks then give equal sums in every run, on any
            number of nodes. Not for DDP and FSDP, which add in their own order.

    Cost: one pass of the parameters that nobody holds over the network; as many passes as there are
    ranks if `reproducible`.

    Raises:
        RunError: if DDP or FSDP has added up what is to be reproducible; if no rank has a gradient
            and no module is sharded; if it is called twice after a
            backward; if FSDP has taken a mean already, or can take nothing else; or if DDP covers
            a part of the ranks and `group` does not say which ranks are left.
    """
    if not isinstance(model, torch.nn.Module):
        raise RunError(f"expected a model, got {type(model).__name__}")
    sharded, new = _sum_in_fsdp(model)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if new and any(isinstance(p.grad, DTensor) for p in model.parameters()):
        raise RunError(
            "FSDP has taken the mean over the ranks in this backward; it sums from the next one "
            "on: call sum_gradients(model) once after the last fully_shard, before the first "
            "backward"
        )
    trained = [p for p in model.parameters() if p.requires_grad]
    averaged = _averaged(model, is_partial_known=group is not None)
    if reproducible and (sharded or averaged):
        raise RunError(
            f"{'FSDP' if sharded else 'DistributedDataParallel'} adds gradients up in its own "
            "order: give sum_gradients(reproducible=True) the model without it"
        )
    alone = [
        p for p in trained
        if group is not None or not (isinstance(p, DTensor) or id(p) in averaged)
    ]  # fmt: skip
    is_second = any(_is_summed(p) for p in trained)
    used = _count_users(alone, is_second=is_second, group=process_group(group))
    _undo_means(trained, averaged)
    _add_up(alone, used, process_group(group), is_ordered=reproducible)
    if not (any(used) or averaged or sharded):
        raise RunError(
            "no rank has a gradient to sum: call sum_gradients(model) after loss.backward(), and "
            "before optimizer.step()"
        )
    for p in trained:
        gradient = _own_gradient(p)
        if gradient is not None and (group is not None or not isinstance(p, DTensor)):
            gradient._dcp_summed = gradient._version  # type: ignore[attr-defined]


def _sum_in_fsdp(model: torch.nn.Module) -> tuple[int, int]:
    """Have every FSDP module of the model sum; return how many there are, and how many did not."""
    # Here: the import is slow, and most models do without it.
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        return 0, 0
    if missing := [name for name in _SWITCHES if not hasattr(FSDPModule, name)]:
        raise RunError(
            f"expected a torch whose FSDP modules have {missing[0]}, got torch "
            f"{torch.__version__}, which takes the mean of all ranks: install a newer torch, or "
            "multiply the loss by the number of ranks"
        )
    new = [module for module in sharded if module not in _summing]
    for module in new:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        _summing.add(module)
    return len(sharded), len(new)


def _averaged(model: torch.nn.Module, *, is_partial_known: bool) -> dict[int, int]:
    """Return over how many ranks DDP takes the mean, by the identity of a parameter."""
    found: dict[int, int] = {}
    for module in model.modules():
        if not isinstance(module, DistributedDataParallel):
            continue
        size, ranks = dist.get_world_size(module.process_group), dist.get_world_size()
        if size < ranks and not is_partial_known:
            raise RunError(
                f"DistributedDataParallel covers {size} of {ranks} ranks: give it all of them, or "
                "sum_gradients(model, group=...) the ranks that share its replica"
            )
        found |= dict.fromkeys(map(id, module.parameters()), size)
    return found


def _own_gradient(parameter: torch.nn.Parameter) -> Tensor | None:
    """Return the gradient of a parameter, of a shard that of this rank's part."""
    gradient = parameter.grad
    # The tensor itself: `to_local` may make a new one for each call.
    return gradient._local_tensor if isinstance(gradient, DTensor) else gradient


def _is_summed(parameter: torch.nn.Parameter) -> bool:
    """Return whether nothing has changed a gradient since it was summed."""
    gradient = _own_gradient(parameter)
    return gradient is not None and getattr(gradient, "_dcp_summed", None) == gradient._version


def _count_users(
    parameters: list[torch.nn.Parameter], *, is_second: bool, group: dist.ProcessGroup | None
) -> list[int]:
    """Return for each parameter how many ranks have a gradient of it."""
    counts = [*(int(p.grad is not None) for p in parameters), int(is_second)]
    if parameters:
        told = torch.tensor(counts, dtype=torch.int32, device=parameters[0].device)
        dist.all_reduce(told, group=group)
        counts = told.tolist()
    if counts.pop():
        raise RunError(
            "sum_gradients was called before, after the same backward: the gradients are sums "
            "over the ranks already; call it once a step"
        )
    return counts


@torch.no_grad()
def _undo_means(parameters: Iterable[torch.nn.Parameter], averaged: Mapping[int, int]) -> None:
    for p in parameters:
        if p.grad is not None and id(p) in averaged:
            p.grad.mul_(averaged[id(p)])


@torch.no_grad()
def _add_up(
    parameters: list[torch.nn.Parameter],
    used: list[int],
    group: dist.ProcessGroup | None,
    *,
    is_ordered: bool,
) -> None:
    """Add gradients up over a group, if asked in the order of ranks; `used`: how many have one."""
    # A parameter that no rank used keeps no gradient: optimizers leave it as it is.
    for p, count in zip(parameters, used, strict=True):
        if count and p.grad is None:
            p.grad = torch.zeros_like(p)
        elif p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.to_dense()
    gradients = [found for p in parameters if (found := _own_gradient(p)) is not None]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        if is_ordered:
            flat = _sum_in_order(flat, group)
        else:
            dist.all_reduce(flat, group=group)
        totals = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, total in zip(bucket, totals, strict=True):
            gradient.copy_(total.view_as(gradient))


def _sum_in_order(flat: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Add a tensor up over the ranks of a group, from the first to the last, and wide."""
    total = torch.zeros_like(flat, dtype=accumulator_dtype(flat.dtype))
    for rank in range(dist.get_world_size(group)):
        # One rank at a time: the memory is that of one copy.
        part = flat if dist.get_rank(group) == rank else torch.empty_like(flat)
        dist.broadcast(part, rank if group is None else dist.get_global_rank(group, rank), group)
        total += part
    return total


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Cut tensors, in order, into lists of one type on one device of some `BUCKET` elements."""
    by_kind: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in by_kind.values():
        bucket, size = list[Tensor](), 0
        for tensor in same:
            bucket.append(tensor)
            size += tensor.numel()
            if size >= BUCKET:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
