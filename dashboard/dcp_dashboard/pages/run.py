"""The pages `/run/<key>` and `/run/<key>/<other>`: training runs, from the logs that they write."""

import time
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import plotly.graph_objects as go
from dash import Dash, Input, Output, ctx, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from plotly.subplots import make_subplots

from dcp_dashboard.api.encoding import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts.quantities import (
    count,
    counted,
    digits,
    duration,
    percent,
    ratio,
    signed,
    size,
    times,
)
from dcp_dashboard.library.folder import RUN_SUFFIX, SUFFIX, PlanEntry, plan_key
from dcp_dashboard.library.plans import PlanLibrary, Run
from dcp_dashboard.pages.charts import BLUE, MORE, TEMPLATE, annotate, graph
from dcp_dashboard.pages.compare_panels import MINUS
from dcp_dashboard.pages.layout import (
    box,
    framed,
    headings,
    hint,
    number_cells,
    panel,
    scrolling,
    table,
    terms,
    title_bar,
)
from dcp_dsl import DCPError
from dcp_dsl.arrays import Floats, Ints
from dcp_runtime import RunHistory

Text = Callable[[float], str]
COMPARED = frozenset(
    ("step_s", "measured_s", "predicted_s", "exposed_share", "attention_imbalance", "bytes",
     "waited_s")
)  # fmt: skip
"""Fields of `FACTS` whose medians are compared."""


class Pair(NamedTuple):
    """Two runs, A and B, at the steps that both have, with the places of these in each."""

    a: RunHistory
    b: RunHistory
    steps: Ints
    at_a: Ints
    at_b: Ints

    @classmethod
    def of(cls, a: RunHistory, b: RunHistory) -> "Pair":
        """Find the steps that both runs have; either may have begun later, or ended earlier."""
        found = np.intersect1d(a.column("step"), b.column("step"), return_indices=True)
        return cls(a, b, found[0].astype(np.int64), found[1], found[2])

    def values(self, field: str) -> tuple[Floats, Floats]:
        """Return a figure of both runs at their common steps, NaN where a log lacks it."""
        return self.a.column(field)[self.at_a], self.b.column(field)[self.at_b]

    def medians(self, field: str) -> tuple[float, float] | None:
        """Return the medians over steps that have a figure in both, ``None`` without such steps."""
        a, b = self.values(field)
        known = ~np.isnan(a + b)  # a sum is NaN if either part is
        return (float(np.median(a[known])), float(np.median(b[known]))) if known.any() else None

    def most_different(self) -> list[int]:
        """Return the five steps whose times differ most, the largest difference first."""
        a, b = self.values("step_s")
        apart = np.abs(b - a)
        # NaN sorts as no difference, and is left out below, since it is not above 0.
        order = np.argsort(-np.nan_to_num(apart), kind="stable")[:5]
        return [int(self.steps[at]) for at in order if apart[at] > 0]


def comparison(runs: Sequence[Run]) -> list[Component]:
    """Build the panels of two runs: differences of medians, and of single steps; none for one."""
    if len(runs) < 2:
        return []
    pair = Pair.of(*(run for _, run in runs))
    if not len(pair.steps):
        return [panel("A versus B", [hint("The two runs have no step in common.")])]
    rows = []
    for field, heading, text in FACTS:
        if field in COMPARED and (medians := pair.medians(field)) is not None:
            a, b = medians
            share = number_cells([signed(b / a - 1, percent) if a and text != percent else ""])
            rows.append(html.Tr([html.Th(heading, scope="row"), *_numbers(a, b, text), *share]))
    heads = headings(("Median over steps", "A", "B", MINUS, "change"), (1, 2, 3, 4))
    first, second = (entry.relative for entry, _ in runs)
    common = counted(len(pair.steps), "step")
    note = f"A is {first}, B is {second}. Medians over the {common} that both runs have."
    told = html.P(pair_sentence(pair), className="dcp-verdict")
    medians_panel = panel("A versus B", [told, hint(note), scrolling(table(heads, rows))])
    steps = [_step_row(pair, step) for step in pair.most_different()]
    heads = headings(
        ("Step", "A", "B", MINUS, "Slowest rank of A", "Slowest rank of B"), (0, 1, 2, 3)
    )
    apart = panel("Steps that differ most in time", [scrolling(table(heads, steps))])
    return [medians_panel, apart] if steps else [medians_panel]


def pair_sentence(pair: Pair) -> str:
    """Write which of two runs takes less time for a step, and what attention takes in both."""
    steps, attention = pair.medians("step_s"), pair.medians("measured_s")
    if steps is None or not min(steps):
        return "The two runs have no step time in common."
    a, b = steps
    text = f"A step takes {duration(a)} in A and {duration(b)} in B"
    factor = max(steps) / min(steps)
    text += f": {times(factor)} as fast in {'AB'[b < a]}." if factor > 1 + CLOSE else "."
    if attention is not None:
        text += f" Attention takes {duration(attention[0])} and {duration(attention[1])}."
    return text


def _numbers(a: float, b: float, text: Text) -> list[Component]:
    difference = signed(b - a, text)
    if text == percent:  # of two shares, in points: 60 % less could mean either
        difference = f"{signed(100 * (b - a), digits)} points"
    return number_cells((text(a), text(b), difference))


def _step_row(pair: Pair, step: int) -> Component:
    a, b = pair.a.record(step), pair.b.record(step)
    first, second = (float(one["step_s"] or 0) for one in (a, b))
    reasons = (html.Td(str(one.get("why") or "-")) for one in (a, b))
    return html.Tr([*number_cells([count(step)]), *_numbers(first, second, duration), *reasons])


EVERY_MS, HEIGHT = 2_000, 900
STILL_S = 90.0
"""Seconds without a new record after which a page is no longer redrawn."""
MOST_OTHERS = 20
"""Other runs that a page links to."""
CLOSE = 0.02
"""Two runs whose times differ by a smaller share are equally fast."""

SECOND = "#cc79a7"
"""Purple (Okabe & Ito): the lines of the second run."""
NO_STEP = "No step is chosen. Click a step of the charts: its figures stand here."
WARM_UP = 3
"""First steps of a run, which compile and allocate: they do not set the scale of an axis."""
RECENT = 100
"""Newest steps that the first sentence is about."""
MOST_POINTS = 800
"""Most points of a line: of more steps, the least and the most of each stretch are kept."""

_Made = TypeVar("_Made")

CHARTS = (
    ("Step time", (("step_s", "step", BLUE, "solid"),)),
    ("Attention of the slowest rank", (
        ("measured_s", "measured", BLUE, "solid"), ("predicted_s", "predicted", NEUTRAL, "dot"),
    )),
    ("Waiting of the rank that waits longest",
        (("exposed_share", "waiting", KIND_COLOURS["wait"], "solid"),)),
    ("Slowest rank", (("slowest", "rank", KIND_COLOURS["reduction"], "solid"),)),
    ("Plans in progress", (("queued", "plans", KIND_COLOURS["send"], "solid"),)),
)  # fmt: skip
"""Heading of each chart; field, name, colour and stroke of its lines."""

FACTS = (
    ("step_s", "Step", duration), ("measured_s", "Attention, measured", duration),
    ("predicted_s", "Attention, predicted", duration), ("attention_s", "Kernels", duration),
    ("other_s", "Copies, reductions", duration), ("waiting_s", "Waiting", duration),
    ("idle_s", "Idle", duration), ("exposed_share", "Waiting, worst rank", percent),
    ("tokens", "Tokens", count), ("token_imbalance", "Token max/mean", ratio),
    ("compute_imbalance", "Compute max/mean", ratio),
    ("attention_imbalance", "Measured max/mean", ratio), ("bytes", "Bytes moved", size),
    ("planning_s", "Planning time", duration), ("waited_s", "Wait for the plan", duration),
)  # fmt: skip
"""Figures of one step: field, heading, how it is written."""


def run_page(library: PlanLibrary, key: str, other: str = "") -> Component:
    """Build the page of one run, or of two, A and B, on the same axes."""

    def build(runs: Sequence[Run]) -> Component:
        entry, run = runs[0]
        name = PurePosixPath(entry.relative)
        told = html.Span(f"{entry.relative} · {counted(len(run), 'step')}", className="dcp-muted")
        note = "Drag over steps to zoom. Double-click to show all steps. Click a step for details."
        return framed(
            f"Run · {entry.relative}",
            dcc.Store(id="run-key", data=[key, other]), dcc.Store(id="run-range"),
            dcc.Interval(id="run-clock", interval=EVERY_MS),
            title_bar(name.parent.name or name.name, told),
            box([html.Div(_now(runs), id="run-now"), _newest(run)], "Latest step"),
            html.Div(comparison(runs), id="run-pair"),
            html.Div(
                [
                    panel("Steps", [hint(note), graph("run-chart", run_figure(runs, None))]),
                    html.Div(panel("Step", [hint(NO_STEP)]), id="run-step", className="dcp-beside"),
                ],
                className="dcp-wide-columns",
            ),
            *_others(library, key, other),
        )  # fmt: skip

    return _read(library, [key, other], build)


def _read(library: PlanLibrary, keys: object, make: Callable[[Sequence[Run]], _Made]) -> _Made:
    """Return the result of `make` on the runs of a page, one or two; a client may send any keys."""
    first, *rest = map(str, keys) if isinstance(keys, list) and len(keys) == 2 else (str(keys),)
    # On the page of one run the second key is empty.
    return library.read_runs([first, *(key for key in rest if key not in ("", first))], make)


def _others(library: PlanLibrary, key: str, other: str) -> list[Component]:
    """Link to the comparisons with the other runs of the folder."""
    found = [entry for entry in library.folder.files(RUN_SUFFIX) if entry.key not in (key, other)]
    links = [
        html.Li(dcc.Link(entry.relative, href=f"/run/{key}/{entry.key}"))
        for entry in found[:MOST_OTHERS]
    ]
    return [panel("Compare with", [html.Ul(links)])] if links else []


def add_run_callbacks(app: Dash, library: PlanLibrary) -> None:
    """Keep the page up to date and zoomed, and show the step that is clicked."""

    @app.callback(Output("run-range", "data"), Input("run-chart", "relayoutData"))
    def zoom(layout: object) -> Any:  # Any: a range, None, or what means no change
        return read_zoom(layout)

    @app.callback(
        Output("run-now", "children"), Output("run-figures", "children"),
        Output("run-pair", "children"),
        Output("run-chart", "figure"),
        Input("run-clock", "n_intervals"), Input("run-range", "data"), Input("run-key", "data"),
    )  # fmt: skip
    def draw(_ticks: object, zoomed: object, keys: object) -> tuple[Component, Any, Any, Any]:
        is_tick = ctx.triggered_id == "run-clock"

        def make(runs: Sequence[Run]) -> tuple[Component, Any, Any, Any]:
            written_ns = max(entry.mtime_ns for entry, _ in runs)
            # A zoom always redraws; the clock redraws only while the log still grows.
            if is_tick and time.time() - written_ns / 1e9 > STILL_S:
                raise PreventUpdate
            figure = run_figure(runs, _read_range(zoomed))
            return _now(runs), _figures(runs[0][1]), comparison(runs), figure

        try:
            return _read(library, keys, make)
        except DCPError as error:  # the log went away since the page was made
            return html.Div(str(error), role="alert"), no_update, no_update, no_update

    @app.callback(
        Output("run-step", "children"), Input("run-chart", "clickData"), Input("run-key", "data")
    )
    def show(click: object, keys: object) -> Component:
        step = read_click(click)
        if step is None:
            raise PreventUpdate

        def make(runs: Sequence[Run]) -> Component:
            return html.Div(
                [_step_panel(library, entry, run, step) for entry, run in runs if run.record(step)]
            )

        try:
            return _read(library, keys, make)
        except DCPError as error:
            return html.Div(str(error), role="alert")


def read_zoom(layout: object) -> Any:  # Any: a range, None, or what means no change
    """Read which steps a browser zoomed to, ``None`` for all; a client may send anything."""
    values = layout if isinstance(layout, dict) else {}
    # A zoom names the x axis of its own chart, x to x5; all show the same steps.
    ends = [v for name, v in values.items() if ".range[" in str(name) and str(name)[0] == "x"]
    if len(ends) >= 2:
        return _read_range(ends[:2])
    return None if any(str(name).endswith(".autorange") for name in values) else no_update


def _read_range(ends: object) -> list[float] | None:
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    if not all(isinstance(end, int | float) and abs(end) < 2**53 for end in ends):
        return None
    return sorted(map(float, ends))


def read_click(click: object) -> int | None:
    """Read the step of a clicked point; a client may send anything."""
    try:
        step = click["points"][0]["x"]  # type: ignore[index]  # anything else is caught below
    except (TypeError, KeyError, IndexError):
        return None
    # NaN compares false; `int` would raise for it and for infinity.
    return int(step) if isinstance(step, int | float) and abs(step) < 2**53 else None


def extremes(values: Floats, most: int) -> Ints:
    """Thin values out: return the places of the least and the most of equal stretches, in order.

    At most `most` places. NaN counts as unknown; a stretch of NaN alone has no place.
    """
    if len(values) <= most:
        return np.arange(len(values))
    # Each stretch gives two places, so half as many stretches.
    width = -(-len(values) // (most // 2))
    stretches = -(-len(values) // width)
    # Filled up with NaN, the values are a matrix whose rows are the stretches.
    padded = np.full(stretches * width, np.nan)
    padded[: len(values)] = values
    rows, first = padded.reshape(stretches, width), np.arange(stretches) * width
    unknown = np.isnan(rows)
    least = first + np.where(unknown, np.inf, rows).argmin(1)
    largest = first + np.where(unknown, -np.inf, rows).argmax(1)
    # A stretch of NaN alone gives its first place twice, which the last line takes out.
    found = np.union1d(least, largest)
    known: Ints = found[~np.isnan(padded[found])]
    return known


def run_figure(runs: Sequence[Run], zoomed: Sequence[float] | None) -> go.Figure:
    """Draw the charts one below the other over the steps, all of them or those zoomed to."""
    figure = make_subplots(rows=len(CHARTS), cols=1, shared_xaxes=True, vertical_spacing=0.05)
    letters = ("A ", "B ") if len(runs) == 2 else ("",)
    for row, (heading, lines) in enumerate(CHARTS, start=1):
        for (_, drawn), letter in zip(runs, letters, strict=True):
            for field, name, colour, dash in lines:
                colours = {"": colour, "A ": BLUE, "B ": SECOND}  # of two runs, each has one
                style = {"name": letter + name, "dash": dash, "color": colours[letter]}
                _add_line(figure, drawn, field, _seen(drawn, zoomed), row, style)
        parts = [(drawn.column(of), _seen(drawn, zoomed)) for _, drawn in runs for of, *_ in lines]
        most = _top([values[seen] for values, seen in parts])
        usual = _top([v[max(WARM_UP, seen.start) : seen.stop] for v, seen in parts])
        figure.update_yaxes(**_axis(lines[0][0], most, usual), row=row, col=1)
        axis = "" if row == 1 else str(row)
        annotate(figure, axis, f"<b>{heading}</b>", "left")
    # A long log forgets its oldest records, but not which steps left a trace.
    run = runs[0][1]
    kept = [step for step in run.traced if run.record(step)]
    figure.add_scatter(
        x=kept, y=[run.record(step)["step_s"] for step in kept], mode="markers", name="trace kept",
        marker={"symbol": "diamond", "size": 8, "color": MORE}, row=1, col=1, hoverinfo="x+name",
    )  # fmt: skip
    steps = np.concatenate([drawn.column("step") for _, drawn in runs])
    ends = zoomed or ([float(steps.min()), float(steps.max())] if len(steps) > 1 else None)
    figure.update_xaxes(fixedrange=False, range=ends)
    figure.update_xaxes(title_text="step", row=len(CHARTS), col=1)
    figure.update_layout(
        template=TEMPLATE, height=HEIGHT, margin={"l": 52, "r": 8, "t": 40, "b": 36},
        dragmode="zoom", hovermode="x", showlegend=True,
        legend={"orientation": "h", "y": 1.03, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )  # fmt: skip
    return figure


def _seen(run: RunHistory, zoomed: Sequence[float] | None) -> slice:
    """Return the places of the steps zoomed to, and one more on each side, where lines leave."""
    steps, (low, high) = run.column("step"), zoomed or (0.0, np.inf)
    first, behind = np.searchsorted(steps, low), np.searchsorted(steps, high, "right")
    return slice(max(0, int(first) - 1), int(behind) + 1)


def _add_line(
    figure: go.Figure, run: RunHistory, field: str, seen: slice, row: int, style: dict[str, str]
) -> None:
    values = run.column(field)[seen]
    kept = extremes(values, MOST_POINTS)
    is_line = field != "slowest"  # a line between two ranks would pass through others
    figure.add_scatter(
        x=run.column("step")[seen][kept], y=values[kept], row=row, col=1, name=style["name"],
        mode="lines" if is_line else "markers", connectgaps=False,
        line={"width": 1.2, "color": style["color"], "dash": style["dash"]},
        # The second chart alone has two kinds of lines, which need their names.
        marker={"size": 7, "color": style["color"]}, showlegend=row == 2,
        hovertemplate="step %{x}<br>" + style["name"] + " %{y}<extra></extra>",
    )  # fmt: skip


def _top(columns: Sequence[Floats]) -> float:
    """Return the largest known value of some columns, 0 without one."""
    return max((float(np.nanmax(one)) for one in columns if (~np.isnan(one)).any()), default=0.0)


def _axis(field: str, most: float, usual: float) -> dict[str, Any]:
    """Return the settings of the axis of a number; ``Any``: plotly takes texts and numbers.

    `most` is the largest value, `usual` that of the steps behind the first ones.
    """
    if field.endswith("_s"):
        found: dict[str, Any] = {"tickformat": "~s", "ticksuffix": "s", "nticks": 4}
        # First steps that are far above all others leave the chart at its top.
        is_cut = 0 < 1.5 * usual < most
        return found | ({"range": [0, 1.1 * usual]} if is_cut else {"rangemode": "tozero"})
    if field.endswith("share"):
        return {"tickformat": ".0%", "rangemode": "tozero", "nticks": 4}
    # Ranks and plans are whole: at most five ticks, none between two of them. Dots lie inside.
    step = max(1, -(-most // 4))
    return {"tickformat": "d", "tick0": 0, "dtick": step, "range": [-0.3 * step, most + 0.3 * step]}


def run_sentence(run: RunHistory) -> str:
    """Return a sentence: what a step takes, what attention takes, and which rank is last."""
    if not len(run):
        return "The run has written no step yet."
    columns = {name: run.column(name)[-RECENT:] for name, *_ in FACTS}
    middle = {
        name: float(np.median(known))
        for name, values in columns.items()
        if len(known := values[~np.isnan(values)])
    }
    last, recent = run.last, min(RECENT, len(run))
    text = f"Step {count(float(last['step'] or 0))} is the newest."
    if "step_s" in middle:
        text = f"A step takes {duration(middle['step_s'])}, the median of the last {recent}."
    if "measured_s" in middle:
        text += f" Attention of the slowest rank takes {duration(middle['measured_s'])}"
        if middle.get("predicted_s"):
            factor = ratio(middle["measured_s"] / middle["predicted_s"])
            text += f", {factor} times the predicted {duration(middle['predicted_s'])}"
        text += "."
    slowest = run.column("slowest")[-RECENT:]
    slowest = slowest[~np.isnan(slowest)].astype(np.int64)
    if len(slowest):
        ranks, often = np.unique(slowest, return_counts=True)
        rank, steps = int(ranks[often.argmax()]), int(often.max())
        text += f" Rank {rank} is slowest in {steps} of {len(slowest)} steps"
        is_it = last.get("why") and last.get("slowest") == rank
        text += f": {last['why']}." if is_it else "."
    if "exposed_share" in middle:
        share = percent(middle["exposed_share"])
        text += f" The rank that waits longest waits for {share} of attention's time."
    return text


def _now(runs: Sequence[Run]) -> Component:
    parts: list[Component] = []
    for letter, (_, run) in zip("AB", runs, strict=False):
        name = f"{letter}: " if len(runs) > 1 else ""
        parts.append(html.P(name + run_sentence(run), className="dcp-verdict"))
        if run.dropped:
            lost = f"{counted(run.dropped, 'step')} not written to the log"
            parts.append(hint(f"{name}The disk is too slow: {lost}."))
    return html.Div(parts)


def _newest(run: RunHistory) -> Component:
    """Build the figures of the newest step, folded; new figures do not fold them again."""
    parts = [html.Summary("The newest step in figures"), html.Div(_figures(run), id="run-figures")]
    return html.Details(parts, className="dcp-definitions")


def _figures(run: RunHistory) -> Component:
    return terms(run.sentences(), "dcp-terms")


def _step_panel(library: PlanLibrary, entry: PlanEntry, run: RunHistory, step: int) -> Component:
    found = run.record(step)
    # A figure that the log lacks at this step is ``None``.
    facts = [
        (heading, text(value))
        for field, heading, text in FACTS
        if isinstance(value := found.get(field), float)
    ]
    facts += [("Slowest rank", str(found["why"]))] if found.get("why") else []
    # The log names the file of a trace that lies beside it.
    trace = str(found.get("trace", ""))
    key = plan_key((PurePosixPath(entry.relative).parent / trace).as_posix())
    link: Component = hint(
        "The log keeps no plan of this step. DCPExecutor(trace_every=...) keeps plans."
    )
    if trace and library.folder.find(key, SUFFIX):
        link = html.P(dcc.Link("Plan and trace of this step", href=f"/plan/{key}/timeline"))
    return panel(f"Step {count(step)} · {found.get('name', '')}", [terms(facts), link])
