"""The row of tabs that the pages of one plan share: overview, timeline, mask."""

from typing import Literal

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.layout import attributes

Tab = Literal["overview", "timeline", "mask"]

TABS: tuple[tuple[Tab, str, str], ...] = (
    ("overview", "Overview", ""),
    ("timeline", "Timeline", "/timeline"),
    ("mask", "Mask", "/mask"),
)


def plan_tabs(loaded: LoadedPlan, active: Tab) -> Component:
    """Give links between the pages of a plan; `assets/navigation.js` keeps the query in them.

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
