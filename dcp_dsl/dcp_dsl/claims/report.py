"""The report on a text: its diagnostics, and its statements as proved, tested or failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from dcp_dsl.syntax.diagnostics import Diagnostic

Outcome: TypeAlias = Literal["proved", "tested", "failed", "untested"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a statement: proved, tested, failed or untested.

    Attributes:
        what: the statement, such as ``mask packed: no look-ahead`` or the text of a `check`.
        outcome: *proved* for every sample; *tested* on `samples` small ones that fit the layouts;
            *failed* on one, which the diagnostic of that line shows; or *untested*.
        line: of the text, from 1.
        samples: how many samples were tried.
        reason: why it is untested, else empty.
    """

    what: str
    outcome: Outcome
    line: int
    samples: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:  # Any: texts and numbers, ready for json.dumps
        """Return the fields as JSON values."""
        return {
            "what": self.what, "outcome": self.outcome, "line": self.line,
            "samples": self.samples, "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of a text in its order, and all verdicts.

    >>> from dcp_dsl import check_report
    >>> check_report("mask near = causal and q - k < 4").summary()
    '2 statements: 2 proved'
    """

    diagnostics: tuple[Diagnostic, ...]
    verdicts: tuple[Verdict, ...]

    def summary(self) -> str:
        """Count in one line the statements proved, tested, failed and not tested."""
        return count_outcomes(self.verdicts, "statement") or "0 statements: none"


def count_outcomes(verdicts: Sequence[Verdict], noun: str) -> str:
    """Count how many were proved, tested, failed and not tested; empty without any."""
    outcomes = [verdict.outcome for verdict in verdicts]
    counts = [f"{outcomes.count(o)} {o}" for o in get_args(Outcome) if o in outcomes]
    count = f"{len(outcomes)} {noun}{'' if len(outcomes) == 1 else 's'}"
    return f"{count}: {', '.join(counts)}" if outcomes else ""
