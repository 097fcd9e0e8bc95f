"""Files that the language writes: whole or not at all, and the tables of the parser."""

import os
import pickle
import re
import stat
import sys
from pathlib import Path

import lark
import pytest
from click.testing import CliRunner

from dcp_dsl import DCPError, ExchangeError
from dcp_dsl.cli import dcpm
from dcp_dsl.files import check_writable, make_folder, replacing
from dcp_dsl.syntax import parser
from dcp_grammar import MASKS


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


# ---- the tables of the parser that are kept for the next process ---------------------------------


TEXTS = [path.read_text(encoding="utf-8") for path in MASKS.iterdir() if path.suffix == ".dcpm"]


class Intruder:
    """A pickle that calls something."""

    def __reduce__(self):
        return sys.exit, ("the pickle ran",)


class BuildError(Exception):
    """The tables were built: none were read."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Tables that one process kept, and its parser."""
    path = tmp_path_factory.mktemp("cache") / "tables.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "_TABLES", path)
        patch.setattr(sys, "dont_write_bytecode", False)
        built = parser._lark.__wrapped__()
    return path.read_bytes(), built


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a parser from tables, as a new process does that cannot build them."""

    def build(*_, **__):
        raise BuildError

    def load(tables):
        path.write_bytes(tables)
        return parser._lark.__wrapped__()

    path = tmp_path / "tables.json"
    monkeypatch.setattr(parser, "_TABLES", path)
    monkeypatch.setattr(lark.Lark, "__init__", build)
    return load


def test_kept_tables_parse_as_built_ones(kept, load):
    tables, built = kept
    loaded = load(tables)
    assert len(TEXTS) > 5
    for text in TEXTS:
        assert loaded.parse(text, start="start") == built.parse(text, start="start")
    errors = []
    for one in (built, loaded):
        with pytest.raises(lark.UnexpectedToken) as found:
            one.parse("mask a = causal and or q", start="statement")
        errors.append((parser._stop(found.value), found.value.expected))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "harm",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole.replace(b'"LALR"', b'"lalr"', 1).replace(b"mask", b"mast", 1),
        lambda whole: b"\n" + whole.partition(b"\n")[2],
        lambda whole: b'{"data": {}, "memo": {}}',
        lambda whole: pickle.dumps(Intruder()),
        lambda whole: bytes(range(256)),
    ],
)
def test_what_is_no_table_of_ours_is_passed_over(kept, load, harm):
    harmed = harm(kept[0])
    assert harmed != kept[0]
    with pytest.raises(BuildError):
        load(harmed)


def test_tables_of_another_lark_are_passed_over(kept, load, monkeypatch):
    monkeypatch.setattr(lark, "__version__", "1.0.0")
    with pytest.raises(BuildError):
        load(kept[0])


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parser, "_TABLES", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert parser._lark.__wrapped__().parse("mask a = causal", start="statement")
