"""The parts that all pages of a plan share, and its pages `/mask` and `/timeline`."""

from collections.abc import Container

import numpy as np
from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.devices import MAX_EVENTS
from dcp_dashboard.api.mask import MASK_MODES
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.findings import plan_caption
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import count_divisions, count_kinds, group_labels
from dcp_dashboard.pages.layout import (
    attributes,
    box,
    canvas,
    changed_notice,
    choice,
    framed,
    hint,
    panel,
    plain_link,
    swatches,
    title_bar,
)
from dcp_planner import Source
from dcp_planner.tables import measure_memory

MAX_TILES = 3_000_000
"""Most tiles that a browser is sent: some 40 MB."""

LARGE_SIDE = 1040
"""Most pixels along an edge of the large mask."""

PAUSE_MS = 900
"""Time that each division stays while they are played."""

MASK_HINT = (
    "Rows are queries, columns are keys. All pairs of a full tile are visible, some of a partial "
    "one, none of an empty one, which no device computes. The edges show the owners of the tokens "
    "and the names of the sequences; click an edge to select a sequence. Scroll to zoom, drag to "
    "pan, press 0 to reset. Enter selects a tile, arrow keys select the next tile, and Enter again "
    "zooms in until the pairs of the tile are visible."
)

TIMELINE_HINT = (
    "Scroll to zoom, drag to pan, hold Shift and drag to mark an area. Hold Shift and scroll, or "
    "use the arrow keys, to scroll the rows. Keys: WASD move, F or Enter zooms to the selection, [ "
    "and ] select the previous and next event, o opens or closes a node, / searches, n goes to the "
    "next match, 0 or Esc shows everything. Events cover a paler pixel only in part."
)

TABS = {"": "Overview", "/timeline": "Timeline", "/mask": "Mask"}
"""Names of a plan's pages by the end of their address."""

FILES = (
    ("file", "Plan (.dcpplan)", "for dcpm dashboard, dcpm simulate and dcpm compare"),
    ("overview.html", "Page (.html)",
     "this overview as one interactive file that needs no server"),
    ("overview.png", "Picture (.png)", "figures, mask, balance and timelines"),
    ("mask.svg", "Mask (.svg)", "vector graphic"),
    ("trace.pftrace", "Traces for ui.perfetto.dev", "predicted and measured"),
    ("devices.csv", "Devices (.csv)", "one line per device"),
    ("tiles.csv", "Tiles (.csv)", "one line per tile"),
    ("events.csv", "Events (.csv)", "one line per event of the traces"),
)  # fmt: skip
"""Last part of the address, name, purpose."""


def frame(loaded: LoadedPlan, tab: str) -> list[Component]:
    """Build the head of a page of a plan: notice of changes, title, and tabs with `tab` active."""
    summary, caption = loaded.summary, plan_caption(loaded)
    told = html.Span(caption, className="dcp-muted dcp-facts", title=caption)
    others = [run_badge(summary.seconds), told]
    if loaded.provenance is not None:  # only a plan that holds its text can be edited
        others.append(plain_link("Edit and plan again", f"/edit?spec={loaded.entry.key}"))
    others.append(plain_link("Compare", f"/compare?a={loaded.entry.key}"))
    if "measured" in summary.seconds:
        both = f"/compare?a={loaded.entry.key}&b={loaded.entry.key}"
        others.append(plain_link("Run against prediction", both))
    title = title_bar(summary.mask, *others, _export_menu(loaded))
    return [changed_notice(loaded.entry), title, _tabs(loaded, tab)]


def run_badge(sources: Container[Source]) -> Component:
    """Build a badge that says whether the file holds a run; no file says whether it was exact."""
    text = "run recorded" if "measured" in sources else "no run"
    return html.Span(text, className="dcp-badge dcp-badge-none")


def _tabs(loaded: LoadedPlan, active: str) -> Component:
    """Build the links to a plan's pages; `page/navigation.ts` keeps selection and ranges."""
    base = f"/plan/{loaded.entry.key}"
    links = []
    for path, label in TABS.items():
        current = {"aria_current": "page"} if path == active else {}
        data = attributes(data_keep="query", **current)
        links.append(html.A(label, href=base + path, className="dcp-tab", **data))
    return html.Nav(links, className="dcp-tabs", **attributes(aria_label="Views of this plan"))


def _export_menu(loaded: LoadedPlan) -> Component:
    # A refusal comes as a page of its own, the files themselves as downloads.
    base = f"/api/plan/{loaded.entry.key}"
    links = [
        html.Li([html.A(name, href=f"{base}/{address}", target="_blank"),
                 html.Span(purpose, className="dcp-muted")])
        for address, name, purpose in FILES
    ]  # fmt: skip
    return html.Details([html.Summary("Export"), html.Ul(links)], className="dcp-export")


def inspector(loaded: LoadedPlan) -> Component:
    """Build the panel of the selected thing; `page/inspector.ts` fills it."""
    text = hint(
        [
            "Nothing is selected. Click a tile, a bar, an event or a device, or step through the "
            "divisions with ",
            html.Kbd("."), " and ", html.Kbd(","),
            ". Related items keep their colour in every view. ",
            html.Kbd("Esc"), " clears the selection, ", html.Kbd("?"), " shows all keys.",
        ]
    )  # fmt: skip
    # Polite: a screen reader reads a new selection once it has finished its sentence.
    data = attributes(data_key=loaded.entry.key, aria_live="polite")
    body = html.Div(text, className="dcp-inspector", **data)
    return panel("Selection", [body], tools=_steps(loaded), name="dcp-inspector-panel")


def _steps(loaded: LoadedPlan) -> Component:
    """Build the control that selects one division after the other."""
    buttons = [
        html.Button(
            sign, type="button", className="dcp-quiet", title=f"{label} ({key})",
            **attributes(data_step=step, aria_label=label),
        )
        for step, sign, label, key in (
            ("before", "\u2039", "Previous division", ","),
            ("play", "\u25b6", "Play all divisions", "p"),
            ("next", "\u203a", "Next division", "."),
        )
    ]  # fmt: skip
    data = attributes(
        aria_label="Step by division",
        data_pause=str(PAUSE_MS),
        data_forward=str(count_divisions(loaded.plan, "forward")),
        data_backward=str(count_divisions(loaded.plan, "backward")),
    )
    return html.Div([html.Output(), *buttons], className="dcp-steps", role="group", **data)


def mask_page(loaded: LoadedPlan) -> Component:
    """Build the page of the large mask."""
    tables = [
        _closed_table(loaded, "dcp-sequence-table", "Sequences"),
        _closed_table(loaded, "dcp-tile-table", "Tiles"),
    ]
    aside = html.Div([inspector(loaded), *tables], className="dcp-aside")
    columns = html.Div([mask_panel(loaded, side=LARGE_SIDE), aside], className="dcp-wide-columns")
    title = f"{loaded.summary.mask} · {loaded.entry.relative}"
    return framed(title, *frame(loaded, "/mask"), columns)


def mask_panel(loaded: LoadedPlan, *, side: int = 0) -> Component:
    """Build the mask with its colourings; `side` bounds its edge in pixels, 0: styles decide."""
    instead = _nothing_to_draw(loaded)
    if instead:
        return panel("Mask and placement", [html.P(instead, role="status", className="dcp-hint")])
    base = f"/api/plan/{loaded.entry.key}"
    tools = mode_choice(
        [*MASK_MODES.items()], "mask-mode", "Colour the mask by", group_labels(loaded.plan)
    )
    size = {"data_side": str(side)} if side else {}
    picture = canvas(
        "dcp-mask", f"{base}/mask", "", name="mask", data_pairs=f"{base}/pairs", **size
    )
    # All blocks, so the tiles of all sequences are counted, the empty ones with them.
    counts = count_kinds(loaded.plan, np.ones(len(loaded.plan.blocks), np.bool_))
    options = [("all", quantities.counted(len(loaded.plan.tiles), "tile"))]
    options += [(kind, f"{quantities.count(number)} {kind}") for kind, number in counts.items()]
    kinds = choice("tiles", options, "all", "Kind of tiles to show", name="mask-kind")
    parts = [picture, kinds, hint(MASK_HINT)]
    if side:
        parts = [html.Div(parts, className="dcp-mask-beside")]
    return panel("Mask and placement", parts, tools=tools)


def mode_choice(
    modes: list[tuple[str, str]], name: str, label: str, groups: list[str]
) -> Component:
    """Build the choice of a mask's colouring, and of its group of heads if it has several."""
    tools = choice("colour", modes, modes[0][0], label, name=name)
    if len(groups) == 1:
        return tools
    # The first button says what the numbers on all of them mean.
    texts = [f"Heads {groups[0]}", *groups[1:]]
    options = [(str(group), text) for group, text in enumerate(texts)]
    of_heads = choice("group", options, "0", "Group of heads to show", name="mask-group")
    return html.Div([of_heads, tools], className="dcp-choices")


def _nothing_to_draw(loaded: LoadedPlan) -> str:
    """Return the reason why no mask is drawn, empty if one is."""
    count = len(loaded.plan.tiles)
    if count == 0:
        return "No query of this batch sees a key: the mask is empty, so there is no tile to show."
    if count > MAX_TILES:
        return (
            f"This plan has {quantities.count(count)} tiles; this page draws at most "
            f"{quantities.count(MAX_TILES)}. Plan with larger blocks (dcpm plan --block), or draw "
            "one part of the mask with dcpm show."
        )
    return ""


def _closed_table(loaded: LoadedPlan, kind: str, title: str) -> Component:
    """Build a table that is filled once it is open, by `mask/tile_table.ts` and the like."""
    # The columns of the canvas hold all that the table shows; the browser has them already.
    data = attributes(data_url=f"/api/plan/{loaded.entry.key}/mask", aria_label=title)
    parts = [html.Summary(f"{title} as a table"), html.Div(className=kind, **data)]
    return html.Details(parts, className="dcp-panel dcp-definitions")


def timeline_page(loaded: LoadedPlan) -> Component:
    """Build the page of the timeline; `web/src/timeline/` fill it."""
    title = f"Timeline · {loaded.summary.mask} · {loaded.entry.relative}"
    content = box(_no_timeline(loaded) or _timeline(loaded), "Timeline")
    kind, key = "dcp-timeline-page", loaded.entry.key
    return framed(title, *frame(loaded, "/timeline"), content, kind=kind, data_key=key)


def _timeline(loaded: LoadedPlan) -> list[Component]:
    # One canvas draws all traces: `api.ts` takes several addresses with spaces between them.
    urls = [timeline_url(loaded, source) for source in loaded.traces]
    area = html.Section([html.H2("Area"), html.Div(className="dcp-timeline-area")])
    notes = html.Section([html.H2("Notes"), html.Div(className="dcp-timeline-notes")])
    side = html.Aside(
        [inspector(loaded), area, notes],
        className="dcp-timeline-side",
        **attributes(aria_label="Selection and area"),
    )
    events = html.Div(className="dcp-event-table", hidden=True)
    paths = " ".join(path_url(loaded, source) for source in loaded.traces)
    picture = canvas("dcp-timeline", " ".join(urls), "Timeline", data_path=paths)
    parts = [picture, html.Div(className="dcp-path"), events, *_memory(loaded)]
    main = html.Div(parts)
    return [
        html.Div(className="dcp-timeline-tools"),
        html.Div([main, side], className="dcp-timeline-body"),
        hint(" ".join([*row_names(loaded, is_paired=True), TIMELINE_HINT])),
    ]


MEMORY_LOOKS = (
    ("own tensors", "var(--neutral)"),
    ("working copies and sums", "color-mix(in srgb, var(--neutral) 45%, var(--canvas))"),
    ("receive buffers, filled", "var(--receive)"),
    ("receive buffers, empty", "color-mix(in srgb, var(--receive) 30%, var(--canvas))"),
)
"""Parts of what a device holds, with their colours."""


def _memory(loaded: LoadedPlan) -> list[Component]:
    """Build the chart of device memory over time, under the axis of the timeline."""
    # Levels follow from the plan alone; a trace says when they hold, and how full buffers are.
    base, cluster = f"/api/plan/{loaded.entry.key}/memory", loaded.plan.cluster
    urls = " ".join(f"{base}?source={source}" for source in loaded.traces)
    peak = measure_memory(loaded.plan).peak
    told = (
        f"Device {peak.argmax()} needs most memory for the attention of one layer: "
        f"{quantities.size(int(peak.max()))} of {quantities.size(cluster.memory_bytes)} on a "
        f"device of {cluster.name}. A plan does not record a limit set with --memory-limit. "
        "Buffers exist only while forward or backward runs."
    )
    picture = canvas("dcp-memory", urls, "Memory", data_nodes=str(cluster.nodes))
    return [html.H3("Memory over time"), swatches(list(MEMORY_LOOKS)), picture, hint(told)]


def timeline_url(loaded: LoadedPlan, source: str, phase: str = "") -> str:
    """Return the address of the timeline's data of a trace, or of one direction of it."""
    chosen = f"&phase={phase}" if phase else ""
    return f"/api/plan/{loaded.entry.key}/timeline?source={source}{chosen}"


def path_url(loaded: LoadedPlan, source: str) -> str:
    """Return the address of the critical path of one trace."""
    return f"/api/plan/{loaded.entry.key}/path?source={source}"


def row_names(loaded: LoadedPlan, *, is_paired: bool) -> list[str]:
    """Explain the letters beside the rows of a timeline; `is_paired`: two traces share an axis."""
    names = []
    if is_paired and len(loaded.traces) > 1:
        names.append("Rows p are predicted, rows m are measured.")
    if loaded.plan.cluster.nodes > 1:
        names.append("n0, n1, … are the nodes.")
    return names


def _no_timeline(loaded: LoadedPlan) -> list[Component] | None:
    """Return a notice if the traces have no event to draw, or too many for a browser."""
    text: list[Component | str]
    # The longest trace decides: the views share one axis and one page.
    size = max(len(trace) for trace in loaded.traces.values())
    api = f"/api/plan/{loaded.entry.key}"
    if size == 0:
        text = ["The traces hold no events: the plan moves no data and computes nothing."]
    elif size > MAX_EVENTS:
        text = [
            f"This trace has {quantities.count(size)} events; this page draws at most "
            f"{quantities.count(MAX_EVENTS)}. Open the trace in ui.perfetto.dev, which streams "
            "the events, or download a part of it as CSV: ",
            html.A("Perfetto file", href=f"{api}/trace.pftrace"),
            " · ",
            html.A("waits only, as CSV", href=f"{api}/events.csv?kinds=wait"),
        ]
    else:
        return None
    return [html.P(text, className="dcp-timeline-empty", role="status")]
