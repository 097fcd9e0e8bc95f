"""Files that appear whole or not at all, and what is said where they cannot be written."""

import os
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl import DCPError, ExchangeError
from dcp_dsl.cli import dcpm
from dcp_dsl.files import check_writable, make_folder, replacing


def write(path, text="new"):
    with replacing(path, ExchangeError) as draft:
        draft.write_text(text)


def test_a_file_appears_whole_or_stays_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")

    def fail():
        with replacing(path, ExchangeError) as draft:
            draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (os.listdir(tmp_path), path.read_text()) == (["a.txt"], "old")


def test_a_link_keeps_its_target_and_a_file_its_permissions(tmp_path):
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write(link)
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_that_the_person_wants(tmp_path):
    old = os.umask(0o027)
    try:
        write(tmp_path / "a.txt")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_a_name_of_the_greatest_length_is_written(tmp_path):
    write(tmp_path / ("n" * 255))
    assert os.listdir(tmp_path) == ["n" * 255]


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("no/a.txt", r"No such file or directory; make the folder .*/no first, or choose another$"),
        ("file/a.txt", r"Not a directory; choose a folder that exists$"),
        ("folder", r"it is a folder; give the name of a file in it$"),
        ("pipe", r"it is there already and no regular file; choose another name$"),
        ("n" * 256, r"File name too long; choose a shorter name$"),
        ("/", r"it is a folder; give the name of a file in it$"),
        ("", r"^'': cannot be written: it is a folder; give the name of a file in it$"),
    ],
)
@pytest.mark.parametrize("act", [write, lambda path: check_writable(path, ExchangeError)])
def test_what_cannot_be_written_is_refused_with_the_way_out(
    tmp_path, monkeypatch, name, way_out, act
):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(ExchangeError, match=way_out) as caught:
        act(name)
    assert str(caught.value).startswith(f"{name or repr(name)}: cannot be written: ")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize(
    ("number", "way_out"),
    [(13, "choose a folder that you may write to"), (30, "choose a folder that you may write to"),
     (28, "make room, or choose a folder on another disk")],
)  # fmt: skip
def test_refusals_of_the_system_have_a_way_out(tmp_path, monkeypatch, number, way_out):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(ExchangeError, match=re.escape(f"{os.strerror(number)}; {way_out}")):
        write(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []


def test_a_folder_is_made_with_those_above_it_or_refused(tmp_path):
    make_folder(tmp_path / "a" / "b", DCPError)
    make_folder(tmp_path / "a" / "b", DCPError)
    assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(DCPError, match=r"cannot be written: .*; choose a"):
            make_folder(path, DCPError)


@pytest.mark.parametrize(
    "command",
    [
        "show --mask causal --len 4 --svg",
        "show --mask causal --len 4 --png",
        "export --mask causal --len 4 --format dense --out",
        "import mask.npz --svg",
    ],
)
def test_commands_say_the_way_out_where_they_cannot_write(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    made = "export --mask causal --len 4 --format dense --out mask.npz"
    assert CliRunner().invoke(dcpm, made.split()).exit_code == 0
    for target, way_out in (("no/x.npz", "/no first, or choose"), ("/", "the name of a file")):
        result = CliRunner().invoke(dcpm, [*command.split(), target])
        if target == "/" and "export" in command:
            way_out = "expected a name that ends in"
        assert isinstance(result.exception, DCPError)
        assert way_out in str(result.exception)


def test_a_drawing_goes_into_a_pipe():
    reader, writer = os.pipe()
    command = ["show", "--mask", "causal", "--len", "4", "--svg", f"/dev/fd/{writer}"]
    assert CliRunner().invoke(dcpm, command).exit_code == 0
    os.close(writer)
    with os.fdopen(reader) as drawn:
        assert drawn.read().startswith("<svg")
