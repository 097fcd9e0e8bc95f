"""`sum_gradients`: FSDP sums the gradients of all ranks instead of taking their mean."""

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dcp_runtime.errors import RunError

_SWITCHES = ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms")
_NAMED = 3
"""Parameters that a message names before it counts the others."""


def sum_gradients(model: torch.nn.Module) -> None:
    """Let every FSDP module of a model sum the gradients of all ranks.

    Ranks divide their losses by the targets of the whole batch, so gradients are sums over ranks.
    FSDP2 divides them by the number of ranks, module by module: setting the root alone leaves the
    gradients of all modules inside it divided. Call it once, after the last `fully_shard`.

    Args:
        model: given to `fully_shard`, and those of its modules that are sharded one by one.

    Raises:
        RunError: if no module of the model is an FSDP module, or a parameter that is trained
            belongs to none, so that nothing would add its gradients up; or if this torch's FSDP
            always takes the mean.
    """
    if not isinstance(model, torch.nn.Module):
        raise RunError(f"expected a model, got {type(model).__name__}")
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise RunError(
            "expected a model that torch.distributed.fsdp.fully_shard was called on, got "
            f"{type(model).__name__} without any FSDP module; call fully_shard first. Without "
            "FSDP: add replicated gradients up with dist.all_reduce, or multiply the loss by the "
            "number of ranks under DistributedDataParallel, which takes the mean"
        )
    if missing := [name for name in _SWITCHES if not hasattr(FSDPModule, name)]:
        raise RunError(
            f"expected a torch whose FSDP modules have {missing[0]}, got torch "
            f"{torch.__version__}, which takes the mean of all ranks: install a newer torch, or "
            "multiply the loss by the number of ranks"
        )
    parameters = model.named_parameters()
    alone = [name for name, p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    if alone:
        more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
        raise RunError(
            f"no FSDP module holds {', '.join(alone[:_NAMED])}{more}: nothing would add the "
            "gradients of the ranks up; call fully_shard on the model itself as well, and "
            "sum_gradients after it. Parameters that you add up yourself: call sum_gradients on "
            "the sharded modules one by one"
        )
    for module in sharded:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
