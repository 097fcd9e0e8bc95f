"""Run a model on a rank that owns no tokens of a batch, by one token that stands in for them.

Models of transformers fail on calls without tokens. The other ranks wait for this one's layers, and
for its part of the gradients, so it calls the model with a token that sees nothing, that nothing
sees, and that the model's outputs leave out.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from dcp_runtime.adapters.huggingface.model_check import refusal_of
from dcp_runtime.adapters.placement import PaddedPlans
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import LayerPlans

_BY_TOKEN = {"input_ids": 1, "inputs_embeds": 1, "token_type_ids": 1, "position_ids": -1}
"""Arguments of a model with a value for each token, and the dim of the tokens."""


def add_hooks(model: Module) -> None:
    """Let a model give itself a stand-in where it is called without tokens."""
    if _give_stand_in not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_give_stand_in, with_kwargs=True)
        model.register_forward_hook(_leave_out, with_kwargs=True)


def _give_stand_in(model: Module, args: Any, kwargs: Any) -> Any:  # Any: a model's arguments
    plans = kwargs.get("dcp")
    if not isinstance(plans, LayerPlans):
        return None
    if why := refusal_of(model):
        for plan in plans.layers:  # else a later `prepare` or `close` would say that no layer ran
            plan.note_layer()
        raise RunError(why)
    named = dict(kwargs)
    if args:  # transformers' models take token ids first
        named["input_ids"], args = args[0], args[1:]
    tokens = named.get("input_ids", named.get("inputs_embeds"))
    if not isinstance(tokens, Tensor) or tokens.shape[1]:
        return None
    for name, dim in _BY_TOKEN.items():
        if isinstance(value := named.get(name), Tensor):
            shape = [*value.shape]
            shape[dim] = 1
            named[name] = torch.cat([value, value.new_zeros(shape)], dim)
    named["dcp"] = PaddedPlans(plans.layers, plans.cycle, 0, model)
    return args, named


def _leave_out(model: Module, _: Any, kwargs: Any, outputs: Any) -> Any:
    plans = kwargs.get("dcp")
    if not isinstance(plans, PaddedPlans) or plans.model is not model:
        return None
    return _without_token(outputs)


def _without_token(value: Any) -> Any:
    """Return outputs without their only token: ``[1, 1, ...]``, or ``[1, E]`` of a router."""
    if isinstance(value, Tensor):
        if value.ndim > 2 and value.shape[:2] == (1, 1):
            return value[:, :0]
        return value[:0] if value.ndim == 2 and len(value) == 1 else value
    if isinstance(value, tuple):
        return tuple(map(_without_token, value))
    if hasattr(value, "items"):  # transformers' ModelOutput
        return type(value)(**{name: _without_token(each) for name, each in value.items()})
    return value
