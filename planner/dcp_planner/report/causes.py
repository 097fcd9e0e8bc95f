"""Causes of a difference in time between two plans, from predictions under changed conditions.

Each plan is predicted four times: as it is, with infinitely fast links, with compute shared evenly,
and with both. A time then has four parts that add up to it: the *work* of the mean device; what
uneven compute costs (*imbalance*); what *links* cost; and *order*, which is left with both changes:
waiting for what other devices do first. What either change could save, or only both together,
counts half for each (Shapley's value of two players).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dcp_planner.simulation.simulator import WhatIf, mean_compute_seconds, predict
from dcp_planner.tables.plan import Plan

Cause = Literal["work", "imbalance", "links", "order"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
Reason = Cause | Literal["close", "several"]
"""Explanation of a difference: a cause, several, or none because the difference is too small."""

CLOSE = 0.01
"""Times that differ by a smaller share have no cause that is worth a name."""
MOSTLY = 0.6
"""A cause is named alone if it is this share of all that make the slower plan slower."""
WORTH_SAYING = 0.1
"""Beside the reason, causes of at least this share of the difference are listed."""

CAUSE_RULE = (
    "Both plans are predicted as they are, with infinitely fast links, with compute shared evenly, "
    "and with both. What a change saves is the part of links, or of uneven compute; what either "
    "could save, or only both together, counts half for each. The rest is what the mean device "
    "computes, and order: waiting for what other devices do first. A reason is named if it is at "
    f"least {MOSTLY:.0%} of what makes the slower plan slower."
)


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Parts of the predicted time of a plan, seconds of forward and backward.

    Attributes:
        seconds: as it is.
        with_free_links_s: if messages took no time.
        with_even_compute_s: if all devices computed equally long.
        with_both_s: under both changes.
        work_s: what the mean device computes.

    >>> parts = TimeParts(10.0, with_free_links_s=9.0, with_even_compute_s=6.0, with_both_s=4.0,
    ...                   work_s=3.5)
    >>> {cause: parts.of(cause) for cause in CAUSES}
    {'work': 3.5, 'imbalance': 4.5, 'links': 1.5, 'order': 0.5}
    """

    seconds: float
    with_free_links_s: float
    with_even_compute_s: float
    with_both_s: float
    work_s: float

    def of(self, cause: Cause) -> float:
        """Return the part of a cause; the four parts add up to `seconds`."""
        if cause == "work":
            return self.work_s
        if cause == "order":
            return self.with_both_s - self.work_s
        alone, other = self.with_free_links_s, self.with_even_compute_s
        if cause == "imbalance":
            alone, other = other, alone
        return ((self.seconds - alone) + (other - self.with_both_s)) / 2

    def to_json(self) -> dict[str, float]:
        """Return all figures and parts by name."""
        figures = {name: getattr(self, name) for name in self.__slots__}
        return figures | {f"{cause}_s": self.of(cause) for cause in CAUSES}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Difference in predicted time between two plans of one batch, with its reason.

    Attributes:
        first, second: parts of their times.
    """

    first: TimeParts
    second: TimeParts

    @property
    def difference(self) -> float:
        """Seconds that the second takes more."""
        return self.second.seconds - self.first.seconds

    def share(self, cause: Cause) -> float:
        """Return what a cause adds to the slower plan, in seconds; negative: it takes away."""
        sign = 1 if self.difference >= 0 else -1
        return sign * (self.second.of(cause) - self.first.of(cause))

    @property
    def reason(self) -> Reason:
        """Decide what explains most of the difference."""
        if abs(self.difference) <= CLOSE * max(self.first.seconds, self.second.seconds):
            return "close"
        best = max(CAUSES, key=self.share)
        pushing = sum(max(0.0, self.share(cause)) for cause in CAUSES)
        return best if self.share(best) >= MOSTLY * pushing else "several"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts and numbers."""
        return {
            "reason": self.reason,
            "first": self.first.to_json(),
            "second": self.second.to_json(),
        }


def split_time(plan: Plan) -> TimeParts:
    """Predict a plan under all four conditions; costs four times `predict`.

    Raises:
        PlanError: like `simulate`.
    """
    as_it_is, free_links, even_compute, both = (
        predict(plan, WhatIf(free_links, even_compute)).seconds
        for even_compute in (False, True)
        for free_links in (False, True)
    )
    return TimeParts(as_it_is, free_links, even_compute, both, mean_compute_seconds(plan))


def explain_difference(
    found: Explanation,
    names: tuple[str, str],
    seconds: Callable[[float], str],
    percent: Callable[[float], str] = "{:.1%}".format,
) -> str:
    """Explain in sentences which plan is faster and why.

    Args:
        found: of two plans of one batch.
        names: how the sentences call the two.
        seconds: writes a time.
        percent: writes a share.
    """
    first, second = found.first.seconds, found.second.seconds
    if found.reason == "close":
        text = (
            f"{names[0]} and {names[1]} take about the same time, {seconds(first)} and "
            f"{seconds(second)}: they differ by less than {percent(CLOSE)}, too little to name a "
            "reason."
        )
    else:
        faster, slower = names if first < second else names[::-1]
        least, most = min(first, second), max(first, second)
        text = (
            f"{faster} takes {percent(1 - least / most)} less time than {slower}: {seconds(least)} "
            f"against {seconds(most)}, {_because(found, slower, seconds)}. "
            f"{_what_if(found, names, seconds)}"
        )
    return text[:1].upper() + text[1:]


NOUNS = {"work": "computing itself", "imbalance": "uneven compute", "links": "links",
         "order": "order"}  # fmt: skip


def _because(found: Explanation, slower: str, seconds: Callable[[float], str]) -> str:
    more, less = _listed(found, 1, seconds), _listed(found, -1, seconds)
    text = {
        "work": f"mostly because the mean device of {slower} has more to compute",
        "imbalance": f"mostly because {slower} shares out its compute less evenly",
        "links": f"mostly because {slower} loses more to its links",
        "order": f"which neither links nor uneven compute explain: devices of {slower} wait longer "
        "for what others do first",
    }.get(found.reason, f"for no single reason: {slower} loses more to {more}")
    return f"{text}; against that, it loses less to {less}" if less else text


def _listed(found: Explanation, sign: int, seconds: Callable[[float], str]) -> str:
    """Name the causes that add time to the slower plan, or take some away, the largest first."""
    shares = {cause: sign * found.share(cause) for cause in CAUSES}
    least = WORTH_SAYING * abs(found.difference)
    chosen = sorted((c for c in CAUSES if shares[c] >= least), key=lambda c: -shares[c])
    listed = [f"{NOUNS[cause]} ({seconds(shares[cause])})" for cause in chosen]
    return " and ".join(part for part in (", ".join(listed[:-1]), *listed[-1:]) if part)


def _what_if(found: Explanation, names: tuple[str, str], seconds: Callable[[float], str]) -> str:
    first, second = found.first, found.second
    links, even, both = (
        (seconds(getattr(first, name)), seconds(getattr(second, name)))
        for name in ("with_free_links_s", "with_even_compute_s", "with_both_s")
    )
    return (
        f"With infinitely fast links {names[0]} would take {links[0]} and {names[1]} {links[1]}, "
        f"with compute shared evenly {even[0]} and {even[1]}, with both {both[0]} and {both[1]}."
    )
