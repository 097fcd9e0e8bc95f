"""The page `/plan/<key>`: where every block lives, what every device waits for, and why."""

from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from dcp_dashboard import quantities
from dcp_dashboard.figures import GRAPH_CONFIG, balance_figure, traffic_figure
from dcp_dashboard.findings import findings
from dcp_dashboard.library import LoadedPlan, PlanLibrary
from dcp_dashboard.pages.plan_list import run_badge
from dcp_dashboard.pages.plan_tabs import plan_tabs
from dcp_dashboard.palette import KIND_COLOURS
from dcp_dashboard.payloads import mask_modes
from dcp_dashboard.shell import attributes, panel, swatches
from dcp_dashboard.summary import PlanSummary
from dcp_dsl import DCPError
from dcp_planner import Source

MAX_STACKED_DEVICES = 8
"""Up to so many devices predicted and measured timelines are both shown at first."""

SOURCE_LABELS: dict[Source, str] = {"simulated": "Predicted", "measured": "Measured"}


def plan_page(loaded: LoadedPlan) -> Component:
    """Give the whole page of one plan."""
    summary, key = loaded.summary, loaded.entry.key
    return html.Div(
        [
            _title(loaded),
            plan_tabs(loaded, "overview"),
            _metrics(summary),
            _findings(loaded),
            html.Div(
                [_mask_panel(loaded, key), _chart_panel("Balance", "balance")],
                className="dcp-columns",
            ),
            _timeline_panel(loaded, key),
            html.Div(
                [_chart_panel("Traffic between devices", "traffic"), _device_panel(loaded)],
                className="dcp-columns",
            ),
            _definitions(),
            dcc.Store(id="plan-key", data=key),
        ],
        **attributes(data_title=f"{summary.mask} · {loaded.entry.relative}"),
    )


DEFINITIONS = (
    ("Visible pairs",
     "(query, key) pairs that the mask lets attend. The percentage is over the pairs of a causal "
     "mask on each whole sequence."),
    ("Division",
     "A step of the schedule: a device computes one while the inputs of the next travel. Division "
     "0 needs nothing from others."),
    ("Compute max/mean",
     "Visible pairs computed by the busiest device over the mean of all; 1 is level."),
    ("Token max/mean",
     "Tokens owned by the device that owns most over the mean of all; 1 is level."),
    ("Bytes moved",
     "Sum over all transfers between two devices: keys, values, queries, partial results and "
     "gradients, forward and backward."),
    ("Predicted, measured",
     "From the first start to the last end of the trace, forward and backward together. Predicted: "
     "the simulator's; measured: taken while the plan ran."),
    ("Waiting",
     "Time in which a device stands still until a message has arrived or left, over devices times "
     "the length of the run. It is communication that nothing hides."),
)  # fmt: skip


def metric_cards(summary: PlanSummary) -> list[tuple[str, str, str]]:
    """Give (name, value, note) of the key metrics, in reading order."""
    q, metrics = quantities, summary.metrics
    cards = [
        ("Tokens", q.count(metrics.tokens), "in " + q.counted(summary.num_sequences, "sequence")),
        ("Visible pairs", q.count(metrics.pairs), f"{q.percent(metrics.density)} of causal"),
        ("Devices", q.count(summary.num_devices),
         f"{q.counted(summary.num_nodes, 'node')}, {q.counted(summary.num_divisions, 'division')}"),
        ("Compute max/mean", q.ratio(metrics.compute_imbalance), "busiest device / mean"),
        ("Token max/mean", q.ratio(metrics.token_imbalance), "largest owner / mean"),
        ("Bytes moved", q.size(summary.total_bytes),
         f"{q.percent(summary.inter_node_share)} between nodes"),
    ]  # fmt: skip
    for source, label in SOURCE_LABELS.items():
        if source in summary.seconds:
            waits = f"{q.percent(summary.wait_share[source])} waiting"
            cards.append((label, q.duration(summary.seconds[source]), waits))
    return cards


def _title(loaded: LoadedPlan) -> Component:
    summary = loaded.summary
    facts = [
        loaded.entry.relative,
        f"placed by {summary.metrics.partitioner}",
        loaded.plan.cluster.name,
    ]
    if summary.origin:
        facts.append(summary.origin)
    return html.Div(
        [
            dcc.Link("Plans", href="/", className="dcp-crumb"),
            html.H1(summary.mask),
            run_badge(summary, is_verified=loaded.verified),
            html.Span(" · ".join(facts), className="dcp-muted dcp-facts"),
        ],
        className="dcp-title",
    )


def _metrics(summary: PlanSummary) -> Component:
    cards = [
        html.Div([html.Dt(name), html.Dd(value, className="dcp-value"), html.Dd(meaning)])
        for name, value, meaning in metric_cards(summary)
    ]
    return html.Dl(cards, className="dcp-metrics")


def _findings(loaded: LoadedPlan) -> Component:
    lists = (
        [
            html.Div(
                [
                    html.H2("The planner warns"),
                    html.Ul([html.Li(text) for text in loaded.plan.warnings]),
                ],
                className="dcp-findings",
            )
        ]
        if loaded.plan.warnings
        else []
    )
    for source, trace in loaded.traces.items():
        sentences = [
            html.Li(finding.text, title=f"Rule: {finding.rule}")
            for finding in findings(trace, loaded.totals)
        ]
        lists.append(
            html.Div(
                [html.H2(f"{SOURCE_LABELS[source]}: what stands out"), html.Ul(sentences)],
                className="dcp-findings",
            )
        )
    return html.Div(lists, className="dcp-panel dcp-findings-row")


def _definitions() -> Component:
    terms = [part for name, text in DEFINITIONS for part in (html.Dt(name), html.Dd(text))]
    return html.Details(
        [html.Summary("What the numbers mean"), html.Dl(terms)],
        className="dcp-panel dcp-definitions",
    )


def _mask_panel(loaded: LoadedPlan, key: str) -> Component:
    modes = [{"label": mode["label"], "value": mode["id"]} for mode in mask_modes(loaded.plan)]
    tools = dmc.SegmentedControl(
        id="mask-mode", data=modes, value="device", size="xs",
        **attributes(aria_label="Colour the mask by"),
    )  # fmt: skip
    canvas = html.Div(
        id="mask",
        className="dcp-mask",
        **attributes(data_url=f"/api/plan/{key}/mask", data_mode="device"),
    )
    hint = (
        "Rows are queries, columns keys; the edges show who owns the tokens. Wheel zooms, drag "
        "pans, 0 resets."
    )
    return panel("Mask and placement", [canvas, html.P(hint, className="dcp-hint")], tools=tools)


def _timeline_panel(loaded: LoadedPlan, key: str) -> Component:
    sources: list[Source] = [source for source in SOURCE_LABELS if source in loaded.traces]
    choices = [{"label": SOURCE_LABELS[source], "value": source} for source in sources]
    tools: Any = None  # Any: a Dash component or nothing
    shown = "both" if loaded.plan.num_devices <= MAX_STACKED_DEVICES else sources[-1]
    if len(sources) > 1:
        choices.append({"label": "Both", "value": "both"})
        tools = dmc.SegmentedControl(
            id="timeline-source", data=choices, value=shown, size="xs",
            **attributes(aria_label="Trace to show"),
        )  # fmt: skip
    hint = (
        "Wheel zooms, drag pans, arrow keys and WASD move, 0 or Esc resets. Paler: the pixel is "
        "only partly covered."
    )
    views = [_timeline_view(loaded, key, source) for source in sources]
    return panel(
        "Timeline",
        [
            swatches(list(KIND_COLOURS.items())),
            html.Div(views, id="timelines", **attributes(data_show=shown)),
            html.P(hint, className="dcp-hint"),
        ],
        tools=tools,
    )


def _timeline_view(loaded: LoadedPlan, key: str, source: Source) -> Component:
    label = SOURCE_LABELS[source]
    canvas = html.Div(
        className="dcp-timeline",
        **attributes(
            data_url=f"/api/plan/{key}/timeline?source={source}", data_label=f"{label} timeline"
        ),
    )
    heading = html.H3(f"{label} · {quantities.duration(loaded.summary.seconds[source])}")
    return html.Div([heading, canvas], className=f"dcp-view dcp-view-{source}")


def _chart_panel(title: str, name: str) -> Component:
    return panel(title, [html.Div(id=f"{name}-slot", className="dcp-slot")], name=f"dcp-{name}")


def charts(loaded: LoadedPlan) -> tuple[Component, Component]:
    """Give the charts of the balance and of the traffic.

    They come after the page: Plotly is 5 MB of script, and the canvases need none of it.
    """
    per_node = loaded.plan.cluster.devices_per_node
    figures = (balance_figure(loaded.totals, per_node), traffic_figure(loaded.totals, per_node))
    balance, traffic = (
        dcc.Graph(id=name, figure=figure, config=GRAPH_CONFIG, className="dcp-graph")
        for name, figure in zip(("balance", "traffic"), figures, strict=True)
    )
    return balance, traffic


def add_plan_callbacks(app: Dash, library: PlanLibrary) -> None:
    """Connect the charts and the controls of the page."""

    @app.callback(
        Output("balance-slot", "children"), Output("traffic-slot", "children"),
        Input("plan-key", "data"),
    )  # fmt: skip
    def show_charts(key: object) -> tuple[Component, Component]:
        try:
            return charts(library.load(str(key)))
        except DCPError as error:  # the file changed or went away since the page was made
            return html.Div(str(error), role="alert"), html.Div()

    same = ClientsideFunction("dcp", "same")
    connect: Any = app.clientside_callback  # Any: Dash leaves it untyped
    connect(same, Output("mask", "data-mode"), Input("mask-mode", "value"))
    connect(same, Output("timelines", "data-show"), Input("timeline-source", "value"))


def _device_panel(loaded: LoadedPlan) -> Component:
    totals, size = loaded.totals, loaded.plan.num_devices
    heads = ["Device", "Tokens", "Tiles", "Pairs", "Sent", "Received"]
    waits = []
    for source, trace in loaded.traces.items():
        heads.append(f"{SOURCE_LABELS[source]} wait")
        waits.append(trace.lane_seconds("wait", size))
    rows = [
        html.Tr(
            [html.Th(str(device), scope="row", className="dcp-number")]
            + [
                html.Td(text, className="dcp-number")
                for text in (
                    quantities.count(totals.tokens[device]),
                    quantities.count(totals.tiles[device]),
                    quantities.count(totals.pairs[device]),
                    quantities.size(totals.sent_bytes[device]),
                    quantities.size(totals.received_bytes[device]),
                    *(quantities.duration(wait[device]) for wait in waits),
                )
            ]
        )
        for device in range(size)
    ]
    head = html.Tr([html.Th(text, scope="col", className="dcp-number") for text in heads])
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="dcp-table")
    return panel(
        "Every device in numbers", [html.Div(table, className="dcp-scroll dcp-tall", tabIndex=0)]
    )
