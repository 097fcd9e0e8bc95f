"""Tiny models of the families on the page of masks, each as transformers builds it."""

import importlib
import re
from pathlib import Path
from typing import Any

import torch
from model_families import HEADS, SIZES

from dcp_runtime.probing.tiny_models import tiny_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "masks-of-models.md"
WINDOW, CHUNK, TOKENS = 6, 5, 23
WINDOWED = {"sliding_window": WINDOW}
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 4, "patch_size": 2, "projection_dim": 32, "vision_use_head": False,
}  # fmt: skip
TEXT = SIZES | HEADS | {"vocab_size": 67}
GEMMA_TEXT = TEXT | {"sliding_window": WINDOW, "num_hidden_layers": 6}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {"num_key_value_heads": 4, "first_k_dense_replace": 1},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "bloom": ("BloomForCausalLM", {}),
    "mistral": ("MistralForCausalLM", WINDOWED),
    "starcoder2": ("Starcoder2ForCausalLM", WINDOWED),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {"window_size": WINDOW, "attention_types": [[["global", "local"], 1]]},
    ),
    "gemma2": ("Gemma2ForCausalLM", WINDOWED),
    "gemma3": ("Gemma3ForCausalLM", WINDOWED),
    "gpt_oss": ("GptOssForCausalLM", WINDOWED),
    "cohere2": ("Cohere2ForCausalLM", WINDOWED),
    "olmo3": ("Olmo3ForCausalLM", WINDOWED),
    "llama4": ("Llama4ForCausalLM", {"attention_chunk_size": CHUNK}),
    "qwen3_next": ("Qwen3NextForCausalLM", {}),
    "bamba": ("BambaForCausalLM", {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1ForCausalLM", {}),
    "lfm2": ("Lfm2ForCausalLM", {"layer_types": ["conv", "conv", "full_attention"]}),
    "mamba": ("MambaForCausalLM", {}),
    "paligemma2": ("PaliGemmaForConditionalGeneration", {"hidden_size": 32}),
    "gemma3_images": ("Gemma3ForConditionalGeneration", {}),
    "bert": ("BertModel", {}),
    "t5_encoder": ("T5EncoderModel", {}),
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
    kind, options = MODELS[name]
    if name not in ("paligemma2", "gemma3_images"):
        return tiny_model(kind, layers, options)
    made = getattr(importlib.import_module("transformers"), kind)
    text = {**GEMMA_TEXT, "num_hidden_layers": layers}
    text |= {"model_type": "gemma2"} if name == "paligemma2" else {}
    config = made.config_class(
        vision_config={"model_type": "siglip_vision_model", **VISION}, text_config=text, **options,
        mm_tokens_per_image=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        image_token_index=66, image_token_id=66, boi_token_index=65, eoi_token_index=64,
    )  # fmt: skip
    torch.manual_seed(0)
    return made(config)
