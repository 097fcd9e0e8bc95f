"""Hold a text while a person edits it: tokens, statements, names, and what is wrong with it.

A name is defined in the text, in an imported file, or in the standard library. Syntax, names and
kinds are checked on every change. Proofs and tests follow in small parts; decisions about
statements that mean the same as before are reused.
"""

import re
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from dcp_dsl.checks.checker import check_scope
from dcp_dsl.checks.imports import build_scope
from dcp_dsl.checks.scope import Scope, defined_names
from dcp_dsl.claims.steps import Meanings, Memory, all_steps, move
from dcp_dsl.claims.testing import Testing
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostics import Diagnostic
from dcp_dsl.syntax.parser import Parsed, parse_all
from dcp_dsl.syntax.tokens import RawToken, scan
from dcp_grammar import MASKS

Encoding: TypeAlias = Literal["utf-8", "utf-16", "utf-32"]

# bytes in a unit; codecs that name the byte order put no mark of it in front
_CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


@dataclass(frozen=True, eq=False)
class Document:
    """A version of a text; imports are looked up beside its `name`.

    `encoding` is the unit in which an editor counts columns; `known` are statements of an earlier
    version, which `parse_all` need not parse again.
    """

    text: str
    name: str
    encoding: Encoding = "utf-16"
    known: dict[str, ast.Statement] | None = None

    # ---- places ----------------------------------------------------------------------------------

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def place(self, offset: int) -> tuple[int, int]:
        r"""Return line and column, from 0, in the editor's units.

        >>> Document("a\n🙂b", "<text>").place(3)
        (1, 2)
        """
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self._line_starts, offset) - 1
        before = self.text[self._line_starts[line] : offset]
        return line, self._units(before)

    def offset(self, line: int, column: int) -> int:
        r"""Return the character at a place; behind the end of a line, its end.

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
        codec, width = _CODECS[self.encoding]
        # JSON may hold half of a surrogate pair, which plain codecs refuse
        return len(text.encode(codec, "surrogatepass")) // width

    # ---- meaning ---------------------------------------------------------------------------------

    @cached_property
    def parsed(self) -> Parsed:
        """The statements that parse."""
        return parse_all(self.text, self.name, self.known)

    @cached_property
    def _scope(self) -> tuple[Scope, tuple[Diagnostic, ...]]:
        return build_scope(self.parsed.program)

    @property
    def scope(self) -> Scope:
        """The meaning of the names of these statements."""
        return self._scope[0]

    @cached_property
    def problems(self) -> tuple[Diagnostic, ...]:
        """Errors of syntax, imports, names and kinds."""
        scope, problems = self._scope
        found = check_scope(scope, self.parsed.lost_names)
        return (*self.parsed.diagnostics, *problems, *found)

    @property
    def is_checked(self) -> bool:
        """True once `problems` is complete."""
        # where cached_property keeps its value; asking for that would start the checks
        return "problems" in self.__dict__

    @property
    def is_sound(self) -> bool:
        """True if no problem is an error, so masks can be proved and drawn."""
        return all(found.severity != "error" for found in self.problems)

    @cached_property
    def tokens(self) -> tuple[RawToken, ...]:
        """All tokens without comments."""
        return tuple(token for token in scan(self.text) if token.kind != "comment")

    def token_at(self, offset: int) -> RawToken | None:
        """Return the token that a place touches; of two, the name."""
        # A place between `q` and `<` touches both.
        near = [t for t in self.tokens if t.span.start <= offset <= t.span.end]
        return next((t for t in near if t.kind == "name"), near[0] if near else None)

    def before(self, offset: int) -> list[RawToken]:
        """Return the tokens that end in front of a place."""
        return [token for token in self.tokens if token.span.end <= offset]

    def in_comment(self, offset: int) -> bool:
        """Return whether a place lies in a comment or a text in quotes."""
        # What is typed at the end of a comment belongs to it; behind a closing quote it does not.
        for token in scan(self.text):
            if token.kind == "comment" and token.span.start < offset <= token.span.end:
                return True
            if token.kind == "string" and token.span.start < offset < token.span.end:
                return True
        return False

    def statement_at(self, offset: int) -> ast.Statement | None:
        """Return the statement that covers a place, if it parses."""
        near = (s for s in self.parsed.program.statements if s.span.start <= offset <= s.span.end)
        return next(near, None)


@dataclass(frozen=True, slots=True)
class Definition:
    """A place where a name gets its meaning: a file, its text, and the name in it.

    `path` is None for the text itself; `node` is a statement, a parameter or a `where` binding, and
    `scope` is where names of that file are looked up.
    """

    path: str | None
    text: str
    span: Span
    node: ast.Node
    scope: Scope


def definition_at(document: Document, offset: int) -> Definition | None:
    """Return the definition of the name at a place, or None."""
    token = document.token_at(offset)
    if token is None or token.kind != "name":
        return None
    before = document.before(token.span.start)
    # `q.doc` names a segment, even in a mask with a parameter `doc`.
    is_attribute = bool(before) and before[-1].text == "."
    local = None if is_attribute else _find_local(document, token.text, offset)
    return local or find_name(document, token.text)


def _find_local(document: Document, name: str, offset: int) -> Definition | None:
    """Look among the parameters and bindings of the mask around a place."""
    mask = document.statement_at(offset)
    if not isinstance(mask, ast.MaskDef):
        return None
    for node in mask.locals:
        if node.name.text == name:
            return Definition(None, document.text, node.name.span, node, document.scope)
    return None


def find_name(document: Document, name: str) -> Definition | None:
    """Look up the statement that defines a name."""
    scope = document.scope
    mask = scope.find_mask(name) or scope.find_stack(name)
    if mask is not None:
        return _in_file(document, mask[0], mask[0].name.span, mask[1])
    lets = {s.name.text: s for s in scope.program.statements if isinstance(s, ast.Let)}
    for known in (lets, scope.samples, scope.segments, scope.tokens):
        if (statement := known.get(name)) is not None:
            place = next(i for i in defined_names(statement) if i.text == name)
            return _in_file(document, statement, place.span, _owner(statement, scope))
    return None


def _owner(statement: ast.Statement, scope: Scope) -> Scope:
    """Return the scope of the file a statement stands in: the text itself, or one it imports."""
    files = (scope, *scope.imported.scopes)
    return next(f for f in files if any(statement is own for own in f.program.statements))


def _in_file(document: Document, node: ast.Node, span: Span, scope: Scope) -> Definition:
    if scope is document.scope:
        return Definition(None, document.text, span, node, scope)
    # The library is named `<library>/causal.dcpm` in messages; an editor needs the file itself.
    name = scope.program.name
    path = Path(str(MASKS)) / Path(name).name if name.startswith("<library>/") else Path(name)
    return Definition(str(path.resolve()), scope.program.text, span, node, scope)


class Session:
    """A document over its versions; `good` is the last without errors, None before the first."""

    def __init__(self, text: str, name: str, encoding: Encoding) -> None:
        self.version: int | None = None
        self._known: dict[str, ast.Statement] = {}
        self.memory = Memory()
        self.document = Document(text, name, encoding, self._known)
        self.good: Document | None = None
        # Text and start of a statement with a finding inside it, in the last version proved.
        self._decided: list[tuple[str, int, Diagnostic]] = []
        self._finished: tuple[Document, tuple[Diagnostic, ...]] | None = None

    def update(self, text: str) -> None:
        """Take a new version of the text."""
        if text != self.document.text:
            # A version that was replaced before anything checked it is skipped.
            if self.document.is_checked and self.document.is_sound:
                self.good = self.document
            self.document = replace(self.document, text=text)

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Findings about the present version so far.

        Until its proofs are finished these are errors of syntax, names and kinds, and earlier
        findings about statements that are still there: else warnings would go away with every
        key and come back a moment later.
        """
        if self._finished is not None and self._finished[0] is self.document:
            return self._finished[1]
        document = self.document
        if not document.is_sound:
            return _sorted(document.problems)
        text, program = document.text, document.parsed.program
        starts = {s.span.text(text): s.span.start for s in program.statements}
        kept = [
            move(found, starts[source] - start, program)
            for source, start, found in self._decided
            if source in starts
        ]
        return _sorted((*document.problems, *kept))

    def finish(self, testing: Testing) -> None:
        """Keep the findings of all checks of the present version."""
        text = self.document.text
        self._decided = [
            (s.span.text(text), s.span.start, found)
            for found in testing.found
            for s in self.document.parsed.program.statements
            if s.span.start <= found.start < s.span.end
        ]
        self._finished = self.document, _sorted((*self.document.problems, *testing.found))


def _sorted(found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    return tuple(sorted(found, key=lambda d: (d.line, d.column, d.code)))


class Checks:
    """The proofs and tests of one version, taken in parts, so that a new version can end them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.document = session.document
        scope = self.document.scope
        self.testing = Testing(scope)
        self.meanings = Meanings(scope)
        self.steps = list(all_steps(self.testing)) if self.document.is_sound else []
        self.taken = 0

    @property
    def is_done(self) -> bool:
        """True once all steps have run."""
        return self.taken == len(self.steps)

    def advance(self, seconds: float) -> None:
        """Take steps for about so long, at least one."""
        end = time.perf_counter() + seconds
        while not self.is_done:
            self.session.memory.run(self.steps[self.taken], self.testing, self.meanings)
            self.taken += 1
            if time.perf_counter() > end:
                break

    def finish(self) -> None:
        """Hand the findings to the session, if its text is still this one."""
        if self.session.document is self.document:
            # Only when all steps have run: those not reached keep what they found before.
            self.session.memory.forget()
            self.session.finish(self.testing)
