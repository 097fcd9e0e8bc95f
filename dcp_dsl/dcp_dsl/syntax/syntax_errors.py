"""Say what is wrong with a statement that does not parse, from where Lark's parser stops."""

from functools import cache
from typing import Any, NoReturn

import lark

from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.ast_builder import BuildError
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.grammar import lark_parser
from dcp_dsl.syntax.mistakes import (
    MESSAGES,
    MISTAKES,
    fail_foreign_syntax,
    fail_unbalanced,
    fail_unknown_statement,
)
from dcp_dsl.syntax.tokens import KEYWORDS, RESERVED, STATEMENT_KEYWORDS, RawToken


def fail_syntax(text: str, tokens: list[RawToken], start: str) -> None:
    """Raise the most telling message for a statement that does not parse, if it does not.

    Raises:
        BuildError: with the place of the error.
    """
    try:
        lark_parser().parse(text[tokens[0].span.start : tokens[-1].span.end], start=start)
    except lark.UnexpectedInput as error:
        _explain(error, text, tokens)


def _explain(error: lark.UnexpectedInput, text: str, tokens: list[RawToken]) -> NoReturn:
    place = _place(error, tokens)
    fail_foreign_syntax(place, tokens, text)
    _fail_foreign_operator(place, text)
    _fail_unknown_character(place)
    fail_unbalanced(tokens)
    at = next((i for i, t in enumerate(tokens) if t.span == place.span), len(tokens))
    if at and tokens[at - 1].text == "NOT":  # the name was read before the parser stopped
        _fail_foreign_operator(tokens[at - 1], text)
    is_first_on_line = "\n" in text[tokens[at - 1].span.end : place.span.start] if at else True
    if place.kind == "name" and is_first_on_line and at + 1 < len(tokens):
        hint = did_you_mean(place.text, STATEMENT_KEYWORDS)
        if hint and tokens[at + 1].kind in ("name", "string") and place.text not in KEYWORDS:
            fail_unknown_statement(place)
    kind = error.token.type if isinstance(error, lark.UnexpectedToken) else ""
    code = _lookup(_position(error), kind)
    reserved = ""
    expected = set(getattr(error, "expected", None) or getattr(error, "allowed", None) or ())
    if place.kind == "name" and place.text in RESERVED and "NAME" in expected:
        reserved = f"`{place.text}` is a word of the language and cannot be a name here"
    if code is None:
        found = f"`{place.text}`" if place.text else "the end of the statement"
        raise BuildError(
            "E002", f"{found} does not fit here", place.span, reserved or _expected(expected)
        )
    mistake = MESSAGES[code]
    fix = "==" if code == "E004" and place.text == "=" else None
    raise BuildError(code, mistake.message, place.span, reserved or mistake.hint, fix)


def _place(error: lark.UnexpectedInput, tokens: list[RawToken]) -> RawToken:
    """Return the token the parser stopped at; at the end, an empty one behind the last."""
    end = tokens[-1].span.end
    behind = RawToken("symbol", "", Span(end, end + 1))
    if isinstance(error, lark.UnexpectedToken) and error.token.type == "$END":
        return behind
    position = (error.pos_in_stream or 0) + tokens[0].span.start
    return next((t for t in tokens if t.span.start <= position < t.span.end), behind)


_FOREIGN = {
    "&": "and", "|": "or", "~": "not", "!": "not", "^": "minus",
    **{word.upper(): word for word in ("and", "or", "not", "minus", "per", "in")},
}  # fmt: skip
_WAYS_OUT = {
    "/": "write `//`; division rounds down",
    ";": "statements and rules follow one another without it",
    "≤": "write `<=`", "≥": "write `>=`", "≠": "write `!=`", "'": 'texts stand between `"`',
}  # fmt: skip


def _fail_foreign_operator(place: RawToken, text: str) -> None:
    """Raise for `&`, `||`, `!`, `AND`: operators that are words here, in small letters."""
    if place.kind not in ("unknown", "name") or place.text not in _FOREIGN:
        return
    word, span = _FOREIGN[place.text], place.span
    if text[span.end : span.end + 1] == place.text:  # `&&`
        span = Span(span.start, span.end + 1)
    before, behind = text[span.start - 1 : span.start], text[span.end : span.end + 1]
    fix = f"{'' if before.isspace() else ' '}{word}{'' if behind.isspace() else ' '}"
    raise BuildError(
        "E003", f"`{span.text(text)}` is not an operator", span, f"write `{word}`", fix
    )


def _fail_unknown_character(place: RawToken) -> None:
    if place.kind == "string" and (place.text.count('"') < 2):
        raise BuildError("E018", "this text has no closing quote", place.span, 'close it with `"`')
    if place.kind == "unknown":
        shown = place.text if place.text.isprintable() else f"U+{ord(place.text):04X}"
        message = f"the language has no character `{shown}`"
        raise BuildError("E001", message, place.span, _WAYS_OUT.get(place.text, ""))
    if place.kind == "number" and not place.text.replace("_", "").rstrip("kM").isdigit():
        raise BuildError(
            "E001", f"`{place.text}` is neither a number nor a name", place.span,
            "numbers end in a digit, `k` (1024) or `M` (1_048_576); names begin with a letter",
        )  # fmt: skip


def _position(error: lark.UnexpectedInput) -> Any:  # Any: Lark's number of a parser state
    return getattr(error.state, "position", error.state)


@cache
def _mistake_table() -> dict[tuple[Any, str], str]:  # Any: as above
    """Run every example once: (parser state, kind of the unexpected token) -> code."""
    table: dict[tuple[Any, str], str] = {}
    for mistake in MISTAKES:
        for example in mistake.examples:
            try:
                lark_parser().parse(example, start="statement")
            except lark.UnexpectedInput as error:
                kind = error.token.type if isinstance(error, lark.UnexpectedToken) else ""
                table.setdefault((_position(error), kind), mistake.code)
    return table


def _lookup(position: Any, kind: str) -> str | None:  # Any: as above
    """Find the code of an example that failed in the same state, best on the same kind of token."""
    table = _mistake_table()
    if (position, kind) in table:
        return table[position, kind]
    role = _role(kind)
    codes = {c for (state, k), c in table.items() if state == position and _role(k) == role}
    return codes.pop() if len(codes) == 1 else None


def _role(kind: str) -> str:
    """Classify a token of an expression: it begins an operand, ends the text, or joins."""
    if kind in ("NAME", "INT", "SCALED", "LPAR", "LBRACE", "TRUE", "FALSE", "NOT"):
        return "operand"
    return "end" if kind == "$END" else "other"


_WORDS = {"NAME": "a name", "INT": "a number", "STRING": 'a text in `"`', "ADD": "`-`"}


def _expected(names: set[str]) -> str:
    """List what could have stood at the place of an error."""
    patterns = {terminal.name: terminal.pattern for terminal in lark_parser().terminals}
    shown = {
        _WORDS.get(name) or f"`{patterns[name].value}`"
        for name in names
        if name in _WORDS or (name in patterns and patterns[name].type == "str")
    }
    starts = {f"`{word}`" for word in (*STATEMENT_KEYWORDS, "@")}
    if len(shown & starts) > 1:
        shown = (shown - starts) | {"the next statement"}
    few = sorted(shown)[:8]
    return f"expected {' or '.join(few)}" if few else ""
