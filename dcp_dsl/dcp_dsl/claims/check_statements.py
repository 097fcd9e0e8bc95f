"""Decide what `check` statements claim: by proof for every sample, else on small samples.

A claim that fails is shown with the smallest sample and the first pair that break it. The verdict
says whether a claim that holds is proved or tested.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from dcp_dsl.budget import OverBudget
from dcp_dsl.checks.scope import Scope, keys_of
from dcp_dsl.claims.report import Outcome
from dcp_dsl.claims.samples import STEPS_PER_PART, UnfitSampleError, count_parts
from dcp_dsl.claims.testing import (
    TOO_LONG,
    Step,
    Testing,
    Tried,
    first_empty_row,
    first_wrong_pair,
    search_fault,
)
from dcp_dsl.core.columns import bind_columns, integers
from dcp_dsl.core.mask import Mask, on_keys, read_mask
from dcp_dsl.core.sample import NoLengthError, Sample, declared_sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.errors import DatasetError
from dcp_dsl.proof.proving import is_total, never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS
from dcp_dsl.syntax.unparse import unparse

STEPS_PER_STATEMENT = 2**10  # what looking through the text for samples and layouts costs
_FAULTS = {
    "implies": ("C401", "the left mask sees a pair that the right one does not"),
    "equals": ("C402", "the masks differ"),
    "total": ("C403", "a token sees nothing"),
    "lookback": ("C404", "a token sees a later one"),
}
_UNFIT = "mend the sample so that its layout fills it"


def claim_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that decide every `check` statement of a text without errors.

    A text with very much to test is tested in part; W291 says which checks are not.

    Finds C401-C404 for claims that fail, E117 for samples that do not fit their layout, W290 where
    the claim cannot be evaluated yet, W291 where there is nothing to test it on or testing it
    would take too long, W292 for samples that no claim names and that do not fit.
    """
    yield Step("samples", None, partial(_check_samples, testing))
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Check):
            yield Step("claim", statement, partial(_check_claim, statement, testing))


def _check_samples(testing: Testing) -> None:
    """Find the samples that do not fit the layouts; those that claims name are errors there."""
    scope = testing.scope
    checks = [s for s in scope.program.statements if isinstance(s, ast.Check)]
    size = sum(count_parts(layout) for _, layout in scope.layouts())
    asked = {check.sample.text for check in checks if check.sample is not None}
    broken: set[str] = set()
    for name, definition in scope.samples.items():
        try:
            testing.budget.spend(STEPS_PER_PART * size)
            _check_columns(declared_sample(definition, scope), scope)
        except OverBudget:
            break
        except NoLengthError:  # it may still show what the columns look like
            continue
        except DatasetError as error:
            broken.add(name)
            if name not in asked:
                testing.report("W292", str(error), definition.span, _UNFIT)
    testing.broken = frozenset(broken)


def _check_columns(sample: Sample, scope: Scope) -> None:
    """Refuse columns of tokens, and of segments, that do not have their shape."""
    given, length = sample.columns, sample.length
    for token in scope.tokens.values():
        column = token.column.text
        if token.segment is None and column in given:
            shape = (length,) if token.size is None else (length, token.size)
            integers(given[column], shape, f"token column `{column}`")
    for segment in scope.segments.values():
        source = segment.source
        if isinstance(source, ast.Columns) and source.column.text in given:
            bind_columns(segment, source, given, length)


def _check_claim(check: ast.Check, testing: Testing) -> None:
    if len(testing.found) >= MAX_FINDINGS:
        return
    what = f"{unparse(check.left)} {check.claim}"
    what += "" if check.right is None else f" {unparse(check.right)}"
    what += "" if check.sample is None else f" on {check.sample.text}"
    mask = _read(check, testing.scope)
    mask = on_keys(mask) if check.sample is None else mask
    proves = is_total if check.claim == "total" else never
    is_one = mask.keys is None  # proofs speak of one sequence
    if is_one and check.sample is None and proves(mask.core, budget=testing.proofs):
        testing.decide(what, "proved", check.span)
        return
    try:
        testing.budget.spend(STEPS_PER_STATEMENT * len(testing.scope.program.statements))
        find = first_empty_row if check.claim == "total" else first_wrong_pair
        tried = search_fault(mask, find, testing, asked=check.sample)
    except OverBudget:
        tried = Tried(None, 0, "W291", *TOO_LONG)
    except DatasetError as error:
        span = check.span if check.sample is None else check.sample.span
        hint = error.hint if isinstance(error, UnfitSampleError) else _UNFIT
        testing.report("E117", str(error), span, hint)
        testing.decide(what, "untested", check.span, reason=str(error))
        return
    _conclude(check, what, tried, mask, testing)


def _read(check: ast.Check, scope: Scope) -> Mask:
    """Return the pairs that contradict a claim; for `total` the mask (rows may be empty)."""
    keys = keys_of(check.left, scope)
    if keys is None and check.right is not None:
        keys = keys_of(check.right, scope)
    left = read_mask(check.left, scope, keys)
    if check.claim == "lookback":
        return replace(left, core=nodes.And((nodes.AHEAD, left.core)))
    if check.right is None:
        return left
    right = read_mask(check.right, scope, keys)
    core: nodes.Mask = nodes.And((left.core, nodes.Not(right.core)))
    if check.claim == "equals":
        core = nodes.Or((core, nodes.And((right.core, nodes.Not(left.core)))))
    return replace(left, core=core, columns=left.columns | right.columns)


def _conclude(check: ast.Check, what: str, tried: Tried, mask: Mask, testing: Testing) -> None:
    """Report how the search for what contradicts a claim went."""
    outcome: Outcome = "untested"
    reason = tried.reason
    if tried.failure is not None:
        outcome = "failed"
        code, fault = _FAULTS[check.claim]
        described = tried.failure.described()
        testing.report(code, f"this check fails: {fault}", check.span, described)
    elif tried.code == "W290":
        testing.report("W290", f"this check cannot be evaluated: {reason}", check.span)
    elif tried.code or not tried.samples:
        reason = reason or "no sample has its columns"
        wanted = ", ".join(f"{column} = ..." for column in sorted(mask.columns))
        hint = tried.hint or f"add `sample tiny({wanted}, len = ...)`"
        testing.report("W291", f"this check is not tested: {reason}", check.span, hint)
    else:
        outcome = "tested"
    testing.decide(what, outcome, check.span, tried.samples, reason)
