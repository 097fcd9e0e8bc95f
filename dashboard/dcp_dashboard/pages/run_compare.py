"""Two runs beside each other: how their medians differ, and the steps that differ most."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from dash import html
from dash.development.base_component import Component

from dcp_dashboard.facts.quantities import count, duration, percent, ratio, signed, size
from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.pages.layout import headings, hint, panel, table
from dcp_dsl.arrays import Floats, Ints
from dcp_runtime import RunHistory

Text = Callable[[float], str]
COMPARED: Sequence[tuple[str, str, Text]] = (
    ("step_s", "Step", duration), ("measured_s", "Attention, measured", duration),
    ("predicted_s", "Attention, predicted", duration),
    ("exposed_share", "Waiting, most of a rank", percent),
    ("attention_imbalance", "Measured max/mean", ratio), ("bytes", "Moved", size),
    ("waited_s", "Waited for the plan", duration),
)  # fmt: skip
"""Figures whose medians are compared: field, heading, how it is written."""
MOST_STEPS = 5
"""Steps that are listed."""


class Pair(NamedTuple):
    """Two runs, A and B, at the steps that both have.

    Attributes:
        a, b: the runs.
        steps: numbers of the steps.
        at_a, at_b: their places in the columns of each.
    """

    a: RunHistory
    b: RunHistory
    steps: Ints
    at_a: Ints
    at_b: Ints

    @classmethod
    def of(cls, a: RunHistory, b: RunHistory) -> "Pair":
        """Find the steps that both runs have."""
        found = np.intersect1d(a.column("step"), b.column("step"), return_indices=True)
        return cls(a, b, found[0].astype(np.int64), found[1], found[2])

    def values(self, field: str) -> tuple[Floats, Floats]:
        """Return a figure of both at their common steps, NaN where nobody knows it."""
        return self.a.column(field)[self.at_a], self.b.column(field)[self.at_b]

    def medians(self, field: str) -> tuple[float, float] | None:
        """Return the medians of the steps at which both know a figure, ``None`` of no step."""
        a, b = self.values(field)
        known = ~np.isnan(a + b)
        return (float(np.median(a[known])), float(np.median(b[known]))) if known.any() else None

    def most_different(self, field: str = "step_s", most: int = MOST_STEPS) -> list[int]:
        """Return the steps at which a figure differs most, the largest difference first."""
        a, b = self.values(field)
        apart = np.abs(b - a)
        order = np.argsort(-np.nan_to_num(apart), kind="stable")[:most]
        return [int(self.steps[at]) for at in order if apart[at] > 0]


def comparison(
    entries: tuple[PlanEntry, PlanEntry], runs: tuple[RunHistory, RunHistory]
) -> list[Component]:
    """Build the panels of two runs: differences of medians, and of single steps."""
    pair = Pair.of(*runs)
    if not len(pair.steps):
        return [panel("A and B", [hint("The two runs have no step in common.")])]
    rows = [
        html.Tr([html.Th(heading, scope="row"), *map(_number, _told(medians, text))])
        for field, heading, text in COMPARED
        if (medians := pair.medians(field)) is not None
    ]
    heads = headings(("Median of a step", "A", "B", "B - A", "share"), (1, 2, 3, 4))
    a, b = (entry.relative for entry in entries)
    note = f"A is {a}, B is {b}; over the {count(len(pair.steps))} steps that both have."
    medians_panel = panel("A and B", [hint(note), _scrolled(heads, rows)])
    steps = [_step_row(pair, step) for step in pair.most_different()]
    if not steps:
        return [medians_panel]
    heads = headings(("Step", "A", "B", "B - A", "Slowest rank of A", "of B"), (0, 1, 2, 3))
    return [medians_panel, panel("Steps that differ most in time", [_scrolled(heads, steps)])]


def _scrolled(heads: Sequence[Component], rows: Sequence[Component]) -> Component:
    return html.Div(table(heads, rows), className="dcp-scroll", tabIndex=0)


def _number(text: str) -> Component:
    return html.Td(text, className="dcp-number")


def _told(both: tuple[float, float], text: Text) -> list[str]:
    a, b = both
    share = signed(b / a - 1, percent) if a else "-"
    return [text(a), text(b), signed(b - a, text), share]


def _step_row(pair: Pair, step: int) -> Component:
    a, b = pair.a.record(step), pair.b.record(step)
    first, second = (float(one["step_s"] or 0) for one in (a, b))
    times = (duration(first), duration(second), signed(second - first, duration))
    reasons = (html.Td(str(one.get("why") or "-")) for one in (a, b))
    return html.Tr([*map(_number, (count(step), *times)), *reasons])
