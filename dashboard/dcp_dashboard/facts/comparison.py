"""Compares two plans, or the prediction and the run of one plan: figures, devices, kinds of events.

Times and bytes of different batches stand side by side without a judgement; `Comparison.limits`
explains why.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts.quantities import (
    Text,
    count,
    counted,
    digits,
    duration,
    percent,
    ratio,
    signed,
    size,
)
from dcp_dashboard.facts.text import DIRECTIONS
from dcp_dashboard.facts.traces import phase_of
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import count_divisions
from dcp_dsl.arrays import Floats
from dcp_planner import Direction, Plan, Source, Trace
from dcp_planner.causes import CLOSE, unlike_batches
from dcp_planner.report import Difference, compare_figures
from dcp_planner.simulation import EVENT_KINDS

EQUAL = 0.0005
"""Changes below this share are called equal: they vanish in three digits."""

Judgement = Literal["better", "worse", "equal", "none"]
Goal = Literal["less", "more", None]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A plan and the source of the trace that counts."""

    loaded: LoadedPlan
    source: Source

    @property
    def trace(self) -> Trace:
        """The trace that counts."""
        return self.loaded.traces[self.source]

    @property
    def num_devices(self) -> int:
        """Devices of the plan."""
        return self.loaded.plan.num_devices

    @property
    def rate(self) -> float:
        """Visible pairs per second and device: comparable between batches and clusters."""
        seconds = self.trace.seconds() * self.num_devices
        return self.loaded.summary.metrics.pairs / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Deltas:
    """A quantity of all devices on both sides, ``[R]`` each, and the function that writes it."""

    heading: str
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    text: Text

    @property
    def difference(self) -> NDArray[np.float64]:
        """Second minus first, ``[R]``."""
        return self.second - self.first


@dataclass(frozen=True, eq=False)  # no slots: a cached property needs a `__dict__`
class Comparison:
    """Two sides; `first` is A on the page, `second` is B."""

    first: Side
    second: Side

    @property
    def is_same_plan(self) -> bool:
        """Return whether both sides are traces of one plan."""
        return self.first.loaded.entry.key == self.second.loaded.entry.key

    @property
    def is_run_of_prediction(self) -> bool:
        """Return whether A is the prediction and B the run of one plan."""
        return self.is_same_plan and (self.first.source, self.second.source) == (
            "simulated", "measured"
        )  # fmt: skip

    @cached_property
    def is_same_batch(self) -> bool:
        """Return whether both plans compute the same pairs of the same sequences."""
        # Kept: it is asked for with every figure, and takes 12 ms for 65,000 tiles.
        return not unlike_batches(self.first.loaded.plan, self.second.loaded.plan)

    @property
    def has_same_devices(self) -> bool:
        """Return whether both clusters have as many nodes, each with as many devices."""
        a, b = (side.loaded.plan.cluster for side in (self.first, self.second))
        return np.array_equal(a.node_ptr, b.node_ptr)

    @property
    def has_same_blocks(self) -> bool:
        """Return whether both plans cut the same tokens into the same blocks."""
        return has_same_blocks(self.first.loaded.plan, self.second.loaded.plan)

    @property
    def limits(self) -> tuple[str, ...]:
        """Return what cannot be compared, and why, as sentences."""
        a, b = self.first, self.second
        found = []
        # Each sentence explains a part that the page leaves out or does not judge: totals, single
        # devices, moved tiles.
        if not self.is_same_batch:
            found.append(
                f"The batches differ ({_batch(a)} versus {_batch(b)}). The table judges pairs per "
                "second and device, shares and max/mean, but not times and bytes."
            )
        if not self.has_same_devices:
            found.append(
                f"The clusters differ ({_cluster(a)} versus {_cluster(b)}): single devices are not "
                "compared."
            )
        elif a.loaded.plan.cluster != b.loaded.plan.cluster:
            found.append(
                f"The clusters have the same devices but different rates ({_cluster(a)} versus "
                f"{_cluster(b)}): a difference in time may come from the hardware."
            )
        if not self.has_same_blocks:
            is_same = a.loaded.plan.shape.is_same_model(b.loaded.plan.shape)
            word = "tokens" if is_same else "tokens or heads"
            found.append(
                f"The plans cut {word} differently ({counted(len(a.loaded.plan.blocks), 'block')} "
                f"versus {counted(len(b.loaded.plan.blocks), 'block')}): tiles are not compared."
            )
        return tuple(found)


def has_same_blocks(first: Plan, second: Plan) -> bool:
    """Return whether two plans cut the same tokens, and heads, into the same blocks."""
    a, b = first.blocks, second.blocks
    # Without groups a tile has all heads, however many there are; a group's number means a range of
    # heads, which depends on how many there are.
    if common_groups(first, second) > 1 and first.shape.q_heads != second.shape.q_heads:
        return False
    return np.array_equal(a.start, b.start) and np.array_equal(a.end, b.end)


def common_groups(first: Plan, second: Plan) -> int:
    """Return the number of head groups that both plans' groups can be cut into.

    With 2 and 3 groups there are 6 common ones: each group of the first plan is 3 of them.
    """
    return math.lcm(first.head_groups, second.head_groups)


@dataclass(frozen=True, slots=True)
class Figure:
    """A compared figure: its source, and which direction is better."""

    name: str
    heading: str
    meaning: str
    text: Text
    goal: Goal
    is_total: bool = True  # it grows with the batch, so that only equal batches are judged
    value: Callable[[Side], float] | None = None  # None: the planner's figure of this name
    is_of_run: bool = False  # two traces of one plan can differ in it


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A line of the table: a figure, its values on both sides, and whether that of B is better."""

    figure: Figure
    difference: Difference
    judgement: Judgement

    @property
    def change(self) -> str:
        """The difference with its sign, in the figure's own unit and in per cent."""
        first, second, text = self.difference.first, self.difference.second, self.figure.text
        # A share of A, so that one bound serves all units; from 0, only 0 is equal.
        if abs(second - first) <= EQUAL * abs(first):
            return "equal"
        if text is percent:  # per cent of per cent would be read as points
            return f"{signed(100 * (second - first), digits)} points"
        relative = self.difference.change
        share = "" if relative is None else f" ({signed(relative, percent)})"
        # Two decimals of a ratio may show nothing of a small difference.
        return signed(second - first, digits if text is ratio else text) + share


def compare_rows(comparison: Comparison) -> tuple[FigureRow, ...]:
    """Return the table of figures, in reading order; of one plan only what a run can change."""
    a, b = comparison.first, comparison.second
    planned = {d.name: d for d in compare_figures(a.loaded.figures, b.loaded.figures)}
    rows = []
    for figure in FIGURES:
        if comparison.is_same_plan and not figure.is_of_run:
            continue
        of = figure.value
        # Figures without a `value` are the planner's own, which `dcpm compare` shows, too.
        difference = planned[figure.name] if of is None else Difference(figure.name, of(a), of(b))
        is_fair = comparison.is_same_batch or not figure.is_total
        judged = judge(difference, figure.goal) if is_fair else "none"
        rows.append(FigureRow(figure, difference, judged))
    return tuple(rows)


def judge(difference: Difference, goal: Goal) -> Judgement:
    """Return whether the second side is better; below 1 % nobody can tell."""
    if goal is None:
        return "none"
    if abs(difference.second - difference.first) <= CLOSE * abs(difference.first):
        return "equal"
    return "better" if (difference.second < difference.first) == (goal == "less") else "worse"


def compare_devices(comparison: Comparison) -> tuple[Deltas, ...]:
    """Return each device's compute, waits, traffic and own tokens; none if devices differ.

    Two traces of one plan differ in the times that devices compute and wait only.
    """
    if not comparison.has_same_devices:
        return ()
    shown: list[tuple[str, Text, Callable[[Side], NDArray[np.generic]]]] = [
        ("Compute", duration, lambda side: side.trace.lane_seconds("compute", side.num_devices)),
        ("Wait", duration, lambda side: side.trace.lane_seconds("wait", side.num_devices)),
    ]
    if not comparison.is_same_plan:
        shown += [
            ("Sent", size, lambda side: side.loaded.totals.sent_bytes),
            ("Received", size, lambda side: side.loaded.totals.received_bytes),
            ("Tokens", count, lambda side: side.loaded.totals.tokens),
        ]
    a, b = comparison.first, comparison.second
    return tuple(
        Deltas(name, of(a).astype(float), of(b).astype(float), text) for name, text, of in shown
    )


FIGURES = (
    Figure("time", "Time", "From the first start to the last end, forward and backward", duration,
           "less", value=lambda s: s.trace.seconds(), is_of_run=True),
    Figure("forward", "Forward", "From the first start to the last end of forward", duration,
           "less", value=lambda s: s.trace.seconds(is_backward=False), is_of_run=True),
    Figure("backward", "Backward", "From the first start to the last end of backward", duration,
           "less", value=lambda s: s.trace.seconds(is_backward=True), is_of_run=True),
    Figure("rate", "Pairs per second and device", "Visible pairs divided by time and devices",
           lambda value: f"{count(value)}/s", "more", is_total=False, value=lambda s: s.rate,
           is_of_run=True),
    Figure("waiting", "Waiting", "Share of the time of all devices spent waiting for messages",
           percent, "less", is_total=False, value=lambda s: s.loaded.summary.wait_share[s.source],
           is_of_run=True),
    Figure("compute_imbalance", "Compute max/mean", "Pairs of the busiest device over the mean",
           ratio, "less", is_total=False),
    Figure("token_imbalance", "Token max/mean", "Tokens of the largest owner over the mean", ratio,
           "less", is_total=False),
    Figure("forward_bytes", "Bytes forward", "Sum over all transfers, forward", size, "less"),
    Figure("forward_inter_bytes", "Bytes forward between nodes", "The part that leaves a node",
           size, "less"),
    Figure("backward_bytes", "Bytes backward", "Sum over all transfers, backward", size, "less"),
    Figure("backward_inter_bytes", "Bytes backward between nodes", "The part that leaves a node",
           size, "less"),
    Figure("max_send_bytes", "Most sent by one device", "Forward and backward", size, "less"),
    Figure("max_recv_bytes", "Most received by one device", "Forward and backward", size, "less"),
    Figure("peak_buffer_bytes", "Largest receive buffers",
           "Of any device, forward or backward, whichever needs more", size, "less"),
    Figure("tokens", "Tokens", "Of the packed batch", count, None,
           value=lambda s: s.loaded.figures.tokens),
    Figure("pairs", "Visible pairs", "(query, key) pairs that the mask leaves visible", count, None,
           value=lambda s: s.loaded.summary.metrics.pairs),
    Figure("devices", "Devices", "Of the cluster", count, None, value=lambda s: s.num_devices),
    Figure("divisions", "Divisions", "Steps of the forward schedule", count, None,
           value=lambda s: count_divisions(s.loaded.plan, "forward")),
    Figure("tiles", "Tiles", "Non-empty tiles of the mask", count, None,
           value=lambda s: s.loaded.summary.metrics.tiles),
)  # fmt: skip
"""All figures, in reading order."""


def _batch(side: Side) -> str:
    summary = side.loaded.summary
    return (
        f"{summary.mask}, {counted(summary.metrics.tokens, 'token')} in "
        f"{counted(len(side.loaded.plan.cu_seqlens) - 1, 'sequence')}, "
        f"{count(summary.metrics.pairs)} pairs"
    )


def _cluster(side: Side) -> str:
    cluster = side.loaded.plan.cluster
    return f"{cluster.name}, {counted(cluster.nodes, 'node')} of {cluster.devices_per_node}"


@dataclass(frozen=True, slots=True)
class KindRow:
    """Seconds of the mean device on either side, of one kind of event in one direction."""

    kind: str
    direction: Direction
    first: float
    second: float

    @property
    def ratio(self) -> float | None:
        """The second time over the first; ``None`` if there is no first."""
        return self.second / self.first if self.first else None


def compare_kinds(comparison: Comparison) -> tuple[KindRow, ...]:
    """Return the times of all kinds that either side has, forward first; O(E)."""
    rows = []
    for direction in DIRECTIONS:
        first, second = (
            _kind_seconds(side, direction) for side in (comparison.first, comparison.second)
        )
        for kind, a, b in zip(EVENT_KINDS, first.tolist(), second.tolist(), strict=True):
            if a or b:
                rows.append(KindRow(kind, direction, a, b))
    return tuple(rows)


def _kind_seconds(side: Side, direction: Direction) -> Floats:
    # The mean device: seconds of all devices over their number, so that clusters compare.
    trace = phase_of(side.trace, direction)
    total = np.zeros(len(EVENT_KINDS))
    np.add.at(total, trace.kind, (trace.end_ns - trace.start_ns) / (1e9 * side.num_devices))
    return total
