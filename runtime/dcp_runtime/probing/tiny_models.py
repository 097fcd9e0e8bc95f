"""Tiny models of transformers by the name of their class: the class's own config, small sizes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dcp_runtime.errors import RunError

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
    "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "block_ff_dim": 48,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    # Experts, of which each token takes two.
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    # Latent attention.
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_group": 1, "topk_group": 1,
    # Recurrent layers.
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
    "mamba_n_groups": 1, "mamba_d_ssm": 64, "state_size": 8,
}  # fmt: skip
"""Sizes by the names that configs have for them; a config takes those that it knows."""
MOST_ELEMENTS = 1 << 24


def tiny_model(name: str, layers: int, given: Mapping[str, Any]) -> nn.Module:
    """Return a model of a class of transformers, small and with random weights."""
    import transformers

    kind: Any = getattr(transformers, name, None)
    make: Any = getattr(kind, "config_class", None)
    if make is None or not issubclass(kind, nn.Module):
        raise RunError(
            f"hf:{name}: expected a model class of transformers {transformers.__version__}, such "
            "as hf:LlamaForCausalLM; for others write a file that defines `model`"
        )
    known = make()
    if unknown := [each for each in given if not hasattr(known, each)]:
        raise RunError(f"hf:{name}: {make.__name__} has no `{unknown[0]}`; look at its attributes")
    sizes = SIZES | dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), layers)
    values = {each: size for each, size in sizes.items() if hasattr(known, each)} | dict(given)
    way_out = "give values with --config NAME=VALUE, or write a file that defines `model`"
    try:
        config = make(**values)
        with torch.device("meta"):
            size = sum(weight.numel() for weight in kind(config).parameters())
    except Exception as error:
        raise RunError(
            f"hf:{name}: {make.__name__} refuses small sizes: {type(error).__name__}: {error}; "
            f"{way_out}"
        ) from error
    if size > MOST_ELEMENTS:
        raise RunError(
            f"hf:{name}: expected at most {MOST_ELEMENTS:,} elements, got {size:,}: parts of it "
            f"have configs of their own; {way_out}"
        )
    torch.manual_seed(0)
    model: nn.Module = kind(config)
    return model
