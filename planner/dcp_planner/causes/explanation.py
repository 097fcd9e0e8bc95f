"""Why one plan of a batch is predicted to be faster than another, from the causes of both.

What several causes cost only together counts half for each of them (`Cause.part_s`), so that the
parts of a time add up to it but for what three and more share.
"""

from dataclasses import dataclass
from typing import Any, Literal

from dcp_planner.causes.diagnosis import Diagnosis, Name, diagnose
from dcp_planner.causes.sentences import CONDITIONS, NOUNS, ShareText, TimeText, joined, percent
from dcp_planner.errors import PlanError
from dcp_planner.tables.metrics import measure
from dcp_planner.tables.plan import Plan

Reason = Name | Literal["work", "close", "several"]
"""The reason for a difference: a cause, the mean device's compute (`work`), none because it is too
small (`close`), or several causes."""

CLOSE = 0.01
"""Times that differ by a smaller share have no cause that is worth a name."""
MOSTLY = 0.6
"""A cause is named alone if it is this share of all that make the slower plan slower."""
WORTH_SAYING = 0.1
"""Beside the reason, causes of at least this share of the difference are listed."""

CAUSE_RULE = (
    "Both plans are predicted again with one thing free at a time, and with everything else free: "
    f"{joined(sorted(NOUNS.values()))}. The mean of both savings is the part of that cause. A "
    f"reason is named if it is at least {MOSTLY:.0%} of what makes the slower plan slower."
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Difference in predicted time between two plans of one batch, with its reason.

    Attributes:
        first, second: causes of their times.
    """

    first: Diagnosis
    second: Diagnosis

    @property
    def difference(self) -> float:
        """Seconds that the second takes more."""
        return self.second.seconds - self.first.seconds

    @property
    def shares(self) -> dict[Name | Literal["work"], float]:
        """Seconds that each cause adds to the slower plan, most first; below 0 where it saves."""
        sign = 1 if self.difference >= 0 else -1
        found: dict[Name | Literal["work"], float] = {
            "work": sign * (self.second.work_s - self.first.work_s)
        }
        for name in NOUNS:
            first, second = (
                cause.part_s if (cause := side.of(name)) is not None else 0.0
                for side in (self.first, self.second)
            )
            found[name] = sign * (second - first)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def reason(self) -> Reason:
        """Decide what explains most of the difference."""
        if abs(self.difference) <= CLOSE * max(self.first.seconds, self.second.seconds):
            return "close"
        shares = self.shares
        best = next(iter(shares))
        pushing = sum(max(0.0, share) for share in shares.values())
        return best if shares[best] >= MOSTLY * pushing else "several"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts, numbers, objects of them."""
        return {
            "reason": self.reason,
            "difference_s": self.difference,
            "adds_s": self.shares,
            "first": self.first.to_json(),
            "second": self.second.to_json(),
        }


def unlike_batches(first: Plan, second: Plan) -> tuple[str, ...]:
    """Say in what the batches of two plans differ; empty if they compute the same."""
    is_same_batch = first.cu_seqlens.tolist() == second.cu_seqlens.tolist()
    differs = {
        "batches of other lengths": not is_same_batch,
        "other masks": is_same_batch and measure(first).pairs != measure(second).pairs,
        "other model shapes": not first.shape.is_same_model(second.shape),
    }
    return tuple(what for what, is_so in differs.items() if is_so)


def explain(first: Plan, second: Plan) -> Explanation:
    """Find out why two plans of one batch take different times.

    Raises:
        PlanError: if they compute other pairs; like `simulate`.
    """
    unlike = unlike_batches(first, second)
    if unlike:
        raise PlanError(f"expected two plans of one batch, got plans for {', '.join(unlike)}")
    return Explanation(diagnose(first), diagnose(second))


def explain_difference(
    found: Explanation,
    names: tuple[str, str],
    seconds: TimeText,
    share: ShareText = percent,
) -> str:
    """Explain in sentences which plan is faster and why."""
    first, second = found.first.seconds, found.second.seconds
    if found.reason == "close":
        text = (
            f"{names[0]} and {names[1]} take about the same time, {seconds(first)} and "
            f"{seconds(second)}: they differ by less than {share(CLOSE)}, too little to name a "
            "reason."
        )
    else:
        faster, slower = names if first < second else names[::-1]
        least, most = min(first, second), max(first, second)
        text = (
            f"{faster} takes {share(1 - least / most)} less time than {slower}: {seconds(least)} "
            f"against {seconds(most)}, {_because(found, slower, seconds)}."
            f"{_what_if(found, names, seconds)}"
        )
    return text[:1].upper() + text[1:]


def _because(found: Explanation, slower: str, seconds: TimeText) -> str:
    more, less = _listed(found, 1, seconds), _listed(found, -1, seconds)
    match found.reason:
        case "work":
            text = f"mostly because the mean device of {slower} has more to compute"
        case "several" | "close":
            text = f"for no single reason: {slower} loses more to {more}"
        case name:
            text = f"mostly because {slower} loses more to {NOUNS[name]}"
    return f"{text}; against that, it loses less to {less}" if less else text


def _listed(found: Explanation, sign: int, seconds: TimeText) -> str:
    """Name the causes that add time to the slower plan, or take some away, the largest first."""
    least = WORTH_SAYING * abs(found.difference)
    shares = {name: sign * share for name, share in found.shares.items()}
    chosen = sorted((n for n in shares if shares[n] >= least), key=lambda n: -shares[n])
    return joined([f"{_noun(name)} ({seconds(shares[name])})" for name in chosen])


def _noun(name: Name | Literal["work"]) -> str:
    return "computing itself" if name == "work" else NOUNS[name]


def _what_if(found: Explanation, names: tuple[str, str], seconds: TimeText) -> str:
    """Say what both would take without the causes that push most."""
    pushing = [name for name, share in found.shares.items() if name != "work" and share > 0]
    told = []
    for name in pushing[:2]:
        saved = [cause.saves_s if (cause := side.of(name)) is not None else 0.0
                 for side in (found.first, found.second)]  # fmt: skip
        first, second = found.first.seconds - saved[0], found.second.seconds - saved[1]
        told.append(
            f"{CONDITIONS[name]} {names[0]} would take {seconds(first)} and {names[1]} "
            f"{seconds(second)}"
        )
    text = "; ".join(told)
    return f" {text[:1].upper()}{text[1:]}." if text else ""
