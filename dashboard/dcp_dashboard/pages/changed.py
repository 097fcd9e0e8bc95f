"""The bar that says that a shown file has changed on disk, or is gone; it never swaps silently."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.plans import version_of
from dcp_dashboard.pages.layout import attributes


def changed_notice(*entries: PlanEntry) -> Component:
    """Give the bar for the files that a page shows, hidden until one of them is another.

    `assets/changed.js` asks `/api/changes` for their versions every few seconds.
    """
    shown = {entry.key: entry for entry in entries}
    return html.Div(
        className="dcp-changed",
        hidden=True,
        role="status",
        **attributes(
            data_keys=",".join(shown),
            data_versions=",".join(version_of(entry) for entry in shown.values()),
            data_names="/".join(entry.relative.rsplit("/", 1)[-1] for entry in shown.values()),
        ),
    )
