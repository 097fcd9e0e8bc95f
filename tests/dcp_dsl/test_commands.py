"""Commands on masks and texts as a person runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec, dense_mask
from dcp_dsl.commands.mask_report import report_mask
from dcp_dsl.commands.texts import check, fmt
from dcp_dsl.syntax.diagnostic_formats import explanations


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda command, *arguments, **more: runner.invoke(
        command, [*map(str, arguments)], **more
    )


def test_importing_the_commands_loads_nothing_heavy():
    code = (
        "import sys, dcp_dsl.commands.texts\n"
        "print(sorted({'numpy', 'lark', 'pyarrow', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"mask a=causal  # x\r\n\r\n\r\nmask b = a\r\n",
         b"mask a = causal  # x\r\n\r\nmask b = a\r\n"),
        (b"mask a = causal\r\n", b"mask a = causal\r\n"),
        (b"\xef\xbb\xbfmask a = causal\n", b"mask a = causal\n"),
        (b"mask a = causal # x\rmask b=a\r", b"mask a = causal  # x\nmask b = a\n"),
        (b"mask a = causal\nmask b = a\r\n", b"mask a = causal\nmask b = a\n"),
        (b"", b""), (b" \n\n", b""), (b"# a\n\n\n# b", b"# a\n\n# b\n"),
    ],
    ids=["crlf", "crlf and nothing to do", "bom", "cr", "mixed", "empty", "blank", "comments"],
)  # fmt: skip
def test_fmt_keeps_the_line_ends_and_settles_after_one_pass(run, tmp_path, given, expected):
    path = tmp_path / "a.dcpm"
    path.write_bytes(given)
    assert run(fmt, "--check", path).exit_code == int(given != expected)
    assert run(fmt, path).exit_code == 0
    assert path.read_bytes() == expected
    assert run(fmt, path).stderr == "0 of 1 files changed\n"
    assert run(fmt, "-", input=given).stdout_bytes == expected


def test_links_that_loop_and_pipes_nobody_writes_to_are_refused(run, tmp_path):
    (tmp_path / "a.dcpm").symlink_to("b.dcpm")
    (tmp_path / "b.dcpm").symlink_to("a.dcpm")
    os.mkfifo(tmp_path / "pipe.dcpm")
    result = run(check, tmp_path / "a.dcpm", tmp_path / "pipe.dcpm")
    assert result.exit_code == 2
    assert "a.dcpm: cannot be read: Too many levels" in result.stderr
    assert "got a pipe; pass it as `-`" in result.stderr


def test_fmt_goes_on_behind_a_file_it_cannot_write(run, tmp_path, monkeypatch):
    first, second = tmp_path / "a.dcpm", tmp_path / "b.dcpm"
    for path in (first, second):
        path.write_text("mask a=causal")

    def refuse(source, target, real=os.replace):
        if Path(target) == first:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    result = run(fmt, "--json", first, second)
    assert result.exit_code == 2
    assert "a.dcpm: cannot be written: No space left on device" in result.stderr
    assert [u["file"] for u in json.loads(result.stdout)["unreadable"]] == [str(first)]
    assert (first.read_text(), second.read_text()) == ("mask a=causal", "mask a = causal\n")
    assert sorted(os.listdir(tmp_path)) == ["a.dcpm", "b.dcpm"]


def test_the_keys_of_both_documents_are_the_documented_ones(run):
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    document = json.loads(run(check, "--json", "-", input="mask a = casual").stdout)
    keys = {*document, *document["findings"][0]}
    keys |= {*json.loads(run(fmt, "--json", "--diff", "-", input="").stdout)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    for schema in ("dcp.check/1", "dcp.fmt/1"):
        assert schema in page


# ---- `dcpm blocks`, on every mask of the real specs ----------------------------------------------


# ---- `dcpm export` and `dcpm import`, as typed ---------------------------------------------------


# ---- `dcpm explain` ------------------------------------------------------------------------------


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
