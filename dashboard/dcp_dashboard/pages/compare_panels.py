"""The parts of the page `/compare`: sentence, figures, timelines, devices, moved tiles."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.mask import (
    CHANGES,
    MOVED,
    MOVES_MODES,
    ONLY_FIRST,
    ONLY_SECOND,
    SAME,
    Moves,
    find_moves,
)
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.comparison import (
    Comparison,
    Deltas,
    FigureRow,
    Judgement,
    Side,
    common_groups,
    compare_devices,
    compare_kinds,
    compare_rows,
)
from dcp_dashboard.facts.findings import explain
from dcp_dashboard.facts.text import EVENT_WORDS, PLACER_WORDS, SOURCE_LABELS
from dcp_dashboard.facts.traces import phase_of
from dcp_dashboard.library.summary import head_labels
from dcp_dashboard.pages.charts import LESS, MORE, deltas_figure, graph, traffic_difference_figure
from dcp_dashboard.pages.layout import (
    attributes,
    box,
    canvas,
    folded_rule,
    headings,
    hint,
    kind_legend,
    notes_list,
    number_cells,
    panel,
    plain_link,
    scrolling,
    swatches,
    table,
    terms,
)
from dcp_dashboard.pages.plan_views import LARGE_SIDE, mode_choice, timeline_url
from dcp_planner import PlanError
from dcp_planner.causes import compare_with_run

MOST_FITTED = 20_000
"""Most events of a run whose constants a page fits: that takes about 100 predictions."""
PHASES = {"": "Both directions", "forward": "Forward", "backward": "Backward"}
MINUS = "B − A"  # noqa: RUF001 - a minus

JUDGEMENTS: dict[Judgement, str] = {
    "better": "▲ B better", "worse": "▼ B worse", "equal": "about equal", "none": ""
}  # fmt: skip


def verdict_panel(comparison: Comparison) -> Component:
    """Build the verdict: which side is faster, by which rule, and the limits of the comparison."""
    found = explain(comparison)
    told: list[Component | str] = [found.text, folded_rule(found.rule)]
    parts: list[Component] = [html.P(told, className="dcp-verdict")]
    if comparison.limits:
        parts.append(notes_list(comparison.limits))
    return box(parts, "Which plan is faster, and why", "dcp-panel dcp-answer")


def table_panel(comparison: Comparison) -> Component:
    """Build the table of figures, each with its difference and its meaning for B."""
    heads = headings(("Figure", "A", "B", MINUS, "For B"), (1, 2, 3))
    rows = table(heads, [_table_row(row) for row in compare_rows(comparison)], "dcp-compare")
    named = (("A", comparison.first), ("B", comparison.second))
    sides = terms(((name, _side_text(side)) for name, side in named), "dcp-sides")
    return panel("Figures", [sides, scrolling(rows)])


def _side_text(side: Side) -> list[Component | str]:
    loaded = side.loaded
    placer = loaded.plan.partitioner
    return [
        dcc.Link(loaded.entry.relative, href=f"/plan/{loaded.entry.key}"),
        f" · {loaded.summary.mask} · placed by {PLACER_WORDS.get(placer, placer)} · "
        f"{loaded.plan.cluster.name} · {SOURCE_LABELS[side.source].lower()}",
    ]


def _table_row(row: FigureRow) -> Component:
    first, second = row.difference.first, row.difference.second
    # The column of the change says "equal" already.
    text = "" if row.change == "equal" else JUDGEMENTS[row.judgement]
    figure = row.figure
    numbers = (figure.text(first), figure.text(second), row.change)
    return html.Tr(
        [
            html.Th(figure.heading, scope="row", title=figure.meaning),
            *number_cells(numbers),
            html.Td(text, className=f"dcp-judged dcp-judged-{row.judgement}"),
        ],
        **attributes(data_figure=row.difference.name),
    )


def kinds_panel(comparison: Comparison) -> Component:
    """Build the table of times by kind of event."""
    q, rows, found = quantities, [], compare_kinds(comparison)
    text = q.alike((time for row in found for time in (row.first, row.second)), q.duration)
    for row in found:
        factor = "-" if row.ratio is None else q.ratio(row.ratio)
        numbers = (text(row.first), text(row.second), factor)
        kind = EVENT_WORDS.get(row.kind, row.kind)
        rows.append(_numbers_row(f"{kind.capitalize()}, {row.direction}", numbers))
    heads = headings(("Mean over devices", "A", "B", "B / A"), (1, 2, 3))
    return panel("Time by kind of event", [scrolling(table(heads, rows))])


def _numbers_row(name: str, numbers: Sequence[str], *texts: str) -> Component:
    return html.Tr([html.Th(name, scope="row"), *number_cells(numbers), *map(html.Td, texts)])


def constants_panel(comparison: Comparison) -> Component:
    """Build the table of a run's classes of work beside their prediction, with the constants."""
    side, q, rows = comparison.second, quantities, []
    title = "Run against prediction, by class of work"
    if len(side.trace) > MOST_FITTED:
        # Fitting would keep the page waiting; the command shows the same table.
        command = html.Code("dcpm simulate PLAN --measured RUN")
        more = f"The run has more than {q.count(MOST_FITTED)} events; "
        return panel(title, [hint([more, command, " prints this table."])])
    try:
        run = compare_with_run(side.loaded.plan, side.trace)
    except PlanError as error:
        return panel(title, [hint(str(error))])
    times = (time for one in run.classes for time in (one.predicted_s, one.measured_s))
    text = q.alike(times, q.duration)
    for one in run.classes:
        factor = q.ratio(one.measured_s / one.predicted_s) if one.predicted_s else "-"
        told = "no single constant" if one.differs else ""
        if one.constant:
            share = q.percent(one.explains)
            now, then = (q.constant(one.constant, value) for value in (one.now, one.set_to))
            told = f"{one.constant}: {now} → {then} explains {share}"
        numbers = (q.count(one.pieces), text(one.predicted_s), text(one.measured_s), factor)
        rows.append(_numbers_row(one.name, numbers, told))
    names = ("Class of work", "Pieces", "Predicted", "Measured", "Ratio", "Constant")
    body = scrolling(table(headings(names, (1, 2, 3, 4)), rows))
    fitted = "No single constant explains a difference."
    if any(one.constant for one in run.classes):
        fitted = f"With these constants the prediction would be {q.duration(run.fitted_s)}."
    source = [fitted, " ", html.Code("dcpm calibrate"), " measures a machine's constants."]
    return panel(title, [body, hint(source)])


def timelines_panel(comparison: Comparison, address: str, phase: str) -> Component:
    """Build both timelines, one above the other, on one time axis, of a phase or of both.

    One phase starts at 0 on both sides. `address` is the page's, for links to other phases.
    """
    sides = (("A", comparison.first), ("B", comparison.second))
    traces = [phase_of(side.trace, phase) for _, side in sides]
    # The longer of both is the length of the axis that they share.
    until = max(int(trace.end_ns.max(initial=0)) for trace in traces)
    views = []
    for (name, side), trace in zip(sides, traces, strict=True):
        length = quantities.duration(trace.seconds())
        url = timeline_url(side.loaded, side.source, phase)
        place = f"compare-timeline-{name.lower()}"
        views += [
            html.H3(f"{name} · {SOURCE_LABELS[side.source]} · {length}"),
            canvas("dcp-timeline", url, f"Timeline of {name}", name=place, data_until=str(until)),
        ]
    links = [
        plain_link(
            text, f"{address}&phase={name}" if name else address,
            **({"aria_current": "true"} if name == phase else {}),
        )
        for name, text in PHASES.items()
    ]  # fmt: skip
    told = "Both timelines share one time axis: they zoom and pan together."
    if phase:
        told += f" Both begin with the first event of {phase}."
    return panel(
        "Timelines",
        [
            kind_legend(),
            html.Div(views, className="dcp-two-timelines"),
            hint(told),
        ],
        tools=html.Div(links, className="dcp-tools"),
    )


def device_panels(comparison: Comparison) -> Component:
    """Build charts and a table of every device's differences."""
    legend = swatches([("more in B", MORE), ("less in B", LESS)])
    chart = panel("Every device, B minus A", [_slot("deltas")], tools=legend, name="dcp-deltas")
    if comparison.is_same_plan:
        # One plan has one traffic. The slot is there, hidden, since the callback fills both.
        charts = html.Div([chart, html.Div(_slot("traffic-difference"), hidden=True)])
    else:
        slot = _slot("traffic-difference")
        traffic = panel("Traffic, B minus A", [slot], tools=legend, name="dcp-traffic")
        charts = html.Div([chart, traffic], className="dcp-columns")
    scroll = scrolling(_device_table(compare_devices(comparison)), "dcp-tall")
    kind = "dcp-few-deltas" if comparison.is_same_plan else ""
    return html.Div([charts, panel("Every device in numbers", [scroll])], className=kind)


def _slot(name: str) -> Component:
    return html.Div(id=f"{name}-slot", className="dcp-slot")


def _device_table(deltas: tuple[Deltas, ...]) -> Component:
    # Two rows of headings: a quantity spans its three columns, A, B and the difference.
    groups = [html.Th("Device", scope="col", rowSpan=2, className="dcp-number")]
    groups += [
        html.Th(d.heading, scope="colgroup", colSpan=3, className="dcp-group") for d in deltas
    ]
    names = headings(("A", "B", MINUS) * len(deltas), range(3 * len(deltas)))
    rows, texts_of = [], [quantities.alike((*d.first, *d.second), d.text) for d in deltas]
    for device in range(len(deltas[0].first)):
        cells: list[Component] = [html.Th(str(device), scope="row", className="dcp-number")]
        for delta, text in zip(deltas, texts_of, strict=True):
            a, b = delta.first[device], delta.second[device]
            cells += number_cells((text(a), text(b), quantities.signed(b - a, text)))
        rows.append(html.Tr(cells))
    head = html.Thead([html.Tr(groups), html.Tr(names)])
    return html.Table([head, html.Tbody(rows)], className="dcp-table dcp-device-deltas")


def moves_panel(comparison: Comparison) -> Component:
    """Build a sentence on the tiles that changed their device, and a canvas that shows them."""
    first, second = comparison.first.loaded, comparison.second.loaded
    groups = head_labels(first.plan.shape.q_heads, common_groups(first.plan, second.plan))
    tools = mode_choice([*MOVES_MODES.items()], "moves-mode", "Colour the tiles by", groups)
    url = f"/api/compare/{first.entry.key}/{second.entry.key}/moves"
    size = str(LARGE_SIDE)
    picture = canvas("dcp-mask-moves", url, "Tiles of both plans", name="moves", data_side=size)
    told = (
        "The edges show which tokens have another owner. Scroll to zoom, drag to pan, press 0 to "
        "reset."
    )
    text = html.Div(_moves_text(find_moves(first.plan, second.plan)), className="dcp-moved")
    parts = html.Div([html.Div([picture, hint(told)]), text], className="dcp-wide-columns")
    return panel("Moved tiles", [parts], tools=tools)


def _moves_text(moves: Moves) -> list[Component]:
    q = quantities
    texts = [
        f"{q.count(moves.tiles(MOVED))} of {q.count(moves.tiles(SAME) + moves.tiles(MOVED))} tiles "
        f"({q.percent(moves.share)}) are computed on another device in B; they hold "
        f"{q.percent(moves.pair_share)} of the pairs.",
        f"{q.percent(moves.moved_tokens)} of the tokens have another owner.",
        "Device numbers are arbitrary. With the devices of B renumbered to match A, "
        f"{q.percent(moves.fitted_pair_share)} of the pairs would move.",
    ]
    only = [
        f"{q.counted(moves.tiles(change), 'tile')} {CHANGES[change]}."
        for change in (ONLY_FIRST, ONLY_SECOND)
        if moves.tiles(change)
    ]
    return [html.P(text) for text in (*texts, *only)]


def compare_charts(comparison: Comparison) -> tuple[Component, Component]:
    """Draw the differences of all devices, and of the traffic between them."""
    deltas = compare_devices(comparison)
    if not deltas:
        return html.Div(), html.Div()
    a, b = (side.loaded.totals.traffic_bytes for side in (comparison.first, comparison.second))
    node_ptr = comparison.first.loaded.plan.cluster.node_ptr
    chart = graph("deltas", deltas_figure(deltas, node_ptr))
    if comparison.is_same_plan:
        return chart, html.Div()
    return chart, graph("traffic-difference", traffic_difference_figure(a, b, node_ptr))
