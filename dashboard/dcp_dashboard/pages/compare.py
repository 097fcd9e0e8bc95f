"""The pages `/compare?a=&b=` and `/front?plan=&plan=...`: two plans, or many of one batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from string import ascii_uppercase
from typing import Any
from urllib.parse import parse_qs, urlencode

import dash_mantine_components as dmc
import numpy as np
import plotly.graph_objects as go
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import NEUTRAL
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.quantities import alike, count, counted, duration, ratio, size
from dcp_dashboard.facts.text import SOURCE_LABELS
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dashboard.pages.charts import BLUE, TEMPLATE, graph
from dcp_dashboard.pages.compare_panels import (
    PHASES,
    compare_charts,
    constants_panel,
    device_panels,
    kinds_panel,
    moves_panel,
    table_panel,
    timelines_panel,
    verdict_panel,
)
from dcp_dashboard.pages.layout import (
    changed_notice,
    framed,
    headings,
    notes_list,
    number_cells,
    panel,
    plain_link,
    scrolling,
    table,
    title_bar,
)
from dcp_dashboard.pages.tables import MAX_SEARCH, has_words
from dcp_dsl import DCPError
from dcp_dsl.arrays import Bools, Floats
from dcp_planner import Source
from dcp_planner.causes import unlike_batches

MOST_OPTIONS = 200
"""Most plans that a picker is sent; a search sends others."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of one picker: the key of a plan and the source of its trace."""

    key: str
    source: Source

    @property
    def value(self) -> str:
        """The text of the choice in a picker."""
        return f"{self.key}~{self.source}"

    @classmethod
    def read(cls, value: object) -> "Choice | None":
        """Read the text of a choice, ``None`` for any other text: a client may send anything."""
        key, _, name = str(value).partition("~")
        source = known_source(name)
        return None if source is None else cls(key, source)


def read_choices(query: str) -> tuple[Choice | None, Choice | None]:
    """Read both choices from a URL, ``?a=<key>&as=<source>&b=<key>&bs=<source>``.

    One plan without sources means its prediction against its run.

    >>> read_choices("?a=k&b=k")
    (Choice(key='k', source='simulated'), Choice(key='k', source='measured'))
    >>> read_choices("?b=k&bs=nonsense")
    (None, Choice(key='k', source='simulated'))
    """
    asked = {name: values[0] for name, values in parse_qs(query.removeprefix("?")).items()}
    # Two equal keys mean the prediction and the run of one plan, unless the URL names sources.
    is_run = asked.get("a") == asked.get("b") and not asked.keys() & {"as", "bs"}

    def choice(name: str, default: Source) -> Choice | None:
        source = known_source(asked.get(f"{name}s", "")) or default
        return Choice(asked[name], source) if asked.get(name) else None

    return choice("a", "simulated"), choice("b", "measured" if is_run else "simulated")


def read_phase(query: str) -> str:
    """Read the direction whose timelines are shown, empty for both.

    >>> read_phase("?a=k&phase=backward"), read_phase("?phase=nonsense")
    ('backward', '')
    """
    found = parse_qs(query.removeprefix("?")).get("phase", [""])[0]
    return found if found in PHASES else ""


def known_source(text: str) -> Source | None:
    """Return the source of a trace that a text names, ``None`` if it names none."""
    return next((source for source in SOURCE_LABELS if source == text), None)


def compare_url(first: Choice, second: Choice) -> str:
    """Return the address of a comparison.

    >>> compare_url(Choice("x", "simulated"), Choice("y", "measured"))
    '/compare?a=x&as=simulated&b=y&bs=measured'
    """
    a, b = first, second
    return "/compare?" + urlencode({"a": a.key, "as": a.source, "b": b.key, "bs": b.source})


def compare_page(library: PlanLibrary, query: str) -> Component:
    """Build the page of two plans, or the pickers alone while one plan is missing."""
    choices = read_choices(query)
    head = _head(library, *choices)
    if choices[0] is None or choices[1] is None:
        return _invitation(library, head)
    comparison = load_comparison(library, choices[0], choices[1])
    first, second = comparison.first.loaded, comparison.second.loaded
    parts: list[Component] = [
        changed_notice(first.entry, second.entry),
        head,
        verdict_panel(comparison),
        html.Div([table_panel(comparison), kinds_panel(comparison)], className="dcp-columns"),
        *([constants_panel(comparison)] if comparison.is_run_of_prediction else []),
        timelines_panel(comparison, compare_url(choices[0], choices[1]), read_phase(query)),
    ]
    if comparison.has_same_devices:
        parts.append(device_panels(comparison))
    if comparison.has_same_blocks and not comparison.is_same_plan:
        parts.append(moves_panel(comparison))
    # The charts follow in a callback: the rest of the page does not wait for Plotly's scripts.
    parts.append(dcc.Store(id="compare-sides", data=[choices[0].value, choices[1].value]))
    return framed(f"{first.summary.mask} versus {second.summary.mask}", *parts)


def load_comparison(library: PlanLibrary, *choices: Choice) -> Comparison:
    """Load both sides."""
    sides = [Side(library.load(choice.key), choice.source) for choice in choices]
    for side in sides:
        if side.source not in side.loaded.traces:
            raise DCPError(
                f"{side.loaded.entry.relative} holds no {side.source} trace, only "
                f"{', '.join(side.loaded.traces)}; record one with: dcpm run PLAN --trace"
            )
    return Comparison(*sides)


def _head(library: PlanLibrary, first: Choice | None, second: Choice | None) -> Component:
    swap: Component = html.Span()  # keeps the place between the two pickers
    if first and second:
        label, href = "Swap A and B", compare_url(second, first)
        swap = plain_link("⇄", href, className="dcp-swap", title=label, aria_label=label)
    tools = [_picker(library, "a", "A", first), swap, _picker(library, "b", "B", second)]
    crumb = dcc.Link("Plans", href="/", className="dcp-crumb")
    title = html.Div([crumb, html.H1("Compare", className="dcp-plain")], className="dcp-title")
    values = [choice.value if choice else None for choice in (first, second)]
    shown = dcc.Store(id="compare-shown", data=values)
    return html.Div([title, html.Div(tools, className="dcp-pickers"), shown])


def _options(library: PlanLibrary, search: str, chosen: Choice | None) -> list[dict[str, str]]:
    """Return the first traces whose labels have all words of a search, those of the session first.

    The chosen trace is always among them: a picker can only show the label of one of its options.
    """
    every: dict[str, str] = {}
    for row in (*library.session_rows(), *library.index.rows()):
        for source, seconds in (row.value.seconds if row.value else {}).items():
            spent = "" if seconds is None else f" {quantities.duration(seconds)}"
            label = f"{row.entry.relative} · {SOURCE_LABELS[source].lower()}{spent}"
            every[Choice(row.entry.key, source).value] = label
    kept = {chosen.value: every[chosen.value]} if chosen and chosen.value in every else {}
    # A picker that is opened searches for the label that it shows: then all plans are meant.
    words = "" if search in kept.values() else search
    found = (item for item in every.items() if has_words(words, item[1:]))
    shown = kept | dict(islice(found, MOST_OPTIONS))
    return [{"value": value, "label": label} for value, label in shown.items()]


def _picker(library: PlanLibrary, name: str, label: str, chosen: Choice | None) -> Component:
    picker: Component = dmc.Select(
        id=f"compare-{name}", data=_options(library, "", chosen),
        value=chosen.value if chosen else None, label=label,
        searchable=True, size="xs", className="dcp-picker", allowDeselect=False,
        nothingFoundMessage="No matching plan", placeholder="Choose a plan",
    )  # fmt: skip
    return picker


def _invitation(library: PlanLibrary, head: Component) -> Component:
    # A folder without a readable plan has nothing to choose.
    text = "Choose two plans, or the prediction and the run of one plan."
    if not _options(library, "", None):
        text = "This folder has no readable plan yet. The list of plans shows how to make one."
    parts = [html.P(text), dcc.Link("To the list of plans", href="/")]
    return framed("Compare", head, html.Div(parts, className="dcp-message"))


def add_compare_callbacks(app: Dash, library: PlanLibrary) -> None:
    """Connect the pickers, the charts and the colours of the page."""

    @app.callback(
        Output("deltas-slot", "children"), Output("traffic-difference-slot", "children"),
        Input("compare-sides", "data"),
    )  # fmt: skip
    def show_charts(sides: object) -> tuple[Component, Component]:
        try:
            return compare_charts(load_comparison(library, *_read_sides(sides)))
        except DCPError as error:  # a file was overwritten or deleted since the page was made
            return html.Div(str(error), role="alert"), html.Div()

    # Names of plans are searched on the server: a folder may hold ten thousand of them.
    for name in ("a", "b"):

        @app.callback(
            Output(f"compare-{name}", "data"), Input(f"compare-{name}", "searchValue"),
            Input(f"compare-{name}", "value"), prevent_initial_call=True,
        )  # fmt: skip
        def search(text: object, value: object) -> list[dict[str, str]]:
            return _options(library, str(text or "")[:MAX_SEARCH], Choice.read(value))

    connect: Any = app.clientside_callback  # Any: Dash leaves it untyped
    connect(
        ClientsideFunction("dcp", "compare"), Output("compare-a", "error"),
        Input("compare-a", "value"), Input("compare-b", "value"), State("compare-shown", "data"),
    )  # fmt: skip


def _read_sides(sides: object) -> tuple[Choice, Choice]:
    """Read the two sides from the page's store; a client may send anything."""
    if not isinstance(sides, list) or len(sides) != 2:
        raise DCPError(f"expected two sides of a comparison, got {str(sides)[:80]}")
    found = []
    for text in sides:
        choice = Choice.read(text)
        if choice is None:
            raise DCPError(f"expected <key>~<source>, got {str(text)[:80]!r}")
        found.append(choice)
    return found[0], found[1]


MOST_PLANS = len(ascii_uppercase)
"""Most plans of a page: each has a letter."""
FIGURES: Sequence[tuple[str, Callable[[LoadedPlan], float], Callable[[float], str]]] = (
    ("Predicted time", lambda plan: plan.summary.seconds["simulated"], duration),
    ("Compute max/mean", lambda plan: plan.summary.metrics.compute_imbalance, ratio),
    ("Tokens max/mean", lambda plan: plan.summary.metrics.token_imbalance, ratio),
    ("Forward, between nodes", lambda plan: plan.summary.metrics.forward.inter_node_bytes, size),
    ("Backward, between nodes", lambda plan: plan.summary.metrics.backward.inter_node_bytes, size),
    ("Bytes moved in total", lambda plan: plan.summary.total_bytes, size),
    ("Buffers", lambda plan: int(plan.totals.memory_bytes.max()), size),
)
"""Heading, value and text of each compared figure; less is better in all of them."""
PLACES = ("top center", "bottom center", "middle right", "middle left")
"""Sides of a dot on which letters stand in turn, so that those of close dots stay readable."""
SECONDS, FORWARD, BACKWARD, MOVED = 0, 3, 4, 5
"""Columns of `FIGURES` that the chart draws."""


def front_page(library: PlanLibrary, query: str) -> Component:
    """Build the page of the plans whose keys the URL names."""
    keys = list(dict.fromkeys(parse_qs(query.removeprefix("?")).get("plan", [])))  # each once
    if not 0 < len(keys) <= MOST_PLANS:
        raise DCPError(
            f"expected 1 to {MOST_PLANS} plans, got {count(len(keys))}; write "
            "/front?plan=KEY&plan=KEY, or press `Plan the Pareto front` on the page of a plan"
        )
    plans = [library.load(key) for key in keys]
    first = plans[0]
    values = np.array([[figure(plan) for _, figure, _ in FIGURES] for plan in plans], np.float64)
    best = unbeaten(values)
    others = {what for plan in plans[1:] for what in unlike_batches(first.plan, plan.plan)}
    note = f"Not all plans are for one batch: some are for {', '.join(sorted(others))}."
    notes = [note] if others else []
    return framed(
        f"Pareto front · {first.summary.mask}",
        changed_notice(*(plan.entry for plan in plans)),
        title_bar(first.summary.mask, sentence(first, values, best)),
        *([notes_list(notes)] if notes else []),
        panel("Time versus bytes", [graph("front", front_figure(plans, values, best))]),
        panel("Plans", [_rows(plans, values, best)]),
    )


def unbeaten(values: Floats) -> Bools:
    """Mark the rows that no other one equals or beats in every column; of equal rows, all."""
    # ``[i, j]``: plan i is nowhere worse than plan j, and somewhere better.
    no_worse = (values[:, None] <= values).all(axis=2)
    better = (values[:, None] < values).any(axis=2)
    return np.logical_not((no_worse & better).any(axis=0))


def sentence(first: LoadedPlan, values: Floats, best: Bools) -> str:
    """Write how many plans are on the front, and whether the first one is."""
    beaten = "another plan beats it in some figures and equals it in the rest"
    place = "is on the front" if best[0] else f"is not: {beaten}"
    return (
        f"{count(int(best.sum()))} of {counted(len(best), 'plan')} on the Pareto front; A, "
        f"{first.entry.relative}, {place}. The fastest plan has a predicted time of "
        f"{duration(values[:, SECONDS].min())}."
    )


def front_figure(plans: Sequence[LoadedPlan], values: Floats, best: Bools) -> go.Figure:
    """Draw each plan as a letter: time to the right, bytes upwards; beaten ones are grey."""
    # On one node nothing crosses; then all bytes that move are compared.
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
    first, rows = Choice(plans[0].entry.key, "simulated"), []
    texts = [alike(of, text) for (_, _, text), of in zip(FIGURES, values.T, strict=True)]
    for letter, plan, row, kept in zip(ascii_uppercase, plans, values, best, strict=False):
        own = Choice(plan.entry.key, "simulated")
        name = dcc.Link(plan.entry.relative, href=f"/plan/{own.key}")
        cells = number_cells(text(value) for text, value in zip(texts, row, strict=True))
        link = dcc.Link("with A", href=compare_url(first, own)) if own != first else ""
        rows.append(
            html.Tr([
                html.Th(letter, scope="row"), html.Td(name), *cells,
                html.Td("yes" if kept else "no"), html.Td(link),
            ])
        )  # fmt: skip
    names = ("", "Plan", *(name for name, _, _ in FIGURES), "On the Pareto front", "Compare")
    heads = headings(names, range(2, 2 + len(FIGURES)))
    return scrolling(table(heads, rows))
