"""The first line of every page of a plan: its mask, whether it ran, where it came from."""

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.export_menu import export_menu
from dcp_dashboard.pages.layout import attributes
from dcp_dashboard.pages.plan_list import run_badge


def _edit_link(loaded: LoadedPlan) -> list[Component]:
    """Give the way to another setting for the same batch, where the plan says what it was."""
    provenance = loaded.plan.provenance
    if provenance is None or not provenance.spec.strip():
        return []
    href = f"/edit?spec={loaded.entry.key}"
    return [html.A("Edit and plan again", href=href, **attributes(data_plain="link"))]


def plan_title(loaded: LoadedPlan) -> Component:
    """Give the heading of the pages of a plan."""
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
            html.Span(" · ".join(facts), className="dcp-muted dcp-facts", title=" · ".join(facts)),
            *_edit_link(loaded),
            export_menu(loaded),
        ],
        className="dcp-title",
    )
