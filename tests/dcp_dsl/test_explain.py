"""`dcpm explain`: the documentation of codes, and masks in numbers that the oracle confirms."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import DatasetError, Sample, Spec, dense_mask
from dcp_dsl.cli import dcpm
from dcp_dsl.commands.mask_report import report_mask
from dcp_dsl.commands.masks import explain
from dcp_dsl.syntax.diagnostic_formats import UnknownCodeError, explain_code, explanations

ROOT = Path(__file__).parents[2]
SPEC = Spec.from_text("""
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
@partial mask odd = q - k == 3 or local(3) and q in answer
""")


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(explain, [*map(str, arguments)])


def test_every_documented_code_is_explained():
    titles = re.findall(r"^## ([A-Z]\d{3}) ", (ROOT / "docs/diagnostics.md").read_text(), re.M)
    assert list(explanations()) == titles


def test_a_code_is_explained_with_both_examples(run):
    shown = run("e104").stdout
    assert shown.startswith("E104: a position compared with a segment's number\n\n")
    assert "  wrong:\n    segment doc = [doc_lens]*\n    mask a = causal and k >= q.doc\n" in shown
    assert "  right:\n    segment" in shown
    assert "```" not in shown
    document = json.loads(run("E104", "--json").stdout)
    assert (document["schema"], document["code"]) == ("dcp.code/1", "E104")


def test_unknown_codes_and_missing_topics_are_one_message(run):
    result = run("E999")
    assert "no code `E999`" in str(result.exception)
    with pytest.raises(UnknownCodeError, match="no code `E0041`; did you mean `E004`"):
        explain_code("E0041")
    assert result.exception.exit_code == 2
    assert "name a code" in run().stderr


CALLS = ["shared", "odd", "full", "streaming(2, 3)", "dilated(6, 2)", "strided(3)"]


@given(st.sampled_from(CALLS), st.integers(1, 30), st.integers(1, 9))
def test_counts_are_those_of_the_dense_mask(call, length, block):
    mask = SPEC.mask(call)
    sample = Sample({"question_len": length // 3, "answer_lens": [length - length // 3]}, length)
    report, dense = report_mask(mask, sample, block, 64), dense_mask(mask, sample)
    size = -(-length // block)
    padded = np.zeros((size * block, size * block), int)
    padded[:length, :length] = dense
    tiles = padded.reshape(size, block, size, block).sum(axis=(1, 3))
    edges = np.minimum(np.arange(size) * block + block, length) - np.arange(size) * block
    areas = np.outer(edges, edges)
    assert report.pairs == dense.sum()
    assert report.widest_row == dense.sum(axis=1).max()
    assert report.blocks == size * size
    assert report.full_blocks == (tiles == areas).sum()
    assert report.partial_blocks == ((tiles > 0) & (tiles < areas)).sum()
    assert report.fill == pytest.approx(dense.sum() / max(1, areas[tiles > 0].sum()))
    assert report.flops_per_head == 2 * 2 * 64 * dense.sum()
    assert report.density == pytest.approx(dense.mean())


def test_a_mask_is_explained_in_words_and_as_json(run, tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_text(SPEC.source)
    arguments = [path, "--mask", "shared", "--sample", "question_len = 2, answer_lens = [2, 2]"]
    shown = run(*arguments).stdout
    assert "form     slabs: 3 (1 full, 2 causal)" in shown
    assert "pairs    17 of 36, 47.2 %; 81 % of causal" in shown
    assert shown.endswith("4 to 5                 4 to 4  causal\n")
    document = json.loads(run(*arguments, "--json").stdout)
    assert (document["schema"], document["pairs"], document["slabs"]) == ("dcp.mask/1", 17, 3)
    assert len(document["table"]) == 3


def test_other_forms_are_named(run):
    shown = run("--mask", "strided(64)", "--len", "128k").stdout
    assert "form     strided: " in shown
    assert "a query sees at most ? keys" in shown
    assert "queries      keys" not in shown


def test_long_masks_are_counted_without_looking_at_tokens(run):
    shown = run("--mask", "streaming(64, 4k)", "--len", "1M", "--block", 512).stdout
    assert "a query sees at most 4,160 keys" in shown
    assert "2,048" not in shown


def test_a_mask_of_the_library_needs_no_option(run):
    assert run("shared_question", "--core").stdout == "paths(part)\n"
    result = run("train", "--mask", "causal")
    assert result.exit_code == 2
    assert (
        "no file `train`; of a mask of the library: dcpm explain --mask 'causal'" in result.stderr
    )


def test_a_misspelt_column_is_told_what_the_mask_reads():
    result = CliRunner().invoke(
        dcpm, ["explain", "--mask", "document", "--sample", "doclens = [3]"]
    )
    with pytest.raises(DatasetError, match="mask `document` reads `doc_lens`"):
        raise result.exception
