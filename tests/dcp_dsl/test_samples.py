"""`sample` statements as samples, with mistakes, and the samples that claims are tested on."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, Sample, Spec, check, load, sample_from_argument
from dcp_dsl.claims.column_samples import column_kinds, complete_samples
from dcp_dsl.cli import dcpm

PART = "segment part = question[question_len] answer[answer_lens]*\n"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (f"{PART}sample s(question_len = 4, answer_lens = [3, 3, 2])", 12),
        ("segment doc = [lens]* tail[..]\nsample s(lens = [3], len = 9)", 9),
        ("segment a = x[2 * n] y[n // 2]\nsample s(n = 5)", 12),
        ("segment a = (x[ns] y[ms]*)*\nsample s(ns = [1, 2], ms = [[3], []])", 6),
        ("sample s(doc_lens = [3, 1, 4])", 8),
        ("token evict = e\nsample s(e = [3, 1, 2])", 3),
        ("sample s(len = 0)", 0),
        ("segment doc = [lens]*\nsample s(lens = [], other = 3)", 0),
    ],
    ids=["layout", "len", "arithmetic", "nested", "library", "token column", "empty", "no parts"],
)  # fmt: skip
def test_a_declared_sample_has_the_length_that_its_columns_imply(text, length):
    assert Spec.from_text(text).sample("s").length == length


def test_a_declared_sample_keeps_all_its_columns():
    sample = load(Path(__file__).parents[1] / "fixtures/specs/00_paper4.dcpm").sample("tiny")
    assert sample == Sample({"question_len": 4, "answer_lens": [3, 3, 2]}, 12)
    flags = Spec.from_text("sample s(keep = [true, false], all = true, len = 2)").sample("s")
    assert flags.to_json() == '{"all": 1, "keep": [1, 0], "len": 2}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sample tiny(len = 3)", r"no sample `s` \(samples: `tiny`\)"),
        ("sample st(len = 3)", "did you mean `st`"),
        ("", r"no sample `s` \(samples: none\); add one with `sample s\("),
        ("sample s(a = 3)", r"sample `s`: nothing says how many tokens it has; add `len = \.\.\."),
        ("segment p = x[n] y[..]\nsample s(n = 3)", "nothing says how many tokens"),
        (f"{PART}segment doc = [lens]*\nsample s(question_len = 1, answer_lens = [2], lens = [4])",
         "`part` says 3, `doc` says 4"),
        ("segment doc = [lens]*\nsample s(lens = [4], len = 5)", "`doc` says 4, `len` says 5"),
        ("segment doc = [lens]*\nsample s(lens = 4)", "column `lens` to be a list"),
        ("sample s(len = [3])", "expected its length to be an integer"),
        ("sample s(len = 1_000_000M)", "number is larger|a length between 0"),
    ],
)  # fmt: skip
def test_a_sample_that_is_missing_or_does_not_fit_is_explained(text, says):
    with pytest.raises(DatasetError, match=says) as raised:
        Spec.from_text(text, "train.dcpm").sample("s")
    assert str(raised.value).startswith("train.dcpm: ")


# ---- claims --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["tiny", "lens = [3, 4]", '{"lens": [3, 4]}', '{"lens": [3, 4], "len": 7}', "s.json"]
)
def test_a_sample_argument_is_a_name_columns_json_or_a_file(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text('{"lens": [3, 4]}')
    spec = Spec.from_text(
        "segment doc = [lens]*  sample tiny(lens = [3, 4])  sample plain(ids = [3], len = 1)"
    )
    assert sample_from_argument(spec, text) == Sample({"lens": [3, 4]}, 7)
    assert sample_from_argument(spec, "plain", 9) == Sample({"ids": [3]}, 9)
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(DatasetError, match=f"got more than {2**28:_} bytes"):
        sample_from_argument(spec, "big.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"len": 4, "len": 5}', "^--sample: `len` is given twice; leave one of them out$"),
        ('{"len": 4, "a": [1], "a": 1}', "`a` is given twice"),
        ("len = 4) sample b(len = 5", "^--sample: expected columns such as .* and nothing behind"),
        ("len = 4, len = 5", "^--sample: `len` is given twice; leave one of them out$"),
        ("len = ", r"error\[E022\]"),
        ("lens = [3], len = 4", "^--sample: its length is not clear"),
        ("tony", "columns such as 'len = 4096', a JSON object such as"),
        ("x" * 5000, "no such file"),
    ],
)
def test_a_sample_argument_that_is_none_is_wrong_usage(text, says):
    spec = Spec.from_text("segment doc = [lens]*  sample tiny(lens = [3, 4])")
    with pytest.raises(DatasetError, match=says):
        sample_from_argument(spec, text)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ("lens = [300]", "name a shorter sample, or none; `dcpm diff` compares"),
        ("len = 4", "add `lens = ...` to the sample"),
        ("lens = [3], len = 4", "mend the sample so that its layout fills it"),
    ],
)
def test_a_sample_that_a_claim_cannot_be_tested_on_has_its_own_way_out(fields, hint):
    text = f"segment doc = [lens]*\nmask a = causal per doc\nsample s({fields})\ncheck a total on s"
    (found,) = check(text)
    assert found.code == "E117"
    assert found.hint.startswith(hint)


def test_a_column_of_instances_gets_a_value_for_each_instance_of_drawn_ids():
    spec = Spec.from_text("segment w = ids(d)\ncolumn a in w\nmask m = causal and q.w.a >= k.w.a")
    core = spec.mask("m").core
    kinds = column_kinds(core)
    assert set(kinds) == {"a", "d"}
    drawn = list(complete_samples([Sample(length=6)], kinds, core))
    assert drawn
    for sample in drawn:
        assert len(sample.columns["a"]) == 1 + max(sample.columns["d"])
    assert any(len(sample.columns["a"]) > 1 for sample in drawn)


# ---- samples with mistakes -----------------------------------------------------------------------


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
