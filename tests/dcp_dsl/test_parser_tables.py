"""The tables of the grammar that are kept for the next process."""

import pickle
import subprocess
import sys

import lark
import pytest

from dcp_dsl.syntax import grammar
from dcp_dsl.syntax.tokens import split_statements
from dcp_grammar import GRAMMAR, MASKS

TEXTS = [path.read_text(encoding="utf-8") for path in MASKS.iterdir() if path.suffix == ".dcpm"]


class Intruder:
    """A pickle that calls something."""

    def __reduce__(self):
        return sys.exit, ("the pickle ran",)


class BuildError(Exception):
    """The tables were built: none were read."""


def built(tables, text):
    """Return the statements of a text, read by some tables."""
    return [tables.build(group, "statement") for group in split_statements(text)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Tables that one process kept, and its two readers."""
    path = tmp_path_factory.mktemp("cache") / "tables.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "_TABLES", path)
        patch.setattr(sys, "dont_write_bytecode", False)
        patch.setattr(grammar, "_build", grammar._build.__wrapped__)
        readers = grammar.tables.__wrapped__(), grammar.lark_parser.__wrapped__()
    return path.read_bytes(), readers


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load both readers from tables, as a new process does that cannot build them."""

    def build(*_, **__):
        raise BuildError

    def load(tables):
        path.write_bytes(tables)
        return grammar.tables.__wrapped__(), grammar.lark_parser.__wrapped__()

    path = tmp_path / "tables.json"
    monkeypatch.setattr(grammar, "_TABLES", path)
    monkeypatch.setattr(grammar, "_build", build)
    return load


def test_kept_tables_parse_as_built_ones(kept, load):
    (tables, _), (loaded, parser) = kept[1], load(kept[0])
    fresh = lark.Lark(
        GRAMMAR.read_text(), parser="lalr", lexer="basic", start=["start", "statement"]
    )
    assert len(TEXTS) > 5
    for text in TEXTS:
        assert built(loaded, text) == built(tables, text)
        assert (
            parser.parse(text, start="start").pretty() == fresh.parse(text, start="start").pretty()
        )
    bad = "mask a = causal and or q"
    with pytest.raises(grammar.NoParse):
        built(loaded, bad)
    with pytest.raises(lark.UnexpectedToken):
        parser.parse(bad, start="statement")


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


def test_what_another_lark_kept_is_not_given_to_this_one(kept, load, monkeypatch):
    monkeypatch.setattr(lark, "__version__", "1.0.0")
    with pytest.raises(BuildError):
        load(kept[0])


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    monkeypatch.setattr(grammar, "_TABLES", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(grammar, "_build", grammar._build.__wrapped__)
    assert built(grammar.tables.__wrapped__(), "mask a = causal")


def test_a_text_without_errors_is_read_without_lark(kept, tmp_path):
    path = tmp_path / "tables.json"
    path.write_bytes(kept[0])
    code = (
        "import sys; from pathlib import Path; from dcp_dsl.syntax import grammar, parser\n"
        "grammar._TABLES = Path(sys.argv[1])\n"
        "parser.parse('mask a = causal'); print('lark' in sys.modules)"
    )
    run = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "False\n"
