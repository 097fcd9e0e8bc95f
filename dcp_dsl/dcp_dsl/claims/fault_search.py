"""Search small samples for a fault of a mask: a look-ahead, a token that sees nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.claims.samples import claim_samples
from dcp_dsl.claims.testing import TOO_LONG, Failure, Testing, smallest
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.oracle.dense import dense_mask
from dcp_dsl.syntax.diagnostics import SpecError

Finder: TypeAlias = Callable[[NDArray[np.bool_], Sample], Failure | None]


@dataclass(frozen=True, slots=True)
class Tried:
    """How a search went.

    Attributes:
        failure: the fault on the smallest sample that shows it, or None.
        samples: how many samples were tried.
        reason: why the mask could not be evaluated on samples, else empty.
        hint: the way out of that, or empty.
    """

    failure: Failure | None
    samples: int
    reason: str = ""
    hint: str = ""


def search_fault(mask: Mask, find: Finder, testing: Testing, *, with_open: bool = False) -> Tried:
    """Look for a fault of a mask on samples that fit it, small ones first.

    Args:
        mask: the mask.
        find: gives the fault of a dense mask on a sample, or None.
        testing: what the checks of the text share.
        with_open: whether to make up token columns and `row` columns too.
    """

    def look(sample: Sample, budget: Budget) -> Failure | None:
        return find(dense_mask(mask, sample, budget=budget), sample)

    tested = 0
    try:
        samples = claim_samples(
            mask.expression, None, mask.columns, mask.scope, testing.broken, testing.budget,
            with_open=with_open,
        )  # fmt: skip
        for sample in samples:
            try:
                failure = look(sample, testing.budget)
            except DatasetError:
                continue  # a generated sample that a layout with `len` cannot take
            tested += 1
            if failure is not None:
                failure = smallest(failure, look, mask.expression, testing, mask.scope)
                return Tried(failure, tested)
    except OverBudget:
        return Tried(None, 0, *TOO_LONG)
    except SpecError as error:
        found = error.diagnostics[0]
        return Tried(None, 0, found.message, found.hint)
    return Tried(None, tested)
