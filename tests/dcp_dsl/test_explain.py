"""`dcpm explain`: the documentation of codes, and masks in numbers that the oracle confirms."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec, dense_mask
from dcp_dsl.commands.mask_report import report_mask
from dcp_dsl.syntax.diagnostic_formats import UnknownCodeError, explain_code, explanations

ROOT = Path(__file__).parents[2]
SPEC = Spec.from_text("""
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
@partial mask odd = q - k == 3 or local(3) and q in answer
""")


def test_every_documented_code_is_explained():
    pages = sorted((ROOT / "docs").glob("diagnostics-*.md"))
    titles = [t for p in pages for t in re.findall(r"^## ([A-Z]\d{3}) ", p.read_text(), re.M)]
    assert sorted(explanations()) == sorted(titles)


def test_an_unknown_code_is_told_the_closest_one():
    with pytest.raises(UnknownCodeError, match="no code `E0041`; did you mean `E004`"):
        explain_code("E0041")


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


def test_long_masks_are_counted_without_looking_at_tokens():
    report = report_mask(SPEC.mask("streaming(64, 4k)"), Sample(length=1 << 20), 512, 64)
    assert (report.widest_row, report.blocks) == (4160, 2048**2)
