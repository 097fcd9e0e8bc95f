"""Samples with mistakes: `check` reports them, and no command draws another one in their place."""

import pytest
from click.testing import CliRunner

from dcp_dsl import check
from dcp_dsl.cli import dcpm

TREE = "segment doc = branch [doc_lens]* from parents  mask m = paths\n"
MISTAKES = {
    "a misspelt column": (
        "segment doc = branch [doc_lens]*  mask m = paths\n",
        "doc_lenz = [3, 1]",
    ),
    "in a mask of the library": ('for "*" use document  mask m = document\n', "doc_lenz = [3, 1]"),
    "of tokens": ("token evict  mask m = causal and (q < k.evict or q == k)\n", "evct = [3, 1]"),
    "a parent behind its child": (TREE, "doc_lens = [3, 1, 4], parents = [-1, 1, 0]"),
    "one more parent": (TREE, "doc_lens = [3, 1], parents = [-1, 0, 0]"),
    "a column of one group more": (
        "segment s = branch d(a[a_lens] b[b_lens])*  mask m = paths\n",
        "a_lens = [1, 2, 3], b_lens = [2]",
    ),
    "another length": (
        "segment doc = [lens]*  mask m = causal per doc\n",
        "lens = [2, 3], len = 9",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_check_says_of_a_sample_show_says_too(case, tmp_path):
    text, columns = MISTAKES[case]
    text += f"sample tiny({columns})\n"
    (found,) = [d for d in check(text) if d.code in ("W292", "W294")]
    path = tmp_path / "a.dcpm"
    path.write_text(text)
    for command in ("show", "explain", "blocks"):
        done = CliRunner().invoke(dcpm, [command, str(path), "--mask", "m"])
        assert f"{found.message} ({found.hint}); --sample chooses another" in str(done.exception)
    # A good sample in front is drawn, and so is one that the command line gives.
    good = "sample good(doc_lens = [2, 2], parents = [-1, 0])\n" if text.startswith(TREE) else ""
    path.write_text(text.replace("sample tiny", f"{good}sample tiny"))
    given = ["--sample", "doc_lens = [2], parents = [-1]"] if "from" in text else []
    if good:
        assert CliRunner().invoke(dcpm, ["show", str(path), "--mask", "m"]).exit_code == 0
        assert CliRunner().invoke(dcpm, ["show", str(path), "--mask", "m", *given]).exit_code == 0


def test_the_suggested_column_is_a_fix():
    text = "segment doc = branch [doc_lens]*  mask m = paths  sample tiny(doc_lenz = [3])"
    (found,) = check(text)
    (edit,) = found.fix.edits
    mended = text[: edit.start] + edit.text + text[edit.end :]
    assert mended == text.replace("lenz", "lens")
    assert not check(mended)


@pytest.mark.parametrize(
    "text",
    [
        "sample tiny(doc_lenz = [3])",  # for masks of a command line
        "segment doc = branch [doc_lens]*  mask m = paths  sample t(doc_lens = [3], user = 4)",
        "segment doc = branch [doc_lens]*  mask m = paths  sample t(doc_lens = [3], doc_len = 3)",
        "mask m = causal and k < row.sinks  sample t(sinks = 3, len = 4)",
        "segment doc = [lens]*  column w in doc  mask m = causal and q.doc.w == 1 or q == k"
        "  sample t(lens = [2], w = [1])",
    ],
)
def test_columns_that_something_reads_or_that_resemble_nothing_are_passed(text):
    assert "W294" not in [found.code for found in check(text)]


def test_a_made_up_sample_is_called_one(tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_text("segment doc = branch [doc_lens]*  mask m = paths")
    for command in ("show", "explain", "blocks"):
        done = CliRunner().invoke(dcpm, [command, str(path)])
        assert (
            "m: for a made-up sample (doc_lens = [3, 2]); --sample chooses another" in done.stderr
        )
    plain = CliRunner().invoke(dcpm, ["show", "--mask", "q >= k"])
    assert "for a made-up sample (len = 16)" in plain.stderr
    for more in (["--sample", "doc_lens = [1]"],):
        assert "made-up" not in CliRunner().invoke(dcpm, ["show", str(path), *more]).stderr
    path.write_text(path.read_text() + "  sample own(doc_lens = [3, 2])")
    assert "made-up" not in CliRunner().invoke(dcpm, ["show", str(path)]).stderr
