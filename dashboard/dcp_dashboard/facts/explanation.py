"""Explains in sentences which side is faster, and why.

The planner finds the causes (`dcp_planner.causes`): of predictions by predicting again, of runs and
of predictions by another version by moving their events.
"""

from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.findings import RUN_RULE, Finding
from dcp_dashboard.facts.quantities import count, duration, percent, ratio
from dcp_planner.causes import CAUSE_RULE, Explanation, explain_difference


def explain(comparison: Comparison) -> Finding:
    """Explain which side is faster, and why."""
    first, second = comparison.first, comparison.second
    if not comparison.is_same_batch:
        return _explain_rates(first, second)
    names = ("A", "B")
    if comparison.is_same_plan and first.source != second.source:
        words = {"measured": "the run", "simulated": "the prediction"}
        names = (words[first.source], words[second.source])
    if all(side.loaded.is_predicted(side.source) for side in (first, second)):
        found = Explanation(*(side.loaded.predicted.diagnosis for side in (first, second)))
        return Finding(explain_difference(found, names, duration, percent), CAUSE_RULE)
    recorded = (side.loaded.recorded[side.source].diagnosis for side in (first, second))
    text = explain_difference(Explanation(*recorded), names, duration, percent)
    return Finding(text, f"{RUN_RULE} {CAUSE_RULE}")


def _explain_rates(first: Side, second: Side) -> Finding:
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
