"""What stands out in a plan: sentences that lead to the spot, each with the rule that found it."""

from typing import Any

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.facts.findings import Finding, findings
from dcp_dashboard.facts.words import SOURCE_LABELS
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.layout import attributes
from dcp_planner import Source


def findings_panel(loaded: LoadedPlan) -> Component:
    """Give the planner's warnings and the findings of every trace."""
    lists = []
    if loaded.plan.warnings:
        warnings = [html.Li(text) for text in loaded.plan.warnings]
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
