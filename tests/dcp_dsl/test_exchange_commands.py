"""`dcpm export` and `dcpm import`, as typed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl.cli import dcpm
from dcp_dsl.commands.options import FORMATS, READABLE
from dcp_dsl.errors import ExchangeError
from dcp_dsl.interchange import export, formats

SPEC = """
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
mask wide(w: tokens = 4) = sliding(w)
sample tiny(question_len = 4, answer_lens = [3, 3, 2])
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "train.dcpm"
    path.write_text(SPEC)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(dcpm, [str(a) for a in arguments])


def test_names_of_the_command_line_are_those_of_the_formats():
    assert FORMATS == export.FORMATS == tuple(formats.WRITERS)
    assert tuple(formats.READERS) == READABLE


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_every_format_is_written_and_read_back_if_it_can_be(spec, tmp_path, name, suffix):
    out = tmp_path / f"mask{suffix}"
    chosen = ("--mask", "shared", "--sample", "tiny")
    done = run("export", spec, *chosen, "--format", name, "--out", out, "--block", "4x8", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["schema"], document["tokens"], document["format"]) == (
        "dcp.exported/1", 12, name,
    )  # fmt: skip
    if name in READABLE:
        done = run("import", out, "--equals", spec, *chosen, "--json")
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert (document["schema"], document["equal"]) == ("dcp.import/1", True)
        assert (document["file"], document["format"]) == (str(out), name)
        assert document["pairs"] == 10 + 18 + 18 + 11


def test_people_are_told_what_was_written(spec, tmp_path):
    out = tmp_path / "mask.npz"
    done = run(
        "export", spec, "--mask", "shared", "--sample", "tiny", "--format", "dense", "--out", out
    )
    assert "dense: shared on 12 tokens; " in done.stdout
    assert done.stderr == f"wrote {out}\n"


@pytest.mark.parametrize("name", ["flex", "flash4"])
def test_source_is_written_with_its_tables_beside_it(spec, tmp_path, name):
    out = tmp_path / "mask.py"
    done = run(
        "export", spec, "--mask", "shared", "--sample", "tiny", "--format", name, "--out", out
    )
    assert done.exit_code == 0, done.output
    compile(out.read_text(), str(out), "exec")
    assert (tmp_path / "mask.npz").is_file()


def test_a_different_mask_is_a_finding_with_its_first_pair(spec, tmp_path):
    out = tmp_path / "mask.npz"
    run("export", spec, "--mask", "wide(3)", "--len", "8", "--format", "magi", "--out", out)
    done = run("import", out, "--equals", spec, "--mask", "wide(4)", "--len", "8")
    assert done.exit_code == 1
    assert "0 pairs only in the file, 5 only in wide" in done.stdout
    assert "lets query 3 see key 0" in done.stdout


def test_an_imported_mask_is_drawn(tmp_path):
    np.save(tmp_path / "mask.npy", np.tril(np.ones((6, 6), bool)))
    done = run("import", tmp_path / "mask.npy", "--format", "dense", "--svg", tmp_path / "mask.svg")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "mask.svg").read_text().startswith("<svg")
    done = run("import", tmp_path / "mask.npy", "--format", "dense")
    assert "6 tokens, 21 of 36 pairs" in done.stdout


def test_a_mask_that_does_not_fit_is_refused_with_its_code(tmp_path):
    call = "causal and (k.b % 2 == 0 or q - k < 2) where b = every 2"
    path = tmp_path / "bad.dcpm"
    path.write_text(f"mask bad = {call}")
    out = tmp_path / "mask.npz"
    done = run("export", path, "--mask", "bad", "--len", "12", "--format", "dcp", "--out", out)
    assert isinstance(done.exception, ExchangeError)
    assert done.exception.code == "X302"
    assert not out.exists()


@pytest.mark.parametrize("block", ["x", "12x", "4x4x4", "0", "-1"])
def test_a_wrong_block_is_refused(spec, tmp_path, block):
    done = run(
        "export", spec, "--mask", "wide", "--len", "8", "--format", "flex",
        "--out", tmp_path / "a.npz", f"--block={block}",
    )  # fmt: skip
    assert done.exit_code != 0
    assert not isinstance(done.exception, (ValueError, TypeError))


@pytest.mark.parametrize("content", [b"mask a = causal", b"\x80\x04pickled", b""])
def test_a_file_without_arrays_is_refused_in_words_of_this_project(tmp_path, content):
    path = tmp_path / "mask.npz"
    path.write_bytes(content)
    refused = run("import", path, "--format", "dense").exception
    assert isinstance(refused, ExchangeError)
    assert "expected arrays of numpy" in str(refused)
    assert "pickle" not in str(refused).replace(str(path), "")


def test_a_folder_is_no_mask(tmp_path):
    refused = run("import", tmp_path).exception
    assert "got a folder" in str(refused)


def test_a_mask_is_compared_on_as_many_tokens_as_the_file_has(tmp_path):
    out = tmp_path / "mask.npz"
    assert (
        run("export", "--mask", "causal", "--len", 19, "--format", "magi", "--out", out).exit_code
        == 0
    )
    assert "equal: the same pairs as causal" in run("import", out, "--mask", "causal").stdout
    refused = run("import", out, "--mask", "causal", "--len", 20).exception
    assert "got 19 and 20; compare on a sample of 19" in str(refused)
