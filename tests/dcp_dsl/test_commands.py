"""`dcpm check` and `dcpm fmt` as a person runs them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl.cli import dcpm
from dcp_dsl.commands.texts import check, fmt

SPECS = sorted((Path(__file__).parents[1] / "fixtures" / "specs").glob("*.dcpm"))


TESTED = """segment b = y[m]
@keys(b, top_left) mask m = causal and q - k < 2
sample tiny(m = 2, len = 2)
check m implies causal on tiny
"""


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda command, *arguments, **more: runner.invoke(
        command, [*map(str, arguments)], **more
    )


def test_all_specs_pass(run):
    result = run(check, *SPECS)
    assert result.exit_code == 0, result.output
    assert "19 files checked, 0 errors" in result.stderr


def test_findings_are_printed_and_exit_with_one(run, tmp_path):
    bad = tmp_path / "bad.dcpm"
    bad.write_text("mask a = casual\n")
    result = run(check, bad, "--output-format", "concise")
    assert result.exit_code == 1
    assert result.stdout == f"{bad}:1:10: E101 unknown name `casual`\n"
    assert result.stderr == "1 file checked, 1 error, 0 warnings\n"
    bad.write_text(TESTED)
    result = run(check, bad, "--verdicts")
    assert result.stdout.startswith(f"{bad}:4: tested on 1 sample  m implies causal on tiny\n")


def test_json_has_a_schema_and_every_finding(run, tmp_path):
    bad = tmp_path / "bad.dcpm"
    bad.write_text("mask a = casual\n")
    for arguments in (["--json"], ["--output-format", "json"]):
        document = json.loads(run(check, bad, *arguments).stdout)
        counts = document["schema"], document["errors"], document["warnings"]
        assert counts == ("dcp.check/1", 1, 0)
        assert [f["code"] for f in document["findings"]] == ["E101"]
        assert document["findings"][0]["line"] == 1


def test_unreadable_files_exit_with_two_and_the_others_are_still_checked(run, tmp_path):
    binary = tmp_path / "data.bin"
    binary.write_bytes(b"\x93NUMPY\x00\xff\xfe")
    nul = tmp_path / "nul.dcpm"
    nul.write_bytes(b"mask a = causal\x00")
    good = tmp_path / "good.dcpm"
    good.write_text("mask a = causal\n")
    result = run(check, tmp_path / "missing.dcpm", binary, nul, tmp_path, good)
    assert result.exit_code == 2
    assert "no such file" in result.stderr
    assert "expected UTF-8 text" in result.stderr
    assert "NUL bytes" in result.stderr
    assert "got a folder" in result.stderr
    assert "1 file checked, 0 errors, 0 warnings, 4 not readable" in result.stderr


def test_standard_input_is_checked_and_formatted(run):
    assert run(check, "-", input="mask a = causal").exit_code == 0
    result = run(fmt, "-", input="mask a=causal")
    assert (result.stdout, result.exit_code) == ("mask a = causal\n", 0)


def test_fmt_rewrites_once_and_keeps_the_mode(run, tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_text("mask a=causal   # why\n\n\n\nmask b =a")
    path.chmod(0o640)
    assert run(fmt, path).exit_code == 0
    assert path.read_text() == "mask a = causal  # why\n\nmask b = a\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.dcpm"], "no temporary file is left"
    assert run(fmt, path).stderr == "0 of 1 files changed\n"


def test_fmt_check_and_diff_write_nothing(run, tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_text("mask a=causal\n")
    assert run(fmt, "--check", path).exit_code == 1
    result = run(fmt, "--diff", path)
    assert result.exit_code == 1
    assert "-mask a=causal\n+mask a = causal\n" in result.stdout
    assert path.read_text() == "mask a=causal\n"


def test_fmt_leaves_a_broken_file_alone(run, tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_text("mask a=\n")
    result = run(fmt, path)
    assert result.exit_code == 2
    assert f"{path}:1:8" in result.stderr
    assert path.read_text() == "mask a=\n"


def test_fmt_follows_a_link_instead_of_replacing_it(run, tmp_path):
    real = tmp_path / "real.dcpm"
    real.write_text("mask a=causal\n")
    link = tmp_path / "link.dcpm"
    link.symlink_to(real)
    assert run(fmt, link).exit_code == 0
    assert link.is_symlink()
    assert real.read_text() == "mask a = causal\n"


def test_importing_the_commands_loads_nothing_heavy():
    code = (
        "import sys, dcp_dsl.commands.texts\n"
        "print(sorted({'numpy', 'lark', 'pyarrow', 'torch'} & set(sys.modules)))"
    )
    started = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert found.stdout.strip() == "[]"
    assert time.monotonic() - started < 60


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


def test_a_line_end_of_old_ends_a_comment(run, tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_bytes(b"mask a = causal # x\rmask b = casual\r")
    assert f"{path}:2:10: E101" in run(check, path, "--output-format", "concise").stdout


def test_links_that_loop_and_pipes_nobody_writes_to_are_refused(run, tmp_path):
    (tmp_path / "a.dcpm").symlink_to("b.dcpm")
    (tmp_path / "b.dcpm").symlink_to("a.dcpm")
    os.mkfifo(tmp_path / "pipe.dcpm")
    for command in (check, fmt):
        result = run(command, tmp_path / "a.dcpm", tmp_path / "pipe.dcpm")
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


def test_json_of_fmt_is_one_document_even_with_a_diff(run):
    document = json.loads(run(fmt, "--json", "--diff", "-", input="mask a=causal").stdout)
    assert document["diffs"]["-"].endswith("-mask a=causal\n+mask a = causal\n")
    assert json.loads(run(fmt, "--json", "-", input="mask a=causal").stdout)["changed"] == ["-"]


def test_the_keys_of_both_documents_are_the_documented_ones(run):
    readme = (Path(__file__).parents[2] / "dcp_dsl" / "README.md").read_text()
    document = json.loads(run(check, "--json", "-", input="mask a = casual").stdout)
    keys = {*document, *document["findings"][0]}
    keys |= {*json.loads(run(fmt, "--json", "--diff", "-", input="").stdout)}
    assert [key for key in sorted(keys) if f"`{key}`" not in readme] == []
    for schema in ("dcp.check/1", "dcp.fmt/1"):
        assert schema in readme


@pytest.mark.parametrize("command", ["show", "blocks", "explain", "export", "plan", "diff", "bad"])
def test_a_mask_asked_for_that_is_none_is_wrong_usage_everywhere(run, tmp_path, command):
    path = tmp_path / "a.dcpm"
    path.write_text("mask a = " + ("nope" if command == "bad" else "causal") + "\n")
    arguments = {
        "diff": ["nope", "causal"],
        "plan": [path, "--mask", "nope", "--sample", '{"len": 9}'],
        "export": [
            path,
            "--mask",
            "nope",
            "--format",
            "dense",
            "--sample",
            '{"len": 9}',
            "--out",
            tmp_path / "x",
        ],
        "bad": [path],
    }.get(command, [path, "--mask", "nope"])
    result = run(dcpm, "show" if command == "bad" else command, *arguments)
    assert "unknown name `nope`" in str(result.exception), result.output
    # An error in the text is a finding, a name that the text does not have is none.
    assert result.exception.exit_code == (1 if command == "bad" else 2)
