"""The page of masks says what tiny models of transformers see, and where packed documents leak."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import HEADS, SIZES

from dcp_dsl import Sample, Spec
from dcp_runtime import probe
from dcp_runtime.probing.script import default_batch
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


LENS = {"doc_lens": [9, 5, 9]}
PARTS = {"prefix_len": 9, "text_lens": [3, 5, 4], "image_lens": [4, 5, 2]}
KINDS = {
    "paligemma2": torch.tensor([0] * 9 + [1] * 14),
    "gemma3_images": torch.tensor([0] * 3 + [1] * 4 + [0] * 5 + [1] * 5 + [0] * 4 + [1] * 2),
}
PACKED = dict(
    re.findall(r"^stack (\w+) = .*# .*: ([\w ]+)$", PAGE.read_text("utf-8"), re.MULTILINE)
)
QUICK = ["gemma2"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in QUICK]
COMPARED = QUICK + [each for each in SLOW if each.values[0] not in KINDS]

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about kernels that lack


def report_of(name, code, row, change=lambda model, batch: None, **inputs):
    stack = Spec.from_text(code).stack(name)
    model = model_of(name, max(2, stack.period))
    sample = Sample({n: row[n] for n in stack.columns}, TOKENS)
    batch = default_batch(model, stack, sample) | inputs
    batch["input_ids"] %= 60  # no image's id
    change(model, batch)
    return probe(model, batch, stack, sample)


def per_document(code):
    """Return the texts without layouts of their own, every mask within documents."""
    parts = re.split(r"^segment part.*?(?=^stack bert)", code, flags=re.DOTALL | re.MULTILINE)
    code = re.sub(r"((?:sliding|chunked|local|fa_window)\(\d+\))", r"\1 per doc", "".join(parts))
    code = re.sub(r"\b(causal|full)\b", r"\1 per doc", code)
    return f"segment pack = doc[doc_lens]*\n{code}"


def test_every_model_stands_on_the_page():
    assert MODELS.keys() == texts().keys() == PACKED.keys()


@pytest.mark.parametrize("name", QUICK + SLOW)
def test_a_model_sees_what_the_page_says(name):
    inputs = {"token_type_ids": KINDS[name][None]} if name in KINDS else {}
    report = report_of(name, small(texts()[name]), PARTS, **inputs)
    assert report.first_wrong is None, report.text()


@pytest.mark.parametrize("name", COMPARED)
def test_packed_documents_are_apart_where_the_page_says_so(name):
    report = report_of(name, per_document(small(texts()[name])), LENS)
    assert (report.first_wrong is None) == (PACKED[name] == "apart")
    if report.first_wrong is not None:
        assert report.first_wrong.layer == 0
        assert not any(layer.hides.any() for layer in report.layers)


@pytest.mark.parametrize("name", COMPARED)
def test_packed_documents_give_what_they_give_alone_where_the_page_says_so(name):
    model = model_of(name, max(2, Spec.from_text(texts()[name]).stack(name).period)).eval()
    ids = torch.randint(60, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    places = torch.cat([torch.arange(length) for length in LENS["doc_lens"]])[None]
    names = inspect.signature(model.forward).parameters

    def run(ids, places):
        given = {"input_ids": ids, "position_ids": places, "use_cache": False}
        with torch.no_grad():
            return model(**{each: given[each] for each in given if each in names})[0]

    parts = zip(ids.split(LENS["doc_lens"], 1), places.split(LENS["doc_lens"], 1), strict=True)
    alone = torch.cat([run(*part) for part in parts], 1)
    error = (run(ids, places) - alone).norm() / alone.norm()
    assert error < 1e-5 if PACKED[name] == "apart" else error > 1e-4


def counting_on(model, batch):
    batch["position_ids"] = torch.arange(TOKENS)[None]


def of_layer(layer, **values):
    def change(model, batch):
        for name, value in values.items():
            setattr(model.model.layers[layer].self_attn, name, value)

    return change


def swapped(model, batch):
    model.config.layer_types = model.config.layer_types[::-1]


# What is changed in a right model, and the layers that then differ; whether a pair leaks.
CHANGED = {
    "a cache is made": ("llama", LENS, lambda _, batch: batch.update(use_cache=True), [0, 1], True),
    "positions count on": ("llama", LENS, counting_on, [0, 1], True),
    "positions count on, windows": ("gemma3", LENS, counting_on, [0, 1, 2, 3, 4, 5], True),
    "a wider window in the attention": (
        "gemma2", PARTS, lambda model, _: setattr(model.config, "sliding_window", 7), [0], True,
    ),
    "a narrower window": (
        "cohere2", PARTS, lambda model, _: setattr(model.config, "sliding_window", 5), [0, 1, 2],
        False,
    ),
    "other chunks": (
        "llama4", PARTS, lambda model, _: setattr(model.config, "attention_chunk_size", 4),
        [0, 1, 2], True,
    ),
    "layers in another order": ("gemma2", PARTS, swapped, [0, 1], True),
    "a layer that is not causal": ("llama", PARTS, of_layer(1, is_causal=False), [1], True),
    "the prefix is not told": (
        "paligemma2", PARTS, lambda _, batch: batch.pop("token_type_ids"), [0, 1], False,
    ),
    "a padding mask": (
        "qwen2", PARTS,
        lambda _, batch: batch.update(attention_mask=(torch.arange(TOKENS) > 2).long()[None]),
        [0, 1], False,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED)
def test_a_change_of_a_right_model_is_found(name):
    family, row, change, layers, leaks = CHANGED[name]
    code = small(texts()[family])
    inputs = {"token_type_ids": KINDS[family][None]} if family in KINDS else {}
    code = per_document(code) if row is LENS else code
    report = report_of(family, code, row, change, **inputs)
    wrong = [layer for layer in report.layers if layer.first]
    assert [layer.layer for layer in wrong] == layers, report.text()
    assert wrong[0].leaks.any() == leaks


@pytest.mark.slow
@pytest.mark.dist
def test_attention_of_megatron_is_asked_in_its_own_layout(tmp_path, start_ranks):
    start_ranks(1, Path(__file__).with_name("probe_megatron.py"), tmp_path)
