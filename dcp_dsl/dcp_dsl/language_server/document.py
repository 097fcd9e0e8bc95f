"""A text that is being written: its tokens, the statements that parse, what its names mean."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from dcp_dsl.checks.imports import build_scope
from dcp_dsl.checks.scope import Scope
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.parser import Parsed, parse_all
from dcp_dsl.syntax.tokens import RawToken, scan

Encoding: TypeAlias = Literal["utf-8", "utf-16", "utf-32"]

_WIDTHS: dict[str, int] = {"utf-8": 1, "utf-16": 2, "utf-32": 4}


@dataclass(frozen=True, eq=False)
class Document:
    """One version of a text.

    Attributes:
        text: what it says.
        name: its path, or what stands for it; imports are looked up beside it.
        encoding: the units in which an editor counts columns.
    """

    text: str
    name: str
    encoding: Encoding = "utf-16"

    # ---- places ----------------------------------------------------------------------------------

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def place(self, offset: int) -> tuple[int, int]:
        r"""Give line and column, from 0, in the editor's units.

        >>> Document("a\n🙂b", "<text>").place(3)
        (1, 2)
        """
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self._line_starts, offset) - 1
        before = self.text[self._line_starts[line] : offset]
        return line, self._units(before)

    def offset(self, line: int, column: int) -> int:
        r"""Give the character at a place; behind the end of a line, its end.

        >>> Document("a\n🙂b", "<text>").offset(1, 2)
        3
        """
        if line >= len(self._line_starts):
            return len(self.text)
        start = self._line_starts[line]
        at, units = start, 0
        while at < len(self.text) and self.text[at] != "\n" and units < column:
            units += self._units(self.text[at])
            at += 1
        return at

    def _units(self, text: str) -> int:
        if self.encoding == "utf-32":
            return len(text)
        name = "utf-8" if self.encoding == "utf-8" else "utf-16-le"
        return len(text.encode(name, "surrogatepass")) // _WIDTHS[self.encoding]

    # ---- meaning ---------------------------------------------------------------------------------

    @cached_property
    def parsed(self) -> Parsed:
        """The statements that parse."""
        return parse_all(self.text, self.name)

    @cached_property
    def scope(self) -> Scope:
        """What the names of these statements mean."""
        return build_scope(self.parsed.program)[0]

    @cached_property
    def tokens(self) -> tuple[RawToken, ...]:
        """All tokens without comments."""
        return tuple(token for token in scan(self.text) if token.kind != "comment")

    def token_at(self, offset: int) -> RawToken | None:
        """Give the token that a place touches; of two, the name."""
        near = [t for t in self.tokens if t.span.start <= offset <= t.span.end]
        return next((t for t in near if t.kind == "name"), near[0] if near else None)

    def before(self, offset: int) -> list[RawToken]:
        """Give the tokens that end in front of a place."""
        return [token for token in self.tokens if token.span.end <= offset]

    def in_comment(self, offset: int) -> bool:
        """Whether a place lies in a comment or a text in quotes."""
        for token in scan(self.text):
            if token.kind == "comment" and token.span.start < offset <= token.span.end:
                return True
            if token.kind == "string" and token.span.start < offset < token.span.end:
                return True
        return False

    def statement_at(self, offset: int) -> "ast.Statement | None":
        """Give the statement that covers a place, if it parses."""
        for statement in self.parsed.program.statements:
            if statement.span.start <= offset <= statement.span.end:
                return statement
        return None
