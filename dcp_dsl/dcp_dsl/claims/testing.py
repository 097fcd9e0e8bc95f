"""Decide claims about masks: by a proof for every sample, else by a search on small samples.

A failing claim is shown with a sample, made as small as possible, and the first pair that breaks
it. The verdict of a claim that holds says whether it is proved or only tested.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.checks.scope import Scope, keys_of
from dcp_dsl.claims.column_samples import column_kinds
from dcp_dsl.claims.declared import UNFIT, misspelt, read_columns, unfit
from dcp_dsl.claims.samples import (
    STEPS_PER_PART,
    UnfitSampleError,
    all_layouts,
    claim_samples,
    count_parts,
    shrink,
)
from dcp_dsl.core.mask import Mask, may_begin_before, on_keys, read_mask
from dcp_dsl.core.per_token import dense_mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.errors import Budget, DatasetError, OverBudget
from dcp_dsl.proof.proving import MAX_TEXT_STEPS, is_total, never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    Fix,
    Outcome,
    SpecError,
    Verdict,
    make_diagnostic,
)
from dcp_dsl.syntax.trees import unparse

# A step is one numpy operation on one pair. Counting steps instead of time makes all machines give
# the same verdicts.
MAX_STEPS = 2**28  # for searches, about half a second
SHRINKING_STEPS = 2**27  # for making counter-examples smaller, a quarter of a second
MAX_SHOWN = 2_000  # characters of a sample in a message
IF_FITTING = ", where no sample has more queries than keys"  # for masks that `may_begin_before`
TOO_LONG = "it takes too long", "test smaller masks, on shorter samples"


@dataclass(slots=True)
class Testing:
    """The state that the checks of one text share.

    Steps are left in `budget` for masks on samples, in `proofs`, and in `shrinking` for making
    counter-examples smaller. `broken` names the samples that fit no layout.
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
        """Add a diagnostic; leave out what is there already, and all beyond `MAX_FINDINGS`."""
        program = self.scope.program
        found = make_diagnostic(
            code, message, program.text, span, name=program.name, hint=hint, fix=fix
        )
        if len(self.found) < MAX_FINDINGS and found not in self.found:
            self.found.append(found)

    def decide(
        self, what: str, outcome: Outcome, span: ast.Span, samples: int = 0, reason: str = ""
    ) -> None:
        """Add a verdict."""
        line = span.line(self.scope.program.text)
        self.verdicts.append(Verdict(what, outcome, line, samples, reason))


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the checks of a text; it reports findings and adds verdicts.

    `statement` is the one that it checks, with all that this mentions; None for the whole text.
    """

    kind: str
    statement: ast.Statement | None
    look: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A pair (or a row, when `k` is None) that breaks a claim on a sample."""

    sample: Sample
    q: int
    k: int | None

    def described(self) -> str:
        """Return the place and the sample in words, as in `at q = 2, k = 3 of the sample {...}`."""
        place = f"q = {self.q}" + ("" if self.k is None else f", k = {self.k}")
        shown = self.sample.to_json()
        if len(shown) > MAX_SHOWN:
            shown = f"{shown[:MAX_SHOWN]}... (shortened, {len(shown):_} characters)"
        return f"at {place} of the sample {shown}"


Finder: TypeAlias = Callable[[NDArray[np.bool_], Sample], Failure | None]


def first_empty_row(seen: NDArray[np.bool_], sample: Sample) -> Failure | None:
    """Return the first token that sees nothing."""
    blind = np.flatnonzero(~seen.any(axis=1))
    return Failure(sample, int(blind[0]), None) if len(blind) else None


def first_wrong_pair(wrong: NDArray[np.bool_], sample: Sample) -> Failure | None:
    """Return the first pair of a dense mask."""
    pairs = np.argwhere(wrong)
    return Failure(sample, *pairs[0].tolist()) if len(pairs) else None


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a search: the fault on the smallest sample that shows it, or None.

    `code` is the warning that the search could not be completed, else empty; `reason` says why.
    """

    failure: Failure | None
    samples: int
    code: str = ""
    reason: str = ""
    hint: str = ""


def search_fault(
    mask: Mask,
    find: Finder,
    testing: Testing,
    *,
    asked: ast.Ident | None = None,
    with_open: bool = False,
) -> Tried:
    """Look for a fault of a mask on samples that fit it, small ones first."""

    def look(sample: Sample, budget: Budget) -> Failure | None:
        return find(dense_mask(mask, sample, budget=budget), sample)

    tested = 0
    try:
        samples = claim_samples(
            mask, asked, testing.scope, testing.broken, testing.budget, with_open=with_open
        )
        for sample in samples:
            try:
                failure = look(sample, testing.budget)
            except DatasetError:
                if asked is not None:  # the person chose this sample and must hear of it
                    raise
                continue  # a generated sample that a layout with `len` cannot take
            tested += 1
            if failure is not None:
                # A sample that the claim names is shown as it is.
                smallest = failure if asked is not None else _shrunk(failure, look, mask, testing)
                return Tried(smallest, tested)
    except OverBudget:
        return Tried(None, tested, "W291", *TOO_LONG)
    except SpecError as error:
        found = error.diagnostics[0]
        return Tried(None, tested, "W290", found.message, found.hint)
    return Tried(None, tested)


def _shrunk(
    failure: Failure,
    search: Callable[[Sample, Budget], Failure | None],
    mask: Mask,
    testing: Testing,
) -> Failure:
    """Return a failure on a sample that no small step makes smaller, as far as the budget goes."""
    kinds = column_kinds(mask.core)
    per_token = sorted(column for column, kind in kinds.items() if kind.is_per_token)

    def look(sample: Sample) -> Failure | None:
        try:
            return search(sample, testing.shrinking)
        except (DatasetError, SpecError, OverBudget):
            return None  # the sample fits no layout, or enough was tried: keep the larger one

    return shrink(failure.sample, failure, look, per_token, all_layouts(mask, testing.scope))


STEPS_PER_STATEMENT = 2**10  # cost of looking through the text for samples and layouts
_FAULTS = {
    "implies": ("C401", "the left mask sees a pair that the right one does not"),
    "equals": ("C402", "the masks differ"),
    "total": ("C403", "a token sees nothing"),
    "lookback": ("C404", "a token sees a later one"),
}


def claim_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that decide every `check` statement of a text without errors.

    A text with very much to test is tested in part; W291 says which checks are not.

    Finds C401-C404 for claims that fail, E117 for samples that do not fit their layout, W290 where
    the claim cannot be evaluated, W291 where there is no sample to test it on or testing it would
    take too long, W292 for samples that do not fit and that no claim names, W294 for misspelt
    columns.
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
    known = read_columns(scope) if scope.samples else frozenset()
    for name, definition in scope.samples.items():
        try:
            testing.budget.spend(STEPS_PER_PART * size)
        except OverBudget:
            break
        found = [*misspelt(definition, scope, known)]
        if (mistake := unfit(definition, scope)) is not None:
            broken.add(name)
            found += [mistake] * (name not in asked)
        for each in found:
            testing.report(each.code, each.message, each.span, each.hint)
    testing.broken = frozenset(broken)


def _check_claim(check: ast.Check, testing: Testing) -> None:
    if len(testing.found) >= MAX_FINDINGS:
        return
    what = f"{unparse(check.left)} {check.claim}"
    what += "" if check.right is None else f" {unparse(check.right)}"
    what += "" if check.sample is None else f" on {check.sample.text}"
    given = mask = _read(check, testing.scope)
    # A named sample says how many of the keys' tokens are queries; without one, all of them are.
    mask = on_keys(mask) if check.sample is None else mask
    proves = is_total if check.claim == "total" else never
    find = first_empty_row if check.claim == "total" else first_wrong_pair
    is_provable = mask.keys is None and check.sample is None  # proofs speak of one sequence
    is_conditional = is_provable and check.claim == "total" and may_begin_before(given)
    what += IF_FITTING if is_conditional else ""
    cost = STEPS_PER_STATEMENT * len(testing.scope.program.statements)
    tried = Tried(None, 0)
    try:
        if is_conditional:  # only samples of the text may break the condition
            testing.budget.spend(cost)
            tried = search_fault(given, find, testing)
        if not tried.failure and is_provable and proves(mask.core, budget=testing.proofs):
            testing.decide(what, "proved", check.span)
            return
        if not tried.failure:
            testing.budget.spend(cost)
            tried = search_fault(mask, find, testing, asked=check.sample)
    except OverBudget:
        tried = Tried(None, 0, "W291", *TOO_LONG)
    except DatasetError as error:
        span = check.span if check.sample is None else check.sample.span
        hint = error.hint if isinstance(error, UnfitSampleError) else UNFIT
        testing.report("E117", str(error), span, hint)
        testing.decide(what, "untested", check.span, reason=str(error))
        return
    _conclude(check, what, tried, mask, testing)


def _read(check: ast.Check, scope: Scope) -> Mask:
    """Return the pairs that contradict a claim; for `total` the mask, whose rows are looked at."""
    # A side without `@keys` is read over the two sequences of the other side.
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
    """Report the outcome of the search for a contradiction of a claim, and add the verdict."""
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
