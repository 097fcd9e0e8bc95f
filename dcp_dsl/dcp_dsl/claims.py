"""Test what `check` statements claim, on the samples of the text and on small generated ones.

A claim that fails is shown with the smallest sample and the first pair that break it. A claim that
holds here is tested, not proved.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dcp_dsl import ast
from dcp_dsl.ast import Program
from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.claim_samples import STEPS_PER_PART, claim_samples, count_parts
from dcp_dsl.columns import needed_columns
from dcp_dsl.diagnostics import MAX_FINDINGS, Diagnostic, make_diagnostic
from dcp_dsl.errors import DatasetError, SpecError
from dcp_dsl.mask import Mask
from dcp_dsl.oracle import dense_mask
from dcp_dsl.sample import Sample
from dcp_dsl.sample_statement import NoLengthError, declared_sample
from dcp_dsl.scope import Scope
from dcp_dsl.unparse import unparse

STEPS_PER_STATEMENT = 2**10  # what looking through the text for samples and layouts costs
MAX_STEPS = 2**28  # of numpy on one pair; about half a second

_TOO_LONG = "this check is not tested: it takes too long", "test smaller masks, on shorter samples"


def check_claims(scope: Scope) -> tuple[Diagnostic, ...]:
    """Test every `check` statement of a text without errors.

    A text with very much to test is tested in part; W291 says which checks are not.

    Returns:
        C401-C404 for claims that fail, E117 for samples that do not fit their layout, W290 where
        the claim cannot be evaluated yet, W291 where there is nothing to test it on or testing it
        would take too long.
    """
    budget = Budget(MAX_STEPS)
    found, broken = _check_samples(scope, budget)
    for statement in scope.program.statements:
        if isinstance(statement, ast.Check) and len(found) < MAX_FINDINGS:
            if budget.is_spent:
                found.append(_note(statement, scope, "W291", *_TOO_LONG))
            else:
                found += _check_claim(statement, scope, broken, budget)
    return tuple(found)


def _check_samples(scope: Scope, budget: Budget) -> tuple[list[Diagnostic], frozenset[str]]:
    """Find the samples that do not fit the layouts; those that claims name are errors there."""
    found: list[Diagnostic] = []
    broken: set[str] = set()
    program = scope.program
    checks = [s for s in program.statements if isinstance(s, ast.Check)]
    size = sum(count_parts(layout) for _, layout in scope.layouts())
    asked = {check.sample.text for check in checks if check.sample is not None}
    for name, definition in scope.samples.items():
        try:
            budget.spend(STEPS_PER_PART * size)
            declared_sample(definition, scope)
        except OverBudget:
            break
        except NoLengthError:  # it may still show what the columns look like
            continue
        except DatasetError as error:
            broken.add(name)
            if name not in asked and len(found) < MAX_FINDINGS:
                found.append(
                    make_diagnostic(
                        "W292", str(error), program.text, definition.span, name=program.name,
                        hint="mend the sample so that its layout fills it",
                    )
                )  # fmt: skip
    return found, frozenset(broken)


def _check_claim(
    check: ast.Check, scope: Scope, broken: frozenset[str], budget: Budget
) -> Iterator[Diagnostic]:
    left = _mask(check.left, scope)
    right = None if check.right is None else _mask(check.right, scope)
    columns = left.columns | (right.columns if right is not None else frozenset())
    is_tested = False
    try:
        budget.spend(STEPS_PER_STATEMENT * len(scope.program.statements))
        for sample in claim_samples(check, columns, scope, broken, budget):
            try:
                failure = _test(check, left, right, sample, budget)
            except DatasetError:
                if check.sample is not None:
                    raise
                continue  # a generated sample that a layout with `len` cannot take
            is_tested = True
            if failure is not None:
                yield _describe(check, failure, scope.program)
                return
    except SpecError as error:
        what = error.diagnostics[0].message
        yield _note(check, scope, "W290", f"this check cannot be tested yet: {what}", "")
    except OverBudget:
        yield _note(check, scope, "W291", *_TOO_LONG)
    except DatasetError as error:
        hint = "mend the sample so that its layout fills it"
        yield _note(check, scope, "E117", str(error), hint)
    else:
        if not is_tested:
            wanted = ", ".join(f"{column} = ..." for column in sorted(columns))
            yield _note(
                check, scope, "W291", "this check is not tested: no sample has its columns",
                f"add `sample tiny({wanted}, len = ...)`",
            )  # fmt: skip


def _note(check: ast.Check, scope: Scope, code: str, message: str, hint: str) -> Diagnostic:
    span = check.sample.span if check.sample is not None and code == "E117" else check.span
    program = scope.program
    return make_diagnostic(code, message, program.text, span, name=program.name, hint=hint)


def _mask(expression: ast.Expr, scope: Scope) -> Mask:
    columns = needed_columns(expression, scope)
    text = unparse(expression)
    return Mask(text, text, columns, expression, scope, scope.program)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A pair (or a row, when `k` is None) that breaks a claim on a sample."""

    sample: Sample
    q: int
    k: int | None


def _test(
    check: ast.Check, left: Mask, right: Mask | None, sample: Sample, budget: Budget
) -> _Failure | None:
    seen = dense_mask(left, sample, budget=budget)
    if check.claim == "total":
        blind = np.flatnonzero(~seen.any(axis=1))
        return _Failure(sample, int(blind[0]), None) if len(blind) else None
    if check.claim == "lookback":
        wrong = np.triu(seen, k=1)
    else:
        assert right is not None, "the grammar gives implies and equals a right side"
        other = dense_mask(right, sample, budget=budget)
        wrong = seen & ~other if check.claim == "implies" else seen != other
    pairs = np.argwhere(wrong)
    return _Failure(sample, *pairs[0].tolist()) if len(pairs) else None


def _describe(check: ast.Check, failure: _Failure, program: Program) -> Diagnostic:
    code, what = {
        "implies": ("C401", "the left mask sees a pair that the right one does not"),
        "equals": ("C402", "the masks differ"),
        "total": ("C403", "a token sees nothing"),
        "lookback": ("C404", "a token sees a later one"),
    }[check.claim]
    place = f"q = {failure.q}" + ("" if failure.k is None else f", k = {failure.k}")
    return make_diagnostic(
        code, f"this check fails: {what}", program.text, check.span, name=program.name,
        hint=f"at {place} of the sample {failure.sample.to_json()}",
    )  # fmt: skip
