"""The page `/compare?a=&b=`: two plans, or the prediction and the run of one, side by side."""

from dataclasses import dataclass
from itertools import islice
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
from dcp_dashboard.pages.layout import changed_notice, framed, plain_link
from dcp_dashboard.pages.tables import MAX_SEARCH, has_words
from dcp_dsl import DCPError
from dcp_planner import Source

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


def read_choices(query: str) -> tuple[Choice | None, Choice | None]:
    """Read both choices from a URL, ``?a=<key>&as=<source>&b=<key>&bs=<source>``.

    One plan without sources means its prediction against its run.

    >>> read_choices("?a=k&b=k")
    (Choice(key='k', source='simulated'), Choice(key='k', source='measured'))
    >>> read_choices("?b=k&bs=nonsense")
    (None, Choice(key='k', source='simulated'))
    """
    asked = {name: values[0] for name, values in parse_qs(query.removeprefix("?")).items()}
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
    parts.append(dcc.Store(id="compare-sides", data=_values(*choices)))
    return framed(f"{first.summary.mask} against {second.summary.mask}", *parts)


def load_comparison(library: PlanLibrary, first: Choice, second: Choice) -> Comparison:
    """Load both sides."""
    return Comparison(_side(library, first), _side(library, second))


def _side(library: PlanLibrary, choice: Choice) -> Side:
    loaded = library.load(choice.key)
    if choice.source not in loaded.traces:
        raise DCPError(
            f"{loaded.entry.relative} holds no {choice.source} trace, only "
            f"{', '.join(loaded.traces)}; record one with: dcpm run PLAN --trace"
        )
    return Side(loaded, choice.source)


def _values(*choices: Choice | None) -> list[str | None]:
    return [choice.value if choice else None for choice in choices]


def _head(library: PlanLibrary, first: Choice | None, second: Choice | None) -> Component:
    swap: Component = html.Span()  # keeps the place between the two pickers
    if first and second:
        label, href = "Swap A and B", compare_url(second, first)
        swap = plain_link("⇄", href, className="dcp-swap", title=label, aria_label=label)
    tools = [_picker(library, "a", "A", first), swap, _picker(library, "b", "B", second)]
    crumb = dcc.Link("Plans", href="/", className="dcp-crumb")
    title = html.Div([crumb, html.H1("Compare", className="dcp-plain")], className="dcp-title")
    shown = dcc.Store(id="compare-shown", data=_values(first, second))
    return html.Div([title, html.Div(tools, className="dcp-pickers"), shown])


def _options(library: PlanLibrary, search: str, chosen: Choice | None) -> list[dict[str, str]]:
    """Return the first traces whose labels have all words of a search, those of the session first.

    The chosen one is among them: a picker shows the label of its value.
    """
    every: dict[str, str] = {}
    for row in (*library.session_rows(), *library.index.rows()):
        for source, seconds in (row.value.seconds if row.value else {}).items():
            spent = "" if seconds is None else f" {quantities.duration(seconds)}"
            label = f"{row.entry.relative} · {SOURCE_LABELS[source].lower()}{spent}"
            every[Choice(row.entry.key, source).value] = label
    kept = {chosen.value: every[chosen.value]} if chosen and chosen.value in every else {}
    words = "" if search in kept.values() else search  # the picker still shows what is chosen
    found = (item for item in every.items() if has_words(words, item[1:]))
    shown = kept | dict(islice(found, MOST_OPTIONS))
    return [{"value": value, "label": label} for value, label in shown.items()]


def _picker(library: PlanLibrary, name: str, label: str, chosen: Choice | None) -> Component:
    picker: Component = dmc.Select(
        id=f"compare-{name}", data=_options(library, "", chosen),
        value=chosen.value if chosen else None, label=label,
        searchable=True, size="xs", className="dcp-picker", allowDeselect=False,
        nothingFoundMessage="No plan has this name", placeholder="Choose a plan",
    )  # fmt: skip
    return picker


def _invitation(library: PlanLibrary, head: Component) -> Component:
    text = "Choose two plans, or the prediction and the run of one plan."
    if not _options(library, "", None):
        text = "There is no readable plan here yet; the list of plans says how to make one."
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
        except DCPError as error:  # a file changed or went away since the page was made
            return html.Div(str(error), role="alert"), html.Div()

    for name in ("a", "b"):

        @app.callback(
            Output(f"compare-{name}", "data"), Input(f"compare-{name}", "searchValue"),
            Input(f"compare-{name}", "value"), prevent_initial_call=True,
        )  # fmt: skip
        def search(text: object, value: object) -> list[dict[str, str]]:
            key, _, source = str(value).partition("~")
            known = known_source(source)
            chosen = None if known is None else Choice(key, known)
            return _options(library, str(text or "")[:MAX_SEARCH], chosen)

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
        key, _, name = str(text).partition("~")
        source = known_source(name)
        if source is None:
            raise DCPError(f"expected <key>~<source>, got {str(text)[:80]!r}")
        found.append(Choice(key, source))
    return found[0], found[1]
