"""Explains in one sentence which side is faster, and why where that can be decided.

The planner decides the reason of predictions (`dcp_planner.explain_difference`): it predicts again
with other links and other compute. A run cannot be repeated so; the page says how long its devices
computed, waited and stood idle, and that no reason is decided.
"""

from dataclasses import dataclass

from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.findings import Finding
from dcp_dashboard.facts.quantities import count, duration, percent, ratio
from dcp_planner.report import CAUSE_RULE, Explanation, explain_difference

CLOSE = 0.01
"""Runs whose lengths differ by less than this share take about the same time."""

RUN_RULE = (
    "The length of a run is, for the mean device, computing + waiting for messages + standing "
    "idle (nothing left to do before the last device reaches the end of a direction). Who waits "
    "may wait for slow links or for a device that computes for longer: a run cannot be repeated "
    "with other links, so its reason is not decided."
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds that the mean device spends in a run; the sum is the length of the run."""

    compute: float
    wait: float
    idle: float


def parts_of(side: Side) -> Parts:
    """Split the length of a side's trace; overlapping work of one lane would count twice."""
    size = side.num_devices
    compute = float(side.trace.lane_seconds("compute", size).mean())
    wait = float(side.trace.lane_seconds("wait", size).mean())
    return Parts(compute, wait, side.trace.seconds() - compute - wait)


def explain(comparison: Comparison) -> Finding:
    """Explain which side is faster, and why if that can be decided."""
    if not comparison.is_same_batch:
        return _explain_rates(comparison)
    first, second = comparison.first, comparison.second
    if "measured" in (first.source, second.source):
        return _explain_run(comparison)
    outdated = [name for name, side in (("A", first), ("B", second)) if _is_outdated(side)]
    if outdated:
        return _explain_outdated(comparison, outdated)
    found = Explanation(first.loaded.time_parts, second.loaded.time_parts)
    return Finding(explain_difference(found, ("A", "B"), duration, percent), CAUSE_RULE)


def _is_outdated(side: Side) -> bool:
    """Return whether the planner now predicts another time than the file holds."""
    stored, present = side.trace.seconds(), side.loaded.time_parts.seconds
    return abs(stored - present) > CLOSE * max(stored, present)


def _explain_outdated(comparison: Comparison, names: list[str]) -> Finding:
    sides = {"A": comparison.first, "B": comparison.second}
    now = " and ".join(
        f"{duration(sides[name].loaded.time_parts.seconds)} for {name}" for name in names
    )
    times = (f"{name} takes {duration(side.trace.seconds())}" for name, side in sides.items())
    return Finding(
        f"{' and '.join(times)}, as the files say. No reason is decided, because the planner now "
        f"predicts something else: {now}. Plan the batch again.",
        "A reason is decided by predicting again; predictions in files may be of another version.",
    )


def _explain_run(comparison: Comparison) -> Finding:
    """Compare a run with its prediction, or with another side, without naming a reason."""
    first, second = comparison.first, comparison.second
    names, both = ("A", "B"), "A and B"
    if comparison.is_same_plan and first.source != second.source:
        names, both = ("The run", "predicted"), "The run and its prediction"
        if second.source == "measured":
            first, second = second, first
    ours, theirs = first.trace.seconds(), second.trace.seconds()
    if abs(ours - theirs) <= CLOSE * max(ours, theirs):
        return Finding(
            f"{both} take about the same time: {duration(ours)} and {duration(theirs)}.",
            f"Times from first start to last end; they differ by less than {percent(CLOSE)}.",
        )
    more = "more" if ours > theirs else "less"
    share = percent(abs(ours / theirs - 1)) if theirs else "infinitely much"
    return Finding(
        f"{names[0]} takes {share} {more} time than {names[1]}: {duration(ours)} against "
        f"{duration(theirs)}. On average its devices {_doings(first, second)}. Why cannot be "
        "decided of a run.",
        RUN_RULE,
    )


def _doings(first: Side, second: Side) -> str:
    ours, theirs = parts_of(first), parts_of(second)
    words = {"compute": "compute for", "wait": "wait for messages for", "idle": "stand idle for"}
    told = [
        f"{word} {duration(max(0.0, getattr(ours, name)))} "
        f"against {duration(max(0.0, getattr(theirs, name)))}"
        for name, word in words.items()
    ]
    return f"{told[0]}, {told[1]} and {told[2]}"


def _explain_rates(comparison: Comparison) -> Finding:
    first, second = comparison.first, comparison.second
    times = f"A takes {duration(first.trace.seconds())}, B {duration(second.trace.seconds())}"
    if not first.rate or not second.rate:
        return Finding(f"{times}, for different batches.", "One of them has no event or no pair.")
    factor = second.rate / first.rate
    name, other = ("B", "A") if factor > 1 else ("A", "B")
    more = max(factor, 1 / factor)
    times_more = ratio(more) if more < 10 else count(more)
    return Finding(
        f"{times}, for different batches; per second and device, {name} computes {times_more} "
        f"times the pairs of {other}.",
        "Visible pairs over time and number of devices.",
    )
