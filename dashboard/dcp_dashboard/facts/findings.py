"""Findings: why a trace takes as long as it does, as sentences with their rules.

The causes of its time come from the planner, which predicts the plan again without each of them, or
moves the events of a run. The longest waits are read off the trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dcp_dashboard.facts.path import longest_step
from dcp_dashboard.facts.quantities import duration, percent
from dcp_dashboard.facts.text import device_selection, division_selection
from dcp_dashboard.facts.traces import Wait, find_waits
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import Source, Trace
from dcp_planner.causes import Cause, Step, cause_sentence, three_sentences, worth_saying

MIN_SHARE = 0.005
"""Waits below this share of the run are worth no sentence."""

NUM_WAITS = 2
"""Number of longest waits that are named."""

EVIDENCE: Mapping[str, Step] = MappingProxyType(
    {
        "links": "links", "latency": "latency", "launches": "launches",
        "waves": "computing", "tiles": "computing",
    }
)  # fmt: skip
"""Causes that the longest step of a kind on the critical path shows; others show at a device."""

ACCOUNT_RULE = (
    "Every moment of every device, by what it did; a wait counts for what the message that ends it "
    "waited for at each moment. Hidden: the share of the time of messages while a device computes."
)
FREE_RULE = "The plan is predicted again with this one thing free; the difference is its cost."
RUN_RULE = (
    "A run cannot be repeated with other links. Its events are moved instead, each as far behind "
    "what it waited for as in the run, with this one thing free; the order of messages stays."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, its rule, and its place.

    Attributes:
        text, rule: shown.
        selected: selection of the thing that it names, empty if none.
        time_ns: the part of the trace that it is about, or ``None``.
    """

    text: str
    rule: str
    selected: str = ""
    time_ns: tuple[int, int] | None = None


def leading_source(loaded: LoadedPlan) -> Source:
    """Return the trace that people ask about first: the run if there is one."""
    measured = loaded.traces.get("measured")
    return "measured" if measured is not None and measured.seconds() > 0 else "simulated"


def answers(loaded: LoadedPlan, source: Source) -> tuple[Finding, ...]:
    """Say what costs most of a trace's time, what comes next, and what devices did meanwhile."""
    if loaded.traces[source].seconds() == 0:
        return (Finding("The trace holds no events.", "No event has a duration."),)
    why, rule = loaded.why(source), _rule(loaded, source)
    spent, most, rest = three_sentences(why, duration, percent)
    causes = worth_saying(why.diagnosis)
    first = _cause_finding(loaded, source, causes[0]) if causes else Finding("", rule)
    return replace(first, text=most), Finding(rest, rule), Finding(spent, ACCOUNT_RULE)


def findings(loaded: LoadedPlan, source: Source) -> tuple[Finding, ...]:
    """Return the causes of a trace's time, the most costly first, and its longest waits.

    The first cause of the leading trace is left out: it is the answer.
    """
    trace = loaded.traces[source]
    if trace.seconds() == 0:
        return ()
    why = loaded.why(source)
    causes = worth_saying(why.diagnosis)[int(source == leading_source(loaded)) :]
    return (*(_cause_finding(loaded, source, cause) for cause in causes), *longest_waits(trace))


def _rule(loaded: LoadedPlan, source: Source) -> str:
    return FREE_RULE if loaded.is_predicted(source) else RUN_RULE


def _cause_finding(loaded: LoadedPlan, source: Source, cause: Cause) -> Finding:
    seconds = loaded.why(source).diagnosis.seconds
    text, rule = cause_sentence(cause, seconds, duration, percent), _rule(loaded, source)
    step, device = EVIDENCE.get(cause.name), cause.where.get("device")
    place = None if step is None else longest_step(loaded, source, step)
    if place is None:
        return Finding(text, rule, "" if device is None else device_selection(device))
    return Finding(text, rule, *place)


def longest_waits(trace: Trace) -> list[Finding]:
    """Name the devices and divisions with the longest waits, and the devices they wait for."""
    worst = find_waits(trace, NUM_WAITS)
    if not worst:
        return [Finding("No device ever waits.", "The trace has no event on the wait lanes.")]
    return [_wait_finding(wait) for wait in worst if wait.seconds >= MIN_SHARE * trace.seconds()]


def _wait_finding(wait: Wait) -> Finding:
    where = f"division {wait.division} ({wait.direction})"
    text = f"Device {wait.device} waits {duration(wait.seconds)} in {where}"
    if wait.peer >= 0:
        end = "to reach it" if wait.is_sent else "to arrive"
        text += f" for device {wait.peer}: {wait.message} is the last {end}"
    chosen = division_selection(wait.division, wait.direction, wait.device)
    if wait.peer >= 0:
        chosen += f"~peer.{wait.peer}"
    return Finding(
        text + ".",
        "Waits summed by device, division and direction; the largest sums. The message is the one "
        "of that device and direction that ends last within its longest wait.",
        chosen,
        (wait.start_ns, wait.end_ns),
    )
