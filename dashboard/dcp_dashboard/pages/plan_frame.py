"""The parts that all pages of one plan share: title, tabs, exports, panel of the selection."""

from typing import Literal

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.facts.metrics import plan_caption
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import PlanSummary, count_divisions
from dcp_dashboard.pages.layout import attributes, panel

Tab = Literal["overview", "timeline", "mask"]

TABS: tuple[tuple[Tab, str, str], ...] = (
    ("overview", "Overview", ""),
    ("timeline", "Timeline", "/timeline"),
    ("mask", "Mask", "/mask"),
)

FILES = (
    ("file", "Plan (.dcpplan)", "to open elsewhere: dcpm dashboard, dcpm simulate, dcpm compare"),
    (
        "overview.html",
        "Page (.html)",
        "this overview as one file; zooms and selects without a server",
    ),
    ("overview.png", "Picture (.png)", "figures, mask, balance and timelines"),
    ("mask.svg", "Mask (.svg)", "sharp at any size"),
    ("trace.pftrace", "Traces for ui.perfetto.dev", "predicted and measured"),
    ("devices.csv", "Devices (.csv)", "one line per device"),
    ("tiles.csv", "Tiles (.csv)", "one line per tile"),
    ("events.csv", "Events (.csv)", "one line per event of the traces"),
)
"""Last part of the address, name, what it is for."""

PAUSE_MS = 900
"""Time that each division stays while they are played."""


def plan_title(loaded: LoadedPlan) -> Component:
    """Build the heading of the pages of a plan."""
    summary = loaded.summary
    caption = plan_caption(loaded)
    return html.Div(
        [
            dcc.Link("Plans", href="/", className="dcp-crumb"),
            html.H1(summary.mask),
            run_badge(summary, is_verified=loaded.verified),
            html.Span(caption, className="dcp-muted dcp-facts", title=caption),
            *_edit_link(loaded),
            export_menu(loaded),
        ],
        className="dcp-title",
    )


def _edit_link(loaded: LoadedPlan) -> list[Component]:
    """Build the link to the editor with this plan's batch, if the plan holds its text."""
    provenance = loaded.plan.provenance
    if provenance is None or not provenance.spec.strip():
        return []
    href = f"/edit?spec={loaded.entry.key}"
    return [html.A("Edit and plan again", href=href, **attributes(data_plain="link"))]


def run_badge(summary: PlanSummary, *, is_verified: bool | None) -> Component:
    """Build a badge: the plan was not run, was run, or its run was verified or failed."""
    unverified = ("run" if "measured" in summary.seconds else "not run", "none")
    verdicts = {True: ("✓ verified", "good"), False: ("✗ failed", "bad"), None: unverified}
    text, kind = verdicts[is_verified]
    return html.Span(text, className=f"dcp-badge dcp-badge-{kind}")


def plan_tabs(loaded: LoadedPlan, active: Tab) -> Component:
    """Build the links between the pages of a plan; `assets/navigation.js` keeps their query.

    Selection, ranges and colours therefore travel from page to page.
    """
    links = [
        html.A(
            label,
            href=f"/plan/{loaded.entry.key}{path}",
            className="dcp-tab",
            **attributes(data_keep="query", **({"aria_current": "page"} if name == active else {})),
        )
        for name, label, path in TABS
    ]
    return html.Nav(links, className="dcp-tabs", **attributes(aria_label="Views of this plan"))


def export_menu(loaded: LoadedPlan) -> Component:
    """Build the links to all files of a plan."""
    # A refusal comes as a page of its own, the files themselves as downloads.
    base = f"/api/plan/{loaded.entry.key}"
    links = [
        html.Li(
            [
                html.A(name, href=f"{base}/{address}", target="_blank"),
                html.Span(purpose, className="dcp-muted"),
            ]
        )
        for address, name, purpose in FILES
    ]
    return html.Details([html.Summary("Export"), html.Ul(links)], className="dcp-export")


def inspector(loaded: LoadedPlan) -> Component:
    """Build the panel of the selected thing; `assets/inspector.js` fills it."""
    hint = html.P(
        [
            "Nothing is selected. Click a tile, a bar, an event or a device, or step through the "
            "divisions with ",
            html.Kbd("."),
            " and ",
            html.Kbd(","),
            "; what belongs to it stays in colour everywhere. ",
            html.Kbd("Esc"),
            " clears, ",
            html.Kbd("?"),
            " shows all keys.",
        ],
        className="dcp-hint",
    )
    body = html.Div(
        hint,
        className="dcp-inspector",
        **attributes(data_key=loaded.entry.key, aria_live="polite"),
    )
    return panel("Selection", [body], tools=steps(loaded), name="dcp-inspector-panel")


def steps(loaded: LoadedPlan) -> Component:
    """Build the control that selects one division after the other."""
    counts = {
        "data_forward": str(count_divisions(loaded.plan, "forward")),
        "data_backward": str(count_divisions(loaded.plan, "backward")),
    }
    buttons = [
        html.Button(
            sign, type="button", className="dcp-quiet", title=f"{label} ({key})",
            **attributes(data_step=step, aria_label=label),
        )
        for step, sign, label, key in (
            ("before", "\u2039", "Division before", ","),
            ("play", "\u25b6", "Play all divisions", "p"),
            ("next", "\u203a", "Next division", "."),
        )
    ]  # fmt: skip
    return html.Div(
        [html.Output(), *buttons],
        className="dcp-steps",
        role="group",
        **attributes(aria_label="Step by division", data_pause=str(PAUSE_MS), **counts),
    )
