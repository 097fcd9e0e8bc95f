"""Cut the checks of a text into steps; repeat what one said about a statement that means the same.

A step depends on its statement, on all that this mentions in turn and, if it tested samples, on the
layouts and samples of the text. What the work allowed has room for is the same as without memory,
so a text checked with it gets the findings that it gets without.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dcp_dsl.checks.scope import Scope, defined_names
from dcp_dsl.claims.lints import lint_steps
from dcp_dsl.claims.static_checks import leak_steps, mask_steps
from dcp_dsl.claims.testing import Step, Testing, claim_steps
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS, Diagnostic, Fix, Verdict, make_diagnostic

_WORD = re.compile(r"[A-Za-z_]\w*")
_Key: TypeAlias = tuple[str, str, frozenset[str]]


class Meanings:
    """The statements of a text, and which of them each depends on.

    Dependence is read off the words, so it may name too much, never too little.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        text = scope.program.text
        self.sources = {id(s): s.span.text(text) for s in scope.program.statements}
        self.owners: dict[str, list[ast.Statement]] = {}
        for statement in scope.program.statements:
            for name in defined_names(statement):
                self.owners.setdefault(name.text, []).append(statement)
        for tree in scope.trees():  # `paths` names none of the layouts that it reads
            if id(tree) in self.sources:
                for word in ("path", "paths"):
                    self.owners.setdefault(word, []).append(tree)
        kinds = (ast.Segment, ast.SampleDef, ast.Token, ast.Import)
        shared = [s for s in scope.program.statements if isinstance(s, kinds)]
        self.around = (
            frozenset(self.sources[id(s)] for s in shared), len(scope.program.statements),
        )  # fmt: skip
        self._words: dict[str, frozenset[str]] = {}
        self.imported = frozenset(_imported(scope))

    def closure(self, statement: ast.Statement) -> list[ast.Statement]:
        """Return a statement and all statements of the text that it depends on."""
        found = {id(statement): statement}
        pending = [statement]
        while pending:
            for word in self._mentioned(self.sources[id(pending.pop())]):
                for owner in self.owners.get(word, ()):
                    if id(owner) not in found:
                        found[id(owner)] = owner
                        pending.append(owner)
        return list(found.values())

    def words(self, statement: ast.Statement) -> set[str]:
        """Return all words of a statement and of those it depends on."""
        sources = [self.sources[id(needed)] for needed in self.closure(statement)]
        return {word for source in sources for word in self._mentioned(source)}

    def _mentioned(self, source: str) -> frozenset[str]:
        if source not in self._words:
            self._words[source] = frozenset(_WORD.findall(source))
        return self._words[source]

    def key(self, step: Step) -> _Key | None:
        """Return what a step on one statement depends on, if it tests no samples."""
        if step.statement is None:
            return None
        needed = frozenset(self.sources[id(s)] for s in self.closure(step.statement))
        return step.kind, self.sources[id(step.statement)], needed | self.imported


def _imported(scope: Scope) -> Iterable[str]:
    """Yield the texts of all imported masks and stacks, and segments and tokens as they are."""
    imported = scope.imported
    for _, other in (*imported.masks.values(), *imported.stacks.values()):
        yield other.program.text
        if other is not scope:
            yield from _imported(other)
    for node in (*imported.segments.items(), *imported.tokens.items()):
        yield repr(node)


@dataclass(frozen=True, slots=True)
class _Record:
    """Findings of a step about a statement, and the work that they took."""

    around: object
    spent: tuple[int, ...]
    start: int
    line: int
    found: tuple[Diagnostic, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(slots=True, eq=False)
class Memory:
    """Findings about earlier versions of a text, by step and statement."""

    _records: dict[_Key, _Record] = field(default_factory=dict)
    _used: dict[_Key, _Record] = field(default_factory=dict)

    def run(self, step: Step, testing: Testing, meanings: Meanings) -> bool:
        """Take a step, or repeat it; return whether it was repeated."""
        key = meanings.key(step)
        if key is None or step.statement is None:
            step.look()
            return False
        around = (meanings.around, testing.broken)
        record = self._records.get(key)
        left = _left(testing)
        is_known = (
            record is not None and record.around in (None, around) and _has_room(left, record.spent)
        )
        if record is not None and is_known:
            self._used[key] = record
            _repeat(record, step.statement, testing)
            return True
        found, verdicts = len(testing.found), len(testing.verdicts)
        step.look()
        after = _left(testing)
        spent = tuple(a - b for a, b in zip(left, after, strict=True))
        if _has_room(left, spent) and len(testing.found) < MAX_FINDINGS:
            concluded = tuple(testing.verdicts[verdicts:])
            # A proof does not depend on the layouts and samples around; a search for samples does,
            # also one that found none.
            is_searched = any(spent[1:]) or any(v.outcome != "proved" for v in concluded)
            self._used[key] = self._records[key] = _Record(
                around if is_searched else None, spent,
                step.statement.span.start, step.statement.span.line(testing.scope.program.text),
                tuple(testing.found[found:]), concluded,
            )  # fmt: skip
        return False

    def forget(self) -> None:
        """Forget all that was not used since this was called last."""
        self._records, self._used = self._used, {}


def _left(testing: Testing) -> tuple[int, int, int]:
    return testing.proofs.left, testing.budget.left, testing.shrinking.left


def _has_room(left: tuple[int, ...], spent: tuple[int, ...]) -> bool:
    """Return whether no budget ends in a step; proofs fail without a trace when theirs is spent."""
    is_enough = all(have > asked for have, asked in zip(left, spent, strict=True) if asked)
    return is_enough and left[0] > spent[0]


def _repeat(record: _Record, statement: ast.Statement, testing: Testing) -> None:
    """Repeat the findings of a step, about the statement where it now stands."""
    budgets = testing.proofs, testing.budget, testing.shrinking
    for budget, spent in zip(budgets, record.spent, strict=True):
        budget.left -= spent
    distance = statement.span.start - record.start
    lines = statement.span.line(testing.scope.program.text) - record.line
    room = MAX_FINDINGS - len(testing.found)
    testing.found += [move(d, distance, testing.scope.program) for d in record.found[:room]]
    testing.verdicts += [replace(v, line=v.line + lines) for v in record.verdicts]


def move(found: Diagnostic, distance: int, program: ast.Program) -> Diagnostic:
    """Return a finding so many characters further on, in a new version of its text."""
    fix = found.fix
    if fix is not None:
        edits = (replace(e, start=e.start + distance, end=e.end + distance) for e in fix.edits)
        fix = Fix(fix.title, tuple(edits))
    span = ast.Span(found.start + distance, found.end + distance)
    return make_diagnostic(
        found.code, found.message, program.text, span,
        name=program.name, hint=found.hint, label=found.label, fix=fix,
    )  # fmt: skip


def all_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps of all claims, of the safety of all masks, and of all lints, in order."""
    yield from claim_steps(testing)
    yield from mask_steps(testing)
    yield from leak_steps(testing)
    yield from lint_steps(testing)
