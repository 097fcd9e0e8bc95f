"""Words of the grammar with their places, and what the grammar allows but the language does not."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span

MAX_NUMBER = 2**40  # a million times a million tokens, and far from the borders of int64

Built: TypeAlias = Any  # Any: a node, a word, None or a tuple of them; each rule knows its own


class BuildError(Exception):
    """What the grammar allows and the language does not; becomes a diagnostic in the parser."""

    def __init__(
        self, code: str, message: str, span: Span, hint: str = "", fix: str | None = None
    ) -> None:
        self.code, self.message, self.span, self.hint = code, message, span, hint
        self.fix = fix  # what certainly belongs in place of the span
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Word:
    """A token of the grammar with its span in the whole text."""

    type: str
    text: str
    span: Span


def ident(word: Word) -> ast.Ident:
    """Give a name."""
    return ast.Ident(word.text, span=word.span)


def maybe_ident(word: Word | None) -> ast.Ident | None:
    """Give a name that may be left out."""
    return None if word is None else ident(word)


def integer(word: Word) -> int:
    """Give the value of a number, ``4k`` being 4096."""
    digits = word.text.replace("_", "")
    scale = {"k": 2**10, "M": 2**20}.get(digits[-1], 1)
    digits = digits.rstrip("kM").lstrip("0")
    # Counting digits first: int() of a million digits is slow, and Python refuses it.
    if len(digits) > 13 or int(digits or "0") * scale > MAX_NUMBER:
        raise BuildError(
            "E014", f"this number is larger than {MAX_NUMBER:_}", word.span,
            "lengths are in tokens; `4k` is 4096 and `1M` is 1_048_576",
        )  # fmt: skip
    return int(digits or "0") * scale
