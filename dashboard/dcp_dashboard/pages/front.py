"""The page `/front?plan=&plan=...`: plans of one batch, and which of them nothing beats."""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from string import ascii_uppercase
from urllib.parse import parse_qs

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.palette import NEUTRAL
from dcp_dashboard.facts.quantities import alike, count, duration, ratio, size
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dashboard.pages.charts import BLUE, TEMPLATE, graph
from dcp_dashboard.pages.layout import changed_notice, framed, headings, notes_list, panel, table
from dcp_dsl import DCPError
from dcp_dsl.arrays import Bools, Floats
from dcp_planner.causes import unlike_batches

MOST_PLANS = len(ascii_uppercase)
"""Most plans of a page: each has a letter."""
FIGURES: Sequence[tuple[str, Callable[[LoadedPlan], float], Callable[[float], str]]] = (
    ("Predicted", lambda plan: plan.summary.seconds["simulated"], duration),
    ("Compute max/mean", lambda plan: plan.summary.metrics.compute_imbalance, ratio),
    ("Tokens max/mean", lambda plan: plan.summary.metrics.token_imbalance, ratio),
    ("Forward, between nodes", lambda plan: plan.summary.metrics.forward.inter_node_bytes, size),
    ("Backward, between nodes", lambda plan: plan.summary.metrics.backward.inter_node_bytes, size),
    ("Moved in all", lambda plan: plan.summary.total_bytes, size),
    ("Buffers", lambda plan: int(plan.totals.memory_bytes.max()), size),
)
"""Heading, value and text of what is compared; less is better in each."""
PLACES = ("top center", "bottom center", "middle right", "middle left")
"""Sides of a dot on which letters stand in turn, so that close ones stay readable."""
SECONDS, FORWARD, BACKWARD, MOVED = 0, 3, 4, 5


def front_page(library: PlanLibrary, query: str) -> Component:
    """Build the page of the plans whose keys the URL names.

    Raises:
        DCPError: if it names none, too many, or one that is not there.
    """
    keys = list(dict.fromkeys(parse_qs(query.removeprefix("?")).get("plan", [])))
    if not 0 < len(keys) <= MOST_PLANS:
        raise DCPError(
            f"expected 1 to {MOST_PLANS} plans, got {count(len(keys))}; write "
            "/front?plan=KEY&plan=KEY, or press Plan the front on the page of a plan"
        )
    plans = [library.load(key) for key in keys]
    first = plans[0]
    values = np.array([[figure(plan) for _, figure, _ in FIGURES] for plan in plans], np.float64)
    best = unbeaten(values)
    others = {what for plan in plans[1:] for what in unlike_batches(first.plan, plan.plan)}
    notes = [f"Not all of one batch: plans for {', '.join(sorted(others))}."] if others else []
    told = html.Span(sentence(first, values, best), className="dcp-muted dcp-facts")
    crumb = dcc.Link("Plans", href="/", className="dcp-crumb")
    return framed(
        f"Front · {first.summary.mask}",
        changed_notice(*(plan.entry for plan in plans)),
        html.Div([crumb, html.H1(first.summary.mask), told], className="dcp-title"),
        *([notes_list(notes)] if notes else []),
        panel("Time against bytes", [graph("front", front_figure(plans, values, best))]),
        panel("Plans", [_rows(plans, values, best)]),
    )


def unbeaten(values: Floats) -> Bools:
    """Mark the rows that no other one equals or beats in every column; of equal rows, all.

    >>> unbeaten(np.array([[1.0, 3.0], [2.0, 1.0], [2.0, 3.0]])).tolist()
    [True, True, False]
    """
    no_worse = (values[:, None] <= values).all(axis=2)
    better = (values[:, None] < values).any(axis=2)
    return np.logical_not((no_worse & better).any(axis=0))


def sentence(first: LoadedPlan, values: Floats, best: Bools) -> str:
    """Write how many plans nothing beats, and where the first one stands."""
    place = "one of them" if best[0] else "not: another one is as good in everything, or better"
    return (
        f"{count(int(best.sum()))} of {count(len(best))} plans are on the front; A, "
        f"{first.entry.relative}, is {place}. The fastest takes "
        f"{duration(values[:, SECONDS].min())}, predicted."
    )


def front_figure(plans: Sequence[LoadedPlan], values: Floats, best: Bools) -> go.Figure:
    """Draw each plan as a letter: time to the right, bytes upwards; beaten ones are grey."""
    crossing = values[:, FORWARD] + values[:, BACKWARD]
    between, heights = "between nodes", crossing
    if not crossing.any():
        between, heights = "between devices", values[:, MOVED]
    texts = [
        "<br>".join([plan.entry.relative, *(f"{name} {text}" for name, text in _told(row))])
        for plan, row in zip(plans, values, strict=True)
    ]
    figure = go.Figure(
        go.Scatter(
            x=values[:, SECONDS], y=heights, mode="markers+text",
            text=list(ascii_uppercase[: len(plans)]),
            textposition=list(islice(cycle(PLACES), len(plans))), customdata=texts,
            marker={"size": 9, "color": [BLUE if kept else NEUTRAL for kept in best]},
            hovertemplate="%{text} %{customdata}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, height=320, margin={"l": 64, "r": 16, "t": 16, "b": 44},
        xaxis={"title": "predicted time", "tickformat": "~s", "ticksuffix": "s"},
        yaxis={"title": f"bytes {between}", "tickformat": "~s", "ticksuffix": "B"},
    )  # fmt: skip
    return figure


def _told(row: Floats) -> list[tuple[str, str]]:
    return [(name, text(value)) for (name, _, text), value in zip(FIGURES, row, strict=True)]


def _rows(plans: Sequence[LoadedPlan], values: Floats, best: Bools) -> Component:
    first, rows = plans[0].entry.key, []
    texts = [alike(of, text) for (_, _, text), of in zip(FIGURES, values.T, strict=True)]
    for letter, plan, row, kept in zip(ascii_uppercase, plans, values, best, strict=False):
        key = plan.entry.key
        name = dcc.Link(plan.entry.relative, href=f"/plan/{key}")
        told = (text(value) for text, value in zip(texts, row, strict=True))
        cells = [html.Td(each, className="dcp-number") for each in told]
        address = f"/compare?a={first}&as=simulated&b={key}&bs=simulated"
        link = dcc.Link("with A", href=address) if key != first else ""
        rows.append(
            html.Tr([
                html.Th(letter, scope="row"), html.Td(name), *cells,
                html.Td("yes" if kept else "no"), html.Td(link),
            ])
        )  # fmt: skip
    names = ("", "Plan", *(name for name, _, _ in FIGURES), "On the front", "Compare")
    heads = headings(names, range(2, 2 + len(FIGURES)))
    return html.Div(table(heads, rows), className="dcp-scroll", tabIndex=0)
