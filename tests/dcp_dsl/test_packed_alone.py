"""W212: a mask that keeps sequences apart, but counts positions of the row."""

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, check, check_report, dense_mask, token_paths

DOC = "segment doc = [doc_lens]*\n"
TREE = "segment part = prompt[prompt_len] branch rollout[rollout_lens]*\n"
TREES = "segment batch = branch group(ask[asks] branch answer[answers]*)*\n"


@pytest.mark.parametrize(
    ("text", "mask", "separate"),
    [
        (TREE, "paths and q - k < 1k", "sliding(1k)"),
        (TREE, "paths and q - k < 2", "sliding(2)"),
        (TREES, "paths and (k < 4 or q - k < 64)", "streaming(4, 64)"),
        (TREE, "paths and q // 8 == k // 8", "chunked(8)"),
        (DOC, "causal per doc and (k < 4 or q - k < 1k)", "streaming(4, 1k)"),
        (DOC, "same(doc) and streaming(4, 64)", "streaming(4, 64)"),
        (DOC, "same(doc) and causal and same(b) where b = every 64", "chunked(64)"),
    ],
)
def test_a_mask_that_counts_in_the_row_is_found(text, mask, separate):
    (found,) = check(f"{text}mask m = {mask}")
    assert found.code == "W212"
    assert ("q.path - k.path" if "paths" in mask else "... per doc") in found.hint
    place, sample = found.message.rsplit(" of the sample ", 1)
    q, k = (int(part.rsplit(" = ")[1]) for part in place.rsplit(", ", 2)[1:])
    sample = Sample.from_json(sample)
    spec = Spec.from_text(f"{text}mask m = {mask}")
    (tokens,) = [t for t in sequences(spec, text, sample) if q in t and k in t][:1]
    alone = dense_mask(spec.mask(separate), Sample({}, len(tokens)))
    shown = alone[tokens.tolist().index(q), tokens.tolist().index(k)]
    assert spec.mask("m").bind(sample).tile(q, q + 1, k, k + 1)[0, 0] != shown
    assert f"it {'hides' if shown else 'shows'} a pair" in found.message


def sequences(spec, text, sample):
    """The tokens of each separate sequence of a sample."""
    if text != DOC:
        return token_paths(spec.mask("paths"), sample).sequences()
    return np.split(np.arange(sample.length), np.cumsum(sample.columns["doc_lens"])[:-1])


@pytest.mark.parametrize(
    "text",
    [
        f"{TREE}mask m = paths and q.path - k.path < 1k",
        f"{TREE}mask m = paths and (k in prompt or q - k < 1k)",  # in a rollout, both are the same
        f"{TREE}mask m = paths and (k in prompt or causal per rollout)",
        f"{TREE}mask m = paths and k.path < 4 or paths and k in prompt",
        f"{DOC}mask m = causal per doc and q - k < 1k",
        f"{DOC}mask m = same(doc) and causal and (k.doc.pos < 4 or q - k < 1k)",
        f"{DOC}mask m = same(doc) and causal and k - k.doc.start >= 0",
        f"{DOC}mask m = streaming(4, 1k) per doc",
        f"{DOC}mask m = causal and q - k < 1k\nmask n = m per doc",
    ],
)
def test_masks_that_mean_the_same_alone_pass(text):
    assert not [d for d in check(text) if d.code == "W212"]


def test_the_verdict_says_that_a_path_sees_other_tokens_alone():
    report = check_report(f"{TREE}mask m = paths and q - k < 4")
    (verdict,) = [v for v in report.verdicts if "what it would see alone" in v.what]
    assert verdict.outcome == "failed"


GROUPS = "segment batch = branch group(ask[asks] branch answer[answers]*)*\n"


@pytest.mark.parametrize(
    ("text", "mask", "separate"),
    [
        (TREE, "paths and (q == k or q.rollout == 0)", "causal"),
        (TREE, "paths and (q == k or q.rollout.count == 1)", "causal"),
        (TREE, "@ahead paths and q - k < 2", "sliding(2)"),
        (GROUPS, "paths and (q == k or q.group == 0)", "causal"),
        (GROUPS, "paths and (q == k or q.answer < 1)", "causal"),
        (DOC, "causal per doc and (q == k or q.doc % 2 == 0)", "causal"),
        (DOC, "causal per doc and (q == k or q.doc.count < 2)", "causal"),
    ],
)
def test_numbers_begin_anew_in_a_separate_sequence(text, mask, separate):
    """The pair that W212 shows is hidden in the row, and the sequence alone shows it."""
    ahead = "@ahead " if mask.startswith("@ahead") else ""
    text = f"{text}{ahead}mask m = {mask.removeprefix(ahead)}"
    (found,) = [d for d in check(text) if d.code == "W212"]
    assert "it hides a pair" in found.message
    assert ("number 0" in found.hint) != bool(ahead)
    place, sample = found.message.rsplit(" of the sample ", 1)
    q, k = (int(part.rsplit(" = ")[1]) for part in place.rsplit(", ", 2)[1:])
    spec, sample = Spec.from_text(text), Sample.from_json(sample)
    assert not spec.mask("m").bind(sample).tile(q, q + 1, k, k + 1)[0, 0]
    paths = sequences(spec, DOC if "doc" in mask else text, sample)
    tokens = next(t.tolist() for t in paths if q in t and k in t)
    alone = dense_mask(spec.mask(separate), Sample({}, len(tokens)))
    # what the row shows on the path differs from the sequence for some token of the same part
    assert alone[tokens.index(q), tokens.index(k)]


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("segment t = branch node[l]* from p\n", "paths and (q == k or k.node == 0)"),
        (TREE, "paths and (q == k or k < len // 2)"),
        (GROUPS, "paths and (q == k or q.batch == 0)"),
        ("segment s = ask[n] branch answer[lens]*\n", "paths and (q == k or q.s == 0)"),
    ],
)
def test_what_is_not_known_of_a_path_alone_is_said(text, mask):
    report = check_report(f"{text}mask m = {mask}")
    (verdict,) = [v for v in report.verdicts if v.what.endswith("it would see alone")]
    assert (verdict.outcome, bool(verdict.reason)) == ("untested", True) or "W212" in {
        d.code for d in report.diagnostics
    }


@pytest.mark.parametrize(
    "mask", ["paths or same(prompt)", "paths or same(rollout)", "paths and q.path - k.path < 4"]
)
def test_a_bare_ahead_that_changes_nothing_on_a_path_passes(mask):
    assert not {d.code for d in check(f"{TREE}@ahead mask m = {mask}")} & {"W209", "W212"}
