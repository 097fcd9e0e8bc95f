"""The policy for rows that cannot be used, and the record of all that is left out of them."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from dcp_dsl import DatasetError
from dcp_dsl.arrays import Ints
from dcp_runtime.data.choices import RowPolicy
from dcp_runtime.data.planner_pool import SKIP_HINT

Reason: TypeAlias = Literal["empty", "too_long", "unfit"]

KEPT_EXAMPLES = 20  # rows left out or cut whose reasons are kept as text

SHARES = (0.5, 0.1, 0.01)
"""Shares of the rows seen so far: the loader warns once for each that left-out rows exceed."""

MANY_ROWS = 1000
"""Rows without any target after which the loader does not wait for the end of the epoch."""

LEAST_SHARED = 5
"""Rows left out before they are told as a share: one row of two would be half of them."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Screening:
    """Applies a policy to bad rows, and records every row and target that is left out.

    Attributes:
        policy: ``"error"`` raises for the first bad row; ``"skip"`` leaves bad rows out;
            ``"truncate"`` cuts rows longer than the budget and raises for the others.
        counts: rows left out or cut, by reason.
        examples: the faults of the first `KEPT_EXAMPLES` of them.
        hidden_targets: targets left out because they do not see the token before them.
        says: whether it warns of rows left out: at the first, and at each of the `SHARES`.
    """

    policy: RowPolicy = "error"
    says: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    hidden_targets: int = 0
    # Rows that are counted already: a second epoch finds the same rows again.
    _known: set[tuple[int, str]] = field(default_factory=set)
    # Since `begin_reading`: rows seen, and how many of them are left out.
    _seen: int = 0
    _left_out: int = 0
    _shares: tuple[float, ...] = SHARES  # not yet told

    @property
    def num_left_out(self) -> int:
        """Rows left out so far."""
        return sum(self.counts.values()) if self.policy == "skip" else 0

    def no_batch(self, epoch: int, total: int) -> DatasetError:
        """Return the error of an epoch of `total` rows without a batch, which names the reason."""
        left_out = self.num_left_out
        if not total:
            why = "the data set has no rows; does its path, or its filter, name the right ones?"
        elif left_out >= total:
            why = (
                f"policy='skip' left out {left_out} of {total} rows; the first: "
                f"{self.examples[0]}; mend the rows, or choose the mask, the columns or the "
                "token_budget that they fit"
            )
        else:
            why = (
                f"drop_last=True leaves out the last global batch, and the {total - left_out} "
                f"usable of {total} rows fill no other; choose drop_last=False, or a smaller "
                "token_budget"
            )
        return DatasetError(f"expected at least one batch in epoch {epoch}, got none: {why}")

    def begin_reading(self, judged: int) -> None:
        """Begin to read rows, after that many were judged by their lengths alone."""
        self._seen = judged
        self._say_share()
        self._seen = self._left_out = 0

    def see(self) -> None:
        """Count a row that is read."""
        self._seen += 1

    def leave_out(self, row: int, reason: Reason, what: str) -> None:
        """Record that a row is left out; raise unless the policy is to skip such rows."""
        if self.policy != "skip":
            raise DatasetError(f"{what}; {SKIP_HINT}")
        self._record(row, reason, what)

    def shorten(self, row: int, length: int, budget: int, way_out: str) -> int:
        """Return how many tokens of a row longer than the budget are used; 0 leaves it out."""
        what = f"row {row} has {length} tokens, the token budget is {budget}"
        if self.policy == "error":
            raise DatasetError(f"{what}; {way_out}, or choose policy='truncate' or policy='skip'")
        self._record(row, "too_long", what)
        return budget if self.policy == "truncate" else 0

    def leave_out_targets(self, row: int, count: int) -> None:
        """Record that a row is used without some of its targets."""
        if (row, "hidden") not in self._known:
            self._known.add((row, "hidden"))
            self.hidden_targets += count

    def _record(self, row: int, reason: Reason, what: str) -> None:
        if (row, reason) in self._known:
            return
        self._known.add((row, reason))
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if len(self.examples) < KEPT_EXAMPLES:
            self.examples.append(what)
        if self.policy == "skip":
            self._left_out += 1
            if self.says and self.num_left_out == 1:
                logger.warning(
                    "policy='skip' leaves out rows without an error; the first: %s. "
                    "loader.screening counts on; warnings follow at %s of the rows seen",
                    what,
                    ", ".join(f"{share:.0%}" for share in reversed(SHARES)),
                )
            self._say_share()

    def _say_share(self) -> None:
        """Warn when rows left out exceed one more of the shares."""
        if self._left_out < LEAST_SHARED:
            return
        exceeded = [share for share in self._shares if self._left_out >= share * self._seen]
        if not exceeded or not self._seen:
            return
        self._shares = tuple(share for share in self._shares if share > exceeded[0])
        if self.says:
            logger.warning(
                "policy='skip' has left out %d of the %d rows seen so far (%.0f %%): %s; the "
                "first: %s",
                self._left_out,
                self._seen,
                100 * self._left_out / self._seen,
                ", ".join(f"{count} {reason}" for reason, count in self.counts.items()),
                self.examples[0],
            )


@dataclass(slots=True)
class TargetCount:
    """Counts what an epoch trains on, and warns once where that is nothing."""

    replica: int  # that of this rank
    says: bool  # of all rows
    says_own: bool  # of those that its replica trains on
    # Rows, tokens and targets of this iteration: of all replicas, and of this one.
    _all: Ints = field(default_factory=lambda: np.zeros(3, np.int64))
    _own: Ints = field(default_factory=lambda: np.zeros(3, np.int64))

    def begin(self) -> None:
        """Begin an iteration."""
        self._all[:] = self._own[:] = 0

    def add(self, tokens: Sequence[int], targets: Sequence[int], own: Collection[int]) -> None:
        """Count the tokens and targets of the rows of a window; `own` are those of the replica."""
        self._all += len(tokens), sum(tokens), sum(targets)
        self._own += len(own), sum(tokens[row] for row in own), sum(targets[row] for row in own)
        if self._all[0] >= MANY_ROWS:
            self.end()

    def end(self) -> None:
        """Judge the rows of the iteration so far."""
        is_all = not self._all[2]
        rows, tokens, targets = (self._all if is_all else self._own).tolist()
        if not rows or targets or not (self.says if is_all else self.says_own):
            return
        self.says = self.says_own = False
        logger.warning(
            "%s on nothing: %d rows of %d tokens hold 0 targets; the labels column, loss_column "
            "and the mask say which targets count, and a row of one token has none",
            "this run trains" if is_all else f"replica {self.replica} trains",
            rows,
            tokens,
        )


def screen(
    lengths: Sequence[int],
    usable_tokens: Callable[[int, int], int],
    screening: Screening,
    micro_batches: int,
) -> tuple[list[int], list[int]]:
    """Return the rows that can be used, judged by lengths alone, and how many tokens of each."""
    rows, counts = list[int](), list[int]()
    for row, length in enumerate(lengths):
        if count := usable_tokens(row, length):
            rows.append(row)
            counts.append(count)
    screening.begin_reading(len(lengths))
    if 0 < len(rows) < micro_batches:
        raise DatasetError(
            f"expected at least one row per micro-batch, got {len(rows)} usable rows for "
            f"micro_batches={micro_batches}; use at most {len(rows)}"
        )
    return rows, counts
