"""The pages `/plan/<key>/mask` and `/plan/<key>/timeline`: one view, as large as the window."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.devices import MAX_EVENTS
from dcp_dashboard.api.mask import mask_modes
from dcp_dashboard.facts import quantities
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import group_labels
from dcp_dashboard.pages.layout import attributes, changed_notice, choice, panel
from dcp_dashboard.pages.plan_frame import inspector, plan_tabs, plan_title

MAX_TILES = 3_000_000
"""Tiles that a browser is sent: some 40 MB."""

LARGE_SIDE = 1040
"""Pixels of the large mask, at most."""

HINT = (
    "Wheel zooms, drag pans, shift and drag marks an area, shift and wheel or the arrows scroll "
    "the rows. WASD move, F or Enter zooms to the selection, [ ] go to the neighbouring event, o "
    "opens or closes a node, / searches, n goes to the next hit, 0 or Esc shows everything. Paler "
    "pixels are only partly covered."
)


def mask_page(loaded: LoadedPlan) -> Component:
    """Build the page of the large mask."""
    return html.Div(
        [
            changed_notice(loaded.entry),
            plan_title(loaded),
            plan_tabs(loaded, "mask"),
            html.Div(
                [
                    mask_panel(loaded, side=LARGE_SIDE),
                    html.Div([inspector(loaded), tile_table(loaded)], className="dcp-aside"),
                ],
                className="dcp-wide-columns",
            ),
        ],
        **attributes(data_title=f"{loaded.summary.mask} · {loaded.entry.relative}"),
    )


def mask_panel(loaded: LoadedPlan, *, side: int = 0) -> Component:
    """Build the mask with its colourings; `side` bounds its edge in pixels, 0: as assets decide."""
    key = loaded.entry.key
    modes = [(str(mode["id"]), str(mode["label"])) for mode in mask_modes(loaded.plan)]
    tools = choice("colour", modes, modes[0][0], "Colour the mask by", name="mask-mode")
    if loaded.plan.head_groups > 1:
        tools = html.Div([group_choice(group_labels(loaded.plan)), tools], className="dcp-choices")
    size = {"data_side": str(side)} if side else {}
    instead = _nothing_to_draw(loaded)
    if instead:
        return panel("Mask and placement", [html.P(instead, role="status", className="dcp-hint")])
    canvas = html.Div(
        id="mask",
        className="dcp-mask",
        **attributes(data_url=f"/api/plan/{key}/mask", data_pairs=f"/api/plan/{key}/pairs", **size),
    )
    hint = (
        "Rows are queries, columns keys; the edges show who owns the tokens. Wheel zooms, drag "
        "pans, 0 resets; Enter selects a tile, arrows go on, Enter again zooms until its pairs can "
        "be seen."
    )
    return panel("Mask and placement", [canvas, html.P(hint, className="dcp-hint")], tools=tools)


def group_choice(labels: list[str]) -> Component:
    """Build the control that chooses the group of heads a mask shows."""
    heads = [(str(group), label) for group, label in enumerate(labels)]
    first, *others = heads
    options = [(first[0], f"Heads {first[1]}"), *others]
    return choice("group", options, "0", "Group of heads to show", name="mask-group")


def _nothing_to_draw(loaded: LoadedPlan) -> str:
    """Return the reason why no mask is drawn, empty if one is."""
    count = len(loaded.plan.tiles)
    if count == 0:
        return "No query of this batch sees a key: the mask is empty, so there is no tile to show."
    if count > MAX_TILES:
        return (
            f"This plan has {quantities.count(count)} tiles; up to {quantities.count(MAX_TILES)} "
            "are drawn here. Plan with larger blocks (dcpm plan --block), or see one part of it: "
            "dcpm show."
        )
    return ""


def tile_table(loaded: LoadedPlan) -> Component:
    """Build the table of the selection's tiles; `assets/tile_table.js` fills it once open."""
    table = html.Div(
        className="dcp-tile-table dcp-scroll dcp-tall",
        tabIndex=0,
        **attributes(data_url=f"/api/plan/{loaded.entry.key}/mask", aria_label="Tiles"),
    )
    return html.Details(
        [html.Summary("Tiles as a table"), table], className="dcp-panel dcp-definitions"
    )


def timeline_page(loaded: LoadedPlan) -> Component:
    """Build the page of the timeline; `assets/timeline*.js` fill it."""
    summary, key = loaded.summary, loaded.entry.key
    return html.Div(
        [
            changed_notice(loaded.entry),
            plan_title(loaded),
            plan_tabs(loaded, "timeline"),
            html.Section(
                _too_large(loaded) or _empty(loaded) or _body(loaded),
                className="dcp-panel",
                **attributes(aria_label="Timeline"),
            ),
        ],
        className="dcp-timeline-page",
        **attributes(
            data_title=f"Timeline · {summary.mask} · {loaded.entry.relative}", data_key=key
        ),
    )


def _body(loaded: LoadedPlan) -> list[Component]:
    urls = [f"/api/plan/{loaded.entry.key}/timeline?source={name}" for name in loaded.traces]
    canvas = html.Div(
        className="dcp-timeline",
        **attributes(data_url=" ".join(urls), data_label="Timeline"),
    )
    side = html.Aside(
        [
            inspector(loaded),
            html.Section([html.H2("Area"), html.Div(className="dcp-timeline-area")]),
        ],
        className="dcp-timeline-side",
        **attributes(aria_label="Selection and area"),
    )
    main = html.Div([canvas, html.Div(className="dcp-event-table", hidden=True)])
    return [
        html.Div(className="dcp-timeline-tools"),
        html.Div([main, side], className="dcp-timeline-body"),
        html.P(" ".join([*row_names(loaded), HINT]), className="dcp-hint"),
    ]


def row_names(loaded: LoadedPlan, *, is_paired: bool = True) -> list[str]:
    """Explain the letters beside the rows of a timeline, where it has some.

    `is_paired`: whether predicted and measured share an axis.
    """
    names = []
    if is_paired and len(loaded.traces) > 1:
        names.append("Rows p are predicted, rows m measured.")
    if loaded.plan.cluster.nodes > 1:
        names.append("n0, n1, … are the nodes.")
    return names


def _empty(loaded: LoadedPlan) -> list[Component] | None:
    """Return a notice if the traces have no event to draw."""
    if any(len(trace) for trace in loaded.traces.values()):
        return None
    text = "The traces of this plan hold no events: it moves nothing and computes nothing."
    return [html.P(text, className="dcp-timeline-empty", role="status")]


def _too_large(loaded: LoadedPlan) -> list[Component] | None:
    """Return a notice if a browser could not hold the trace, with programs that can."""
    size = max(len(trace) for trace in loaded.traces.values())
    if size <= MAX_EVENTS:
        return None
    api = f"/api/plan/{loaded.entry.key}"
    text = (
        f"This trace has {quantities.count(size)} events; up to {quantities.count(MAX_EVENTS)} are "
        "drawn here. Open it in ui.perfetto.dev, which streams them, or take a part of it as CSV: "
    )
    links: list[Component | str] = [
        html.A("Perfetto file", href=f"{api}/trace.pftrace"),
        " · ",
        html.A("waits only, as CSV", href=f"{api}/events.csv?kinds=wait"),
    ]
    return [html.P([text, *links], className="dcp-timeline-empty", role="status")]
