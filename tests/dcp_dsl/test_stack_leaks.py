"""W211: a layer of a stack sees across borders that another layer keeps."""

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, check, check_report, dense_mask

DOC = "segment doc = [doc_lens]*\n"
TREE = "segment part = question[question_len] branch answer[answer_lens]*\n"


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


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (f"{DOC}stack s = 3 of sliding(128) per doc, causal per doc", "proved"),
        (f"{DOC}stack s = 3 of sliding(128) per doc, document", "tested"),  # layouts of two texts
        (f"{DOC}stack s = document, document_full, document_streaming", "proved"),
        (f"{TREE}stack s = paths, paths and q.path - k.path < 4", "proved"),
        (f"{TREE}stack s = shared_question and sliding(128), shared_question", "proved"),
    ],
)
def test_layers_that_keep_the_same_borders_pass(text, outcome):
    report = check_report(text)
    assert not [d for d in report.diagnostics if d.code == "W211"]
    (verdict,) = [v for v in report.verdicts if v.what.startswith("stack s:")]
    assert verdict.outcome == outcome


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
        (TREE, "sliding(5)", "paths", "paths and q.path - k.path < 5"),
        (
            TREE,
            "streaming(2, 3)",
            "paths",
            "paths and (k.path < 2 or q.path - k.path < 3)",
        ),
        (TREE, "chunked(4)", "paths", "paths and q.path // 4 == k.path // 4"),
        (TREE, "causal", "paths", "paths"),
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


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("sliding(4), shared_question", "begin it with `paths and`"),  # branches of another text
        ("sliding(4), document_full", "write `... per doc`"),
    ],
)
def test_a_layer_gets_no_advice_that_does_not_fit_its_text(stack, words):
    (found,) = [d for d in check(f"stack s = {stack}") if d.code == "W211"]
    assert words in found.hint


def test_stacks_without_borders_are_not_asked():
    report = check_report("stack gemma3 = 5 of sliding(1k), causal")
    assert not report.diagnostics
    assert not [v for v in report.verdicts if v.what.startswith("stack")]
