"""The page `/plan/<key>`: metrics, findings, mask, balance, timeline and traffic of a plan."""

from collections.abc import Mapping, Sequence

import numpy as np
from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.findings import (
    ACCOUNT_WORDS,
    DEFINITIONS,
    ROWS,
    Finding,
    answers,
    device_seconds,
    findings,
    idle_seconds,
    idlest,
    leading_source,
    metric_cards,
    uses,
)
from dcp_dashboard.facts.text import SOURCE_LABELS, window_text
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.layout import (
    attributes,
    box,
    canvas,
    choice,
    folded_rule,
    framed,
    headings,
    hint,
    kind_legend,
    number_cells,
    panel,
    scrolling,
    swatches,
    table,
    terms,
    written,
)
from dcp_dashboard.pages.plan_views import (
    frame,
    inspector,
    mask_panel,
    path_url,
    row_names,
    timeline_url,
)
from dcp_planner import Source
from dcp_planner.causes import Account

GAIN_HINT = (
    "Every static layout of this batch; attention is forward and backward of one layer. The cap: a "
    "device has at most 1.10 times the mean tokens, and the mean compute. Tokens above it need "
    "more memory and a longer linear part; the predicted time contains compute above it."
)

MAX_STACKED_DEVICES = 8
"""Most devices of a plan whose predicted and measured timelines are both shown at first."""


def plan_page(loaded: LoadedPlan) -> Component:
    """Build the overview page of a plan."""
    title = f"{loaded.summary.mask} · {loaded.entry.relative}"
    answer, *rest = overview(loaded)
    return framed(title, *frame(loaded, ""), answer, _gain(loaded), _tries(loaded), *rest)


def _gain(loaded: LoadedPlan) -> Component:
    """Build the place of the static layouts of the batch; `page/gain.ts` asks for them."""
    told = "No static layout can place this batch."
    table = canvas("dcp-gain", f"/api/plan/{loaded.entry.key}/gain", "Gain", data_none=told)
    return panel("What you gain (predicted)", [table, hint(GAIN_HINT)])


def _tries(loaded: LoadedPlan) -> Component:
    """Build the place where changes are planned on demand; `page/planning.ts` fills it."""
    told = (
        "Plans this batch again: with changes against the largest costs, or for the best "
        "trade-offs of time, bytes, balance and memory."
    )
    buttons = [
        html.Button(
            text, id=name, className="dcp-button", type="button",
            **attributes(data_key=loaded.entry.key, data_task=task),
        )
        for text, name, task in (
            ("Plan possible changes", "try-changes", "suggest"),
            ("Plan the Pareto front", "plan-front", "front"),
        )
    ]  # fmt: skip
    tools = [*buttons, html.Span(told, id="tried-status", className="dcp-muted", role="status")]
    return panel("What to try", [html.Ul(id="tried")], tools=html.Div(tools, className="dcp-tools"))


def overview(loaded: LoadedPlan) -> list[Component]:
    """Build the parts below the tabs; the page that needs no server has them too."""
    address = f"/api/plan/{loaded.entry.key}/devices"
    bars = canvas("dcp-balance-bars", address, "Balance", name="balance")
    aside = html.Div([inspector(loaded), panel("Balance", [bars])], className="dcp-aside")
    traffic = _traffic_panel(loaded, address)
    return [
        answer_panel(loaded),
        metrics_row(loaded),
        findings_panel(loaded),
        html.Div([mask_panel(loaded), aside], className="dcp-columns"),
        _timeline_panel(loaded),
        html.Div([traffic, _device_panel(loaded)], className="dcp-columns"),
        html.Details(
            [html.Summary("What the numbers mean"), terms(DEFINITIONS)],
            className="dcp-panel dcp-definitions",
        ),
    ]


def _traffic_panel(loaded: LoadedPlan, address: str) -> Component:
    tools: Component | None = None
    if loaded.plan.cluster.nodes > 1:
        options = (("device", "Devices"), ("node", "Nodes"))
        tools = choice("traffic", options, "device", "Traffic between", name="traffic-level")
    if not loaded.totals.traffic_bytes.any():
        text = "No data moves between devices: each device owns all inputs of its tiles."
        return panel("Traffic", [html.P(text, role="status", className="dcp-hint")])
    cells = canvas("dcp-traffic-cells", address, "Traffic", name="traffic")
    told = (
        "Rows are senders, columns are receivers. Lines separate nodes. Click a cell to select "
        "a pair of devices."
    )
    return panel("Traffic", [cells, hint(told)], tools=tools)


def _timeline_panel(loaded: LoadedPlan) -> Component:
    # In the order of the labels: the prediction first. Of many devices only the last is shown at
    # first, the run if there is one.
    sources: list[Source] = [source for source in SOURCE_LABELS if source in loaded.traces]
    choices: list[tuple[str, str]] = [(source, SOURCE_LABELS[source]) for source in sources]
    tools: Component | None = None
    shown = "both" if loaded.plan.num_devices <= MAX_STACKED_DEVICES else sources[-1]
    if len(sources) > 1:
        choices.append(("both", "Both"))
        tools = choice("source", choices, shown, "Trace to show", name="timeline-source")
    told = (
        "Scroll to zoom, drag to pan, move with the arrow keys or WASD, reset with 0 or Esc. "
        "Events cover a paler pixel only in part."
    )
    views = html.Div(
        [_timeline_view(loaded, source) for source in sources],
        id="timelines",
        className="dcp-shown",
        **attributes(data_show=shown, data_key="source", data_default=shown),
    )
    below = hint(" ".join([*row_names(loaded, is_paired=False), told]))
    return panel("Timeline", [kind_legend(), views, below], tools=tools)


def _timeline_view(loaded: LoadedPlan, source: Source) -> Component:
    label = SOURCE_LABELS[source]
    url, path = timeline_url(loaded, source), path_url(loaded, source)
    picture = canvas("dcp-timeline", url, f"{label} timeline", data_path=path)
    heading = html.H3(f"{label} · {quantities.duration(loaded.summary.seconds[source])}")
    below = html.Div(className="dcp-path")
    return html.Div([heading, picture, below], className=f"dcp-view dcp-view-{source}")


def _device_panel(loaded: LoadedPlan) -> Component:
    totals, size, q = loaded.totals, loaded.plan.num_devices, quantities
    meanings = {name: meaning for name, _label, meaning, _unit, _kind in ROWS}
    columns = [
        ("Tokens", meanings["tokens"], q.count, totals.tokens),
        ("Tiles", "Tiles that the device computes", q.count, totals.tiles),
        ("Pairs", "Visible pairs that the device computes", q.count, totals.pairs),
        ("Sent", meanings["sent"], q.size, totals.sent_bytes),
        ("Received", meanings["received"], q.size, totals.received_bytes),
        ("Buffers", meanings["memory"], q.size, totals.memory_bytes),
    ]
    for source, trace in loaded.traces.items():
        waits = trace.lane_seconds("wait", size)
        meaning = meanings[f"wait_{source}"]
        columns.append((f"{SOURCE_LABELS[source]} wait", meaning, q.duration, waits))
    columns = [(name, told, q.alike(of, text), of) for name, told, text, of in columns]
    heads = [("Device", ""), *((text, meaning) for text, meaning, _, _ in columns)]
    rows = [
        html.Tr(
            [
                html.Th(_device_link(device), scope="row", className="dcp-number"),
                *number_cells(text(of[device]) for _, _, text, of in columns),
            ],
            **attributes(data_device=str(device)),
        )
        for device in range(size)
    ]
    head = [
        html.Th(text, scope="col", className="dcp-number", title=title) for text, title in heads
    ]
    # As HTML: a component of Dash for each cell would hold up the whole page (LOG.md).
    scroll = written(
        table(head, rows),
        className="dcp-device-table dcp-scroll dcp-tall",
        tabIndex=0,
        **attributes(aria_label="Every device in numbers"),
    )
    groups, notes = loaded.plan.head_groups, []
    if groups > 1:
        notes.append(hint(
            f"Each of the {groups} head groups has its own tiles. A visible pair counts 1/{groups} "
            "in each group, so the pairs of all devices add up to the pairs of the mask."
        ))  # fmt: skip
    return panel("Every device in numbers", [scroll, *notes])


def _device_link(device: int) -> Component:
    return html.Button(
        str(device), type="button", className="dcp-link", **attributes(data_sel=f"device.{device}")
    )


ACCOUNT_COLOURS: Mapping[Account, str] = {
    "computing": KIND_COLOURS["attention"],
    "reducing": KIND_COLOURS["reduction"],
    "launches": KIND_COLOURS["copy"],
    "links": KIND_COLOURS["send"],
    "latency": KIND_COLOURS["receive"],
    "others": KIND_COLOURS["wait"],
    "idle": NEUTRAL,
}
"""Colour of each account of a device's time, in the order of `ACCOUNT_WORDS`."""

MOST_BARS = 16
"""Most devices whose bars are shown at once, the idlest; the others are folded away."""


def answer_panel(loaded: LoadedPlan) -> Component:
    """Build the answer: a run beside its prediction, or the prediction's largest cost."""
    source = leading_source(loaded)
    most, *rest = answers(loaded, source)
    parts: list[Component] = [
        html.P(_told(most, source), className="dcp-verdict"),
        *(html.P(_told(finding, source)) for finding in rest),
    ]
    if rest:
        columns = [_uses(loaded, source), _idle(loaded, source)]
        parts.append(html.Div(columns, className="dcp-columns"))
    title = f"Where the time goes ({SOURCE_LABELS[source].lower()})"
    return panel(title, parts, name="dcp-answer")


def _uses(loaded: LoadedPlan, source: Source) -> Component:
    """Build the table of the devices' time by use, the longest first; it explains the colours."""
    found, q = uses(loaded, source), quantities
    text = q.alike((s for use in found for s in (use.most_s, use.predicted_s or 0)), q.duration)
    whole, rows = max(1e-12, sum(use.mean_s for use in found)), []
    for use in found:
        numbers = [text(use.mean_s), q.percent(use.mean_s / whole)]
        numbers += [] if use.predicted_s is None else [text(use.predicted_s)]
        most: list[Component | str] = ["-"]
        if use.most_s:
            most = [text(use.most_s), ", ", _device_link(use.device)]
        name = swatches([(use.words, ACCOUNT_COLOURS[use.account])])
        cells = [*number_cells(numbers), html.Td(most, className="dcp-number")]
        rows.append(html.Tr([html.Th(name, scope="row"), *cells]))
    names = ["Time of a device", "Mean", "Share", "Longest, on device"]
    if source == "measured":
        names.insert(3, "Predicted")
    return scrolling(table(headings(names, range(1, len(names))), rows), "dcp-uses")


def _idle(loaded: LoadedPlan, source: Source) -> Component:
    """Build a bar for every device, the idlest first: work from the left, then what is idle."""
    spent = device_seconds(loaded, source)
    idle = idle_seconds(loaded, source)
    whole = max(1e-12, float(np.sum([*spent.values()], axis=0).max()))
    text = quantities.alike(idle, quantities.duration)
    bars = [
        _idle_bar(device, {name: float(of[device]) / whole for name, of in spent.items()},
                  text(idle[device]))
        for device in np.argsort(-idle, kind="stable").tolist()
    ]  # fmt: skip
    shown: list[Component] = bars[:MOST_BARS]
    if bars[MOST_BARS:]:
        more = quantities.counted(len(bars) - MOST_BARS, "more device")
        shown.append(html.Details([html.Summary(f"{more}, less idle"), *bars[MOST_BARS:]]))
    ends = [html.Span(quantities.duration(part * whole) if part else "0") for part in (0, 0.5, 1)]
    scale = html.Div(ends, className="dcp-accounts-axis")
    hidden = attributes(aria_hidden="true")
    axis = html.Div([html.B(), scale], className="dcp-account", **hidden)
    heads = [html.B("device"), html.Span(), html.I("idle")]
    group = written(
        [html.Div(heads, className="dcp-account", **hidden), *shown, axis],
        className="dcp-accounts", role="group",
        **attributes(aria_label="Use of each device's time, the idlest first"),
    )  # fmt: skip
    return html.Div([html.P(_told(idlest(loaded, source), source)), group])


def _idle_bar(device: int, shares: Mapping[Account, float], idle: str) -> Component:
    told = [
        f"{ACCOUNT_WORDS[name]} {quantities.percent(share)}"
        for name, share in shares.items()
        if share
    ]
    label = f"Device {device}: idle {idle}; " + ", ".join(told)
    bar = html.Span(style={"background": _stripes([*shares.values()])})
    return html.Button(
        [html.B(str(device)), bar, html.I(idle)], type="button", className="dcp-account",
        title=label,
        **attributes(aria_label=label, data_sel=f"device.{device}"),
    )  # fmt: skip


def _stripes(shares: Sequence[float]) -> str:
    """Write a background whose stripes have these shares of its width."""
    # A gradient with hard stops: one element for each device, not one for each account.
    ends = np.cumsum([0.0, *shares]) * 100
    stripes = [
        f"{colour} {begin:.3f}% {end:.3f}%"
        for colour, begin, end in zip(ACCOUNT_COLOURS.values(), ends, ends[1:], strict=False)
    ]
    return f"linear-gradient(to right, {', '.join(stripes)})"


def findings_panel(loaded: LoadedPlan) -> Component:
    """Build the panel of the planner's warnings and the findings of every trace."""
    lists = []
    if loaded.plan.warnings:
        warnings = [html.Li(warning.message) for warning in loaded.plan.warnings]
        lists.append(_list("Planner warnings", warnings, "dcp-warnings"))
    for source in loaded.traces:
        items = [html.Li(_told(finding, source)) for finding in findings(loaded, source)]
        if items:
            lists.append(_list(f"{SOURCE_LABELS[source]}: findings", items))
    return box(lists, "Findings", "dcp-panel dcp-findings-row")


def _list(heading: str, items: Sequence[Component], name: str = "") -> Component:
    return html.Div([html.H2(heading), html.Ul(items, className=name)], className="dcp-findings")


def _told(finding: Finding, source: Source) -> list[Component | str]:
    """Build a finding, which selects its evidence, and its rule."""
    rule = folded_rule(finding.rule)
    if not finding.selected:
        return [finding.text, " ", rule]
    # `page/selection.ts` selects the evidence, scrolls to the timelines and shows this time there.
    place = {"data_sel": finding.selected, "data_jump": "#timelines", "data_source": source}
    if finding.time_ns is not None:
        place["data_time"] = window_text(finding.time_ns)
    link = html.Button(
        finding.text, type="button", className="dcp-link dcp-finding",
        title="Select in all views and show in the timeline", **attributes(**place),
    )  # fmt: skip
    return [link, " ", rule]


def _hidden(loaded: LoadedPlan) -> tuple[str, str, str]:
    """Return the card of the communication that devices hide behind compute."""
    shares = {
        label.lower(): quantities.percent(loaded.why(source).hidden_share)
        for source, label in SOURCE_LABELS.items()
        if source in loaded.traces and loaded.traces[source].seconds() > 0
    }
    if not shares or not loaded.summary.total_bytes:
        return "Hidden communication", "-", "no data moves"
    # The run, if there is one, is the last and the value; the prediction stands in the note.
    *others, (name, value) = shares.items()
    return "Hidden communication", value, ", ".join([name, *(f"{n} {v}" for n, v in others)])


def metrics_row(loaded: LoadedPlan) -> Component:
    """Build the list of a plan's key metrics."""
    cards = [
        html.Div([html.Dt(name), html.Dd(value, className="dcp-value"), html.Dd(meaning)])
        for name, value, meaning in (_hidden(loaded), *metric_cards(loaded))
    ]
    return html.Dl(cards, className="dcp-metrics")
