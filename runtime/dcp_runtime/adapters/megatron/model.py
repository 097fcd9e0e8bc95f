"""`use_plans`: lets a whole model of Megatron-Core run under plans, or says what in it cannot.

Source: megatron-core 0.16, whose modules `TOKEN_WISE` names.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp_runtime.adapters.megatron.layers import (
    DCPCoreAttention,
    PlannedRotary,
    model_rows,
    sequences_of,
)
from dcp_runtime.adapters.megatron.options import refused_options
from dcp_runtime.errors import RunError

Kinds: TypeAlias = tuple[type[torch.nn.Module], ...]

TOKEN_WISE = {
    "torch": "Linear Embedding LayerNorm RMSNorm Dropout Identity GELU SiLU ReLU Sigmoid Tanh "
    "Sequential",
    "megatron": "_BaseDataParallel MegatronFSDP Float16Module "
    "GPTModel MambaModel HybridModel TransformerBlock MambaStack HybridStack "
    "TransformerLayer MambaLayer "
    "Attention MultiLatentAttention RotaryEmbedding YarnRotaryEmbedding "
    "MLP TEFusedMLP MoELayer TopKRouter SequentialMLP GroupedMLP TEGroupedMLP SharedExpertMLP "
    "ColumnParallelLinear RowParallelLinear TELinear TELayerNormColumnParallelLinear "
    "TEGroupedLinear FusedLayerNorm L2Norm IdentityOp IdentityFuncOp "
    "VocabParallelEmbedding LanguageModelEmbedding",
    "transformer_engine": "Linear GroupedLinear LayerNorm RMSNorm LayerNormLinear LayerNormMLP",
    "apex": "FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm",
}
"""Classes, by package, whose own code treats every row alone, apart from the modules inside."""

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)
_TABLE = ("get_emb", "get_freqs_non_repeated")
"""Methods of rotary embeddings that make the table of frequencies, a row for each position."""


def use_plans(model: torch.nn.Module, *, token_wise: Kinds = ()) -> None:
    """Let a model of Megatron-Core run under plans; call it once, before the first step.

    Rotary embeddings get the positions of each batch. On a rank without tokens, or whose tokens do
    not divide among tensor-parallel ranks, the model computes rows that stand in and count nowhere.

    Args:
        model: a model, or a stage of one, built with `DCPCoreAttention`; wrapped or not.
        token_wise: classes of modules that treat every token alone, and rotary embeddings whose
            frequencies depend on the position alone; beside those that are known.

    Raises:
        RunError: if a module may mix tokens outside `DCPCoreAttention`, of which a rank holds only
            its own, or the model's config asks for something that no plan computes.
    """
    config = next((m.config for m in model.modules() if hasattr(m, "config")), None)
    if config is None:
        raise RunError(f"expected a model of Megatron-Core, got {type(model).__name__}")
    for refused in refused_options(config):
        raise RunError(refused)
    _check_modules(model, token_wise)
    for module in list(model.modules()):
        is_latent = _code(module, "forward").__name__ == "MultiLatentAttention"
        for name, child in list(module.named_children()):
            if hasattr(child, _TABLE[0]) and not isinstance(module, PlannedRotary):
                setattr(module, name, PlannedRotary(child, config, is_latent=is_latent))
        if isinstance(module, DCPCoreAttention):
            module.is_in_walked_model = True
        if hasattr(module, "decoder") and _fill not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_fill, with_kwargs=True)
            module.register_forward_hook(_cut, with_kwargs=True)


def _check_modules(model: torch.nn.Module, own: Kinds) -> None:
    """Refuse modules that nobody has said treat every token alone; name the first."""
    unknown = [(name, m) for name, m in model.named_modules() if not _is_token_wise(m, own)]
    if not unknown:
        return
    name, module = unknown[0]
    kind, more = type(module).__name__, f" ({len(unknown) - 1} more)" if unknown[1:] else ""
    if name.endswith("core_attention"):
        way_out = (
            "give the spec of every layer core_attention=DCPCoreAttention: "
            "spec.submodules.self_attention.submodules.core_attention = DCPCoreAttention"
        )
    else:
        way_out = (
            "a model with Mamba, gated delta nets, convolutions over tokens or positions of "
            "several dims cannot run under plans; allow a class that treats every token alone by "
            f"use_plans(model, token_wise=({kind},))"
        )
    raise RunError(
        f"{name}: expected a module that treats every token alone, or DCPCoreAttention, got "
        f"{kind}{more}; a rank holds some of the tokens, and their neighbours are elsewhere; "
        f"{way_out}"
    )


def _is_token_wise(module: torch.nn.Module, own: Kinds) -> bool:
    if isinstance(module, (DCPCoreAttention, PlannedRotary, *own)):
        return True
    if "forward" in vars(module):  # somebody has put another function there
        return False
    code = _code(module, "forward")
    if code is torch.nn.Module:  # it has none
        return isinstance(module, _CONTAINERS)
    package = code.__module__.partition(".")[0]
    tables = [_code(module, name) for name in _TABLE if hasattr(module, name)]
    return code.__name__ in TOKEN_WISE.get(package, "").split() and all(
        table.__module__.partition(".")[0] == package for table in tables
    )


def _code(module: torch.nn.Module, name: str) -> type:
    """Return the class that defines a method of a module."""
    return next(kind for kind in type(module).__mro__ if name in vars(kind))


def _fill(
    model: torch.nn.Module, args: tuple[Any, ...], others: Mapping[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:  # Any: whatever the model takes
    """Check that a model gets this rank's tokens, and add rows that stand in for missing ones."""
    given = dict(signature(model.forward).bind(*args, **others).arguments)
    sequences = sequences_of(given.get("packed_seq_params"))
    tokens, longest = len(sequences.position_ids), sequences.longest
    config: Any = model.config
    is_learnt = getattr(model, "position_embedding_type", None) == "learned_absolute"
    most: Any = getattr(model, "max_sequence_length", None)
    if is_learnt and longest > most:
        raise RunError(
            f"expected positions below max_sequence_length={most}, which are learned, got "
            f"{longest - 1}; give the model as many, or shorter rows"
        )
    missing = model_rows(config, tokens) - tokens
    for name in ("input_ids", "position_ids", "labels", "loss_mask"):
        value = given.get(name)
        if value is None:
            continue
        if value.shape != (1, tokens):
            raise RunError(
                f"expected {name} [1, {tokens}], of this rank's tokens, got {list(value.shape)}; "
                "give what the loader or PlannedBatches.split has cut"
            )
        given[name] = pad(value, (0, missing))
    if missing and getattr(config, "moe_router_enable_expert_bias", False):
        rows = torch.arange(tokens + missing, device=sequences.position_ids.device)
        given["padding_mask"] = (rows >= tokens)[None]
    return (), given


def _cut(
    model: torch.nn.Module, _: Any, given: Mapping[str, Any], out: Tensor
) -> Tensor:  # Any: the model's
    """Leave out what a model computed for rows that stand in."""
    # Other stages give hidden states to the next one, [rows, 1, H].
    tokens = len(sequences_of(given["packed_seq_params"]).position_ids)
    return out[:, :tokens] if getattr(model, "post_process", True) else out
