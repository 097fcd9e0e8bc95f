"""Find masks that would train garbage: look-ahead nobody asked for, tokens that see nothing.

Each mask of a text is first proved sound for every sample; what is not proved is searched for on
small samples that fit its layouts, and the smallest one that shows the fault is part of the error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import ast
from dcp_dsl.budget import OverBudget
from dcp_dsl.claim_samples import claim_samples
from dcp_dsl.claims import TOO_LONG, Failure, Testing, first_empty_row, first_pair
from dcp_dsl.diagnostics import MAX_FINDINGS
from dcp_dsl.errors import DatasetError, SpecError
from dcp_dsl.guard import find_definition, leaking_pairs, read_decorators
from dcp_dsl.mask import Mask
from dcp_dsl.oracle import dense_mask
from dcp_dsl.proof import never
from dcp_dsl.sample import Sample

_NUMBER = 3  # what a parameter without a value is tested with; proofs take every number


@dataclass(frozen=True, slots=True)
class _Subject:
    """A mask to look at: an own definition, or an expression that is attached or stacked."""

    what: str
    mask: Mask
    span: ast.Span
    definition: ast.MaskDef | None


_Search: TypeAlias = Callable[[NDArray[np.bool_], Sample], Failure | None]


def check_masks(testing: Testing) -> None:
    """Check every mask of a text without errors, and every mask it attaches or stacks.

    Finds E120 for look-ahead, E121 for tokens that see nothing, E122 for masks without pairs.
    """
    for subject in _subjects(testing):
        if len(testing.found) < MAX_FINDINGS:
            _check_empty(subject, testing)
            _check_ahead(subject, testing)


def _subjects(testing: Testing) -> list[_Subject]:
    """Give the masks of a text that can be looked at; those with a mask as parameter cannot."""
    found = []
    for definition in testing.scope.masks.values():
        call = _call(definition)
        if call is not None:
            name = definition.name
            mask = testing.read_mask(call)
            found.append(_Subject(f"mask {name.text}", mask, name.span, definition))
    for value in _used(testing):
        own = testing.scope.own_mask(value.text) if isinstance(value, ast.Name) else None
        if isinstance(value, ast.Name) and (own is None or own[1] is testing.scope):
            continue  # checked above, or a mask of the library
        mask = testing.read_mask(value)
        found.append(_Subject(f"use of {mask.name}", mask, value.span, None))
    return found


def _used(testing: Testing) -> list[ast.Expr]:
    """Give the expressions that are attached to data sets or stacked into layers."""
    from dcp_dsl.attachment import with_columns

    found: list[ast.Expr] = []
    for statement in testing.scope.program.statements:
        match statement:
            case ast.Attach(value=ast.Name(text)) if testing.scope.find_stack(text) is not None:
                continue
            case ast.Attach(value=value, having=having):
                found.append(with_columns(value, {c.text for c in having}, testing.scope))
            case ast.Stack(layers=layers):
                found += [layer.value for layer in layers if layer.value is not None]
                found += [group.value for layer in layers for group in layer.heads]
    return found


def _call(definition: ast.MaskDef) -> ast.Expr | None:
    """Give a call of a mask with small numbers where it has no defaults."""
    arguments = []
    for param in definition.params:
        if param.default is None:
            if param.type.text in ("mask", "bool", "pos"):
                return None
            name = ast.Ident(param.name.text)
            arguments.append(ast.Argument(name, ast.Number(_NUMBER)))
    if not arguments:
        return ast.Name(definition.name.text)
    return ast.Call(ast.Ident(definition.name.text), tuple(arguments))


def _check_empty(subject: _Subject, testing: Testing) -> None:
    """Look for tokens that see nothing."""
    definition = subject.definition or _definition(subject.mask)
    _, _, is_partial = read_decorators(definition)
    mask, scope = subject.mask, testing.scope
    what = f"{subject.what}: every token sees something"
    if never(ast.Not(mask.expression), scope, ("same",), testing.proofs):
        if not is_partial:
            testing.decide(what, "proved", subject.span)
        return
    if never(mask.expression, scope, budget=testing.proofs):
        message = "this mask is empty: no token ever sees anything"
        testing.report("E122", message, subject.span, "look for two conditions that exclude")
        testing.decide(what, "failed", subject.span)
    elif not is_partial:
        hint = "mend the mask, or mark it `@partial` if such rows are meant"
        failure = _search(what, mask, first_empty_row, subject, testing)
        if failure is not None:
            message = f"a token sees nothing: {failure.described()}"
            testing.report("E121", message, subject.span, hint)


def _check_ahead(subject: _Subject, testing: Testing) -> None:
    """Look for tokens that see a later one where that is not asked for."""
    found = find_definition(subject.mask)
    definition = subject.definition or (None if found is None else found[0])
    is_anywhere, segments, _ = read_decorators(definition)
    if is_anywhere:
        return
    mask, where = subject.mask, ""
    if segments and found is not None:
        mask = leaking_pairs(mask, segments, found[1])
        where = f" outside {' and '.join(f'`{s.text}`' for s in segments)}"
    what = f"{subject.what}: no look-ahead{where}"
    if never(mask.expression, mask.scope, ("before",), testing.proofs):
        testing.decide(what, "proved", subject.span)
        return
    failure = _search(
        what, mask, lambda seen, sample: first_pair(np.triu(seen, k=1), sample), subject, testing
    )
    if failure is not None:
        message = f"a token sees a later one{where}: {failure.described()}"
        hint = "add `causal and`, or mark the mask `@ahead` or `@ahead(segment)` if it is meant"
        testing.report("E120", message, subject.span, hint)


def _definition(mask: Mask) -> ast.MaskDef | None:
    found = find_definition(mask)
    return None if found is None else found[0]


def _search(
    what: str, mask: Mask, search: _Search, subject: _Subject, testing: Testing
) -> Failure | None:
    """Look for a fault on small samples, and say how it went."""
    tested, reason = 0, ""
    try:
        samples = claim_samples(
            mask.expression, None, mask.columns, mask.scope, testing.broken, testing.budget
        )
        for sample in samples:
            try:
                seen = dense_mask(mask, sample, budget=testing.budget)
            except DatasetError:
                continue  # a generated sample that a layout with `len` cannot take
            tested += 1
            failure = search(seen, sample)
            if failure is not None:
                testing.decide(what, "failed", subject.span, tested)
                return failure
        reason = "" if tested else "no sample has its columns"
    except OverBudget:
        tested, reason = 0, TOO_LONG[0]
    except SpecError as error:
        tested, reason = 0, error.diagnostics[0].message
    testing.decide(what, "tested" if tested else "untested", subject.span, tested, reason)
    return None
