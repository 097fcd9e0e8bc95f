"""The list of all lints: a new one is a function in the file of its kind, and a line here.

Findings come in the order of these lists. `docs/diagnostics.md` shows each code with an example.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias, TypeVar

from dcp_dsl.claims.lints.borders import crossed_borders, leaking_documents
from dcp_dsl.claims.lints.safety import empty_rows, has_zeros, look_ahead
from dcp_dsl.claims.lints.separate import other_branches, rows_of_documents
from dcp_dsl.claims.lints.statements import (
    keys_of_another_sequence,
    masks_of_heads,
    unfit_defaults,
    unreached,
    unused_statements,
)
from dcp_dsl.claims.lints.subject import Subject, defined_subjects, used_subjects
from dcp_dsl.claims.lints.wording import (
    long_windows,
    needless_decorators,
    not_per,
    redundant_conditions,
    repeated_rules,
    unread_names,
)
from dcp_dsl.claims.testing import Step, Testing
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS

_Subject = TypeVar("_Subject")
SubjectLint: TypeAlias = Callable[[Subject, Testing], None]
MaskLint: TypeAlias = Callable[[ast.MaskDef, Testing], None]
StackLint: TypeAlias = Callable[[ast.StackDef, Testing], None]
AttachLint: TypeAlias = Callable[[ast.Attach, Testing], None]

# Of what a mask means, wherever a text defines, attaches or stacks one.
MEANINGS: tuple[SubjectLint, ...] = (empty_rows, look_ahead, other_branches, rows_of_documents)
# Of how the layers of a stack work together.
STACKS: tuple[StackLint, ...] = (crossed_borders,)
# Of how a mask is written.
MASKS: tuple[MaskLint, ...] = (
    long_windows, unread_names, repeated_rules, not_per, redundant_conditions, needless_decorators,
    leaking_documents,
)  # fmt: skip
# Of the statements that attach masks to data sets, one by one.
ATTACHMENTS: tuple[AttachLint, ...] = (
    unreached, keys_of_another_sequence, masks_of_heads, unfit_defaults,
)  # fmt: skip


def mask_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that look at every mask of a text, and of what it attaches or stacks."""
    for definition in testing.scope.masks.values():
        yield Step("mask", definition, partial(_look_at_definition, definition, testing))
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Attach | ast.StackDef):
            yield Step("use", statement, partial(_look_at_uses, statement, testing))


def leak_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that look at every stack of a text."""
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.StackDef):
            yield Step("stack", statement, partial(_look, STACKS, statement, testing))


def lint_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that look at how the text is written."""
    for mask in testing.scope.masks.values():
        yield Step("lint", mask, partial(_look, MASKS, mask, testing))
    yield Step("unused", None, partial(unused_statements, testing))
    yield Step("attachments", None, partial(_look_at_attachments, testing))


def _look(
    lints: Iterable[Callable[[_Subject, Testing], None]], subject: _Subject, testing: Testing
) -> None:
    for lint in lints:
        lint(subject, testing)


def _look_at_definition(definition: ast.MaskDef, testing: Testing) -> None:
    for subject in defined_subjects(definition, testing):
        _look_at_meaning(subject, testing)


def _look_at_uses(statement: ast.Attach | ast.StackDef, testing: Testing) -> None:
    for subject in used_subjects(statement, testing):
        _look_at_meaning(subject, testing)


def _look_at_meaning(subject: Subject, testing: Testing) -> None:
    if len(testing.found) < MAX_FINDINGS:
        # Binding refuses such a mask on every sample, so it has no other faults.
        if has_zeros(subject, testing):
            return
        _look(MEANINGS, subject, testing)


def _look_at_attachments(testing: Testing) -> None:
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Attach):
            _look(ATTACHMENTS, statement, testing)
