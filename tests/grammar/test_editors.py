"""Colouring is made from one table of words, and that table is the grammar's."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pygments import lexers
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Text, Token

from dcp_dsl.checks.findings import PARAM_KINDS
from dcp_dsl.checks.functions import NUMBER_FUNCTIONS
from dcp_dsl.syntax.tokens import scan
from dcp_grammar import GRAMMAR, MASKS, WORDS, words_of
from dcp_grammar.pygments_lexer import DcpmLexer
from dcp_grammar.textmate import textmate_grammar

ROOT = Path(__file__).parents[2]
VSCODE = ROOT / "grammar" / "editors" / "vscode"
SPECS = sorted((ROOT / "tests" / "fixtures" / "specs").glob("*.dcpm"))
LIBRARY = sorted(Path(str(MASKS)).glob("*.dcpm"))


def test_the_words_are_exactly_the_keywords_of_the_grammar():
    text = re.sub(r"(?<!\")//.*", "", GRAMMAR.read_text())
    quoted = set(re.findall(r'"([a-z]+)"', text))
    assert quoted == {*words_of("statement", "clause", "operator", "constant")}


def test_every_word_stands_in_the_table_once_with_its_meaning():
    texts = [word.text for word in WORDS]
    assert len(texts) == len(set(texts))
    for word in WORDS:
        assert word.text in word.form
        assert word.meaning


def test_functions_and_types_are_those_of_the_checker():
    assert set(words_of("function")) == {*NUMBER_FUNCTIONS, "first", "last", "same", "paths"}
    assert {*words_of("type"), "mask"} == PARAM_KINDS.keys()


def test_the_module_prints_the_textmate_grammar_that_make_packs_into_the_extension():
    command = [sys.executable, "-m", "dcp_grammar.textmate"]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert json.loads(printed) == textmate_grammar()
    (target,) = re.findall(r"-m dcp_grammar.textmate > (\S+)", (ROOT / "Makefile").read_text())
    assert (ROOT / target).relative_to(VSCODE).as_posix() == "syntaxes/dcpm.tmLanguage.json"


def textmate_scopes(line):
    """Colour one line as an editor does: at every place the first pattern that matches."""
    rules = [(re.compile(r["match"]), r) for r in textmate_grammar()["patterns"]]
    at, scopes = 0, []
    while at < len(line):
        found = [(m, r) for p, r in rules if (m := p.search(line, at)) and m.end() > m.start()]
        if not found:
            break
        match, rule = min(found, key=lambda pair: pair[0].start())
        if "name" in rule:
            scopes.append((match.group(), rule["name"]))
        else:
            scopes += [(match[int(g)], c["name"]) for g, c in rule["captures"].items()]
        at = match.end()
    return scopes


def test_textmate_colours_what_it_should():
    line = "@ahead(b) mask a(m: mask, w: tokens = 4k) = m and q.doc.start <= 12 or same(b) # why"
    groups = {}
    for text, scope in textmate_scopes(line):
        groups.setdefault(scope.removesuffix(".dcpm"), []).append(text)
    assert {scope: " ".join(texts) for scope, texts in groups.items()} == {
        "storage.modifier": "@ahead", "punctuation": "( ) ( , ) ( )",
        "variable.other": "b m w m b", "keyword.control": "mask", "entity.name.function": "a",
        "punctuation.separator": ": :", "support.type": "mask tokens",
        "keyword.operator": "= = <=", "constant.numeric": "4k 12",
        "keyword.operator.word": "and or", "variable.language": "q",
        "punctuation.accessor": ". .", "variable.other.property": "doc start",
        "support.function": "same", "comment.line.number-sign": "# why",
    }  # fmt: skip


@pytest.mark.parametrize("path", [*SPECS, *LIBRARY], ids=lambda p: p.stem)
def test_the_lexer_sees_the_tokens_the_compiler_sees(path):
    text = path.read_text()
    lexed = list(DcpmLexer().get_tokens(text))
    assert "".join(value for _, value in lexed).rstrip("\n") == text.rstrip("\n")
    assert not [value for kind, value in lexed if kind in Error]
    seen = [(k, v) for k, v in lexed if v.strip() and k not in Text.Whitespace]
    kinds = {
        "comment": [Comment], "number": [Number], "string": [Token.Literal.String],
        "symbol": [Operator, Token.Punctuation], "name": [Name, Keyword, Operator.Word],
    }  # fmt: skip
    given = [t for t in scan(text) if t.text != "@"]
    assert [t.text for t in given] == [v.removeprefix("@") for k, v in seen]
    for token, (kind, _) in zip(given, seen, strict=True):
        assert any(kind in each for each in kinds[token.kind]), (token, kind)


def test_pygments_finds_the_lexer_by_its_alias():
    assert lexers.get_lexer_by_name("dcpm").name == "dcpm"
    assert lexers.get_lexer_for_filename("train.dcpm").name == "dcpm"


def test_the_extension_names_files_that_are_there():
    package = json.loads((VSCODE / "package.json").read_text())
    (language,) = package["contributes"]["languages"]
    (grammar,) = package["contributes"]["grammars"]
    assert grammar["scopeName"] == textmate_grammar()["scopeName"]
    assert package["main"] == "./dist/extension.js"  # `make vsix` bundles it
    assert package["scripts"]["bundle"].startswith("esbuild extension.js --bundle")
    assert grammar["path"] == "./syntaxes/dcpm.tmLanguage.json"
    for name in ("extension.js", language["configuration"], "README.md"):
        assert (VSCODE / name).is_file(), name
    command = package["contributes"]["configuration"]["properties"]["dcpm.command"]["default"]
    assert command == ["dcpm", "lsp"]


def test_what_helix_is_told_starts_the_server():
    page = (ROOT / "docs" / "editors.md").read_text("utf-8")
    told = tomllib.loads(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    (language,) = told["language"]
    assert language["file-types"] == ["dcpm"]
    servers = [told["language-server"][name] for name in language["language-servers"]]
    assert servers == [{"command": "dcpm", "args": ["lsp"]}]
