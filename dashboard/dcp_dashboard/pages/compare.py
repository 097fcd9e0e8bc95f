"""The page `/compare?a=&b=`: two plans, or the prediction and the run of one, side by side."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.text import SOURCE_LABELS
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.compare_panels import (
    compare_charts,
    device_panels,
    moves_panel,
    table_panel,
    timelines_panel,
    verdict_panel,
)
from dcp_dashboard.pages.layout import attributes, changed_notice
from dcp_dsl import DCPError
from dcp_planner import Source


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of one picker: the key of a plan and the source of its trace."""

    key: str
    source: Source

    @property
    def value(self) -> str:
        """The text of the choice in a picker."""
        return f"{self.key}~{self.source}"


def read_choices(query: str) -> tuple[Choice | None, Choice | None]:
    """Read both choices from a URL, ``?a=<key>&as=<source>&b=<key>&bs=<source>``.

    One plan without sources means its prediction against its run.

    >>> read_choices("?a=k&b=k")
    (Choice(key='k', source='simulated'), Choice(key='k', source='measured'))
    >>> read_choices("?b=k&bs=nonsense")
    (None, Choice(key='k', source='simulated'))
    """
    asked = {name: values[0] for name, values in parse_qs(query.removeprefix("?")).items()}
    is_run: dict[str, Source] = {"as": "simulated", "bs": "simulated"}
    if asked.get("a") == asked.get("b") and not asked.keys() & {"as", "bs"}:
        is_run["bs"] = "measured"

    def choice(name: str) -> Choice | None:
        if not asked.get(name):
            return None
        source: Source = is_run[f"{name}s"]
        for known in SOURCE_LABELS:
            source = known if asked.get(f"{name}s") == known else source
        return Choice(asked[name], source)

    return choice("a"), choice("b")


def compare_url(first: Choice | None, second: Choice | None) -> str:
    """Write the address of a comparison.

    >>> compare_url(Choice("x", "simulated"), None)
    '/compare?a=x&as=simulated'
    """
    sides = (("a", first), ("b", second))
    pairs = [
        pair
        for name, choice in sides
        if choice
        for pair in ((name, choice.key), (f"{name}s", choice.source))
    ]
    return "/compare" + (f"?{urlencode(pairs)}" if pairs else "")


def compare_page(library: PlanLibrary, query: str) -> Component:
    """Build the page of two plans, or the pickers alone while one plan is missing.

    Raises:
        DCPError: if a plan is missing, broken or lacks the trace.
    """
    choices = read_choices(query)
    if choices[0] is None or choices[1] is None:
        return _invitation(library, choices)
    comparison = load_comparison(library, choices[0], choices[1])
    first, second = comparison.first, comparison.second
    names = [side.loaded.summary.mask for side in (first, second)]
    parts: list[Component] = [
        changed_notice(first.loaded.entry, second.loaded.entry),
        _head(library, choices),
        verdict_panel(comparison),
        table_panel(comparison),
        timelines_panel(comparison),
    ]
    if comparison.has_same_devices:
        parts.append(device_panels(comparison))
    if comparison.has_same_blocks and not comparison.is_same_plan:
        parts.append(moves_panel(comparison))
    shown = [choice.value for choice in choices if choice]
    parts.append(dcc.Store(id="compare-sides", data=shown))
    return html.Div(parts, **attributes(data_title=f"{names[0]} against {names[1]}"))


def load_comparison(library: PlanLibrary, first: Choice, second: Choice) -> Comparison:
    """Load both sides.

    Raises:
        DCPError: if a plan is missing, broken or lacks the trace.
    """
    return Comparison(*(_side(library, choice) for choice in (first, second)))


def _side(library: PlanLibrary, choice: Choice) -> Side:
    loaded = library.load(choice.key)
    if choice.source not in loaded.traces:
        raise DCPError(
            f"{loaded.entry.relative} holds no {choice.source} trace, only "
            f"{', '.join(loaded.traces)}; record one with: dcpm run PLAN --trace"
        )
    return Side(loaded, choice.source, library.figures(loaded), library.time_parts(loaded))


def _head(library: PlanLibrary, choices: tuple[Choice | None, Choice | None]) -> Component:
    first, second = choices
    swap: Component = html.Span()  # keeps the place between the two pickers
    if first and second:
        swap = html.A(
            "⇄", href=compare_url(second, first), className="dcp-swap", title="Swap A and B",
            **attributes(aria_label="Swap A and B", data_plain="link"),
        )  # fmt: skip
    tools = [_picker(library, "a", "A", first), swap, _picker(library, "b", "B", second)]
    return html.Div(
        [
            html.Div(
                [
                    dcc.Link("Plans", href="/", className="dcp-crumb"),
                    html.H1("Compare", className="dcp-plain"),
                ],
                className="dcp-title",
            ),
            html.Div(tools, className="dcp-pickers"),
            dcc.Store(id="compare-shown", data=[side.value if side else None for side in choices]),
        ]
    )


def _picker(library: PlanLibrary, name: str, label: str, chosen: Choice | None) -> Component:
    rows = [row for row in (*library.session_rows(), *library.rows()[0]) if row.summary is not None]
    options = [
        {
            "value": Choice(row.entry.key, source).value,
            "label": f"{row.entry.relative} · {SOURCE_LABELS[source].lower()} "
            f"{quantities.duration(row.summary.seconds[source])}",
        }
        for row in rows
        if row.summary is not None
        for source in SOURCE_LABELS
        if source in row.summary.seconds
    ]
    picker: Component = dmc.Select(
        id=f"compare-{name}", data=options, value=chosen.value if chosen else None, label=label,
        searchable=True, limit=200, size="xs", className="dcp-picker", allowDeselect=False,
        nothingFoundMessage="No plan has this name", placeholder="Choose a plan",
    )  # fmt: skip
    return picker


def _invitation(library: PlanLibrary, choices: tuple[Choice | None, Choice | None]) -> Component:
    text = "Choose two plans, or the prediction and the run of one plan."
    if not any(row.summary for row in (*library.session_rows(), *library.rows()[0])):
        text = "There is no readable plan here yet; the list of plans says how to make one."
    return html.Div(
        [
            _head(library, choices),
            html.Div(
                [html.P(text), dcc.Link("To the list of plans", href="/")], className="dcp-message"
            ),
        ],
        **attributes(data_title="Compare"),
    )


def add_compare_callbacks(app: Dash, library: PlanLibrary) -> None:
    """Connect the pickers, the charts and the colours of the page."""

    @app.callback(
        Output("deltas-slot", "children"), Output("traffic-difference-slot", "children"),
        Input("compare-sides", "data"),
    )  # fmt: skip
    def show_charts(sides: object) -> tuple[Component, Component]:
        try:
            return compare_charts(load_comparison(library, *_read_sides(sides)))
        except DCPError as error:  # a file changed or went away since the page was made
            return html.Div(str(error), role="alert"), html.Div()

    connect: Any = app.clientside_callback  # Any: Dash leaves it untyped
    connect(
        ClientsideFunction("dcp", "compare"), Output("compare-a", "error"),
        Input("compare-a", "value"), Input("compare-b", "value"), State("compare-shown", "data"),
    )  # fmt: skip


def _read_sides(sides: object) -> tuple[Choice, Choice]:
    """Read what the page put into its store; a client may send anything."""
    if not isinstance(sides, list) or len(sides) != 2:
        raise DCPError(f"expected two sides of a comparison, got {str(sides)[:80]}")
    found = []
    for text in sides:
        key, _, source = str(text).partition("~")
        known = next((name for name in SOURCE_LABELS if name == source), None)
        if known is None:
            raise DCPError(f"expected <key>~<source>, got {str(text)[:80]!r}")
        found.append(Choice(key, known))
    return found[0], found[1]
