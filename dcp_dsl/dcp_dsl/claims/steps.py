"""List the checks of a text as steps, and reuse the findings of steps that would find the same.

A step depends on its statement, on all that the statement mentions, directly or not, and, if it
tested samples, on the layouts and samples of the text. A reused step also spends the budgets that
it spent before, so a text gets the same findings with and without memory.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dcp_dsl.checks.scope import Scope, defined_names
from dcp_dsl.claims.lints.registry import leak_steps, lint_steps, mask_steps
from dcp_dsl.claims.testing import Step, Testing, claim_steps
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS, Diagnostic, Fix, Verdict, make_diagnostic

_WORD = re.compile(r"[A-Za-z_]\w*")
_Key: TypeAlias = tuple[str, str, frozenset[str]]


class Meanings:
    """The statements of a text, and the statements that each depends on.

    A statement depends on all whose names appear among its words, comments included: that may be
    too many, never too few.
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
        # What searches depend on: they try samples that fit the layouts, and those declared, in
        # their order, and pay for each statement.
        kinds = (ast.Segment, ast.SampleDef, ast.Token, ast.Import)
        shared = [s for s in scope.program.statements if isinstance(s, kinds)]
        self.around = [self.sources[id(s)] for s in shared], len(scope.program.statements)
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

    def key(self, kind: str, statement: ast.Statement) -> _Key:
        """Return the texts on which a step about a statement depends, if it tests no samples."""
        needed = frozenset(self.sources[id(s)] for s in self.closure(statement))
        return kind, self.sources[id(statement)], needed | self.imported


def _imported(scope: Scope) -> Iterable[str]:
    """Yield the texts of files with imported masks and stacks, and imported segments and tokens."""
    imported = scope.imported
    for _, other in (*imported.masks.values(), *imported.stacks.values()):
        yield other.program.text
        if other is not scope:
            yield from _imported(other)
    for node in (*imported.segments.items(), *imported.tokens.items()):
        yield repr(node)


@dataclass(frozen=True, slots=True)
class _Record:
    """Findings of a step about a statement, and the work that they took.

    `around` are layouts and samples that it depends on, None if it looked at no samples; `spent` is
    of each budget, in the order of `_left`.
    """

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
        """Take a step, or repeat its findings; return whether they were repeated."""
        statement = step.statement
        if statement is None:  # about the whole text, so any change may matter
            step.look()
            return False
        key = meanings.key(step.kind, statement)
        around = (meanings.around, testing.broken)
        record = self._records.get(key)
        left = _left(testing)
        if record is not None and record.around in (None, around) and _has_room(left, record.spent):
            self._used[key] = record
            _repeat(record, statement, testing)
            return True
        found, verdicts = len(testing.found), len(testing.verdicts)
        step.look()
        after = _left(testing)
        spent = tuple(a - b for a, b in zip(left, after, strict=True))
        # A limit cut these findings short: with more budget they could differ.
        if _has_room(left, spent) and len(testing.found) < MAX_FINDINGS:
            concluded = tuple(testing.verdicts[verdicts:])
            # A proof does not depend on the layouts and samples around. A search does, even if it
            # found no sample and spent nothing.
            is_searched = any(spent[1:]) or any(v.outcome != "proved" for v in concluded)
            self._used[key] = self._records[key] = _Record(
                around if is_searched else None, spent,
                statement.span.start, statement.span.line(testing.scope.program.text),
                tuple(testing.found[found:]), concluded,
            )  # fmt: skip
        return False

    def forget(self) -> None:
        """Forget all findings that were not used since the last call."""
        self._records, self._used = self._used, {}


def _left(testing: Testing) -> tuple[int, int, int]:
    """Return the steps left for proofs, for searches and for shrinking."""
    return testing.proofs.left, testing.budget.left, testing.shrinking.left


def _has_room(left: tuple[int, ...], spent: tuple[int, ...]) -> bool:
    """Return whether no budget ends in a step that spends so much.

    A step that used a budget up may have been cut short. Proofs without budget just fail, so some
    of theirs must be left even if the step spent none.
    """
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
    """Return a finding in a new version of its text, `distance` characters further on."""
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
