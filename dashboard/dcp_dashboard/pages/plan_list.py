"""The page `/`: every plan and data set of the served folder, one line each, as the URL says."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.editing.specs import EXAMPLES
from dcp_dashboard.facts import quantities
from dcp_dashboard.library.plans import PlanLibrary, PlanRow, ReportRow
from dcp_dashboard.library.summary import PlanSummary
from dcp_dashboard.pages.layout import attributes
from dcp_dashboard.pages.plan_frame import run_badge
from dcp_dashboard.pages.tables import Heading, Query, read_query, search_box, sortable_head
from dcp_planner import Source

TEXTS = ("partitioner",)
"""Columns of texts; the others hold numbers."""

REPORT_HEADS = ("Data set", "Batches", "Tokens, median", "Speed-up, median", "Against", "State")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of numbers: its name in the URL, heading, what it means, value and text."""

    name: str
    heading: str
    meaning: str
    value: Callable[[PlanSummary], float | str]
    text: Callable[[PlanSummary], str]


def seconds(summary: PlanSummary, source: Source) -> str:
    """Write the length of a trace, or a dash when there is none."""
    return quantities.duration(summary.seconds[source]) if source in summary.seconds else "-"


COLUMNS = (
    Column("tokens", "Tokens", "Tokens of the packed batch", lambda s: s.metrics.tokens,
           lambda s: quantities.count(s.metrics.tokens)),
    Column("devices", "Devices", "Devices of the cluster", lambda s: s.num_devices,
           lambda s: quantities.count(s.num_devices)),
    Column("partitioner", "Placed by", "Who placed blocks and tiles",
           lambda s: s.metrics.partitioner, lambda s: s.metrics.partitioner),
    Column("pairs", "Pairs", "Visible (query, key) pairs", lambda s: s.metrics.pairs,
           lambda s: quantities.count(s.metrics.pairs)),
    Column("density", "Density", "Pairs over those of a causal mask on each sequence",
           lambda s: s.metrics.density, lambda s: quantities.percent(s.metrics.density)),
    Column("compute", "Compute max/mean", "Computed pairs, max over mean of the devices",
           lambda s: s.metrics.compute_imbalance,
           lambda s: quantities.ratio(s.metrics.compute_imbalance)),
    Column("balance", "Token max/mean", "Owned tokens, max over mean of the devices",
           lambda s: s.metrics.token_imbalance,
           lambda s: quantities.ratio(s.metrics.token_imbalance)),
    Column("bytes", "Moved", "Bytes between devices, forward and backward", lambda s: s.total_bytes,
           lambda s: quantities.size(s.total_bytes)),
    Column("predicted", "Predicted", "Simulated seconds, forward and backward",
           lambda s: s.seconds.get("simulated", 0.0), lambda s: seconds(s, "simulated")),
    Column("measured", "Measured", "Measured seconds, forward and backward",
           lambda s: s.seconds.get("measured", 0.0), lambda s: seconds(s, "measured")),
)  # fmt: skip


def plan_list_page(library: PlanLibrary, query: str) -> Component:
    """Build the list of plans and data sets; `query` is the URL's, see `tables.read_query`."""
    rows, is_complete = library.rows()
    session, reports = library.session_rows(), library.reports()
    if not (rows or session or reports):
        return empty_page(library.root)
    asked = read_query(query)
    found = [row for row in rows if matches(row, asked.search)]
    recent = [row for row in session if matches(row, asked.search)]
    sets = [row for row in reports if report_matches(row, asked.search)]
    parts: list[Component] = [_title(library.root, rows), _tools(asked, len(found), len(rows))]
    picked = next((row for row in (*session, *rows) if row.entry.key == asked.pick), None)
    if picked is not None:
        parts.append(_picked(picked, asked))
    if recent:
        note = "Opened or made on a page; kept until the server ends."
        table = _table(recent, asked, is_sorted=False)
        parts.append(_section("This session", table, note))
    if sets:
        parts.append(_section("Planned data sets", report_table(sets)))
    if found:
        ordered = sort_rows(found, asked.sort or "name", descending=asked.is_descending)
        table = html.Div(_table(ordered, asked), className="dcp-panel dcp-scroll", tabIndex=0)
        parts.append(table)
    elif not (recent or sets):
        parts.append(html.P("Nothing here matches the search.", className="dcp-message"))
    if not is_complete:
        parts.append(html.P("The folder holds more than is shown; serve a folder further down."))
    return html.Div(parts)


def matches(row: PlanRow, search: str) -> bool:
    """Return whether every word of a search is in a plan's mask, file, origin or placement."""
    summary = row.summary
    words = [row.entry.relative, row.error]
    if summary is not None:
        words += [summary.mask, summary.origin, summary.metrics.partitioner]
    text = " ".join(words).lower()
    return all(word in text for word in search.lower().split())


def _title(root: Path, rows: Sequence[PlanRow]) -> Component:
    caption = html.Span(_caption(root, rows), className="dcp-muted")
    return html.Div([html.H1("Plans"), caption], className="dcp-title")


def _tools(asked: Query, found: int, total: int) -> Component:
    parts = [search_box(asked, "Find plans by mask, file, origin or placement")]
    if asked.search:
        parts.append(html.Span(f"{found} of {total}", className="dcp-muted"))
    return html.Div([*parts, *open_button()], className="dcp-tools")


def open_button() -> tuple[Component, ...]:
    """Build the button that opens a file from this computer, and its status; `assets/open.js`."""
    return (
        html.Button("Open a file…", id="open-file", className="dcp-button", type="button"),
        html.Span("or drop a .dcpplan file here", id="open-status", className="dcp-muted",
                  role="status"),
    )  # fmt: skip


def _picked(row: PlanRow, asked: Query) -> Component:
    return html.Div(
        [
            html.Span(["Compare ", html.Strong(row.entry.relative), " with: choose another plan."]),
            html.A("Cancel", href="/" + asked.url(pick=""), **attributes(data_plain="link")),
        ],
        className="dcp-panel dcp-picked",
        role="status",
    )


def _section(title: str, table: Component, note: str = "") -> Component:
    heading = [html.H2(title), html.Span(note, className="dcp-muted")]
    return html.Section(
        [html.Div(heading, className="dcp-panel-head"), html.Div(table, className="dcp-scroll")],
        className="dcp-panel", **attributes(aria_label=title),
    )  # fmt: skip


def sort_rows(rows: Sequence[PlanRow], sort: str, *, descending: bool) -> list[PlanRow]:
    """Sort by a column's value, by path where equal; rows without numbers come last either way."""
    column = next((column for column in COLUMNS if column.name == sort), None)
    readable = [row for row in rows if row.summary is not None]
    broken = [row for row in rows if row.summary is None]
    readable.sort(key=lambda row: row.entry.relative)
    if column is not None:
        readable.sort(key=lambda row: column.value(_summary(row)), reverse=descending)
    elif descending:
        readable.reverse()
    return readable + sorted(broken, key=lambda row: row.entry.relative)


def empty_page(root: Path) -> Component:
    """Build the page of a folder without plans: examples, and commands to type."""
    steps = (
        ("Run the demonstration", f"dcpm demo --out {root}"),
        (
            "Plan a batch of your own",
            f"dcpm plan --help   # writes .dcpplan files, put them into {root}",
        ),
        ("Serve another folder", "dcpm dashboard FOLDER"),
    )
    examples = html.Button(
        "Plan three examples", id="make-examples", className="dcp-button dcp-primary",
        type="button", **attributes(data_examples=json.dumps(EXAMPLES)),
    )  # fmt: skip
    told = "Standard masks on 8 devices, planned now, in some seconds; nothing is written."
    return html.Div(
        [
            html.H1("No plans here yet"),
            html.P(["There is no ", html.Code(".dcpplan"), " file in ", html.Code(str(root)), "."]),
            html.Div(
                [examples, html.Span(told, id="examples-status", className="dcp-muted",
                                     role="status")],
                className="dcp-tools",
            ),
            html.Div(open_button(), className="dcp-tools"),
            html.Dl(
                [
                    part
                    for title, command in steps
                    for part in (html.Dt(title), html.Dd(html.Pre(command)))
                ]
            ),
            html.P("Reload this page afterwards.", className="dcp-muted"),
        ],
        className="dcp-message dcp-empty",
    )  # fmt: skip


def _caption(root: Path, rows: Sequence[PlanRow]) -> str:
    broken = sum(row.summary is None for row in rows)
    text = f"{len(rows)} in {root}"
    return f"{text}, {broken} of them unreadable" if broken else text


def _table(rows: Sequence[PlanRow], asked: Query, *, is_sorted: bool = True) -> Component:
    heads: list[Component] = [html.Th("Mask", className="dcp-thumb-head", scope="col")]
    shown = [Heading("name", "Plan", "Mask and file", is_number=False)]
    shown += [Heading(c.name, c.heading, c.meaning, c.name not in TEXTS) for c in COLUMNS]
    compare = html.Th("Compare", scope="col", title="Choose two plans to compare them")
    for heading in shown:
        if is_sorted:
            heads.append(sortable_head(heading, asked, "/", "name"))
        else:
            kind = "dcp-number" if heading.is_number else ""
            text, meaning = heading.text, heading.meaning
            heads.append(html.Th(text, scope="col", title=meaning, className=kind))
        if heading.name == "name":
            heads.append(compare)
    heads.append(html.Th("Run", scope="col", title="Whether a run was recorded and verified"))
    return html.Table(
        [html.Thead(html.Tr(heads)), html.Tbody([_row(row, asked) for row in rows])],
        className="dcp-table dcp-plans",
    )


def _row(row: PlanRow, asked: Query) -> Component:
    summary, href = row.summary, f"/plan/{row.entry.key}"
    if summary is None:
        name = [html.Span(row.entry.relative, className="dcp-file")]
        text = html.Pre(row.error, className="dcp-row-error")
        cells = [html.Td(className="dcp-thumb"), html.Td(dcc.Link(name, href=href)),
                 html.Td(text, colSpan=len(COLUMNS) + 2)]  # fmt: skip
        return html.Tr(cells, className="dcp-broken")
    picture = html.Img(src=f"/api{href}/thumbnail.png", alt="", width=40, height=40)
    name = [html.Span(summary.mask, className="dcp-mask-name"),
            html.Span(row.entry.relative, className="dcp-file")]  # fmt: skip
    cells = [
        html.Td(picture, className="dcp-thumb"),
        html.Td(dcc.Link(name, href=href)),
        html.Td(_compare_link(row, asked)),
    ]
    cells += [
        html.Td(column.text(summary), className="" if column.name in TEXTS else "dcp-number")
        for column in COLUMNS
    ]
    cells.append(html.Td(run_badge(summary, is_verified=row.is_verified)))
    return html.Tr(cells)


def _compare_link(row: PlanRow, asked: Query) -> Component:
    key, name = row.entry.key, row.entry.relative
    if asked.pick == key:
        return html.Span("chosen", className="dcp-muted")
    if asked.pick:
        href, label, claim = f"/compare?a={asked.pick}&b={key}", "with this", f"with {name}"
    else:
        href, label, claim = "/" + asked.url(pick=key), "choose", f"Compare {name}"
    link = html.A(label, href=href, **attributes(data_plain="link", aria_label=claim))
    if asked.pick or row.summary is None or "measured" not in row.summary.seconds:
        return link
    own = html.A(
        "its run", href=f"/compare?a={key}&b={key}",
        **attributes(data_plain="link", aria_label=f"Compare the prediction and the run of {name}"),
    )  # fmt: skip
    return html.Div([link, own], className="dcp-compare-links")


def _summary(row: PlanRow) -> PlanSummary:
    assert row.summary is not None, "broken rows are sorted apart"
    return row.summary


def report_matches(row: ReportRow, search: str) -> bool:
    """Return whether every word of a search is in a report's file, data set or spec."""
    report = row.report
    texts = [row.entry.relative, row.error]
    if report is not None:
        texts += [report.dataset, report.spec, report.mask]
    text = " ".join(texts).lower()
    return all(word in text for word in search.lower().split())


def report_table(rows: Sequence[ReportRow]) -> Component:
    """Build a table with a line per report; an unreadable one shows the reason."""
    heads = [
        html.Th(text, scope="col", className="dcp-number" if 0 < at < 4 else "")
        for at, text in enumerate(REPORT_HEADS)
    ]
    return html.Table(
        [html.Thead(html.Tr(heads)), html.Tbody([_report_row(row) for row in rows])],
        className="dcp-table dcp-reports",
    )


def _report_row(row: ReportRow) -> Component:
    href, report = f"/dataset/{row.entry.key}", row.report
    if report is None:
        name = dcc.Link(html.Span(row.entry.relative, className="dcp-file"), href=href)
        text = html.Pre(row.error, className="dcp-row-error")
        cells = [html.Td(name), html.Td(text, colSpan=len(REPORT_HEADS) - 1)]
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
