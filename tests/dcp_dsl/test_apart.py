"""Sequences that stay apart: W212 in a mask, W211 between layers; documents of linear layers."""

import numpy as np
import pytest

from dcp_dsl import (
    DatasetError,
    DCPError,
    Sample,
    Spec,
    check,
    check_report,
    dense_mask,
    token_paths,
)

DOC = "segment doc = [doc_lens]*\n"
TREE = "segment part = prompt[prompt_len] branch rollout[rollout_lens]*\n"
GROUPS = "segment batch = branch group(ask[asks] branch answer[answers]*)*\n"


def sequences(spec, text, sample):
    """The tokens of each separate sequence of a sample."""
    if text != DOC:
        return token_paths(spec.mask("paths"), sample).sequences()
    return np.split(np.arange(sample.length), np.cumsum(sample.columns["doc_lens"])[:-1])


ALONG, PER, ANEW = "q.path - k.path", "... per doc", "number 0"


@pytest.mark.parametrize(
    ("text", "mask", "separate", "hint"),
    [
        (TREE, "paths and q - k < 1k", "sliding(1k)", ALONG),
        (TREE, "paths and q - k < 2", "sliding(2)", ALONG),
        (GROUPS, "paths and (k < 4 or q - k < 64)", "streaming(4, 64)", ALONG),
        (TREE, "paths and q // 8 == k // 8", "chunked(8)", ALONG),
        (DOC, "causal per doc and (k < 4 or q - k < 1k)", "streaming(4, 1k)", PER),
        (DOC, "same(doc) and streaming(4, 64)", "streaming(4, 64)", PER),
        (DOC, "same(doc) and causal and same(b) where b = every 64", "chunked(64)", PER),
        # numbers begin anew in a separate sequence
        (TREE, "paths and (q == k or q.rollout == 0)", "causal", ANEW),
        (TREE, "paths and (q == k or q.rollout.count == 1)", "causal", ANEW),
        (TREE, "@ahead paths and q - k < 2", "sliding(2)", ALONG),
        (GROUPS, "paths and (q == k or q.group == 0)", "causal", ANEW),
        (GROUPS, "paths and (q == k or q.answer < 1)", "causal", ANEW),
        (DOC, "causal per doc and (q == k or q.doc % 2 == 0)", "causal", ANEW),
        (DOC, "causal per doc and (q == k or q.doc.count < 2)", "causal", ANEW),
    ],
)
def test_a_mask_that_counts_in_the_row_is_found(text, mask, separate, hint):
    """The pair that W212 shows is another one in the row than in the sequence alone."""
    ahead = "@ahead " if mask.startswith("@ahead") else ""
    source = f"{text}{ahead}mask m = {mask.removeprefix(ahead)}"
    (found,) = [d for d in check(source) if d.code == "W212"]
    assert hint in found.hint
    place, sample = found.message.rsplit(" of the sample ", 1)
    q, k = (int(part.rsplit(" = ")[1]) for part in place.rsplit(", ", 2)[1:])
    spec, sample = Spec.from_text(source), Sample.from_json(sample)
    tokens = next(t.tolist() for t in sequences(spec, text, sample) if q in t and k in t)
    alone = dense_mask(spec.mask(separate), Sample({}, len(tokens)))
    shown = alone[tokens.index(q), tokens.index(k)]
    assert spec.mask("m").bind(sample).tile(q, q + 1, k, k + 1)[0, 0] != shown
    assert f"it {'hides' if shown else 'shows'} a pair" in found.message


# ---- W211: a layer that sees across borders of another -------------------------------------------


QUESTIONS = "segment part = question[question_len] branch answer[answer_lens]*\n"


@pytest.mark.parametrize(
    ("layers", "layer", "other"),
    [
        ("3 of sliding(128), causal per doc", "sliding(128)", "causal per doc"),
        ("2 of document_full, 1 of chunked(64)", "chunked(64)", "document_full"),
        ("sliding(16), shared_question", "sliding(16)", "shared_question"),
        ("heads { 0..1: causal  rest: causal and same(doc) }", "causal", "causal and same(doc)"),
        ("2 of linear per doc, document, causal", "causal", "document"),
    ],
)
def test_a_layer_that_crosses_a_border_of_another_is_found(layers, layer, other):
    text = f"{DOC}stack s = {layers}\n"
    (found,) = [d for d in check(text) if d.code == "W211"]
    wanted = f"a layer with `{layer}` sees across borders that `{other}` keeps"
    assert found.message.startswith(wanted)
    assert text[found.start : found.end] == layer
    sample = Sample.from_json(found.message.split(" of the sample ")[1])
    assert sample.length == 2  # two sequences of a token each
    reach = np.eye(2, dtype=bool)
    for mask in Spec.from_text(text).stack("s").masks:
        reach = reach @ dense_mask(mask, sample)
    alone = dense_mask(Spec.from_text(text).mask(other), sample)
    assert reach[1, 0]
    assert not alone[1, 0]


def sequences_of(text, sample):
    """The tokens of each path of a sample, or of each document, from `lens` alone."""
    if text is DOC:
        ends = np.cumsum(sample.columns["doc_lens"])
        return [
            np.arange(end - n, end) for n, end in zip(sample.columns["doc_lens"], ends, strict=True)
        ]
    first = sample.columns["question_len"]
    ends = first + np.cumsum(sample.columns["answer_lens"])
    return [
        np.array([*range(first), *range(end - n, end)])
        for n, end in zip(sample.columns["answer_lens"], ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "layer", "other", "advised"),
    [
        (QUESTIONS, "sliding(5)", "paths", "paths and q.path - k.path < 5"),
        (
            QUESTIONS,
            "streaming(2, 3)",
            "paths",
            "paths and (k.path < 2 or q.path - k.path < 3)",
        ),
        (QUESTIONS, "chunked(4)", "paths", "paths and q.path // 4 == k.path // 4"),
        (QUESTIONS, "causal", "paths", "paths"),
        (DOC, "streaming(2, 3)", "causal per doc", "streaming(2, 3) per doc"),
        (DOC, "causal or sliding(3)", "same(doc) and causal", "(causal or sliding(3)) per doc"),
    ],
)
def test_the_advised_layer_is_that_of_the_separate_sequences(text, layer, other, advised):
    (found,) = [d for d in check(f"{text}stack s = {layer}, {other}") if d.code == "W211"]
    assert found.hint == f"confine the layer as well: `{advised}`"
    columns = {"doc_lens": [6, 9, 4], "question_len": 5, "answer_lens": [3, 7, 4]}
    sample = Sample(columns, 19)
    packed = dense_mask(Spec.from_text(text).mask(advised), sample)
    wanted = np.zeros((19, 19), bool)
    for tokens in sequences_of(text, sample):
        alone = dense_mask(Spec.from_text("").mask(layer), Sample({}, len(tokens)))
        wanted[np.ix_(tokens, tokens)] = alone
    assert np.array_equal(packed, wanted)


# ---- groups of layers in stacks, and the documents of linear layers ------------------------------


DOCS = "segment doc = [lens]*  "


def test_groups_nest_and_are_written_out_in_their_order():
    text = "stack s = causal, 2 of (3 of local(4), 2 of (linear, full)), causal"
    stack = Spec.from_text(text).stack("s")
    assert [mask.call for mask in stack.masks] == ["causal", "local(window = 4)", "full"]
    one = [1, 1, 1, -1, 2, -1, 2]
    assert list(stack.cycle()) == [0, *one, *one, 0]
    assert stack.period == 16
    assert stack.layers_of(stack.masks[0], 32) == (0, 15, 16, 31)


@pytest.mark.parametrize(
    "layers",
    ["0 of (causal, full)", "2000 of (causal, full)", "40 of (40 of (causal, full), full)"],
)
def test_a_group_that_makes_no_layer_or_too_many_is_refused(layers):
    assert [found.code for found in check(f"stack s = {layers}")] == ["E111"]


def test_a_fault_in_a_group_is_told_once():
    assert [found.code for found in check("stack s = 3 of (casual, full), full")] == ["E101"]


def test_the_remedy_for_a_linear_layer_mends_it():
    text = f"{DOCS} stack s = 3 of linear, causal per doc"
    (found,) = [d for d in check(text) if d.code == "W211"]
    assert found.hint.startswith("write `linear per doc` and give the layer `stack.cu_seqlens(")
    mended = text.replace("of linear", "of linear per doc")
    assert {v.outcome for v in check_report(mended).verdicts} == {"proved"}
    borders = Spec.from_text(mended).stack("s").cu_seqlens(0, Sample({"lens": [2, 0, 3]}, 5))
    assert (borders.dtype, borders.tolist()) == ("int32", [0, 2, 5])


def test_tokens_between_documents_are_sequences_of_their_own():
    text = "segment doc = spans(docs)  stack s = linear per doc, causal, linear"
    stack = Spec.from_text(text).stack("s")
    assert stack.columns == {"docs"}
    sample = Sample({"docs": [[4, 6], [1, 3]]}, 8)
    assert stack.cu_seqlens(0, sample).tolist() == [0, 1, 3, 4, 6, 8]
    assert stack.cu_seqlens(2, sample).tolist() == [0, 8]
    with pytest.raises(DCPError, match="layer 1 has a mask"):
        stack.cu_seqlens(1, sample)
    with pytest.raises(DatasetError, match="expected 0 <= start <= end <= 8"):
        stack.cu_seqlens(0, Sample({"docs": [[0, 9]]}, 8))


def test_documents_of_a_linear_layer_must_be_a_segment():
    assert "E101" in {d.code for d in check("stack s = linear per dok, causal")}
