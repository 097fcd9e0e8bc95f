"""The page `/plan/<key>`: metrics, findings, mask, balance, timeline and traffic of a plan."""

from typing import Any

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.palette import KIND_COLOURS
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.findings import Finding, findings
from dcp_dashboard.facts.metrics import ROWS, above_bounds, metric_cards
from dcp_dashboard.facts.text import SOURCE_LABELS
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.help import definitions_panel
from dcp_dashboard.pages.layout import attributes, changed_notice, choice, panel, swatches
from dcp_dashboard.pages.plan_frame import inspector, plan_tabs, plan_title
from dcp_dashboard.pages.plan_views import mask_panel, row_names
from dcp_planner import Source

MAX_STACKED_DEVICES = 8
"""Most devices of a plan whose predicted and measured timelines are both shown at first."""


def plan_page(loaded: LoadedPlan) -> Component:
    """Build the overview page of a plan."""
    return html.Div(
        [
            changed_notice(loaded.entry),
            plan_title(loaded),
            plan_tabs(loaded, "overview"),
            *overview(loaded),
        ],
        **attributes(data_title=f"{loaded.summary.mask} · {loaded.entry.relative}"),
    )


def overview(loaded: LoadedPlan) -> list[Component]:
    """Build the parts below the tabs; pages that need no server hold them too."""
    key = loaded.entry.key
    return [
        metrics_row(loaded),
        findings_panel(loaded),
        html.Div(
            [
                mask_panel(loaded),
                html.Div([inspector(loaded), _balance_panel(key)], className="dcp-aside"),
            ],
            className="dcp-columns",
        ),
        _timeline_panel(loaded, key),
        html.Div(
            [_traffic_panel(loaded, key), _device_panel(loaded)],
            className="dcp-columns",
        ),
        definitions_panel(),
    ]


def _balance_panel(key: str) -> Component:
    bars = html.Div(
        id="balance",
        className="dcp-balance-bars",
        **attributes(data_url=f"/api/plan/{key}/devices", data_label="Balance"),
    )
    return panel("Balance", [bars])


def _traffic_panel(loaded: LoadedPlan, key: str) -> Component:
    cells = html.Div(
        id="traffic",
        className="dcp-traffic-cells",
        **attributes(data_url=f"/api/plan/{key}/devices", data_label="Traffic"),
    )
    tools: Any = None  # Any: a Dash component or nothing
    if loaded.plan.cluster.nodes > 1:
        options = (("device", "Devices"), ("node", "Nodes"))
        tools = choice("traffic", options, "device", "Traffic between", name="traffic-level")
    if not loaded.totals.traffic_bytes.any():
        text = "No byte moves between devices: everything is computed where it lies."
        return panel("Traffic", [html.P(text, role="status", className="dcp-hint")])
    hint = "Rows send, columns receive; lines separate nodes. Click a cell for the pair."
    return panel("Traffic", [cells, html.P(hint, className="dcp-hint")], tools=tools)


def _timeline_panel(loaded: LoadedPlan, key: str) -> Component:
    sources: list[Source] = [source for source in SOURCE_LABELS if source in loaded.traces]
    choices: list[tuple[str, str]] = [(source, SOURCE_LABELS[source]) for source in sources]
    tools: Any = None  # Any: a Dash component or nothing
    shown = "both" if loaded.plan.num_devices <= MAX_STACKED_DEVICES else sources[-1]
    if len(sources) > 1:
        choices.append(("both", "Both"))
        tools = choice("source", choices, shown, "Trace to show", name="timeline-source")
    hint = (
        "Wheel zooms, drag pans, arrow keys and WASD move, 0 or Esc resets. Paler: the pixel is "
        "only partly covered."
    )
    views = [_timeline_view(loaded, key, source) for source in sources]
    return panel(
        "Timeline",
        [
            swatches(list(KIND_COLOURS.items())),
            html.Div(
                views,
                id="timelines",
                className="dcp-shown",
                **attributes(data_show=shown, data_key="source", data_default=shown),
            ),
            html.P(" ".join([*row_names(loaded, is_paired=False), hint]), className="dcp-hint"),
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


def _device_panel(loaded: LoadedPlan) -> Component:
    totals, size = loaded.totals, loaded.plan.num_devices
    meanings = {name: meaning for name, _label, meaning, _unit, _kind in ROWS}
    heads = [("Device", ""), ("Tokens", meanings["tokens"]), ("Tiles", "Tiles that it computes"),
             ("Pairs", meanings["pairs"]), ("Sent", meanings["sent"]),
             ("Received", meanings["received"]), ("Buffers", meanings["memory"])]  # fmt: skip
    waits = []
    for source, trace in loaded.traces.items():
        heads.append((f"{SOURCE_LABELS[source]} wait", meanings[f"wait_{source}"]))
        waits.append(trace.lane_seconds("wait", size))
    rows = [
        html.Tr(
            [html.Th(_device_link(device), scope="row", className="dcp-number")]
            + [
                html.Td(text, className="dcp-number")
                for text in (
                    quantities.count(totals.tokens[device]),
                    quantities.count(totals.tiles[device]),
                    quantities.count(totals.pairs[device]),
                    quantities.size(totals.sent_bytes[device]),
                    quantities.size(totals.received_bytes[device]),
                    quantities.size(totals.memory_bytes[device]),
                    *(quantities.duration(wait[device]) for wait in waits),
                )
            ],
            **attributes(data_device=str(device)),
        )
        for device in range(size)
    ]
    head = html.Tr(
        [html.Th(text, scope="col", className="dcp-number", title=title) for text, title in heads]
    )
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="dcp-table")
    scroll = html.Div(
        table,
        className="dcp-device-table dcp-scroll dcp-tall",
        tabIndex=0,
        **attributes(aria_label="Every device in numbers"),
    )
    return panel("Every device in numbers", [scroll, *_of_head_groups(loaded.plan.head_groups)])


def _of_head_groups(groups: int) -> list[Component]:
    """Explain the counts of tiles and pairs where groups of heads are placed apart."""
    if groups == 1:
        return []
    text = (
        f"Each of the {groups} groups of heads has tiles of its own. A visible pair counts "
        f"1/{groups} in each, so that the pairs of all devices are those of the mask."
    )
    return [html.P(text, className="dcp-hint")]


def _device_link(device: int) -> Component:
    return html.Button(
        str(device), type="button", className="dcp-link", **attributes(data_sel=f"device.{device}")
    )


def findings_panel(loaded: LoadedPlan) -> Component:
    """Build the panel of the planner's warnings and the findings of every trace."""
    lists = []
    if loaded.plan.warnings:
        warnings = [html.Li(warning.message) for warning in loaded.plan.warnings]
        lists.append(_list("The planner warns", warnings, "dcp-warnings"))
    for source, trace in loaded.traces.items():
        items = [_item(finding, source) for finding in findings(trace, loaded.totals)]
        lists.append(_list(f"{SOURCE_LABELS[source]}: what stands out", items))
    return html.Section(
        lists, className="dcp-panel dcp-findings-row", **attributes(aria_label="Findings")
    )


def _list(heading: str, items: list[Any], name: str = "") -> Component:  # Any: Dash components
    return html.Div([html.H2(heading), html.Ul(items, className=name)], className="dcp-findings")


def _item(finding: Finding, source: Source) -> Component:
    rule = html.Details([html.Summary("rule"), html.Span(finding.rule)], className="dcp-rule")
    if not finding.selected:
        return html.Li([finding.text, " ", rule])
    place = {"data_sel": finding.selected, "data_jump": "#timelines", "data_source": source}
    if finding.time_ns is not None:
        place["data_time"] = "-".join(str(max(0, value)) for value in finding.time_ns)
    link = html.Button(
        finding.text, type="button", className="dcp-link dcp-finding",
        title="Select it everywhere and show it in the timeline", **attributes(**place),
    )  # fmt: skip
    return html.Li([link, " ", rule])


def metrics_row(loaded: LoadedPlan) -> Component:
    """Build the list of a plan's key metrics."""
    cards = [
        html.Div([html.Dt(name), html.Dd(value, className="dcp-value"), html.Dd(meaning)])
        for name, value, meaning in metric_cards(loaded.summary, above_bounds(loaded))
    ]
    return html.Dl(cards, className="dcp-metrics")
