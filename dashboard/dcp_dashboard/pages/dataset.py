"""The page `/dataset/<key>`: the report of many planned batches of a data set."""

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.facts import quantities
from dcp_dashboard.library.dataset_report import BatchLine, DatasetReport
from dcp_dashboard.library.folder import SUFFIX, PlanEntry, plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.charts import graph, lengths_figure, speedup_figure, spread_figure
from dcp_dashboard.pages.layout import (
    box,
    changed_notice,
    framed,
    hint,
    notes_list,
    panel,
    table,
)
from dcp_dashboard.pages.tables import (
    Column,
    Query,
    cells_of,
    has_words,
    page_of,
    read_query,
    search_box,
    sort_items,
    sortable_heads,
)


def _column(
    name: str, heading: str, meaning: str, text: Callable[[float], str]
) -> Column[BatchLine]:
    return Column(name, heading, meaning, lambda batch: batch.value(name), text)


COLUMNS = (
    _column("index", "Batch", "Number in the data set", quantities.count),
    _column("tokens", "Tokens", "Tokens of the packed batch", quantities.count),
    _column("sequences", "Sequences", "Sequences of the batch", quantities.count),
    _column("longest", "Longest", "Tokens of the longest sequence", quantities.count),
    _column("density", "Density", "Visible pairs over those of a causal mask", quantities.percent),
    _column("seconds", "Predicted", "Simulated seconds, forward and backward", quantities.duration),
    _column("speedup", "Speed-up", "Predicted time of the fastest other method over ours",
            quantities.ratio),
    _column("compute_imbalance", "Compute max/mean", "Computed pairs, max over mean of the devices",
            quantities.ratio),
    _column("token_imbalance", "Token max/mean", "Owned tokens, max over mean of the devices",
            quantities.ratio),
    _column("bytes", "Moved", "Bytes between devices, forward and backward", quantities.size),
    _column("plan_s", "Planned in", "Seconds that planning took", quantities.duration),
)  # fmt: skip


def dataset_page(library: PlanLibrary, key: str, query: str) -> Component:
    """Build the page of one report."""
    entry, report = library.report(key)
    parts = [changed_notice(entry), _title(entry, report), _summary_panel(report)]
    if report.batches:
        parts += [*_chart_panels(report), _table_panel(library, entry, report, read_query(query))]
    return framed(f"Data set · {entry.relative}", *parts)


def summary_sentence(report: DatasetReport) -> str:
    """Write one sentence: the planned batches and their predicted speed-up."""
    q, batches = quantities, len(report.batches)
    if not batches:
        return "No batch is planned yet."
    known = f" of {q.count(report.num_available)}" if report.num_available else ""
    text = f"{q.count(batches)}{known} batch" + ("" if batches == 1 and not known else "es")
    medians = [
        f"{q.count(float(np.median(values)))} {name}"
        for name in ("tokens", "sequences")
        if len(values := report.column(name))
    ]
    text += (f", at the median {' in '.join(medians)}" if medians else "") + "."
    if report.rival is not None:
        text += _speedup_sentence(report, report.rival)
    planned = report.column("plan_s")
    if len(planned):
        text += f" Planning took {q.duration(float(np.median(planned)))} a batch."
    return text


def _speedup_sentence(report: DatasetReport, rival: str) -> str:
    q, values = quantities, report.speedups(rival)
    text = (
        f" Predicted {q.ratio(float(np.median(values)))} times as fast as {rival}, the fastest "
        f"other method ({q.ratio(values.min())} to {q.ratio(values.max())})."
    )
    over = sum(rival in batch.over_tokens for batch in report.batches)
    if over:
        text += f" In {q.count(over)} of them it owns more tokens on a device than the cap."
    return text


def _title(entry: PlanEntry, report: DatasetReport) -> Component:
    facts = [
        entry.relative,
        f"spec {report.spec}" if report.spec else "",
        f"data {report.dataset}" if report.dataset else "samples of the command line",
        report.mask,
        report.cluster,
    ]
    name = PurePosixPath(report.dataset or report.spec or entry.relative).name
    told = html.Span(" · ".join(filter(None, facts)), className="dcp-muted dcp-facts")
    crumb = dcc.Link("Plans", href="/", className="dcp-crumb")
    return html.Div([crumb, html.H1(name), told], className="dcp-title")


def _summary_panel(report: DatasetReport) -> Component:
    parts: list[Component] = [html.P(summary_sentence(report), className="dcp-verdict")]
    if report.rival is not None:
        rule = (
            "Rule: per batch, predicted forward and backward time of the other method over ours; "
            "the fastest other method is the one with the least median."
        )
        parts.append(hint(rule))
    notes = list(report.notes)
    if not report.is_complete:
        wanted = f" of {quantities.count(report.num_wanted)}" if report.num_wanted else ""
        notes.insert(
            0,
            f"Not complete: {quantities.count(len(report.batches))}{wanted} batches are written. "
            "Planning goes on, or it was stopped.",
        )
    if notes:
        parts.append(notes_list(notes))
    return box(parts, "Summary")


def _chart_panels(report: DatasetReport) -> list[Component]:
    lengths, speedups, spreads = dataset_charts(report)
    small = (("Lengths of sequences", lengths), ("Speed-up against each method", speedups))
    panels = [panel(title, [chart], name="dcp-small-chart") for title, chart in small]
    pair = html.Div(panels, className="dcp-columns")
    return [pair, panel("How batches differ", [spreads], name="dcp-spreads")]


def dataset_charts(report: DatasetReport) -> tuple[Component, Component, Component]:
    """Draw the charts, or write a sentence where the report has no figures."""
    return (
        _chart("lengths", lengths_figure(report), "The report has no lengths."),
        _chart("speedups", speedup_figure(report),
               "No other method was planned; plan again with --against static."),
        _chart("spreads", spread_figure(report), "The report holds no figures."),
    )  # fmt: skip


def _chart(name: str, figure: go.Figure | None, nothing: str) -> Component:
    if figure is None:
        return html.P(nothing, className="dcp-muted")
    return html.Div(graph(name, figure), className="dcp-slot")


def _table_panel(
    library: PlanLibrary, entry: PlanEntry, report: DatasetReport, asked: Query
) -> Component:
    address = f"/dataset/{entry.key}"
    found = sort_batches([b for b in report.batches if matches(b, asked.q)], asked)
    folder = PurePosixPath(entry.relative).parent
    page, turn = page_of(found, asked, address)
    cells = cells_of(COLUMNS, page)
    shown = [
        html.Tr([*row, _link(batch, library, folder)])
        for row, batch in zip(cells, page, strict=True)
    ]
    heads = [*sortable_heads(COLUMNS, asked, address, "index"), html.Th("Plan", scope="col")]
    count = f"{quantities.count(len(found))} of {quantities.count(len(report.batches))}"
    search = search_box(asked, "Find batches by mask, rows or warning")
    parts: list[Component] = [
        html.Div([search, html.Span(count, className="dcp-muted")], className="dcp-tools"),
        html.Div(table(heads, shown), className="dcp-scroll", tabIndex=0),
    ]
    if not found:
        parts.append(hint("No batch matches."))
    return panel("Batches", [*parts, *turn])


def matches(batch: BatchLine, search: str) -> bool:
    """Return whether every word of a search is in the texts of a batch, or is its number."""
    texts = (batch.mask, batch.origin, batch.backend, batch.file, *batch.warnings)
    words = (word for word in search.split() if word != str(batch.index))
    return has_words(" ".join(words), texts)


def sort_batches(batches: Sequence[BatchLine], asked: Query) -> list[BatchLine]:
    """Sort by a column, by number where equal; batches without the figure come last either way."""
    name = asked.sort if any(column.name == asked.sort for column in COLUMNS) else "index"
    return sort_items(
        batches, lambda batch: batch.value(name), lambda batch: batch.index, desc=asked.desc
    )


def _link(batch: BatchLine, library: PlanLibrary, folder: PurePosixPath) -> Component:
    key = plan_key((folder / batch.file).as_posix()) if batch.file else ""
    link: Component = html.Span("-", title="No plan file")
    if library.folder.find(key, SUFFIX):
        link = dcc.Link(batch.file, href=f"/plan/{key}")
    marks = [html.Span(" ⚠", title="\n".join(batch.warnings))] if batch.warnings else []
    return html.Td([link, *marks])
