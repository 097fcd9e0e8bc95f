"""The pages of reports: many planned batches, `/dataset/<key>`; a training step, `/step/<key>`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.gain import GAIN, GAIN_IN_CAP, gains_of_report
from dcp_dashboard.facts.quantities import alike, count, counted, duration, ratio
from dcp_dashboard.library.folder import SUFFIX, PlanEntry, plan_key
from dcp_dashboard.library.index import BatchLine, DatasetReport
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages import tables
from dcp_dashboard.pages.charts import (
    TEMPLATE,
    graph,
    lengths_figure,
    spread_figure,
)
from dcp_dashboard.pages.layout import (
    attributes,
    box,
    changed_notice,
    framed,
    headings,
    hint,
    notes_list,
    number_cells,
    panel,
    scrolling,
    table,
    title_bar,
)
from dcp_dashboard.pages.tables import Column, Query
from dcp_planner.step import StepFile, StepGroup


def _column(
    name: str, heading: str, meaning: str, text: Callable[[float], str]
) -> Column[BatchLine]:
    return Column(name, heading, meaning, lambda batch: batch.value(name), text)


COLUMNS = (
    _column("index", "Batch", "Number of the batch in the data set", quantities.count),
    _column("tokens", "Tokens", "Tokens of the packed batch", quantities.count),
    _column("sequences", "Sequences", "Sequences of the batch", quantities.count),
    _column("longest", "Longest", "Tokens of the longest sequence", quantities.count),
    _column("density", "Density", "Visible pairs relative to a causal mask", quantities.percent),
    _column("seconds", "Predicted", "Simulated time, forward and backward", quantities.duration),
    _column("of_all", "Gain over static", GAIN, quantities.times),
    _column("within_token_cap", "Gain within the cap", GAIN_IN_CAP, quantities.times),
    _column("compute_imbalance", "Compute max/mean", "Pairs of the busiest device over the mean",
            quantities.ratio),
    _column("token_imbalance", "Token max/mean", "Tokens of the largest owner over the mean",
            quantities.ratio),
    _column("bytes", "Bytes moved", "Bytes between devices, forward and backward", quantities.size),
    _column("plan_s", "Planning time", "Time that planning took", quantities.duration),
)  # fmt: skip


LEAST_SPREAD = 20
"""Fewest batches whose figures are drawn as histograms."""


def dataset_page(library: PlanLibrary, key: str, query: str) -> Component:
    """Build the page of one report."""
    entry, report = library.report(key)
    parts = [changed_notice(entry), _title(entry, report), _summary_panel(report)]
    if report.batches:
        parts += [
            _gain_panel(report),
            *_chart_panels(report),
            _table_panel(library, entry, report, tables.read_query(query)),
        ]
    return framed(f"Data set · {entry.relative}", *parts)


def summary_sentence(report: DatasetReport) -> str:
    """Write one sentence: the planned batches and their predicted speed-up."""
    q, batches = quantities, len(report.batches)
    if not batches:
        return "No batch has been planned yet."
    known = f" of {q.count(report.num_available)}" if report.num_available else ""
    # "1 batch", but "1 of 50 batches".
    text = f"{q.count(batches)}{known} batch" + ("" if batches == 1 and not known else "es")
    medians = [
        f"{q.count(float(np.median(values)))} {name}"
        for name in ("tokens", "sequences")
        if len(values := report.column(name))
    ]
    text += (f", median {' in '.join(medians)}" if medians else "") + "."
    planned = report.column("plan_s")
    if len(planned):
        text += f" Planning took a median of {q.duration(float(np.median(planned)))} per batch."
    return text


def _title(entry: PlanEntry, report: DatasetReport) -> Component:
    facts = [
        entry.relative,
        f"spec {report.spec}" if report.spec else "",
        f"data {report.dataset}" if report.dataset else "samples from the command line",
        report.mask,
        report.cluster,
    ]
    name = PurePosixPath(report.dataset or report.spec or entry.relative).name
    return title_bar(name, " · ".join(filter(None, facts)))


def _gain_panel(report: DatasetReport) -> Component:
    """Build the gains over all batches; `page/gain.ts` writes the table."""
    gains = json.dumps([gain.to_json() for gain in gains_of_report(report)])
    told = "No other method was planned. To compare methods, plan again with --against static."
    table = html.Div(className="dcp-gain", **attributes(data_gains=gains, data_none=told))
    return panel("What you gain (predicted): median over batches (least to most)", [table])


def _summary_panel(report: DatasetReport) -> Component:
    parts: list[Component] = [html.P(summary_sentence(report), className="dcp-verdict")]
    notes = list(report.notes)
    if not report.is_complete:
        wanted = f" of {quantities.count(report.num_wanted)}" if report.num_wanted else ""
        notes.insert(
            0,
            f"Incomplete: {quantities.count(len(report.batches))}{wanted} batches are written. "
            "Planning is still running, or it was stopped.",
        )
    if notes:
        parts.append(notes_list(notes))
    return box(parts, "Summary")


def _chart_panels(report: DatasetReport) -> list[Component]:
    """Draw the charts, or write a sentence where the report has no figures."""
    lengths = _chart("lengths", lengths_figure(report), "The report holds no lengths.")
    shown = [panel("Sequence lengths", [lengths], name="dcp-small-chart")]
    # The table below shows a few batches as well as a histogram would.
    if len(report.batches) >= LEAST_SPREAD:
        spreads = _chart("spreads", spread_figure(report), "The report holds no figures.")
        shown.append(panel("Distribution over batches", [spreads], name="dcp-spreads"))
    return shown


def _chart(name: str, figure: go.Figure | None, nothing: str) -> Component:
    if figure is None:
        return html.P(nothing, className="dcp-muted")
    return scrolling(graph(name, figure), "dcp-slot")


def _table_panel(
    library: PlanLibrary, entry: PlanEntry, report: DatasetReport, asked: Query
) -> Component:
    address = f"/dataset/{entry.key}"
    found = sort_batches([b for b in report.batches if matches(b, asked.q)], asked)
    folder = PurePosixPath(entry.relative).parent
    page, turn = tables.page_of(found, asked, address)
    cells = tables.cells_of(COLUMNS, page)
    shown = [
        html.Tr([*row, _link(batch, library, folder)])
        for row, batch in zip(cells, page, strict=True)
    ]
    heads = [*tables.sortable_heads(COLUMNS, asked, address, "index"), html.Th("Plan", scope="col")]
    count = f"{quantities.count(len(found))} of {quantities.count(len(report.batches))}"
    search = tables.search_box(asked, "Find batches by mask, rows or warning")
    parts: list[Component] = [
        html.Div([search, html.Span(count, className="dcp-muted")], className="dcp-tools"),
        scrolling(table(heads, shown)),
    ]
    if not found:
        parts.append(hint("No batch matches."))
    return panel("Batches", [*parts, *turn])


def matches(batch: BatchLine, search: str) -> bool:
    """Return whether every word of a search is in the texts of a batch, or is its number."""
    texts = (batch.mask, batch.origin, batch.backend, batch.file, *batch.warnings)
    # "3" finds batch 3 even if no text of it holds a 3.
    words = (word for word in search.split() if word != str(batch.index))
    return tables.has_words(" ".join(words), texts)


def sort_batches(batches: Sequence[BatchLine], asked: Query) -> list[BatchLine]:
    """Sort by a column, by number where equal; batches without the figure come last either way."""
    name = asked.sort if any(column.name == asked.sort for column in COLUMNS) else "index"
    return tables.sort_items(
        batches, lambda batch: batch.value(name), lambda batch: batch.index, desc=asked.desc
    )


def _link(batch: BatchLine, library: PlanLibrary, folder: PurePosixPath) -> Component:
    # Reports name plans, pages address them by keys; a key without a file leads nowhere.
    key = plan_key((folder / batch.file).as_posix()) if batch.file else ""
    link: Component = html.Span("-", title="No plan file")
    if library.folder.find(key, SUFFIX):
        link = dcc.Link(batch.file, href=f"/plan/{key}")
    marks = [html.Span(" ⚠", title="\n".join(batch.warnings))] if batch.warnings else []
    return html.Td([link, *marks])


MOST_BARS = 512
"""Most bars of the chart."""
MOST_NAMED = 8
"""Most documents that a text names."""
PARTS = (
    ("linear part", KIND_COLOURS["reduction"]),
    ("attention", KIND_COLOURS["attention"]),
    ("waiting", KIND_COLOURS["wait"]),
)


@dataclass(frozen=True, slots=True)
class StepBar:
    """A bar: devices ``first`` to ``first + width - 1``, which share documents in a micro-batch.

    These devices wait for the slowest of the micro-batch, and compute the documents of `groups`.
    """

    micro_batch: int
    first: int
    width: int
    linear_s: float
    attention_s: float
    waiting_s: float
    groups: tuple[StepGroup, ...]

    @property
    def busy_s(self) -> float:
        """Seconds in which they compute."""
        return self.linear_s + self.attention_s

    @property
    def devices(self) -> str:
        """Return the devices as text."""
        last = self.first + self.width - 1
        return f"{self.first}" if last == self.first else f"{self.first}-{last}"


def step_page(library: PlanLibrary, key: str) -> Component:
    """Build the page of one planned step."""
    entry, step = library.step(key)
    bars = step_bars(step)
    facts = (
        f"{entry.relative} · {counted(step.replicas, 'replica')} of "
        f"{counted(step.context_ranks, 'device')} · "
        f"{counted(step.micro_batches, 'micro-batch', 'es')} · {step.policy}"
    )
    parts = [
        changed_notice(entry),
        title_bar("Training step", facts),
        box([html.P(step_sentence(step, bars), className="dcp-verdict")], "Summary"),
        panel("Time of each device", [graph("step", step_figure(bars[:MOST_BARS]))]),
    ]
    if len(bars) > MOST_BARS:
        parts.append(hint(f"The first {MOST_BARS} of {count(len(bars))} bars are drawn."))
    parts.append(panel("Slowest devices of each micro-batch", [_stragglers(bars)]))
    return framed(f"Step · {entry.relative}", *parts)


def step_bars(step: StepFile) -> list[StepBar]:
    """Split each micro-batch into runs of devices that compute the same documents.

    Waiting is counted as if all devices met at the end of every micro-batch, as FSDP makes them.
    """
    bars = []
    for micro_batch in range(step.micro_batches):
        groups = [group for group in step.groups if group.micro_batch == micro_batch]
        # A long document may lie on many devices and short ones on some of these: groups nest. No
        # group begins or ends between two neighbouring cuts.
        cuts = {0, step.devices, *(g.first for g in groups), *(g.first + g.width for g in groups)}
        found = []
        for first, end in pairwise(sorted(cuts)):
            own = tuple(g for g in groups if g.first <= first and end <= g.first + g.width)
            linear, attention = sum(g.linear_s for g in own), sum(g.attention_s for g in own)
            found.append(StepBar(micro_batch, first, end - first, linear, attention, 0.0, own))
        longest = max(bar.busy_s for bar in found)
        bars += [replace(bar, waiting_s=longest - bar.busy_s) for bar in found]
    return bars


def step_sentence(step: StepFile, bars: list[StepBar]) -> str:
    """Write the time of the step, and the share of it for which devices wait."""
    # Times of a bar are those of all pipeline stages; a device is in one of them.
    waiting = sum(bar.waiting_s * bar.width for bar in bars) / step.devices / step.stages
    documents = sum(len(group.documents) for group in step.groups)
    waits = f"Devices wait {duration(waiting)} on average." if waiting else "No device waits."
    return (
        f"{count(documents)} documents in {duration(step.step_s)}, predicted: "
        f"{ratio(step.over_balance)} times the time at perfect balance. {waits} "
        f"The fullest device holds {ratio(step.max_tokens)} times "
        "the mean number of tokens."
    )


def documents_text(bar: StepBar) -> str:
    """Name the documents of a bar, the longest first."""
    named = sorted(
        ((n, d, g.width) for g in bar.groups for d, n in zip(g.documents, g.tokens, strict=True)),
        reverse=True,
    )
    texts = [
        f"document {d}: {count(n)} tokens on {counted(w, 'device')}"
        for n, d, w in named[:MOST_NAMED]
    ]
    more = len(named) - MOST_NAMED
    return "<br>".join([*texts, *([f"and {count(more)} more"] if more > 0 else [])] or ["nothing"])


def step_figure(bars: list[StepBar]) -> go.Figure:
    """Draw one bar for each run of devices and micro-batch."""
    labels = [f"{bar.micro_batch} · {bar.devices}" for bar in bars]
    texts = [
        f"<b>devices {bar.devices}</b>, waiting {duration(bar.waiting_s)}<br>{documents_text(bar)}"
        for bar in bars
    ]
    # Three traces, one for each part: Plotly stacks the bars of one label.
    figure = go.Figure()
    for (name, colour), part in zip(PARTS, ("linear_s", "attention_s", "waiting_s"), strict=True):
        figure.add_bar(
            x=[getattr(bar, part) for bar in bars], y=labels, orientation="h", name=name,
            marker={"color": colour, "line": {"width": 0}}, customdata=texts,
            hovertemplate="%{customdata}<br>" + name + " %{x:.3s}s<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, barmode="stack", height=90 + 20 * max(5, len(bars)),
        margin={"l": 80, "r": 10, "t": 30, "b": 40},
        legend={"orientation": "h", "traceorder": "normal", "y": 1, "yanchor": "bottom"},
        xaxis={"title": "seconds", "showgrid": True, "gridcolor": NEUTRAL},
        yaxis={"title": "micro-batch · devices", "autorange": "reversed", "showgrid": False},
    )  # fmt: skip
    return figure


def _stragglers(bars: list[StepBar]) -> Component:
    # One unit for the whole column, so that micro-batches compare.
    rows, text = [], alike((bar.busy_s for bar in bars), duration)
    for micro_batch in sorted({bar.micro_batch for bar in bars}):
        own = [bar for bar in bars if bar.micro_batch == micro_batch]
        slowest = max(own, key=lambda bar: bar.busy_s)
        waiting = sum(b.waiting_s * b.width for b in own) / sum(b.width for b in own)
        numbers = (str(micro_batch), slowest.devices, text(slowest.busy_s), text(waiting))
        named = documents_text(slowest).replace("<br>", "; ")
        rows.append(html.Tr([*number_cells(numbers), html.Td(named, className="dcp-wraps")]))
    names = ("Micro-batch", "Slowest devices", "Busy", "Mean wait", "Documents")
    return scrolling(table(headings(names, range(4)), rows))
