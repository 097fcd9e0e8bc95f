"""Search small samples for one that contradicts a statement about a mask, and make it smaller."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.claims.column_samples import column_kinds
from dcp_dsl.claims.report import Outcome, Verdict
from dcp_dsl.claims.samples import all_layouts, claim_samples, shrink
from dcp_dsl.core.dense import dense_mask
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.proof.proving import MAX_TEXT_STEPS
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS, Diagnostic, Fix, SpecError, make_diagnostic

MAX_STEPS = 2**28  # of numpy on one pair; about half a second
SHRINKING_STEPS = 2**27  # for making counter-examples smaller; a quarter of a second
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


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the checks of a text.

    Attributes:
        kind: of check.
        statement: the one it looks at, with all that this one mentions; None if it looks at all.
        look: reports what it finds and decides.
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
        """Return the place and the sample in words."""
        place = f"q = {self.q}" + ("" if self.k is None else f", k = {self.k}")
        return f"at {place} of the sample {self.sample.to_json()}"


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
    """The result of a search.

    Attributes:
        failure: the fault on the smallest sample that shows it, or None.
        samples: how many samples were tried.
        code: of the warning that the mask could not be evaluated on samples, else empty.
        reason: why it could not.
        hint: the way out of that, or empty.
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
                if asked is not None:
                    raise
                continue  # a generated sample that a layout with `len` cannot take
            tested += 1
            if failure is not None:
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
    """Return a failure on a sample that is as small as it gets."""
    kinds = column_kinds(mask.core)
    per_token = {column for column, kind in kinds.items() if kind.is_per_token}

    def look(sample: Sample) -> Failure | None:
        try:
            return search(sample, testing.shrinking)
        except (DatasetError, SpecError, OverBudget):  # it fits no layout, or enough was tried
            return None

    return shrink(failure.sample, failure, look, per_token, all_layouts(mask, testing.scope))
