"""The parts of the page `/compare`: sentence, figures, timelines, devices, moved tiles."""

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.mask import moves_modes
from dcp_dashboard.api.palette import KIND_COLOURS
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.comparison import (
    Comparison,
    Deltas,
    Judgement,
    Row,
    Side,
    compare_devices,
    compare_rows,
)
from dcp_dashboard.facts.explanation import explain
from dcp_dashboard.facts.moves import (
    CHANGES,
    MOVED,
    ONLY_FIRST,
    ONLY_SECOND,
    SAME,
    common_groups,
    find_moves,
)
from dcp_dashboard.facts.text import SOURCE_LABELS
from dcp_dashboard.library.summary import head_labels
from dcp_dashboard.pages.charts import GRAPH_CONFIG, deltas_figure, traffic_difference_figure
from dcp_dashboard.pages.layout import attributes, choice, panel, swatches
from dcp_dashboard.pages.plan_views import group_choice

JUDGEMENTS: dict[Judgement, str] = {
    "better": "▲ B better", "worse": "▼ B worse", "equal": "equal", "none": ""
}  # fmt: skip


def verdict_panel(comparison: Comparison) -> Component:
    """Build the verdict: which side is faster, by which rule, and the limits of the comparison."""
    found = explain(comparison)
    parts: list[Component] = [
        html.P(found.text, className="dcp-verdict"),
        html.P(f"Rule: {found.rule}", className="dcp-hint"),
    ]
    if comparison.limits:
        notes = html.Ul([html.Li(text) for text in comparison.limits])
        parts.append(html.Div(notes, className="dcp-limits"))
    return html.Section(
        parts, className="dcp-panel", **attributes(aria_label="Who is faster and why")
    )


def table_panel(comparison: Comparison) -> Component:
    """Build the table of figures, each with its difference and its meaning for B."""
    heads = ("Figure", "A", "B", "B − A", "For B")  # noqa: RUF001 - a minus
    head = html.Tr(
        [
            html.Th(text, scope="col", className="dcp-number" if 0 < at < 4 else "")
            for at, text in enumerate(heads)
        ]
    )
    rows = [_table_row(row) for row in compare_rows(comparison)]
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="dcp-table dcp-compare")
    sides = html.Dl(
        [
            part
            for name, side in (("A", comparison.first), ("B", comparison.second))
            for part in (html.Dt(name), html.Dd(_side_text(side)))
        ],
        className="dcp-sides",
    )
    return panel("Figures", [sides, html.Div(table, className="dcp-scroll", tabIndex=0)])


def _side_text(side: Side) -> list[Component | str]:
    loaded = side.loaded
    return [
        dcc.Link(loaded.entry.relative, href=f"/plan/{loaded.entry.key}"),
        f" · {loaded.summary.mask} · placed by {loaded.plan.partitioner} · "
        f"{loaded.plan.cluster.name} · {SOURCE_LABELS[side.source].lower()}",
    ]


def _table_row(row: Row) -> Component:
    first, second = row.difference.first, row.difference.second
    text = "" if row.change == "equal" else JUDGEMENTS[row.judgement]
    return html.Tr(
        [
            html.Th(row.heading, scope="row", title=row.meaning),
            html.Td(row.text(first), className="dcp-number"),
            html.Td(row.text(second), className="dcp-number"),
            html.Td(row.change, className="dcp-number"),
            html.Td(text, className=f"dcp-judged dcp-judged-{row.judgement}"),
        ],
        **attributes(data_figure=row.difference.name),
    )


def timelines_panel(comparison: Comparison) -> Component:
    """Build both timelines, one above the other, on one time axis."""
    sides = (("A", comparison.first), ("B", comparison.second))
    until = max(int(side.trace.end_ns.max(initial=0)) for _, side in sides)
    views = []
    for name, side in sides:
        key, source = side.loaded.entry.key, side.source
        length = quantities.duration(side.trace.seconds())
        views += [
            html.H3(f"{name} · {SOURCE_LABELS[source]} · {length}"),
            html.Div(
                id=f"compare-timeline-{name.lower()}",
                className="dcp-timeline",
                **attributes(
                    data_url=f"/api/plan/{key}/timeline?source={source}",
                    data_label=f"Timeline of {name}",
                    data_until=str(until),
                ),
            ),
        ]
    hint = "One time axis: zooming or moving one moves the other."
    return panel(
        "Timelines",
        [
            swatches(list(KIND_COLOURS.items())),
            html.Div(views, className="dcp-two-timelines"),
            html.P(hint, className="dcp-hint"),
        ],
    )


def device_panels(comparison: Comparison) -> Component:
    """Build charts and a table of every device's differences."""
    chart = panel("Every device, B minus A", [_slot("deltas")], name="dcp-deltas")
    if comparison.is_same_plan:  # one plan: the traffic is the same
        charts = html.Div([chart, html.Div(_slot("traffic-difference"), hidden=True)])
    else:
        traffic = panel("Traffic, B minus A", [_slot("traffic-difference")], name="dcp-traffic")
        charts = html.Div([chart, traffic], className="dcp-columns")
    deltas = compare_devices(comparison)
    table = panel(
        "Every device in numbers",
        [html.Div(_device_table(deltas), className="dcp-scroll dcp-tall", tabIndex=0)],
    )
    return html.Div(
        [charts, table],
        className="dcp-few-deltas" if comparison.is_same_plan else "",
    )


def _slot(name: str) -> Component:
    return html.Div(id=f"{name}-slot", className="dcp-slot")


def _device_table(deltas: tuple[Deltas, ...]) -> Component:
    groups = [html.Th("Device", scope="col", rowSpan=2, className="dcp-number")]
    groups += [
        html.Th(d.heading, scope="colgroup", colSpan=3, className="dcp-group") for d in deltas
    ]
    parts = ("A", "B", "B − A")  # noqa: RUF001 - a minus
    names = [html.Th(part, scope="col", className="dcp-number") for _ in deltas for part in parts]
    rows = []
    for device in range(len(deltas[0].first)):
        cells: list[Component] = [html.Th(str(device), scope="row", className="dcp-number")]
        for delta in deltas:
            a, b = delta.first[device], delta.second[device]
            texts = (delta.text(a), delta.text(b), quantities.signed(b - a, delta.text))
            cells += [html.Td(text, className="dcp-number") for text in texts]
        rows.append(html.Tr(cells))
    return html.Table(
        [html.Thead([html.Tr(groups), html.Tr(names)]), html.Tbody(rows)],
        className="dcp-table dcp-device-deltas",
    )


def moves_panel(comparison: Comparison) -> Component:
    """Build a sentence on the tiles that changed their device, and a canvas that shows them."""
    first, second = comparison.first.loaded, comparison.second.loaded
    moves = find_moves(first.plan, second.plan)
    q = quantities
    sentence = (
        f"{q.count(moves.tiles(MOVED))} of {q.count(moves.tiles(SAME) + moves.tiles(MOVED))} tiles "
        f"({q.percent(moves.share)}) are computed on another device in B, with "
        f"{q.percent(moves.pair_share)} of the pairs; {q.percent(moves.moved_tokens)} of the "
        "tokens have another owner. Device numbers are arbitrary: with those of B renumbered to "
        f"fit A, {q.percent(moves.fitted_pair_share)} of the pairs would move."
    )
    only = [
        f" {q.counted(moves.tiles(change), 'tile')} {CHANGES[change]}."
        for change in (ONLY_FIRST, ONLY_SECOND)
        if moves.tiles(change)
    ]
    modes = [(str(m["id"]), str(m["label"])) for m in moves_modes(first.plan, second.plan)]
    tools = choice("colour", modes, "change", "Colour the tiles by", name="moves-mode")
    groups = common_groups(first.plan, second.plan)
    if groups > 1:
        labels = head_labels(first.plan.shape.q_heads, groups)
        tools = html.Div([group_choice(labels), tools], className="dcp-choices")
    canvas = html.Div(
        id="moves",
        className="dcp-mask-moves",
        **attributes(
            data_url=f"/api/compare/{first.entry.key}/{second.entry.key}/moves",
            data_label="Tiles of both plans",
        ),
    )
    hint = "The edges show which tokens have another owner. Wheel zooms, drag pans, 0 resets."
    children = [html.P(sentence + "".join(only)), canvas, html.P(hint, className="dcp-hint")]
    return panel("Moved tiles", children, tools=tools)


def compare_charts(comparison: Comparison) -> tuple[Component, Component]:
    """Draw the differences of all devices, and of the traffic between them."""
    deltas = compare_devices(comparison)
    if not deltas:
        return html.Div(), html.Div()
    first, second = comparison.first.loaded, comparison.second.loaded
    per_node = first.plan.cluster.devices_per_node
    figures = (
        deltas_figure(deltas, per_node),
        traffic_difference_figure(
            first.totals.traffic_bytes, second.totals.traffic_bytes, per_node
        ),
    )
    chart, traffic = (
        dcc.Graph(id=name, figure=figure, config=GRAPH_CONFIG, className="dcp-graph")
        for name, figure in zip(("deltas", "traffic-difference"), figures, strict=True)
    )
    return chart, html.Div() if comparison.is_same_plan else traffic
