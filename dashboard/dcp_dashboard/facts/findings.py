"""The answers on the page of a plan: its figures, and sentences that say why it takes its time.

The planner finds the causes of a plan's time: it predicts the plan again without each of them, or
moves the events of a run. The longest waits are read off the trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.quantities import count, duration, percent, ratio
from dcp_dashboard.facts.text import (
    PLACER_WORDS,
    SOURCE_LABELS,
    TIMES,
    DetailLink,
    device_selection,
    division_selection,
    event_selection,
)
from dcp_dashboard.facts.traces import Wait, find_waits
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import count_divisions, imbalance
from dcp_planner import Source, Trace
from dcp_planner.causes import (
    ACCOUNTS,
    CAUSE_RULE,
    STEPS,
    Account,
    Cause,
    Explanation,
    Step,
    cause_sentence,
    explain_difference,
    three_sentences,
    worth_saying,
)
from dcp_planner.report import bound_ratios
from dcp_planner.simulation import EVENT_KINDS, clocks_of

DEFINITIONS = (
    ("Visible pairs",
     "(query, key) pairs that the mask leaves visible. The percentage compares them with a causal "
     "mask on each whole sequence."),
    ("Block, tile",
     "Tokens are cut into blocks, and one device owns each block. A tile is the part of the mask "
     "where the queries of one block meet the keys of another. One device computes each tile."),
    ("Division",
     "A step of the schedule. While a device computes one division, the inputs of the next one are "
     "in transfer. Division 0 needs no data from other devices."),
    ("Compute max/mean",
     "Visible pairs of the busiest device over the mean of all devices; 1 is perfect balance. "
     f"The busiest device sets the pace, so 1.10 means 1.10{TIMES} the compute time at perfect "
     "balance."),
    ("Token max/mean",
     "Tokens of the largest owner over the mean of all devices; 1 is perfect balance."),
    ("Bytes moved",
     "Sum over all transfers between two devices: keys, values, queries, partial results and "
     "gradients, forward and backward."),
    ("Buffers",
     "Memory that a device allocates for received data and for partial sums, in forward or "
     "backward, whichever needs more. The device's own tokens are not included."),
    ("Predicted, measured",
     "Time from the first start to the last end of the trace, forward and backward together. "
     "Predicted times come from the simulator, measured times from a run of the plan."),
    ("Waiting",
     "Time during which devices stand still until a message has arrived or left, divided by the "
     "number of devices and the length of the run. No compute hides this communication."),
    ("Gain, cap",
     "Gain: predicted time of attention with a static layout, which treats every batch alike, over "
     "that with the plan. The cap: a device owns at most 1.10 times the mean tokens."),
    ("Hidden communication",
     "Share of the messages' time during which devices compute."),
    ("Host work",
     "Time for which a device stands still while its host prepares kernels and messages. Where "
     "hosts run ahead of their devices, it is what the busiest host needs longer than they do."),
    ("Lower bound",
     "A value that no plan at the same balance can beat. Bytes: every device must hold the tokens "
     "that its pairs need. Time: the larger of the compute time at perfect balance and the time of "
     f"the bytes between nodes on all network ports. 1.08{TIMES} means 8 % above the bound, which "
     "may itself be out of reach."),
)  # fmt: skip

ROWS = (
    ("pairs", "Compute",
     "Visible pairs that the device computes, divided by its rate where rates differ", "count",
     "attention"),
    ("tokens", "Tokens", "Tokens that the device owns", "count", "neutral"),
    ("sent", "Bytes sent", "Bytes that leave the device", "bytes", "send"),
    ("received", "Bytes received", "Bytes that arrive at the device", "bytes", "receive"),
    ("memory", "Buffers", "Receive buffers and partial sums that the device allocates, forward or "
     "backward, whichever needs more", "bytes", "copy"),
    ("wait_simulated", "Waiting, predicted", "Time that the device stands still", "seconds",
     "wait"),
    ("wait_measured", "Waiting, measured", "Time that the device stood still", "seconds", "wait"),
)  # fmt: skip
"""Rows of the balance chart: key of `device_columns`, label, meaning, unit, name of the colour."""


def plan_caption(loaded: LoadedPlan) -> str:
    """Return the line below a plan's name: file, method, cluster, float32 partials, origin."""
    summary, is_wide = loaded.summary, loaded.plan.shape.float32_partials
    placer = summary.metrics.partitioner
    parts = (
        loaded.entry.relative,
        f"placed by {PLACER_WORDS.get(placer, placer)}",
        loaded.plan.cluster.name,
        "partial results in float32" if is_wide else "",
        summary.origin,
    )
    return " · ".join(filter(None, parts))


def metric_cards(loaded: LoadedPlan) -> list[tuple[str, str, str]]:
    """Return (name, value, note) of the key metrics."""
    plan, summary, known, q = loaded.plan, loaded.summary, above_bounds(loaded), quantities
    metrics, nodes = summary.metrics, q.counted(plan.cluster.nodes, "node")
    divisions = q.counted(count_divisions(plan, "forward"), "division")
    sequences = q.counted(len(plan.cu_seqlens) - 1, "sequence")
    moved = f"{q.percent(summary.inter_node_share)} between nodes"
    cards = [
        ("Tokens", q.count(metrics.tokens), f"in {sequences}"),
        ("Visible pairs", q.count(metrics.pairs), f"{q.percent(metrics.density)} of causal"),
        ("Devices", q.count(plan.num_devices), f"{nodes}, {divisions}"),
        ("Compute max/mean", q.ratio(metrics.compute_imbalance), "busiest / mean"),
        ("Token max/mean", q.ratio(metrics.token_imbalance), "fullest / mean"),
        ("Bytes moved", q.size(summary.total_bytes), moved),
    ]
    if plan.head_groups > 1:
        # Behind the devices; without groups the heads are no property of the plan.
        note = f"in {plan.head_groups} groups of heads"
        cards.insert(3, ("Heads", q.count(plan.shape.q_heads), note))
    for source, label in SOURCE_LABELS.items():
        if source in summary.seconds:
            waits = f"{q.percent(summary.wait_share[source])} waiting"
            cards.append((label, q.duration(summary.seconds[source]), waits))
    if "time" in known:
        note = "time / lower bound"
        if "bytes" in known:
            note = f"time; bytes {q.ratio(known['bytes'])}{TIMES}"
        cards.append(("Over the bound", f"{q.ratio(known['time'])}{TIMES}", note))
    return cards


def above_bounds(loaded: LoadedPlan) -> dict[str, float]:
    """Compute predicted time and bytes over their lower bounds; 1 is the bound.

    Forward and backward are added up. A figure without a bound, or with one of 0, is left out.
    """
    metrics, trace = loaded.summary.metrics, loaded.traces["simulated"]
    moved = (metrics.forward.total_bytes, metrics.backward.total_bytes)
    seconds = (trace.seconds(is_backward=False), trace.seconds(is_backward=True))
    ratios = bound_ratios(loaded.plan, seconds)
    found = {}
    for name, values in (("bytes", moved), ("time", seconds)):
        known = (ratios.get(f"forward_{name}"), ratios.get(f"backward_{name}"))
        # A ratio is a value over its bound, so dividing gives the bounds, which can be added up.
        bounds = [value / ratio for value, ratio in zip(values, known, strict=True) if ratio]
        if len(bounds) == len(values) and sum(bounds) > 0:
            found[name] = sum(values) / sum(bounds)
    return found


def device_columns(loaded: LoadedPlan) -> dict[str, NDArray[np.float64]]:
    """Return the values of each row of the balance chart that the plan has, float64 ``[R]``."""
    totals, size = loaded.totals, loaded.plan.num_devices
    columns = {"pairs": totals.pairs, "tokens": totals.tokens, "sent": totals.sent_bytes,
               "received": totals.received_bytes, "memory": totals.memory_bytes}  # fmt: skip
    floats = {name: values.astype(np.float64) for name, values in columns.items()}
    for source, trace in loaded.traces.items():
        floats[f"wait_{source}"] = trace.lane_seconds("wait", size)
    return floats


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """A row of the balance chart: a value of each device ``[R]``, and where all would be level.

    `ratio` is the largest value over that mean; name, label, meaning, unit, colour as in `ROWS`.
    """

    name: str
    label: str
    meaning: str
    unit: str
    kind: str
    values: NDArray[np.float64]
    mean: float
    ratio: float


def balance(loaded: LoadedPlan) -> list[Bars]:
    """Return the rows of the balance chart that the plan has."""
    columns, rows = device_columns(loaded), []
    for name, label, meaning, unit, kind in ROWS:
        if name in columns:
            amounts = columns[name]
            # Compute is over the rate, so that equal bars last equally long.
            shares = loaded.plan.cluster.work_of_device if name == "pairs" else 1.0
            level = float(amounts.mean()), imbalance(amounts, shares)
            rows.append(Bars(name, label, meaning, unit, kind, amounts / shares, *level))
    return rows


STEP_WORDS: Mapping[Step, str] = {
    "computing": "compute",
    "reducing": "merging results",
    "links": "data transfer",
    "latency": "message latency",
    "launches": "host work",
}


def path_shares(loaded: LoadedPlan, source: Source) -> list[DetailLink]:
    """Write the share of every kind of step, the largest first; each selects its longest step."""
    shares = loaded.recorded[source].path.shares()
    links = []
    for step in sorted(shares, key=lambda name: -shares[name]):
        place = longest_step(loaded, source, step)
        if place is not None:
            selected, time_ns = place
            text = f"{STEP_WORDS[step]} {percent(shares[step])}"
            links.append(DetailLink(text, selected, time_ns, source))
    return links


def longest_step(
    loaded: LoadedPlan, source: Source, step: Step
) -> tuple[str, tuple[int, int]] | None:
    """Return selection and time of the longest step of a kind, ``None`` if the path has none."""
    path = loaded.recorded[source].path
    # Steps of other kinds count as 0 ns.
    spent = (path.end_ns - path.start_ns) * (path.step == STEPS.index(step))
    if not spent.any():
        return None
    longest = int(spent.argmax())
    event, trace = int(path.event[longest]), loaded.traces[source]
    selected = event_selection(loaded.plan, trace, event)
    return selected, (int(path.start_ns[longest]), int(path.end_ns[longest]))


MIN_SHARE = 0.005
"""Least share of the run that a wait must take to get a sentence."""

NUM_WAITS = 2
"""Number of longest waits that are named."""

EVIDENCE: Mapping[str, Step] = {
    "links": "links", "latency": "latency", "launches": "launches",
    "waves": "computing", "tiles": "computing",
}  # fmt: skip
"""Causes that show at the longest step of a kind on the critical path; others show at a device."""

ACCOUNT_RULE = (
    "Each moment of each device counts by its use. Each moment of a wait counts by what delays the "
    "message that ends the wait: data transfer, latency or compute. Hidden communication is the "
    "share of the message time during which the device computes."
)
FREE_RULE = "The simulator predicts the plan again without this cost. The saving is the difference."
HOST_RULE = (
    "Hosts queue work for the next layer while their devices work on this one. In a stack of "
    "layers a direction takes as long as the slower of the two needs."
)
RUN_RULE = (
    "A run cannot be repeated on other hardware, so its trace is replayed without this cost. Each "
    "event keeps its delay after the event that it waited for, and messages keep their order."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence and its rule; if it has evidence, the selection and the range of the trace."""

    text: str
    rule: str
    selected: str = ""
    time_ns: tuple[int, int] | None = None


ACCOUNT_WORDS: Mapping[Account, str] = {
    "computing": "compute",
    "reducing": "merging results",
    "launches": "host work",
    "links": "waiting for data transfer",
    "latency": "waiting for message latency",
    "others": "waiting for compute of other devices",
    "idle": "idle after finishing",
}
"""Accounts of a device's time as words: first the work, then what it stands still for."""

IDLE: tuple[Account, ...] = ("links", "latency", "others", "idle")
"""Accounts in which a device does nothing."""


@dataclass(frozen=True, slots=True)
class Use:
    """A use of the devices' time in seconds of a layer: of the mean device, and of that with most.

    `predicted_s` is the mean of the prediction; ``None`` if the trace is the prediction.
    """

    account: Account
    mean_s: float
    most_s: float
    device: int
    predicted_s: float | None

    @property
    def words(self) -> str:
        """The use as words."""
        return ACCOUNT_WORDS[self.account]


def layers_of(trace: Trace) -> int:
    """Count the layers of a trace: each device begins each direction of a layer with a copy."""
    begins = trace.kind == EVENT_KINDS.index("copy")
    side = 2 * trace.device[begins].astype(np.int64) + trace.is_backward[begins]
    return max(1, int(np.bincount(side).max(initial=0)))


def device_seconds(loaded: LoadedPlan, source: Source) -> dict[Account, NDArray[np.float64]]:
    """Return the seconds of a layer that each device spends in each account, ``[R]`` each."""
    spent = loaded.why(source).accounting.spent_ns.sum(axis=0) / 1e9
    layers = layers_of(loaded.traces[source])
    return {name: spent[:, ACCOUNTS.index(name)] / layers for name in ACCOUNT_WORDS}


def uses(loaded: LoadedPlan, source: Source) -> list[Use]:
    """Return the uses of the devices' time, the longest first; those without time are left out."""
    predicted = device_seconds(loaded, "simulated") if source == "measured" else {}
    found = [
        Use(
            name, float(spent.mean()), float(spent.max()), int(spent.argmax()),
            float(predicted[name].mean()) if predicted else None,
        )
        for name, spent in device_seconds(loaded, source).items()
    ]  # fmt: skip
    return sorted(
        (use for use in found if use.most_s or use.predicted_s), key=lambda use: -use.mean_s
    )


def idle_seconds(loaded: LoadedPlan, source: Source) -> NDArray[np.float64]:
    """Return the seconds of a layer in which each device does nothing, ``[R]``."""
    spent = device_seconds(loaded, source)
    total: NDArray[np.float64] = np.sum([spent[name] for name in IDLE], axis=0)
    return total


def idlest(loaded: LoadedPlan, source: Source) -> Finding:
    """Name the device that is idle longest."""
    idle, layers = idle_seconds(loaded, source), layers_of(loaded.traces[source])
    whole, order = loaded.traces[source].seconds() / layers, np.argsort(-idle, kind="stable")
    most, least = order[0], order[-1]
    if not idle[most] or not whole:
        return Finding("No device is idle.", ACCOUNT_RULE)
    text = (
        f"Device {most} is idle longest: {duration(idle[most])} of {duration(whole)} "
        f"({percent(idle[most] / whole)}). Device {least} is idle shortest "
        f"({percent(idle[least] / whole)}); the mean is {percent(float(idle.mean()) / whole)}."
    )
    return Finding(text, ACCOUNT_RULE, device_selection(int(most)))


def leading_source(loaded: LoadedPlan) -> Source:
    """Return the source of the trace to explain first: the run, if there is one with events."""
    measured = loaded.traces.get("measured")
    return "measured" if measured is not None and measured.seconds() > 0 else "simulated"


def answers(loaded: LoadedPlan, source: Source) -> tuple[Finding, ...]:
    """Name the largest cost in a trace's time, and the next ones.

    Costs of a prediction are what the plan would take less without each. Costs of a run are the
    time that was measured, beside what was predicted.
    """
    if loaded.traces[source].seconds() == 0:
        return (Finding("The trace holds no events.", "No event has a duration."),)
    if source == "measured":
        return _answers_of_run(loaded)
    why, rule = loaded.why(source), _rule(loaded, source)
    _, most, rest = three_sentences(why, duration, percent)
    causes = worth_saying(why.diagnosis)
    first = _cause_finding(loaded, source, causes[0]) if causes else Finding("", rule)
    return replace(first, text=most), Finding(rest, rule), *_hosts(loaded, source)


def _hosts(loaded: LoadedPlan, source: Source) -> tuple[Finding, ...]:
    """Write what hosts need that run ahead of their devices, beside what the devices need."""
    if not loaded.plan.cluster.host_runs_ahead or not loaded.is_predicted(source):
        return ()
    clocks = clocks_of(loaded.plan).values()
    if not any(one.host_ns for one in clocks):
        return ()  # the cluster says nothing of hosts
    device, host = (
        duration(sum(spent) / 1e9)
        for spent in zip(*((one.device_ns, one.host_ns) for one in clocks), strict=True)
    )
    text = f"The busiest host needs {host} for a layer, hidden behind {device} of the devices."
    if any(one.held_ns for one in clocks):
        text = (
            f"The busiest host needs {host} for a layer, the devices need {device}: in each "
            "direction the slower of the two decides."
        )
    return (Finding(text, HOST_RULE),)


def _answers_of_run(loaded: LoadedPlan) -> tuple[Finding, ...]:
    """Set a run against its prediction, and name its longest use of time beside compute."""
    found, layers = uses(loaded, "measured"), layers_of(loaded.traces["measured"])
    taken, predicted = (
        loaded.traces["measured"].seconds() / layers, loaded.traces["simulated"].seconds()
    )  # fmt: skip
    text = f"A layer of the {layers} in the run" if layers > 1 else "The run"
    text += f" takes {duration(taken)}"
    if predicted:
        text += f", {ratio(taken / predicted)} times the predicted {duration(predicted)}"
    told = [Finding(f"{text}. {_largest_difference(found)}".strip(), ACCOUNT_RULE)]
    costs = [use for use in found if use.account != "computing" and use.mean_s > 0]
    if costs:
        most = costs[0]
        text = (
            f"Beside compute, {most.words} takes most: {duration(most.mean_s)} of a device on "
            f"average, {duration(most.most_s)} of device {most.device}."
        )
        if most.account in ("others", "idle"):
            text += _holds_up(loaded)
        told.append(Finding(text, ACCOUNT_RULE, device_selection(most.device)))
    return tuple(told)


def _holds_up(loaded: LoadedPlan) -> str:
    """Name the device for which others wait, and the work that takes it longer than the mean."""
    spent = device_seconds(loaded, "measured")
    device = int(idle_seconds(loaded, "measured").argmin())
    work = [name for name in ACCOUNT_WORDS if name not in IDLE]
    name = max(work, key=lambda one: float(spent[one][device] - spent[one].mean()))
    own, mean = float(spent[name][device]), float(spent[name].mean())
    return (
        f" Device {device} holds the others up: it spends {duration(own)} on "
        f"{ACCOUNT_WORDS[name]}, the mean is {duration(mean)}."
    )


def _largest_difference(found: Sequence[Use]) -> str:
    """Name the use of time that differs most from the prediction, if any does."""
    known = [(use, use.mean_s - use.predicted_s) for use in found if use.predicted_s is not None]
    use, apart = max(known, key=lambda pair: abs(pair[1]), default=(None, 0.0))
    if use is None or use.predicted_s is None or not apart:
        return ""
    now, then = duration(use.mean_s), duration(use.predicted_s)
    return f"The largest difference is {use.words}: {now} of a device on average instead of {then}."


def findings(loaded: LoadedPlan, source: Source) -> tuple[Finding, ...]:
    """Return the causes of a trace's time, the most costly first, and its longest waits.

    The first cause of a prediction that leads the page is left out: it is the answer.
    """
    trace = loaded.traces[source]
    if trace.seconds() == 0:
        return ()
    why = loaded.why(source)
    is_told = source == leading_source(loaded) != "measured"
    causes = worth_saying(why.diagnosis)[int(is_told) :]
    return (*(_cause_finding(loaded, source, cause) for cause in causes), *longest_waits(trace))


def _rule(loaded: LoadedPlan, source: Source) -> str:
    return FREE_RULE if loaded.is_predicted(source) else RUN_RULE


def _cause_finding(loaded: LoadedPlan, source: Source, cause: Cause) -> Finding:
    seconds = loaded.why(source).diagnosis.seconds
    text, rule = cause_sentence(cause, seconds, duration, percent), _rule(loaded, source)
    # A moment of the critical path shows more than a device does, if the cause has one.
    step, device = EVIDENCE.get(cause.name), cause.where.get("device")
    place = None if step is None else longest_step(loaded, source, step)
    if place is None:
        return Finding(text, rule, "" if device is None else device_selection(device))
    return Finding(text, rule, *place)


def longest_waits(trace: Trace) -> list[Finding]:
    """Name the devices and divisions with the longest waits, and the devices they wait for."""
    worst = find_waits(trace, NUM_WAITS)
    if not worst:
        return [Finding("No device waits.", "The trace has no event on the wait lanes.")]
    return [_wait_finding(wait) for wait in worst if wait.seconds >= MIN_SHARE * trace.seconds()]


def _wait_finding(wait: Wait) -> Finding:
    where = f"division {wait.division} ({wait.direction})"
    text = f"Device {wait.device} waits {duration(wait.seconds)} in {where}"
    chosen = division_selection(wait.division, wait.direction, wait.device)
    if wait.peer >= 0:
        end = "reaches" if wait.is_sent else "arrives from"
        text += f" until the last message, {wait.message}, {end} device {wait.peer}"
        chosen += f"~peer.{wait.peer}"
    return Finding(
        text + ".",
        "Waits are added up by device, division and direction; the largest sums are listed. The "
        "last message is the one that ends last within the longest of these waits.",
        chosen,
        (wait.start_ns, wait.end_ns),
    )


def explain(comparison: Comparison) -> Finding:
    """Explain which side is faster, and why."""
    first, second = comparison.first, comparison.second
    if not comparison.is_same_batch:
        return _explain_rates(first, second)
    names = ("A", "B")
    # Two traces of one plan are named by their sources, not by letters.
    if comparison.is_same_plan and first.source != second.source:
        words = {"measured": "the run", "simulated": "the prediction"}
        names = (words[first.source], words[second.source])
    # Both sides are explained in one way: savings found by predicting again cannot be set against
    # savings found by moving the events of a run.
    is_new = all(side.loaded.is_predicted(side.source) for side in (first, second))
    whys = (
        side.loaded.predicted if is_new else side.loaded.recorded[side.source]
        for side in (first, second)
    )
    text = explain_difference(
        Explanation(*(why.diagnosis for why in whys)), names, duration, percent
    )
    return Finding(text, CAUSE_RULE if is_new else f"{RUN_RULE} {CAUSE_RULE}")


def _explain_rates(first: Side, second: Side) -> Finding:
    a, b = (duration(side.trace.seconds()) for side in (first, second))
    times = f"A takes {a} and B takes {b}, for different batches"
    if not first.rate or not second.rate:
        return Finding(f"{times}.", "One of the plans has no event or no visible pair.")
    factor = second.rate / first.rate
    name, other = ("B", "A") if factor > 1 else ("A", "B")
    more = max(factor, 1 / factor)
    times_more = ratio(more) if more < 10 else count(more)
    return Finding(
        f"{times}. Per second and device, {name} computes {times_more} times as many pairs as "
        f"{other}.",
        "Visible pairs divided by time and number of devices.",
    )
