"""The page `/plan/<key>/timeline`: every event, predicted and measured under one axis."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.payloads import MAX_EVENTS
from dcp_dashboard.facts import quantities
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.changed import changed_notice
from dcp_dashboard.pages.inspector import inspector
from dcp_dashboard.pages.layout import attributes
from dcp_dashboard.pages.plan_tabs import plan_tabs
from dcp_dashboard.pages.plan_title import plan_title

HINT = (
    "Wheel zooms, drag pans, shift and drag marks an area, shift and wheel or the arrows scroll "
    "the rows. WASD move, F or Enter zooms to the selection, [ ] go to the neighbouring event, o "
    "opens or closes a node, / searches, n goes to the next hit, 0 or Esc shows everything. Paler "
    "pixels are only partly covered."
)


def timeline_page(loaded: LoadedPlan) -> Component:
    """Give the whole page; `assets/timeline*.js` fill it."""
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
    """Say what the letters beside the rows of a timeline stand for, where it has some.

    `is_paired`: whether predicted and measured share an axis.
    """
    names = []
    if is_paired and len(loaded.traces) > 1:
        names.append("Rows p are predicted, rows m measured.")
    if loaded.plan.cluster.nodes > 1:
        names.append("n0, n1, … are the nodes.")
    return names


def _empty(loaded: LoadedPlan) -> list[Component] | None:
    """Say that there is nothing to draw, if so."""
    if any(len(trace) for trace in loaded.traces.values()):
        return None
    text = "The traces of this plan hold no events: it moves nothing and computes nothing."
    return [html.P(text, className="dcp-timeline-empty", role="status")]


def _too_large(loaded: LoadedPlan) -> list[Component] | None:
    """Say that a browser could not hold it, if so, and what can."""
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
