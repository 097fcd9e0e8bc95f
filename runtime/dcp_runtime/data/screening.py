"""Rows that cannot be trained on: the loader raises an error, or leaves them out and counts them.

This module loads no torch: planner processes need it, and start in a tenth of the time without.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dcp_dsl import DatasetError

RowPolicy: TypeAlias = Literal["error", "skip", "truncate"]
Reason: TypeAlias = Literal["empty", "too_long", "unfit"]

KEPT_EXAMPLES = 20
SKIP_HINT = "policy='skip' leaves such rows out and counts them"


@dataclass(slots=True)
class Screening:
    """Applies a policy and keeps the record; nothing is left out without being in it.

    Attributes:
        policy: ``"error"`` raises for the first bad row; ``"skip"`` leaves bad rows out;
            ``"truncate"`` cuts rows longer than the budget and raises for the others.
        counts: rows left out or cut, by reason.
        examples: what was wrong with the first `KEPT_EXAMPLES` of them.
        hidden_targets: targets left out because they do not see the token before them.
    """

    policy: RowPolicy = "error"
    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    hidden_targets: int = 0
    _known: set[tuple[int, str]] = field(default_factory=set)

    def leave_out(self, row: int, reason: Reason, what: str) -> None:
        """Record that a row is left out.

        Raises:
            DatasetError: unless the policy is to skip such rows.
        """
        if self.policy != "skip":
            raise DatasetError(f"{what}; {SKIP_HINT}")
        self._record(row, reason, what)

    def shorten(self, row: int, length: int, budget: int, way_out: str) -> int:
        """Return how many tokens of a row longer than the budget are used; 0 leaves it out.

        Args:
            row: its number.
            length: its tokens.
            budget: most tokens of a row.
            way_out: how the row would fit.

        Raises:
            DatasetError: if the policy is to raise.
        """
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
        if (row, reason) in self._known:  # a second epoch finds the same rows
            return
        self._known.add((row, reason))
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if len(self.examples) < KEPT_EXAMPLES:
            self.examples.append(what)
