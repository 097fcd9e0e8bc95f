"""The figures shown of a plan: key metrics with their definitions, loads of every device."""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.text import SOURCE_LABELS, TIMES
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import PlanSummary
from dcp_planner.report import bound_ratios

DEFINITIONS = (
    ("Visible pairs",
     "(query, key) pairs that the mask lets attend. The percentage is over the pairs of a causal "
     "mask on each whole sequence."),
    ("Block, tile",
     "Tokens are cut into blocks; each block has one owner, a device. A tile is the part of the "
     "mask where the queries of one block meet the keys of another; one device computes it."),
    ("Division",
     "A step of the schedule: a device computes one while the inputs of the next travel. Division "
     "0 needs nothing from others."),
    ("Compute max/mean",
     "Visible pairs computed by the busiest device over the mean of all; 1 is level. Compute takes "
     f"at least the mean, so 1.10 is 1.10{TIMES} of the compute bound."),
    ("Token max/mean",
     "Tokens owned by the device that owns most over the mean of all; 1 is level."),
    ("Bytes moved",
     "Sum over all transfers between two devices: keys, values, queries, partial results and "
     "gradients, forward and backward."),
    ("Buffers",
     "What a device allocates for what it receives and for partial sums, in the direction that "
     "needs more; its own tokens are not in it."),
    ("Predicted, measured",
     "From the first start to the last end of the trace, forward and backward together. Predicted: "
     "the simulator's; measured: taken while the plan ran."),
    ("Waiting",
     "Time in which a device stands still until a message has arrived or left, over devices times "
     "the length of the run. It is communication that nothing hides."),
    ("Lower bound",
     "What no plan at the same balance can beat. Bytes: every device must see the tokens that its "
     "pairs need. Time: the larger of compute at perfect balance and the bytes between nodes over "
     f"all network ports. 1.08{TIMES} means 8 % above it; the bound itself may be out of reach."),
)  # fmt: skip

ROWS = (
    ("pairs", "Compute", "Visible pairs that the device computes, over its rate where rates differ",
     "count", "attention"),
    ("tokens", "Tokens", "Tokens that the device owns", "count", "neutral"),
    ("sent", "Bytes sent", "Bytes that leave the device", "bytes", "send"),
    ("received", "Bytes received", "Bytes that arrive at the device", "bytes", "receive"),
    ("memory", "Buffers", "Receive buffers and partial sums that the device allocates, forward or "
     "backward, whichever needs more", "bytes", "copy"),
    ("wait_simulated", "Waiting, predicted", "Time that the device stands still", "seconds",
     "wait"),
    ("wait_measured", "Waiting, measured", "Time that the device stood still", "seconds", "wait"),
)  # fmt: skip


def plan_caption(loaded: LoadedPlan) -> str:
    """Return the line below a plan's name: file, who placed it, cluster, float32 or not, origin."""
    summary, is_wide = loaded.summary, loaded.plan.shape.float32_partials
    parts = (
        loaded.entry.relative,
        f"placed by {summary.metrics.partitioner}",
        loaded.plan.cluster.name,
        "partial results in float32" if is_wide else "",
        summary.origin,
    )
    return " · ".join(filter(None, parts))


def metric_cards(
    summary: PlanSummary, bounds: "dict[str, float] | None" = None
) -> list[tuple[str, str, str]]:
    """Return (name, value, note) of the key metrics, in reading order.

    Args:
        summary: of the plan.
        bounds: ratios to the lower bounds as `above_bounds` gives them.
    """
    q, metrics, known = quantities, summary.metrics, bounds or {}
    moved = f"{q.percent(summary.inter_node_share)} between nodes"
    cards = [
        ("Tokens", q.count(metrics.tokens), "in " + q.counted(summary.num_sequences, "sequence")),
        ("Visible pairs", q.count(metrics.pairs), f"{q.percent(metrics.density)} of causal"),
        ("Devices", q.count(summary.num_devices),
         f"{q.counted(summary.num_nodes, 'node')}, {q.counted(summary.num_divisions, 'division')}"),
        ("Compute max/mean", q.ratio(metrics.compute_imbalance), "busiest / mean"),
        ("Token max/mean", q.ratio(metrics.token_imbalance), "fullest / mean"),
        ("Bytes moved", q.size(summary.total_bytes), moved),
    ]  # fmt: skip
    if summary.num_head_groups > 1:
        note = f"in {summary.num_head_groups} groups of heads"
        cards.insert(3, ("Heads", q.count(summary.num_heads), note))
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
        # A ratio is a value over its bound.
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


def chart_columns(loaded: LoadedPlan) -> dict[str, NDArray[np.float64]]:
    """Return `device_columns` for bars: compute over the rate, so that equal bars last equally."""
    columns = device_columns(loaded)
    return columns | {"pairs": columns["pairs"] / loaded.plan.cluster.work_of_device}
