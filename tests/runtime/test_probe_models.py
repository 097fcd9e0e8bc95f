"""The page of masks says what tiny models of transformers see, and where packed documents leak."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from probe_families import MODELS, PAGE, TOKENS, model_of, small, texts

from dcp_dsl import Sample, Spec
from dcp_runtime import probe
from dcp_runtime.probing.script import default_batch

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
