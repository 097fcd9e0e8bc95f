"""Follow one document while it is edited: what is wrong with it, found again only where it changed.

Syntax, names and kinds are looked at on every change. Proofs and tests follow in small parts, and
what was decided about statements that mean the same as before is repeated.
"""

import time
from dataclasses import replace

from dcp_dsl.claims.steps import Meanings, Memory, all_steps, move
from dcp_dsl.claims.testing import Testing
from dcp_dsl.language_server.document import Document, Encoding
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import Diagnostic


class Session:
    """A document over its versions.

    Attributes:
        document: the present version.
        good: the last version without errors of syntax, names or kinds, None before the first.
    """

    def __init__(self, text: str, name: str, encoding: Encoding) -> None:
        self._known: dict[str, ast.Statement] = {}
        self.memory = Memory()
        self.document = Document(text, name, encoding, self._known)
        self.good: Document | None = None
        self._decided: list[tuple[str, int, Diagnostic]] = []
        self._finished: tuple[Document, tuple[Diagnostic, ...]] | None = None

    def update(self, text: str) -> None:
        """Take a new version of the text."""
        if text != self.document.text:
            # A version that went by before it was looked at is not worth looking at now.
            if self.document.is_checked and self.document.is_sound:
                self.good = self.document
            self.document = replace(self.document, text=text)

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Findings about the present version so far.

        Until its proofs are finished, that is what is wrong with syntax, names and kinds, and what
        was decided before about statements that are still there.
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
        """Keep what all checks of the present version found."""
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
    """The proofs and tests of one version, taken in parts."""

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
        """Hand what was found to the session, if its text is still this one."""
        if self.session.document is self.document:
            self.session.memory.forget()
            self.session.finish(self.testing)
