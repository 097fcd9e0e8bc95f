"""Parse a text to its syntax tree, collecting every syntax error in one pass.

Each statement is parsed on its own (`tokens.split_statements` finds where they begin), so an error
in one never hides the next. This is the only module that knows Lark.
"""

import hashlib
import json
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

from dcp_dsl.errors import DCPError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program, Span
from dcp_dsl.syntax.ast_builder import BuildError, build
from dcp_dsl.syntax.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    SpecError,
    did_you_mean,
    make_diagnostic,
    replace_span,
)
from dcp_dsl.syntax.habits import syntax_hint
from dcp_dsl.syntax.mistakes import (
    MESSAGES,
    MISTAKES,
    fail_foreign_syntax,
    fail_unbalanced,
    spaced_name,
)
from dcp_dsl.syntax.tokens import (
    KEYWORDS,
    RESERVED,
    STATEMENT_KEYWORDS,
    RawToken,
    scan,
    split_at_misspelt,
    split_statements,
)
from dcp_dsl.syntax.trees import moved
from dcp_grammar import GRAMMAR

MAX_CHARACTERS = 2**16
LANGUAGE_VERSION = 1

_TABLES = Path(str(GRAMMAR)).parent / "__pycache__" / "dcpm.tables.json"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The statements of a text that parse, and a diagnostic for each of the others.

    Names that these would have defined (`lost_names`) are not unknown.
    """

    program: Program
    diagnostics: tuple[Diagnostic, ...]
    lost_names: frozenset[str]


def parse(text: str, name: str = "<text>") -> Program:
    """Turn a .dcpm text of at most `MAX_CHARACTERS` characters into a syntax tree; O(length).

    Names and types are not looked at; `check` does that. SpecError has a diagnostic for each
    statement that does not parse.
    """
    parsed = parse_all(text, name)
    if parsed.diagnostics:
        raise SpecError(parsed.diagnostics)
    return parsed.program


def parse_all(
    text: str, name: str = "<text>", known: dict[str, ast.Statement] | None = None
) -> Parsed:
    """Parse every statement that can be parsed; never raises for a bad text.

    `known` are statements of an earlier version by their text, which are moved instead of parsed;
    afterwards it holds those of this version.
    """
    if len(text) > MAX_CHARACTERS:
        message = f"this file has {len(text):_} characters; at most {MAX_CHARACTERS:_} are read"
        hint = "a spec describes masks; lengths of samples belong in the data set"
        diagnostic = make_diagnostic("E016", message, text[:200], Span(0, 1), name=name, hint=hint)
        return Parsed(Program((), text, name), (diagnostic,), frozenset())
    statements: list[ast.Statement] = []
    errors: list[Diagnostic] = []
    lost: set[str] = set()
    # A line such as `maks b = full` would otherwise be reported as part of the statement before.
    groups = split_at_misspelt(split_statements(text), text)
    was_cut = False
    fresh: dict[str, ast.Statement] = {}
    for index, group in enumerate(groups):
        try:
            statements.append(_parse_or_move(text, group, index, known, fresh))
        except BuildError as error:
            follower = groups[index + 1][0] if index + 1 < len(groups) else None
            cut = _cut_by_keyword(error, text, group, follower)
            # A statement cut in two by a misplaced keyword is one mistake, not two.
            if not was_cut:
                errors.append(_diagnose(cut or error, text, name))
            lost.update(_defined_names(group))
            was_cut = cut is not None
        else:
            was_cut = False
        if len(errors) >= MAX_FINDINGS:
            break
    # In place: the caller keeps the mapping from one version of the text to the next.
    if known is not None:
        known.clear()
        known.update(fresh)
    return Parsed(Program(tuple(statements), text, name), tuple(errors), frozenset(lost))


def _parse_or_move(
    text: str,
    group: list[RawToken],
    index: int,
    known: dict[str, ast.Statement] | None,
    fresh: dict[str, ast.Statement],
) -> ast.Statement:
    """Parse one statement, or move it where it was parsed before; `fresh` remembers it."""
    if known is None or group[0].text == "dcpm":  # `dcpm` may only come first
        return _parse_group(text, group, index)
    start = group[0].span.start
    source = text[start : group[-1].span.end]
    before = known.get(source)
    if before is None:
        statement = _parse_group(text, group, index)
    else:
        statement = moved(before, start - before.span.start)
    fresh[source] = statement
    return statement


def parse_expression(text: str, name: str = "<expression>") -> ast.Expr:
    """Parse a single expression, such as the call of a mask."""
    if len(text) > MAX_CHARACTERS:
        message = "this expression is too long"
        raise SpecError((make_diagnostic("E016", message, text[:200], Span(0, 1), name=name),))
    tokens = [token for token in scan(text) if token.kind != "comment"]
    try:
        return build(_run(text, tokens, "expression"), 0)  # type: ignore[no-any-return]  # an `Expr`
    except BuildError as error:
        raise SpecError((_diagnose(error, text, name),)) from None


def _diagnose(error: BuildError, text: str, name: str) -> Diagnostic:
    fix = None if error.fix is None else replace_span(error.span, error.fix, text)
    return make_diagnostic(
        error.code, error.message, text, error.span, name=name, hint=error.hint, fix=fix
    )


def _cut_by_keyword(
    error: BuildError, text: str, group: list[RawToken], follower: RawToken | None
) -> BuildError | None:
    """Return the better error where a keyword, used as a name, cut a statement short."""
    # `mask sample = full`: the statement ends too early, on the line where the next one begins.
    end = group[-1].span.end
    if (
        group[0].text == "@"  # only a mask may follow: the name is not the mistake
        or follower is None
        or "\n" in text[end : follower.span.start]
    ):
        return None
    quoted = ""
    try:
        _lark().parse(text[group[0].span.start : end], start="statement")
    except lark.UnexpectedInput as stop:
        quoted = _in_quotes(follower.text, group, _expectations(stop))
    # Where a column may stand, a bracket is open only since the keyword cut the statement.
    if error.span.start < end and not (error.code == "E006" and quoted):
        return None
    return BuildError(
        "E024", f"`{follower.text}` begins a statement and cannot be a name", follower.span,
        "decorators stand in front of `mask`: `@keys(source) mask cross = ...`"
        if follower.text == "@" else f"choose another name{quoted}",
    )  # fmt: skip


def _parse_group(text: str, group: list[RawToken], index: int) -> ast.Statement:
    """Parse one statement; its `index` tells whether `dcpm 1` comes first, as it must."""
    first = group[0]
    if first.text not in STATEMENT_KEYWORDS and first.text != "@":
        _fail_unknown_statement(first)
    is_version = first.text == "dcpm"
    tree = _run(text, group, "version" if is_version else "statement")
    statement: ast.Statement = build(tree, first.span.start)
    if isinstance(statement, ast.Version):
        if index > 0:
            raise BuildError(
                "E019", "`dcpm` names the version and comes first", statement.span,
                "move it to the top of the file",
            )  # fmt: skip
        if statement.number != LANGUAGE_VERSION:
            raise BuildError(
                "E019", f"version {statement.number} of the language is not known", statement.span,
                f"this compiler reads `dcpm {LANGUAGE_VERSION}`",
            )  # fmt: skip
    return statement


def _run(text: str, tokens: list[RawToken], start: str) -> Any:  # Any: Lark's tree or token
    if not tokens:
        raise BuildError("E005", MESSAGES["E005"].message, Span(0, 0), MESSAGES["E005"].hint)
    offset, end = tokens[0].span.start, tokens[-1].span.end
    try:
        return _lark().parse(text[offset:end], start=start)
    except lark.UnexpectedInput as error:
        _explain(error, text, tokens)


@cache
def _lark() -> lark.Lark:
    """Build the parser once a process.

    Its tables, which take 0.2 s, are kept beside the compiled modules of the grammar's package, as
    JSON: Lark's own cache is a pickle, and reading a pickle can run any code. The file is used only
    if its first line fits this grammar, this version of Lark and the rest of the file.
    """
    grammar = GRAMMAR.read_text(encoding="utf-8")
    with suppress(OSError, UnicodeDecodeError):
        stamp, _, tables = _TABLES.read_text(encoding="utf-8").partition("\n")
        if stamp == _stamp(grammar, tables):
            # JSON keeps the numbers of states and terminals as texts.
            kept = json.loads(
                tables, object_hook=lambda t: {int(k) if k.isdigit() else k: t[k] for k in t}
            )
            return lark.Lark._load_from_dict(**kept)  # type: ignore[no-untyped-call, no-any-return]
    built = lark.Lark(
        grammar,
        parser="lalr",
        lexer="basic",  # keywords are reserved everywhere, so `a and or b` fails at `or`
        start=["start", "statement", "version", "expression"],
        propagate_positions=True,
        maybe_placeholders=True,
    )
    if not sys.dont_write_bytecode:
        _keep(built, grammar)
    return built


def _keep(parser: lark.Lark, grammar: str) -> None:
    """Write tables for `_lark`, where the folder can be written."""
    from dcp_dsl.files import replacing

    data, memo = parser.memo_serialize([TerminalDef, Rule])
    tables = json.dumps({"data": data, "memo": memo}, separators=(",", ":"))
    with suppress(DCPError), replacing(_TABLES, DCPError) as draft:
        draft.write_text(f"{_stamp(grammar, tables)}\n{tables}", encoding="utf-8")


def _stamp(grammar: str, tables: str) -> str:
    return hashlib.sha256(f"{lark.__version__}\0{grammar}\0{tables}".encode()).hexdigest()


def _explain(error: lark.UnexpectedInput, text: str, tokens: list[RawToken]) -> NoReturn:
    """Raise the most helpful message for an error of the parser."""
    place = _place(error, tokens)
    at = next((i for i, t in enumerate(tokens) if t.span == place.span), len(tokens))
    # The most specific messages come first: the table of examples at the end only knows in which
    # state the parser stopped.
    fail_foreign_syntax(at, tokens, text)
    _fail_foreign_operator(place, text)
    expected = _expectations(error)
    quoted = _in_quotes(place.text, tokens, expected)
    _fail_unknown_character(place, text, quoted)
    fail_unbalanced(tokens)
    if at and tokens[at - 1].text == "NOT":  # the name was read before the parser stopped
        _fail_foreign_operator(tokens[at - 1], text)
    # A misspelt keyword behind a statement that could end there: `causal` / `maks b = full`.
    is_first_on_line = "\n" in text[tokens[at - 1].span.end : place.span.start] if at else True
    if place.kind == "name" and is_first_on_line and at + 1 < len(tokens):
        hint = did_you_mean(place.text, STATEMENT_KEYWORDS)
        if hint and tokens[at + 1].kind in ("name", "string") and place.text not in KEYWORDS:
            _fail_unknown_statement(place)
    code = _lookup(*_stop(error))
    # Not all that fails where `=` does is a `=`.
    if code == "E004" and place.text != "=":
        code = None
    reserved = ""
    if place.kind == "name" and place.text in RESERVED and "NAME" in expected:
        reserved = f"`{place.text}` is a word of the language and cannot be a name here{quoted}"
    spaced = syntax_hint(at, tokens, text) or spaced_name(at, tokens, text)
    if code is None:
        found = f"`{place.text}`" if place.text else "the end of the statement"
        hint = spaced or reserved or _expected(expected, tokens[:at])
        raise BuildError("E002", f"{found} does not fit here", place.span, hint)
    mistake = MESSAGES[code]
    compares = tokens[0].text in ("mask", "check", "stack", "for", "@")  # others name values
    fix = "==" if code == "E004" and compares else None
    if code == "E004" and not compares:
        hint = spaced or _expected(expected, tokens[:at])
        raise BuildError("E002", "`=` does not fit here", place.span, hint)
    raise BuildError(code, mistake.message, place.span, spaced or reserved or mistake.hint, fix)


def _expectations(error: lark.UnexpectedInput) -> set[str]:
    """Return the terminals that would have fitted where the parser stopped."""
    return set(getattr(error, "expected", None) or getattr(error, "allowed", None) or ())


def _in_quotes(word: str, tokens: list[RawToken], expected: set[str]) -> str:
    """Return how a column of this name is written, where the parser stopped before a column."""
    # In a mask a bare name is no column; in a layout, and as an argument behind `use`, it is.
    is_column = "TRUE" not in expected or tokens[0].text in ("segment", "for")
    fits = is_column and {"STRING", "NAME"} <= expected
    return f'; a column of this name is written `"{word}"`' if fits else ""


def _place(error: lark.UnexpectedInput, tokens: list[RawToken]) -> RawToken:
    """Return the token the parser stopped at; at the end, an empty one behind the last."""
    end = tokens[-1].span.end
    behind = RawToken("symbol", "", Span(end, end + 1))
    if isinstance(error, lark.UnexpectedToken) and error.token.type == "$END":
        return behind
    position = (error.pos_in_stream or 0) + tokens[0].span.start
    return next((t for t in tokens if t.span.start <= position < t.span.end), behind)


_FOREIGN = {
    "&": "and", "|": "or", "~": "not", "!": "not",
    **{word.upper(): word for word in ("and", "or", "not", "minus", "per", "in")},
}  # fmt: skip
_WAYS_OUT = {
    "/": "write `//`; division rounds down",
    ";": "statements and rules follow one another without it",
    "^": "write `a minus b` for the pairs that only a has, or `(a minus b) or (b minus a)` for "
    "those that one of the two has; numbers have no powers",
    "≤": "write `<=`", "≥": "write `>=`", "≠": "write `!=`", "'": 'texts stand between `"`',
}  # fmt: skip


def _fail_foreign_operator(place: RawToken, text: str) -> None:
    """Raise for `&`, `||`, `!`, `AND`: operators that are words here, in small letters."""
    if place.text not in _FOREIGN:
        return
    word, span = _FOREIGN[place.text], place.span
    if text[span.end : span.end + 1] == place.text:  # `&&`, of which each half is a token
        span = Span(span.start, span.end + 1)
    before, behind = text[span.start - 1 : span.start], text[span.end : span.end + 1]
    # Words need spaces: `a&b` becomes `a and b`.
    fix = f"{'' if before.isspace() else ' '}{word}{'' if behind.isspace() else ' '}"
    raise BuildError(
        "E003", f"`{span.text(text)}` is not an operator", span, f"write `{word}`", fix
    )


_WORD = re.compile(r"\w+")  # with the letters of all scripts
_NUMBER = re.compile(r"[0-9][0-9_]*[kM]?")


def _fail_unknown_character(place: RawToken, text: str, quoted: str) -> None:
    if place.kind == "string" and (place.text.count('"') < 2):
        raise BuildError("E018", "this text has no closing quote", place.span, 'close it with `"`')
    if place.kind == "unknown":
        shown = place.text if place.text.isprintable() else f"U+{ord(place.text):04X}"
        message = f"the language has no character `{shown}`"
        hint = _WAYS_OUT.get(place.text, "")
        if place.text.isalnum():
            word = next(w for w in _WORD.finditer(text) if w.end() > place.span.start)[0]
            hint = f'names have letters from a to z; a column of this name is written `"{word}"`'
        raise BuildError("E001", message, place.span, hint)
    if place.kind == "number" and not _NUMBER.fullmatch(place.text):
        raise BuildError(
            "E001", f"`{place.text}` is neither a number nor a name", place.span,
            "numbers end in a digit, `k` (1024) or `M` (1_048_576); names begin with a letter"
            + quoted,
        )  # fmt: skip


def _fail_unknown_statement(token: RawToken) -> NoReturn:
    hint = did_you_mean(token.text, STATEMENT_KEYWORDS)
    if token.text == "//":
        hint = "a comment begins with `#`"
    known = "statements begin with " + ", ".join(f"`{word}`" for word in sorted(STATEMENT_KEYWORDS))
    raise BuildError("E013", f"no statement begins with `{token.text}`", token.span, hint or known)


def _stop(error: lark.UnexpectedInput) -> tuple[Any, str]:  # Any: Lark's number of a parser state
    """Return the state that the parser stopped in, and the kind of the token it stopped at."""
    kind = error.token.type if isinstance(error, lark.UnexpectedToken) else ""
    return getattr(error.state, "position", error.state), kind


@cache
def _mistake_table() -> dict[tuple[Any, str], str]:  # Any: as above
    """Run every example once; the table gives its code by where the parser stopped."""
    # Some 180 texts of a line each: 13 ms, and only where a text has an error.
    table: dict[tuple[Any, str], str] = {}
    for mistake in MISTAKES:
        for example in mistake.examples:
            try:
                _lark().parse(example, start="statement")
            except lark.UnexpectedInput as error:
                table.setdefault(_stop(error), mistake.code)
    return table


def _lookup(position: Any, kind: str) -> str | None:  # Any: as above
    """Find the code of an example that failed in the same state, best on the same kind of token."""
    table = _mistake_table()
    if (position, kind) in table:
        return table[position, kind]
    # A state fails alike on all tokens of one role: `b c` and `b 3` are the same mistake.
    role = _role(kind)
    codes = {c for (state, k), c in table.items() if state == position and _role(k) == role}
    return codes.pop() if len(codes) == 1 else None


def _role(kind: str) -> str:
    """Classify a token of an expression: beginning of an operand, end of the text, or neither."""
    if kind in ("NAME", "INT", "SCALED", "LPAR", "LBRACE", "TRUE", "FALSE", "NOT"):
        return "operand"
    return "end" if kind == "$END" else "other"


# Terminals with patterns that say nothing to a person; `ADD` is `+`, too, which nobody needs.
_WORDS = {"NAME": "a name", "INT": "a number", "STRING": 'a text in `"`', "ADD": "`-`"}


def _expected(names: set[str], before: list[RawToken]) -> str:
    """List what could have stood at the place of an error, behind some tokens."""
    patterns = {terminal.name: terminal.pattern for terminal in _lark().terminals}
    shown = {
        _WORDS.get(name) or f"`{patterns[name].value}`"
        for name in names
        if (name in _WORDS or (name in patterns and patterns[name].type == "str"))
        and not (name == "STRING" and "NAME" in names)  # a name in quotes
    }
    # Where a statement may end, every keyword that begins another one is expected.
    starts = {f"`{word}`" for word in (*STATEMENT_KEYWORDS, "@")}
    if len(shown & starts) > 1:
        texts = [token.text for token in before]
        is_inside = sum(map(texts.count, "([{")) > sum(map(texts.count, ")]}"))
        shown = (shown - starts) | (set() if is_inside else {"the next statement"})
    few = sorted(shown)[:8]
    return f"expected {' or '.join(few)}" if few else ""


def _defined_names(group: list[RawToken]) -> set[str]:
    """Guess what a broken statement defines: its name and, for a segment, those of its parts."""
    # A name too many only keeps a use of it from being reported as unknown.
    names = {token.text for token in group[:8] if token.kind == "name"}
    if group[0].text == "segment":
        names.update(token.text for token in group if token.kind == "name")
    return names - RESERVED
