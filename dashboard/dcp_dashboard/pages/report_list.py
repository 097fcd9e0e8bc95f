"""The reports of planned data sets in the list `/`, one line each."""

from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.facts import quantities
from dcp_dashboard.library.plans import ReportRow

HEADS = ("Data set", "Batches", "Tokens, median", "Speed-up, median", "Against", "State")


def report_matches(row: ReportRow, search: str) -> bool:
    """Tell whether every word of a search is in a report's file, data set or spec."""
    report = row.report
    texts = [row.entry.relative, row.error]
    if report is not None:
        texts += [report.dataset, report.spec, report.mask]
    text = " ".join(texts).lower()
    return all(word in text for word in search.lower().split())


def report_table(rows: Sequence[ReportRow]) -> Component:
    """Give a line per report; one that cannot be read says why."""
    heads = [
        html.Th(text, scope="col", className="dcp-number" if 0 < at < 4 else "")
        for at, text in enumerate(HEADS)
    ]
    return html.Table(
        [html.Thead(html.Tr(heads)), html.Tbody([_row(row) for row in rows])],
        className="dcp-table dcp-reports",
    )


def _row(row: ReportRow) -> Component:
    href, report = f"/dataset/{row.entry.key}", row.report
    if report is None:
        name = dcc.Link(html.Span(row.entry.relative, className="dcp-file"), href=href)
        text = html.Pre(row.error, className="dcp-row-error")
        cells = [html.Td(name), html.Td(text, colSpan=len(HEADS) - 1)]
        return html.Tr(cells, className="dcp-broken")
    title = html.Span(
        PurePosixPath(report.dataset or report.spec or "samples").name, className="dcp-mask-name"
    )
    name = dcc.Link([title, html.Span(row.entry.relative, className="dcp-file")], href=href)
    tokens, rival = report.column("tokens"), report.rival
    speedup = quantities.ratio(float(np.median(report.speedups(rival)))) if rival else "-"
    numbers = (
        quantities.count(len(report.batches)),
        quantities.count(float(np.median(tokens))) if len(tokens) else "-",
        speedup,
    )
    state = "complete" if report.is_complete else "not complete"
    return html.Tr(
        [
            html.Td(name),
            *(html.Td(text, className="dcp-number") for text in numbers),
            html.Td(rival or "-"),
            html.Td(html.Span(state, className="dcp-badge dcp-badge-none")),
        ]
    )
