"""The tables of the parser that are kept for the next process."""

import pickle
import sys

import lark
import pytest

from dcp_dsl.syntax import parser
from dcp_grammar import MASKS

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
