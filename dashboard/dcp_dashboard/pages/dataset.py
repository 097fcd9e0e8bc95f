"""The page `/dataset/<key>`: the report of many planned batches of a data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.facts import quantities
from dcp_dashboard.library.dataset_report import BatchLine, DatasetReport
from dcp_dashboard.library.folder import SUFFIX, plan_key
from dcp_dashboard.library.plans import PlanLibrary, ReportRow
from dcp_dashboard.pages.charts import GRAPH_CONFIG, lengths_figure, speedup_figure, spread_figure
from dcp_dashboard.pages.layout import attributes, changed_notice, panel
from dcp_dashboard.pages.tables import Heading, Query, read_query, search_box, sortable_head

PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table of batches."""

    name: str
    heading: str
    meaning: str
    text: Callable[[float], str]


COLUMNS = (
    Column("index", "Batch", "Number in the data set", quantities.count),
    Column("tokens", "Tokens", "Tokens of the packed batch", quantities.count),
    Column("sequences", "Sequences", "Sequences of the batch", quantities.count),
    Column("longest", "Longest", "Tokens of the longest sequence", quantities.count),
    Column("density", "Density", "Visible pairs over those of a causal mask", quantities.percent),
    Column("seconds", "Predicted", "Simulated seconds, forward and backward", quantities.duration),
    Column("speedup", "Speed-up", "Predicted time of the fastest other method over ours",
           quantities.ratio),
    Column("compute_imbalance", "Compute max/mean", "Computed pairs, max over mean of the devices",
           quantities.ratio),
    Column("token_imbalance", "Token max/mean", "Owned tokens, max over mean of the devices",
           quantities.ratio),
    Column("bytes", "Moved", "Bytes between devices, forward and backward", quantities.size),
    Column("plan_s", "Planned in", "Seconds that planning took", quantities.duration),
)  # fmt: skip


def dataset_page(library: PlanLibrary, key: str, query: str) -> Component:
    """Build the page of one report.

    Raises:
        DCPError: if it is missing or no readable report.
    """
    row = library.report(key)
    report = row.report
    assert report is not None, "library.report raises for what cannot be read"
    asked = read_query(query)
    parts: list[Component] = [
        changed_notice(row.entry),
        _title(row, report),
        _summary_panel(report),
    ]
    if report.batches:
        parts += [*_chart_panels(report), _table_panel(library, row, report, asked)]
    return html.Div(parts, **attributes(data_title=f"Data set · {row.entry.relative}"))


def summary_sentence(report: DatasetReport) -> str:
    """Write one sentence: the planned batches and their predicted speed-up."""
    q, batches = quantities, len(report.batches)
    if not batches:
        return "No batch is planned yet."
    known = f" of {q.count(report.num_available)}" if report.num_available else ""
    parts = [f"{q.count(batches)}{known} batches" if known else q.counted(batches, "batch")]
    if batches > 1 and not known:
        parts = [f"{q.count(batches)} batches"]
    for name, noun in (("tokens", "tokens"), ("sequences", "sequences")):
        values = report.column(name)
        if len(values):
            parts.append(f"{q.count(float(np.median(values)))} {noun}")
    text = parts[0] + (f", at the median {' in '.join(parts[1:])}" if parts[1:] else "") + "."
    rival = report.rival
    if rival is not None:
        values = report.speedups(rival)
        text += (
            f" Predicted {q.ratio(float(np.median(values)))} times as fast as {rival}, the fastest "
            f"other method ({q.ratio(values.min())} to {q.ratio(values.max())})."
        )
        over = sum(rival in batch.over_tokens for batch in report.batches)
        if over:
            text += f" In {q.count(over)} of them it owns more tokens on a device than the cap."
    planned = report.column("plan_s")
    if len(planned):
        text += f" Planning took {q.duration(float(np.median(planned)))} a batch."
    return text


def _title(row: ReportRow, report: DatasetReport) -> Component:
    facts = [
        row.entry.relative,
        f"spec {report.spec}" if report.spec else "",
        f"data {report.dataset}" if report.dataset else "samples of the command line",
        report.mask,
        report.cluster,
    ]
    name = PurePosixPath(report.dataset or report.spec or row.entry.relative).name
    return html.Div(
        [
            dcc.Link("Plans", href="/", className="dcp-crumb"),
            html.H1(name),
            html.Span(" · ".join(fact for fact in facts if fact), className="dcp-muted dcp-facts"),
        ],
        className="dcp-title",
    )


def _summary_panel(report: DatasetReport) -> Component:
    parts: list[Component] = [html.P(summary_sentence(report), className="dcp-verdict")]
    if report.rival is not None:
        rule = (
            "Rule: per batch, predicted forward and backward time of the other method over ours; "
            "the fastest other method is the one with the least median."
        )
        parts.append(html.P(rule, className="dcp-hint"))
    notes = list(report.notes)
    if not report.is_complete:
        wanted = f" of {quantities.count(report.num_wanted)}" if report.num_wanted else ""
        notes.insert(
            0,
            f"Not complete: {quantities.count(len(report.batches))}{wanted} batches are written. "
            "Planning goes on, or it was stopped.",
        )
    if notes:
        items = html.Ul([html.Li(note) for note in notes])
        parts.append(html.Div(items, className="dcp-limits"))
    return html.Section(parts, className="dcp-panel", **attributes(aria_label="Summary"))


def _chart_panels(report: DatasetReport) -> list[Component]:
    lengths, speedups, spreads = dataset_charts(report)
    pair = html.Div(
        [
            panel("Lengths of sequences", [lengths], name="dcp-small-chart"),
            panel("Speed-up against each method", [speedups], name="dcp-small-chart"),
        ],
        className="dcp-columns",
    )
    return [pair, panel("How batches differ", [spreads], name="dcp-spreads")]


def _table_panel(
    library: PlanLibrary, row: ReportRow, report: DatasetReport, asked: Query
) -> Component:
    address = f"/dataset/{row.entry.key}"
    found = [batch for batch in report.batches if matches(batch, asked.search)]
    ordered = sort_batches(found, asked)
    last = max(0, (len(ordered) - 1) // PAGE_ROWS)
    page = min(asked.page, last)
    shown = ordered[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
    folder = PurePosixPath(row.entry.relative).parent
    heads = [_head(column, asked, address) for column in COLUMNS]
    body = [_row(batch, library, folder) for batch in shown]
    table = html.Table(
        [html.Thead(html.Tr([*heads, html.Th("Plan", scope="col")])), html.Tbody(body)],
        className="dcp-table",
    )
    count = f"{quantities.count(len(found))} of {quantities.count(len(report.batches))}"
    parts: list[Component] = [
        html.Div(
            [
                search_box(asked, "Find batches by mask, rows or warning"),
                html.Span(count, className="dcp-muted"),
            ],
            className="dcp-tools",
        ),
        html.Div(table, className="dcp-scroll", tabIndex=0),
    ]
    if not found:
        parts.append(html.P("No batch matches.", className="dcp-hint"))
    if last:
        parts.append(_pages(asked, address, page, last))
    return panel("Batches", parts)


def matches(batch: BatchLine, search: str) -> bool:
    """Return whether every word of a search is in the texts of a batch, or is its number."""
    text = " ".join([batch.mask, batch.origin, batch.backend, batch.file, *batch.warnings]).lower()
    return all(word in text or word == str(batch.index) for word in search.lower().split())


def sort_batches(batches: Sequence[BatchLine], asked: Query) -> list[BatchLine]:
    """Sort by a column, by number where equal; batches without the figure come last either way."""
    name = asked.sort if any(column.name == asked.sort for column in COLUMNS) else "index"

    def key(batch: BatchLine) -> tuple[bool, float, int]:
        value = float(batch.index) if name == "index" else batch.value(name)
        sign = -1 if asked.is_descending else 1
        return value is None, sign * (value or 0.0), batch.index

    return sorted(batches, key=key)


def _head(column: Column, asked: Query, address: str) -> Component:
    heading = Heading(column.name, column.heading, column.meaning)
    return sortable_head(heading, asked, address, "index")


def _row(batch: BatchLine, library: PlanLibrary, folder: PurePosixPath) -> Component:
    key = plan_key((folder / batch.file).as_posix()) if batch.file else ""
    link = (
        dcc.Link(batch.file, href=f"/plan/{key}")
        if library.folder.find(key, SUFFIX)
        else html.Span("-", title="No plan file")
    )
    cells = []
    for column in COLUMNS:
        value = float(batch.index) if column.name == "index" else batch.value(column.name)
        cells.append(html.Td("-" if value is None else column.text(value), className="dcp-number"))
    marks = [html.Span(" ⚠", title="\n".join(batch.warnings))] if batch.warnings else []
    return html.Tr([*cells, html.Td([link, *marks])])


def _pages(asked: Query, address: str, page: int, last: int) -> Component:
    def link(label: str, to: int) -> Component:
        if not 0 <= to <= last:
            return html.Span(label, className="dcp-muted")
        return html.A(label, href=address + asked.url(page=to), **attributes(data_plain="link"))

    text = f"Page {page + 1} of {last + 1}"
    return html.Nav(
        [link("Previous", page - 1), html.Span(text), link("Next", page + 1)],
        className="dcp-pages", **attributes(aria_label="Pages of the table"),
    )  # fmt: skip


def dataset_charts(report: DatasetReport) -> tuple[Component, Component, Component]:
    """Draw the charts, or write a sentence where the report has no figures."""
    figures = (
        ("lengths", lengths_figure(report), "The report says nothing of lengths."),
        ("speedups", speedup_figure(report),
         "No other method was planned; plan again with --against static."),
        ("spreads", spread_figure(report), "The report holds no figures."),
    )  # fmt: skip
    lengths, speedups, spreads = (_chart(name, figure, text) for name, figure, text in figures)
    return lengths, speedups, spreads


def _chart(name: str, figure: go.Figure | None, nothing: str) -> Component:
    if figure is None:
        return html.P(nothing, className="dcp-muted")
    graph = dcc.Graph(id=name, figure=figure, config=GRAPH_CONFIG, className="dcp-graph")
    return html.Div(graph, className="dcp-slot")
