"""Cut a .dcpm text into tokens and comments, for recovery from errors and for the formatter.

The grammar's own lexer decides what a token means; this one never fails and loses nothing but
spaces, so it can be used on texts that do not parse.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_grammar import words_of

MAX_MISSPELT = 200  # words that are compared with keywords, which is slow

TokenKind: TypeAlias = Literal["name", "number", "string", "comment", "symbol", "unknown"]

STATEMENT_KEYWORDS = frozenset(words_of("statement"))
KEYWORDS = frozenset(words_of("statement", "clause", "operator", "constant"))
RESERVED = KEYWORDS | {*words_of("variable", "function")}

# The first alternative that fits wins: comments and strings swallow all others, `<=` is before `<`.
# Wrong tokens are taken whole, for a message about them: a string without its end, `3x`.
_PATTERN = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>"[^"\n]*"?)
      | (?P<number>[0-9][A-Za-z0-9_]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol><=|>=|==|!=|//|\.\.|[-+*%<>=()\[\]{},:.@])
      | (?P<unknown>\S)""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class RawToken:
    """A token or comment of a text."""

    kind: TokenKind
    text: str
    span: Span


@lru_cache(2)  # the parser, colours and completion of an editor read the same text
def scan(text: str) -> tuple[RawToken, ...]:
    """Return all tokens and comments in order; O(length)."""
    return tuple(
        [
            RawToken(match.lastgroup, match.group(), Span(*match.span()))  # type: ignore[arg-type]  # group names are the kinds
            for match in _PATTERN.finditer(text)
        ]
    )


def split_statements(text: str) -> list[list[RawToken]]:
    """Group the tokens (without comments) by statement: each group begins at a statement keyword.

    A keyword behind a colon is a type (``m: mask``) and begins nothing, nor does the `token` of
    ``from token forks``; decorators belong to the mask behind them. Text in front of the first
    keyword makes a group of its own.

    >>> [len(group) for group in split_statements("mask a(m: mask) = m @ahead mask b = full")]
    [9, 6]
    """
    groups: list[list[RawToken]] = []
    is_decorated = False
    previous = ""
    for token in scan(text):
        if token.kind == "comment":
            continue
        is_decorator = token.text == "@"
        is_inside = previous == ":" or (previous == "from" and token.text == "token")
        is_opening = is_decorator or (token.text in STATEMENT_KEYWORDS and not is_inside)
        goes_on = is_decorated and token.text in ("@", "mask")
        if not groups or (is_opening and not goes_on):
            groups.append([])
        groups[-1].append(token)
        if is_opening:
            is_decorated = is_decorator
        previous = token.text
    return groups


def split_at_misspelt(groups: list[list[RawToken]], text: str) -> list[list[RawToken]]:
    """Cut statements where a line begins with a misspelt keyword and a name.

    Two names side by side fit nowhere, so `maks b` behind another statement is one of its own.
    """
    result: list[list[RawToken]] = []
    tries = MAX_MISSPELT
    for group in groups:
        begin = 0
        for at in range(1, len(group) - 1):
            token, following = group[at], group[at + 1]
            is_pair = token.kind == "name" and following.kind in ("name", "string")
            if not is_pair or token.text in KEYWORDS or following.text in KEYWORDS or not tries:
                continue
            if "\n" in text[group[at - 1].span.end : token.span.start]:
                tries -= 1
                if did_you_mean(token.text, STATEMENT_KEYWORDS):
                    result.append(group[begin:at])
                    begin = at
        result.append(group[begin:])
    return result
