"""Messages that newcomers meet: what they suggest is what was meant, and it works."""

import re

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, check, dense_mask

IMAGES = "segment pack = branch doc(text[text_lens] image[image_lens])*\n"
ANSWERS = "segment two = question[n] branch answer[lens]*\n"


def codes(text):
    """Return what is found, without redundant parts of an `or` (W206)."""
    return [found.code for found in check(text) if found.code != "W206"]


@pytest.mark.parametrize(
    "text",
    [
        IMAGES + "@ahead(image) mask m = paths or same(image)",
        IMAGES + "@ahead(doc) mask m = paths or same(doc)",
        IMAGES + "@ahead(text) mask m = paths or same(text) and q in text",
        ANSWERS + "@ahead(answer) mask m = paths or same(answer)",
        ANSWERS + "@ahead(question) mask m = paths or same(question)",
        "segment t = branch node[lens]* from up\n@ahead(node) mask m = paths or same(node)",
        IMAGES + "mask docs = paths\n@ahead(image) mask m = paths or same(image)\n"
        "stack s = 3 of docs, m",
    ],
)
def test_a_token_that_sees_ahead_in_its_own_branch_sees_no_other(text):
    assert codes(text) == []


@pytest.mark.parametrize(
    "text",
    [
        IMAGES + "@ahead mask m = paths or q in image and k in image",
        ANSWERS + "@ahead mask m = paths or q in question",
        ANSWERS + "@ahead mask m = paths or k in answer and q in answer",
        ANSWERS + "mask m = causal and q.path - k.path < 4",
        "segment t = branch node[lens]* from up\n@ahead(t) mask m = paths or q.t <= k.t",
    ],
)
def test_another_branch_is_still_one(text):
    text = text.replace("@ahead mask", "@ahead(pack, doc) mask" if "pack" in text else
                        "@ahead(question, answer) mask")  # fmt: skip
    assert "W209" in codes(text)


def test_packed_images_of_the_library():
    texts, images = [[2, 1], [3], []], [[3, 2], [2], []]
    sample = Sample({"text_lens": texts, "image_lens": images}, 13)
    documents, parts = [], []
    for number, (own, seen) in enumerate(zip(texts, images, strict=True)):
        for at, (text, image) in enumerate(zip(own, seen, strict=True)):
            documents += [number] * (text + image)
            parts += [None] * text + [(number, at)] * image
    expected = [
        [
            documents[q] == documents[k]
            and (k <= q or (parts[q] is not None and parts[q] == parts[k]))
            for k in range(13)
        ]
        for q in range(13)
    ]
    found = dense_mask(Spec.from_text("").mask("multimodal_packed"), sample)
    np.testing.assert_array_equal(found, np.array(expected))


def mended(text):
    (found,) = [d for d in check(text) if d.code == "E101"]
    for edit in reversed(found.fix.edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


@pytest.mark.parametrize(
    ("wrote", "meant"),
    [
        ("window(4k)", "sliding(4k)"), ("sliding_window(4096)", "sliding(4096)"),
        ("sliding_window(window = 8)", "sliding(window = 8)"), ("slidng(8)", "sliding(8)"),
        ("fa_windw(4, 0)", "fa_window(4, 0)"),
    ],
)  # fmt: skip
def test_a_suggested_mask_takes_the_arguments(wrote, meant):
    text = f"mask m = {wrote}"
    assert mended(text) == f"mask m = {meant}"
    assert not [found for found in check(mended(text)) if found.severity == "error"]


def test_two_arguments_are_a_window_of_flash_attention():
    (found,) = check("mask m = windows(4095, 0)")
    assert found.hint == "did you mean `fa_window`?"


def test_an_own_mask_with_fitting_arguments_comes_first():
    (found,) = check("mask windowed(w: tokens) = causal and q - k < w  mask m = windowd(4)")
    assert found.hint == "did you mean `windowed`?"


def test_a_hat_has_both_readings():
    (found,) = check("mask m = causal ^ full")
    assert "`a minus b`" in found.hint
    assert "(a minus b) or (b minus a)" in found.hint
    assert "no powers" in found.hint


@pytest.mark.parametrize("kind", ["cu_seqlens", "offsets", "boundaries", "starts"])
def test_borders_are_told_what_reads_them(kind):
    (found,) = check(f"segment doc = {kind}(c)\nmask m = causal per doc")
    assert found.code == "E020"
    for source in ("positions(position_ids)", "spans(col)", "[doc_lens]*"):
        assert f"`{source}`" in found.hint
        rest = "@partial " if "spans" in source else ""
        text = f"segment doc = {source}\n{rest}mask m = causal per doc"
        assert not [d for d in check(text) if d.severity == "error"], source


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "segment part = prefix[n] body[..]\nmask m = causal or k in prefix and q in prefix",
            "prefix",
        ),
        ("segment part = prefix[n] body[..]\nmask m = causal or k in prefix", "prefix"),
        (IMAGES + "mask m = paths or same(image)", "image"),
        (IMAGES + "mask m = paths or same(doc)", "doc"),
        ("mask m = causal or q == 0", ""),
        (IMAGES + "@ahead(text) mask m = paths or same(image) or same(text)", "text, image"),
    ],
)
def test_look_ahead_names_the_segment_that_holds_it(text, name):
    (found,) = [d for d in check(text) if d.code == "E120"]
    allowed = re.search("`(@ahead[^`]*)`", found.hint)[1]
    assert allowed == (f"@ahead({name})" if name else "@ahead")
    assert codes(re.sub("(@ahead.*)?mask m", f"{allowed} mask m", text)) == []


def test_heads_with_masks_of_their_own_are_told_where_a_data_set_takes_them():
    stack = "stack mixed = heads { 0..1: sliding(4) rest: causal }\n"
    assert codes(stack) == []
    (found,) = check(stack + 'for "*" use mixed')
    assert found.code == "W213"
    assert "one mask for all heads of a layer" in found.hint
    assert codes('stack even = heads { rest: causal }\nfor "*" use even') == []
    assert codes('stack even = sliding(4), causal\nfor "*" use even') == []


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("@ahead mask m = True", "True", "true"),
        ("segment doc = [l]*\nmask m = causal and q.doc.pos < len(doc)", "len(doc)", "q.doc.len"),
        ("segment doc = [l]*\nmask m = causal and (doc(q) == 1 or q == k)", "doc(q)", "q.doc"),
        ("// note\nmask m = causal", "//", "#"),
        ("segment doc = [l]*\nmask m = causal and same(q.doc, k.doc)", "same(q.doc, k.doc)",
         "same(doc)"),
        ("mask m = causal and q - k < clamp(q, 3, 1)", "clamp(q, 3, 1)", "clamp(q, 1, 3)"),
        ("segment doc = [l]*\n@ahead(doc) @partial mask m = not causal per doc",
         "not causal per doc", "(not causal) per doc"),
        ("segment doc = [l]*\n@ahead @partial mask m = not causal per doc",
         "not causal per doc", "not (causal per doc)"),
    ],
)  # fmt: skip
def test_what_a_hint_writes_has_no_error(text, old, new):
    found = check(text)
    assert any(f"`{new}`" in each.hint for each in found), found
    mended = text.replace(old, new)
    assert not [each for each in check(mended) if each.severity == "error" or each.code == "W214"]
