"""The loss that Hugging Face's trainer would compute for a batch, as the share of one rank.

The shares of all ranks add up to the loss of one process that has the whole batch. Whatever a model
adds to the loss of its tokens itself is either known here or refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dcp_runtime.errors import RunError

COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
"""Names, in models or their configs, of the factor of a router's loss."""
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "moe_k")  # names of how many experts a token chooses


def router_loss(
    layers: Sequence[Tensor], top_k: int, tokens: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Return this rank's share of the router loss of a batch, and the loss of its own tokens alone.

    The loss is ``E * sum_e f_e P_e`` over E experts: f_e is how often a token chose expert e and
    P_e its mean probability, in the mean over all tokens of the batch and all layers, whose logits
    are ``[T_local, E]``. All ranks count f_e together; it has no gradient. P_e is a sum over
    tokens, of which a rank adds its own; a rank without tokens may have a row that stands for one.
    Collective: one message of E + 1 integers.

    Source: transformers' ``load_balancing_loss_func``.
    """
    experts = layers[0].shape[-1]
    own = [layer.flatten(0, -2)[:tokens].softmax(-1) for layer in layers]
    chosen = torch.cat([weights.topk(top_k, -1).indices.flatten() for weights in own])
    rows = chosen.new_tensor([tokens * len(layers)])
    counts = torch.cat([torch.bincount(chosen, minlength=experts), rows])
    probability = torch.stack([weights.float().sum(0) for weights in own]).sum(0)
    everywhere = counts.clone()
    dist.all_reduce(everywhere, group=group)
    shares = [experts * (n[:-1] * probability).sum() / n[-1] ** 2 for n in (everywhere, counts)]
    return shares[0], shares[1]


def setting(base: Any, *names: str) -> Any:  # Any: a model, and what it or its config holds
    """Return the first of some settings that a model has, or its config; ``None`` without any."""
    for holder in (base, base.config.get_text_config()):
        for name in names:
            if getattr(holder, name, None) is not None:
                return getattr(holder, name)
    return None


def takes_next_token_loss(base: Any) -> bool:  # Any: a model of transformers
    """Return whether the loss of a model's tokens is that of the next token."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    return getattr(base, "loss_function", None) is ForCausalLMLoss


@contextmanager
def without_token_loss(base: Any) -> Iterator[None]:  # Any: a model of transformers
    """Let a model that is given labels return only what it adds to the loss of its tokens."""
    before = vars(base).get("_loss_function")
    base.loss_function = lambda logits, *_, **__: logits.new_zeros((), dtype=torch.float32)
    try:
        yield
    finally:
        if before is None:
            del base._loss_function
        else:
            base.loss_function = before


def check_added_terms(base: Any, found: Tensor | None, known: Tensor | float) -> None:
    """Refuse a model that adds more to the loss than is `known`, such as its router loss."""
    got, expected = float(0.0 if found is None else found), float(known)
    if not abs(got - expected) <= 1e-2 * abs(expected) + 1e-6:
        raise RunError(
            f"DCPTrainerMixin: {type(base).__name__} adds {got:.4g} to the loss of its tokens, "
            f"expected {expected:.4g}, of which the mixin knows the share of each rank: it would "
            "leave out the rest. Switch such terms off in the model's config "
            "(output_router_logits=False for the loss of routers), or give the trainer a "
            "compute_loss_func, which gets LocalData in place of labels and returns the share of "
            "its rank"
        )
