"""Whether masks stay within windows and chunks, against sequences cut out by hand."""

import numpy as np
import pytest

from dcp_dsl import Reach, Sample, Spec, dense_mask

DOCUMENTS = "segment doc = [lens]*\n"
BRANCHES = "segment part = question[n] branch answer[lens]*\n"
TEXTS = {
    "row": ("", ["causal", "sliding(4)", "sliding(5)", "chunked(4)", "chunked(8)", "full",
                 "streaming(2, 4)", "sliding(4) and chunked(4)", "strided(3)"]),
    "documents": (DOCUMENTS, ["causal per doc", "sliding(4) per doc", "chunked(4) per doc",
                              "chunked(8) per doc", "causal and same(doc)", "chunked(4)",
                              "chunked(4) and same(doc)", "sliding(4)"]),
    "branches": (BRANCHES, ["paths", "paths and q.path - k.path < 4", "paths and q - k < 4",
                            "paths and q.path // 4 == k.path // 4", "causal", "sliding(4)",
                            "paths and q.path - k.path < 5", "causal per answer"]),
}  # fmt: skip
CASES = [(kind, mask) for kind, (_, masks) in TEXTS.items() for mask in masks]
SAMPLES = {
    "row": [({}, 1), ({}, 3), ({}, 4), ({}, 11)],
    "documents": [({"lens": lens}, sum(lens)) for lens in ([3], [4, 2], [5, 1, 6], [2, 9, 3])],
    "branches": [
        ({"n": n, "lens": lens}, n + sum(lens))
        for n, lens in ((1, [2, 2]), (3, [1, 3]), (2, [6, 5]))
    ],
}  # fmt: skip


def sequences(kind, columns, length):
    """The tokens of each separate sequence, cut by hand."""
    if kind == "row":
        return [list(range(length))]
    ends = np.cumsum(columns["lens"]) + columns.get("n", 0)
    parts = [list(range(end - n, end)) for n, end in zip(columns["lens"], ends, strict=True)]
    question = list(range(columns.get("n", 0)))
    return [question + part for part in parts]


def is_within(dense, places, window, chunk):
    """Whether every pair lies in one sequence, within the limits there."""
    allowed = np.zeros_like(dense)
    for tokens in places:
        for i, q in enumerate(tokens):
            for j, k in enumerate(tokens):
                allowed[q, k] |= (not window or i - j < window) and (
                    not chunk or i // chunk == j // chunk
                )
    return not (dense & ~allowed).any()


@pytest.mark.parametrize(("window", "chunk"), [(4, None), (None, 4), (4, 4), (7, 8)])
@pytest.mark.parametrize(("kind", "text"), CASES, ids=[f"{k}: {m}" for k, m in CASES])
def test_masks_are_within_limits_in_the_row_or_in_their_sequences(kind, text, window, chunk):
    spec = Spec.from_text(f"{TEXTS[kind][0]}@ahead mask full = k >= 0\n@ahead mask m = {text}")
    mask = spec.mask("m")
    reach = Reach.of(mask, window, chunk)
    for columns, length in SAMPLES[kind]:
        sample = Sample(columns, length)
        dense = dense_mask(mask, sample)
        in_row = is_within(dense, [list(range(length))], window, chunk)
        apart = sequences(kind, columns, length)
        # A mask that names no sequences has only the row.
        names_them = bool(mask.segments) and is_within(dense, apart, window, chunk)
        pair = reach.find_outside(sample)
        assert (pair is None) == (in_row or names_them), (columns, pair)
        if pair is not None:
            assert dense[pair]
        if reach.is_proved:
            assert in_row or names_them
    fixed = Reach.of(spec.mask(reach.advice), window, chunk)
    for columns, length in SAMPLES[kind]:
        assert fixed.find_outside(Sample(columns, length)) is None, reach.advice


@pytest.mark.parametrize(
    ("kind", "text", "limits"),
    [
        ("row", "sliding(4)", {"window": 4}),
        ("row", "chunked(4)", {"chunk": 4}),
        ("documents", "sliding(4) per doc", {"window": 4}),
        ("documents", "chunked(4) per doc", {"chunk": 4}),
        ("branches", "paths and q.path - k.path < 4", {"window": 4}),
        ("branches", "paths and q.path // 4 == k.path // 4", {"chunk": 4}),
    ],
)
def test_the_masks_that_models_have_are_proved(kind, text, limits):
    """No batch of theirs is looked at."""
    mask = Spec.from_text(f"{TEXTS[kind][0]}mask m = {text}").mask("m")
    reach = Reach.of(mask, **limits)
    assert reach.is_proved
    assert reach.is_causal
    assert not Reach.of(mask, window=3, chunk=3).is_proved


def test_masks_that_look_ahead_are_not_proved_causal():
    for text in ("@ahead mask m = k >= 0", "token role\n@ahead mask m = q.role == k.role"):
        assert not Reach.of(Spec.from_text(text).mask("m")).is_causal
