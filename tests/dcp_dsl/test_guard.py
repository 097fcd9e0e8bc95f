"""What masks must keep to: samples that leak are refused, and windows and chunks hold."""

from itertools import groupby
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import draw_masks, write_sample

from dcp_dsl import DatasetError, Reach, Sample, Spec, SpecError, check, dense_mask
from dcp_dsl.claims.guard import Guard
from dcp_dsl.coverage.row_checker import prove_rows
from dcp_dsl.data.nesting import NestedColumn, flatten_column

SPEC = Spec.from_text(
    "token evict\n"
    "segment role = ids(role_ids) as text, image\n"
    "segment part = question[question_len] answer[answer_lens]*\n"
    "mask kept = causal and q < k.evict\n"
    "@partial mask dropped = kept\n"
    "mask ahead = q - k < 2 and k - q < row.reach\n"
    "@ahead mask free = ahead\n"
    "@ahead(image) mask images = causal or same(image) and q.evict > 0\n"
    "@ahead(image) mask leaky = causal or q in image and k.evict > 2\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask tiled = causal and q // q.evict == k // q.evict\n"
)
RULES = {
    "kept": (False, True), "dropped": (False, False), "ahead": (False, True),
    "free": (True, True), "images": ("image", True), "leaky": ("image", True),
    "tiled": (False, True),
}  # fmt: skip


@st.composite
def samples(draw):
    length = draw(st.integers(1, 7))
    values = st.lists(st.integers(0, 8), min_size=length, max_size=length)
    ids = draw(st.integers(0, length))
    return {
        "evict": draw(values), "reach": draw(st.integers(0, 3)),
        "role_ids": [0] * ids + [1] * (length - ids),
    }, length  # fmt: skip


@settings(max_examples=80)
@given(name=st.sampled_from(sorted(RULES)), drawn=samples())
def test_a_guard_refuses_exactly_the_samples_that_leak_or_have_empty_rows(name, drawn):
    columns, length = drawn
    mask = SPEC.mask(name)
    sample = Sample({c: columns[c] for c in mask.columns}, length)
    seen = dense_mask(mask, sample)
    may_look, must_see = RULES[name]
    ahead = np.triu(seen, k=1)
    if may_look == "image":
        image = np.array(columns["role_ids"]) == 1
        ahead = ahead & ~(image[:, None] & image[None, :])
    is_bad = (may_look is not True and ahead.any()) or (must_see and not seen.any(1).all())
    if is_bad:
        with pytest.raises(DatasetError, match="sees"):
            Guard.of([mask]).check(sample)
    else:
        Guard.of([mask]).check(sample)


def test_rows_are_proved_by_the_values_of_their_tokens():
    guard = Guard.of([Spec.from_text("token t\nmask m = causal and q - k <= q.t\n").mask("m")])
    values = np.full(40, 3)
    values[35] = -1  # the second token of row 17 sees nothing
    column = NestedColumn(values, (np.arange(0, 41, 2),), np.zeros(20, np.bool_))
    # Halves of halves are fewer than 8 rows, which are bound instead.
    proved = [True] * 10 + [False] * 10
    assert prove_rows(guard, {"t": column}, np.arange(20)).tolist() == proved


BATCHES = {
    "windows of 1 and more": ("near", {"w": [1 + i % 5 for i in range(20)]}),
    "one window of 0": ("near", {"w": [1] * 50 + [0] + [1] * 13}),
    "the last window is 0": ("near", {"w": [1] * 40 + [0]}),
    "seven rows": ("near", {"w": [1] * 7}),
    "eight rows": ("near", {"w": [1] * 8}),
    "fifteen rows, one bad": ("near", {"w": [0] + [1] * 14}),
    "sixteen rows, one bad": ("near", {"w": [0] + [1] * 15}),
    "every third is bad": ("near", {"w": [1, 1, 0] * 40}),
    "more halves than proofs": ("near", {"w": ([1] * 8 + [0] * 8) * 32}),
    "nothing is proved": ("odd", {"w": [2] * 20}),
    "look-ahead": ("ahead", {"w": [1] * 10 + [2] + [1] * 13}),
    "tokens that live": ("kept", {"e": [[i % 3 + 1, 5, 3] for i in range(9)]}),
    "a token that does not": ("kept", {"e": [[1, 2, 3]] * 9 + [[1, 0, 3]] + [[2, 2]] * 8}),
    "empty rows": ("kept", {"e": [[]] * 9}),
    "flags": ("marked", {"e": [[1, 1]] * 8 + [[1, 0]] * 8}),
    "two of three": ("both", {"w": [1] * 20, "e": [[1]] * 12 + [[0]] * 8}),
}  # fmt: skip
ROWS = Spec.from_text(
    "token e\n"
    "mask near = causal and q - k < row.w\n"
    "mask odd = causal and (q - k + row.w) % 2 == 0 and q < row.w * row.w\n"
    "mask ahead = k - q < row.w\n"
    "mask kept = causal and q < k.e\n"
    "mask marked = causal and (k.e == 1 or q == k and q.e > 0)\n"
    "mask both = near and k.e > 0\n"
)


def test_rows_are_proved_together_as_far_as_their_values_allow(snapshots):
    lines = []
    for name, (mask, columns) in BATCHES.items():
        flat = {column: flatten_column(pa.chunked_array([v])) for column, v in columns.items()}
        rows = np.arange(len(next(iter(columns.values()))))
        guard = Guard.of([ROWS.mask(mask)])
        for chosen in (rows, rows[4:]):
            proved = prove_rows(guard, flat, chosen).astype(int).tolist()
            runs = (f"{len([*run])} x {flag}" for flag, run in groupby(proved))
            lines.append(f"{name}, {len(chosen)} rows: {', '.join(runs)}")
    snapshots.check("proved_rows", {"": "\n".join(lines)})


def test_a_guard_decides_random_masks_as_their_pairs_do():
    rng, refused, accepted = Random(3), 0, 0
    for _, mask in draw_masks(4, 40):
        guard = Guard.of([mask])
        for _ in range(2):
            columns, length = write_sample(rng, longest=9)
            sample = Sample({c: columns[c] for c in mask.columns}, length)
            try:
                seen = dense_mask(mask, sample)
            except (DatasetError, SpecError):
                continue
            empty, ahead = ~seen.any(axis=1), np.triu(seen, 1)
            try:
                guard.check(sample)
            except DatasetError as error:
                refused += 1
                message = str(error)
                if empty.any():
                    assert f": token {empty.argmax()} sees nothing" in message
                else:
                    row = int(ahead.any(axis=1).argmax())
                    assert f": token {row} sees the later token {ahead[row].argmax()} " in message
            else:
                accepted += 1
                assert not empty.any()
                assert not ahead.any()
    assert min(refused, accepted) > 9


def test_what_is_proved_is_not_decided_again_but_the_layout_still_is(monkeypatch):
    guard = Guard.of([SPEC.mask("shared")])
    assert (guard.is_causal_proved, guard.is_total_proved) == (True, True)
    monkeypatch.setattr("dcp_dsl.core.mask.Mask.compile", None)
    guard.check(Sample({"question_len": 2, "answer_lens": [3, 1]}, 6))
    with pytest.raises(DatasetError, match="the layout has 6 tokens, the sample 7"):
        guard.check(Sample({"question_len": 2, "answer_lens": [3, 1]}, 7))
    with pytest.raises(DatasetError, match="needs the column `answer_lens`"):
        guard.check(Sample({"question_len": 2}, 7))


def test_a_guard_of_a_stack_looks_at_every_mask():
    text = 'token evict  mask kept = causal and q < k.evict  stack s = causal, kept  for "*" use s'
    attachment = Spec.from_text(text).attachment("x.jsonl", ["len", "evict"])
    with pytest.raises(DatasetError, match=r"`kept`: token 1 sees nothing with evict = \[1, 1\]"):
        attachment.guard().check(attachment.sample({"len": 2, "evict": [1, 1]}))


AHEAD_IN_DOC = (
    "segment doc = [doc_lens]*\n"
    "segment img = flags(is_image)\n"
    "@ahead(doc) mask inside = causal or same(img)\n"
)


def test_a_segment_that_only_the_decorator_names_is_read_from_the_row():
    mask = Spec.from_text(AHEAD_IN_DOC).mask("inside")
    rows = [[1, 1, 0, 0], [0, 1, 1, 0]]
    samples = [Sample.of({"is_image": r, "doc_lens": [2, 2], "len": 4}, mask) for r in rows]
    guard = Guard.of([mask])
    guard.check(samples[0])
    with pytest.raises(DatasetError, match="token 1 sees the later token 2"):
        guard.check(samples[1])


@pytest.mark.parametrize("body", ["causal or same(img)", "full"])
def test_a_leak_outside_a_segment_that_only_the_decorator_names_is_found(body):
    text = AHEAD_IN_DOC.replace("causal or same(img)", body)
    (found,) = [each for each in check(text) if each.code == "E120"]
    assert 'q = 0, k = 1 of the sample {"doc_lens": [1, 1]' in found.message


# ---- whether masks stay within windows and chunks, against sequences cut out by hand -------------


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
