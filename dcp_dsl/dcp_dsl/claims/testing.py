"""Decide what `check` statements claim: by proof for every sample, else on small samples.

A claim that fails is shown with the smallest sample and the first pair that break it. The verdict
says whether a claim that holds is proved or tested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.claims.column_samples import column_kinds
from dcp_dsl.claims.report import Outcome, Verdict
from dcp_dsl.claims.samples import (
    STEPS_PER_PART,
    UnfitSampleError,
    all_layouts,
    claim_samples,
    count_parts,
)
from dcp_dsl.claims.shrinking import shrink
from dcp_dsl.core.dense import dense_mask
from dcp_dsl.core.mask import Mask, read_mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.core.sample_statement import NoLengthError, declared_sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.errors import DatasetError
from dcp_dsl.proof.proving import MAX_TEXT_STEPS, is_total, never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS, Diagnostic, Fix, SpecError, make_diagnostic
from dcp_dsl.syntax.unparse import unparse

STEPS_PER_STATEMENT = 2**10  # what looking through the text for samples and layouts costs
MAX_STEPS = 2**28  # of numpy on one pair; about half a second
SHRINKING_STEPS = 2**27  # for making counter-examples smaller; a quarter of a second

_UNFIT = "mend the sample so that its layout fills it"
TOO_LONG = "it takes too long", "test smaller masks, on shorter samples"


@dataclass(slots=True)
class Testing:
    """The state that the checks of one text share.

    Attributes:
        scope: the text's definitions.
        budget: for evaluating masks on samples.
        proofs: for proving.
        shrinking: for making counter-examples smaller.
        broken: samples of the text that fit no layout.
        found, verdicts: results so far.
    """

    scope: Scope
    budget: Budget = field(default_factory=lambda: Budget(MAX_STEPS))
    proofs: Budget = field(default_factory=lambda: Budget(MAX_TEXT_STEPS))
    shrinking: Budget = field(default_factory=lambda: Budget(SHRINKING_STEPS))
    broken: frozenset[str] = frozenset()
    found: list[Diagnostic] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    __test__ = False  # no test class, whatever pytest thinks of the name

    def report(
        self, code: str, message: str, span: ast.Span, hint: str = "", fix: Fix | None = None
    ) -> None:
        """Add a diagnostic."""
        if len(self.found) < MAX_FINDINGS:
            program = self.scope.program
            self.found.append(
                make_diagnostic(
                    code, message, program.text, span, name=program.name, hint=hint, fix=fix
                )
            )

    def decide(
        self, what: str, outcome: Outcome, span: ast.Span, samples: int = 0, reason: str = ""
    ) -> None:
        """Add a verdict."""
        line = self.scope.program.text.count("\n", 0, span.start) + 1
        self.verdicts.append(Verdict(what, outcome, line, samples, reason))


def check_claims(testing: Testing) -> None:
    """Decide every `check` statement of a text without errors.

    A text with very much to test is tested in part; W291 says which checks are not.

    Finds C401-C404 for claims that fail, E117 for samples that do not fit their layout, W290 where
    the claim cannot be evaluated yet, W291 where there is nothing to test it on or testing it
    would take too long, W292 for samples that no claim names and that do not fit.
    """
    _check_samples(testing)
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Check) and len(testing.found) < MAX_FINDINGS:
            _check_claim(statement, testing)


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
            declared_sample(definition, scope)
        except OverBudget:
            break
        except NoLengthError:  # it may still show what the columns look like
            continue
        except DatasetError as error:
            broken.add(name)
            if name not in asked:
                testing.report("W292", str(error), definition.span, _UNFIT)
    testing.broken = frozenset(broken)


def _check_claim(check: ast.Check, testing: Testing) -> None:
    what = f"{unparse(check.left)} {check.claim}"
    what += "" if check.right is None else f" {unparse(check.right)}"
    what += "" if check.sample is None else f" on {check.sample.text}"
    sides = (check.left, *(() if check.right is None else (check.right,)))
    masks = [read_mask(side, testing.scope) for side in sides]
    if check.sample is None and _is_proved(check.claim, masks, testing.proofs):
        testing.decide(what, "proved", check.span)
        return
    if testing.budget.is_spent:
        testing.report("W291", f"this check is not tested: {TOO_LONG[0]}", check.span, TOO_LONG[1])
        testing.decide(what, "untested", check.span, reason=TOO_LONG[0])
        return
    _test_claim(check, what, masks, testing)


def _is_proved(claim: str, masks: Sequence[Mask], budget: Budget) -> bool:
    left, right = masks[0].core, masks[-1].core
    if claim == "total":
        return is_total(left, budget)
    if claim == "lookback":
        return never(left, ("before",), budget)
    is_implied = never(nodes.And((left, nodes.Not(right))), budget=budget)
    if claim == "implies" or not is_implied:
        return is_implied
    return never(nodes.And((right, nodes.Not(left))), budget=budget)


def _test_claim(check: ast.Check, what: str, masks: Sequence[Mask], testing: Testing) -> None:
    outcome: Outcome = "untested"
    tested, reason = 0, ""
    try:
        testing.budget.spend(STEPS_PER_STATEMENT * len(testing.scope.program.statements))
        samples = claim_samples(masks, check.sample, testing.scope, testing.broken, testing.budget)
        for sample in samples:
            try:
                failure = _test(check, masks, sample, testing.budget)
            except DatasetError:
                if check.sample is not None:
                    raise
                continue  # a generated sample that a layout with `len` cannot take
            tested += 1
            if failure is not None:
                if check.sample is None:
                    failure = smallest(
                        failure, lambda s, b: _test(check, masks, s, b), masks, testing
                    )
                _report_failure(check, failure, testing)
                testing.decide(what, "failed", check.span, tested)
                return
        outcome = "tested" if tested else "untested"
        if not tested:
            reason = "no sample has its columns"
            columns = {column for mask in masks for column in mask.columns}
            wanted = ", ".join(f"{column} = ..." for column in sorted(columns))
            hint = f"add `sample tiny({wanted}, len = ...)`"
            testing.report("W291", f"this check is not tested: {reason}", check.span, hint)
    except SpecError as error:
        reason = error.diagnostics[0].message
        testing.report("W290", f"this check cannot be evaluated: {reason}", check.span)
    except OverBudget:
        reason = TOO_LONG[0]
        testing.report("W291", f"this check is not tested: {reason}", check.span, TOO_LONG[1])
    except DatasetError as error:
        reason = str(error)
        span = check.span if check.sample is None else check.sample.span
        hint = error.hint if isinstance(error, UnfitSampleError) else _UNFIT
        testing.report("E117", reason, span, hint)
    testing.decide(what, outcome, check.span, tested, reason)


@dataclass(frozen=True, slots=True)
class Failure:
    """A pair (or a row, when `k` is None) that breaks a claim on a sample."""

    sample: Sample
    q: int
    k: int | None

    def described(self) -> str:
        """Return the place and the sample in words."""
        place = f"q = {self.q}" + ("" if self.k is None else f", k = {self.k}")
        return f"at {place} of the sample {self.sample.to_json()}"


def smallest(
    failure: Failure,
    search: Callable[[Sample, Budget], Failure | None],
    masks: Sequence[Mask],
    testing: Testing,
) -> Failure:
    """Return a failure on a sample that is as small as it gets.

    Args:
        failure: on any sample.
        search: gives the failure on a sample, or None.
        masks: what is searched.
        testing: what the checks of the text share.
    """
    kinds = column_kinds(*(mask.core for mask in masks))
    per_token = {column for column, kind in kinds.items() if kind.is_per_token}

    def look(sample: Sample) -> Failure | None:
        try:
            return search(sample, testing.shrinking)
        except (DatasetError, SpecError, OverBudget):  # it fits no layout, or enough was tried
            return None

    return shrink(failure.sample, failure, look, per_token, all_layouts(masks, testing.scope))


def _test(
    check: ast.Check, masks: Sequence[Mask], sample: Sample, budget: Budget
) -> Failure | None:
    seen = dense_mask(masks[0], sample, budget=budget)
    if check.claim == "total":
        return first_empty_row(seen, sample)
    if check.claim == "lookback":
        return first_pair(np.triu(seen, k=1), sample)
    other = dense_mask(masks[1], sample, budget=budget)
    return first_pair(seen & ~other if check.claim == "implies" else seen != other, sample)


def first_empty_row(seen: NDArray[np.bool_], sample: Sample) -> Failure | None:
    """Return the first token that sees nothing."""
    blind = np.flatnonzero(~seen.any(axis=1))
    return Failure(sample, int(blind[0]), None) if len(blind) else None


def first_pair(wrong: NDArray[np.bool_], sample: Sample) -> Failure | None:
    """Return the first pair of a dense mask."""
    pairs = np.argwhere(wrong)
    return Failure(sample, *pairs[0].tolist()) if len(pairs) else None


def _report_failure(check: ast.Check, failure: Failure, testing: Testing) -> None:
    code, what = {
        "implies": ("C401", "the left mask sees a pair that the right one does not"),
        "equals": ("C402", "the masks differ"),
        "total": ("C403", "a token sees nothing"),
        "lookback": ("C404", "a token sees a later one"),
    }[check.claim]
    testing.report(code, f"this check fails: {what}", check.span, failure.described())
