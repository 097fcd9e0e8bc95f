"""`dcpm check` and `dcpm fmt` as a person runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl.cli import dcpm
from dcp_dsl.commands.texts import check, fmt


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


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("show a.dcpm --mask nope", 2),
        ("blocks a.dcpm --mask nope", 2),
        ("explain a.dcpm --mask nope", 2),
        ("export a.dcpm --mask nope --format dense --len 9 --out x.npz", 2),
        ("plan a.dcpm --mask nope --sample len=9", 2),
        ("diff nope causal", 2),
        ("show bad.dcpm", 1),  # an error in the text is a finding
    ],
)
def test_a_mask_asked_for_that_is_none_is_wrong_usage(tmp_path, monkeypatch, run, line, status):
    monkeypatch.chdir(tmp_path)
    Path("a.dcpm").write_text("mask a = causal")
    Path("bad.dcpm").write_text("mask a = nope")
    result = run(dcpm, *line.split())
    assert "unknown name `nope`" in str(result.exception), result.output
    assert result.exception.exit_code == status
