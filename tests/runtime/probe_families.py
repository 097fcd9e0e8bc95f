"""Tiny models of the families on the page of masks, each as transformers builds it."""

import importlib
import re
from pathlib import Path
from typing import Any

import torch
from model_families import BERT, EXPERTS, HEADS, LATENT, LINEAR, MAMBA, NO_DROPOUT, OLD, SIZES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "masks-of-models.md"
WINDOW, CHUNK, TOKENS = 6, 5, 23
WINDOWED = {**HEADS, "sliding_window": WINDOW}
HYBRID = {**HEADS, **LINEAR, "num_experts": 0, "mlp_only_layers": [0, 1, 2, 3]}
LLAMA_4 = {
    "attention_chunk_size": CHUNK, "interleave_moe_layer_step": 9, "use_qk_norm": False,
    "intermediate_size_mlp": 48, "attn_temperature_tuning": False,
}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "dropout_rate": 0.0}
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 4, "patch_size": 2, "projection_dim": 32, "vision_use_head": False,
}  # fmt: skip
TEXT = SIZES | HEADS | {"vocab_size": 67}
GEMMA_TEXT = TEXT | {"sliding_window": WINDOW, "num_hidden_layers": 6}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", HEADS),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", HEADS),
    "mixtral": ("MixtralForCausalLM", HEADS | EXPERTS),
    "deepseek_v3": ("DeepseekV3ForCausalLM", EXPERTS | LATENT | {"num_key_value_heads": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", NO_DROPOUT),
    "gpt2": ("GPT2LMHeadModel", OLD),
    "bloom": ("BloomForCausalLM", OLD),
    "mistral": ("MistralForCausalLM", WINDOWED),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": WINDOW} | NO_DROPOUT),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {"num_heads": 4, "window_size": WINDOW, "attention_types": [[["global", "local"], 1]]},
    ),
    "gemma2": ("Gemma2ForCausalLM", WINDOWED),
    "gemma3": ("Gemma3ForCausalLM", WINDOWED),
    "gpt_oss": ("GptOssForCausalLM", WINDOWED | EXPERTS),
    "cohere2": ("Cohere2ForCausalLM", WINDOWED),
    "olmo3": ("Olmo3ForCausalLM", WINDOWED),
    "llama4": ("Llama4ForCausalLM", HEADS | EXPERTS | LLAMA_4),
    "qwen3_next": ("Qwen3NextForCausalLM", HYBRID),
    "bamba": ("BambaForCausalLM", MAMBA | {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1ForCausalLM", HEADS | MAMBA | {"mamba_d_ssm": 64}),
    "lfm2": (
        "Lfm2ForCausalLM",
        {"block_ff_dim": 48, "layer_types": ["conv", "conv", "full_attention"]},
    ),
    "mamba": ("MambaForCausalLM", {"state_size": 8}),
    "paligemma2": ("PaliGemmaForConditionalGeneration", {"hidden_size": 32}),
    "gemma3_images": ("Gemma3ForConditionalGeneration", {}),
    "bert": ("BertModel", BERT),
    "t5_encoder": ("T5EncoderModel", T5),
    "modernbert": ("ModernBertModel", {"local_attention": 2 * WINDOW - 2}),
}


def texts() -> dict[str, str]:
    """Return the statements of the page, and the name of each stack with its statement."""
    text = PAGE.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```dcpm\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    return dict.fromkeys(re.findall(r"^stack (\w+) =", code, re.MULTILINE), code)


def small(code: str) -> str:
    """Return the texts with the sizes of the tiny models."""
    code = re.sub(r"sliding\([\d_k]+\)", f"sliding({WINDOW})", code)
    code = re.sub(r"local\([\d_k]+\)", f"local({WINDOW})", code)
    return re.sub(r"chunked\([\d_k]+\)", f"chunked({CHUNK})", code)


def model_of(name: str, layers: int) -> torch.nn.Module:
    """Return a tiny model of so many layers, with random weights."""
    transformers = importlib.import_module("transformers")
    kind, options = MODELS[name]
    made = getattr(transformers, kind)
    counts = {"num_hidden_layers": layers, "n_layer": layers, "num_layers": layers}
    sizes = {**SIZES, "max_position_embeddings": 64, **counts}
    if name in ("paligemma2", "gemma3_images"):
        parts = {"text_config": {**GEMMA_TEXT, "num_hidden_layers": layers}}
        if name == "paligemma2":
            parts["text_config"]["model_type"] = "gemma2"
        vision = {"model_type": "siglip_vision_model", **VISION}
        config = made.config_class(
            vision_config=vision, **parts, **options, mm_tokens_per_image=1,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
            image_token_index=66, image_token_id=66, boi_token_index=65, eoi_token_index=64,
        )  # fmt: skip
    else:
        config = made.config_class(**{**sizes, **options})
    torch.manual_seed(0)
    return made(config)
