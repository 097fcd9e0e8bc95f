"""Who is faster, and mostly why: one sentence from the mean device of both sides.

The run of every device is computing, waiting for messages, or standing idle (it has nothing to do
until the others reach the end of forward or backward). So the length of a run is the mean over
devices of compute + wait + idle, and the difference of two runs is the sum of three differences;
the largest one in the direction of the whole is the reason.
"""

from dataclasses import dataclass

from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.findings import Finding
from dcp_dashboard.facts.quantities import count, duration, percent, ratio, size

CLOSE = 0.005
"""Runs whose lengths differ by less than this share take the same time."""

RULE = (
    "The length of a run is, for the mean device, computing + waiting for messages + standing "
    "idle (nothing left to do before the last device reaches the end of a direction). The reason "
    "is the part that differs most in the direction of the whole."
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the mean device does during a run, seconds; the sum is the length of the run."""

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
    """Say which side is faster and mostly why; of a prediction and its run, what the run does."""
    if not comparison.is_same_batch:
        return _explain_rates(comparison)
    first, second = comparison.first, comparison.second
    is_run = comparison.is_same_plan and first.source != second.source
    times = first.trace.seconds(), second.trace.seconds()
    if abs(times[0] - times[1]) <= CLOSE * max(times):
        both = "The run and its prediction" if is_run else "A and B"
        return Finding(
            f"{both} take the same time: {duration(times[0])} and {duration(times[1])}.",
            f"Times from first start to last end; they differ by less than {percent(CLOSE)}.",
        )
    if is_run:
        subject, other = (first, second) if first.source == "measured" else (second, first)
        names = ("The run", "predicted")
    else:
        subject, other = (first, second) if times[0] < times[1] else (second, first)
        names = ("A", "B") if subject is first else ("B", "A")
    ours, theirs = subject.trace.seconds(), other.trace.seconds()
    more = "more" if ours > theirs else "less"
    claim = (
        f"{names[0]} takes {percent(abs(ours / theirs - 1))} {more} time than {names[1]}: "
        f"{duration(ours)} against {duration(theirs)}"
    )
    return Finding(f"{claim}, mostly because {_reason(subject, other)}.", RULE)


REASONS = {
    "compute": ("compute for a shorter time", "compute for a longer time"),
    "wait": ("wait less for messages", "wait longer for messages"),
    "idle": ("stand idle less until the last one is done",
             "stand idle longer until the last one is done"),
}  # fmt: skip
"""What the devices of a side do when it is faster, and when it is slower."""


def _reason(subject: Side, other: Side) -> str:
    ours, theirs = parts_of(subject), parts_of(other)
    total = subject.trace.seconds() - other.trace.seconds()
    changes = {name: getattr(ours, name) - getattr(theirs, name) for name in Parts.__slots__}
    name = max(changes, key=lambda part: changes[part] / total)
    weight = f"{duration(abs(changes[name]))} of the {duration(abs(total))}"
    if changes[name] / total > 1 + CLOSE:
        weight = f"{duration(abs(changes[name]))}, part of which the others make up for"
    values = [duration(max(0.0, getattr(side, name))) for side in (ours, theirs)]
    return (
        f"its devices {REASONS[name][total > 0]} ({values[0]} against {values[1]} on average, "
        f"{weight}){_support(name, subject, other)}"
    )


def _support(name: str, faster: Side, slower: Side) -> str:
    """Name the figure of the plans that goes with the reason, if it points the same way."""
    won, lost = faster.figures, slower.figures
    if name == "wait":
        ours, theirs = (f.forward_inter_bytes + f.backward_inter_bytes for f in (won, lost))
        if ours < theirs:
            return f"; {size(ours)} cross between nodes instead of {size(theirs)}"
    if name == "idle" and won.compute_imbalance < lost.compute_imbalance * (1 - CLOSE):
        levels = f"{ratio(won.compute_imbalance)} instead of {ratio(lost.compute_imbalance)}"
        return f"; compute max/mean is {levels}"
    if name == "compute" and faster.loaded.plan.cluster != slower.loaded.plan.cluster:
        return "; the clusters differ"
    return ""


def _explain_rates(comparison: Comparison) -> Finding:
    first, second = comparison.first, comparison.second
    times = f"A takes {duration(first.trace.seconds())}, B {duration(second.trace.seconds())}"
    if not first.rate or not second.rate:
        return Finding(f"{times}, for different batches.", "One of them has no event or no pair.")
    more, name, other = (
        (second.rate / first.rate, "B", "A")
        if second.rate > first.rate
        else (first.rate / second.rate, "A", "B")
    )
    return Finding(
        f"{times}, for different batches; per second and device, {name} computes {_times(more)} "
        f"times the pairs of {other}.",
        "Visible pairs over time and number of devices.",
    )


def _times(factor: float) -> str:
    return ratio(factor) if factor < 10 else count(factor)
