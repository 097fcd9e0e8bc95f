"""The page `/`: every plan and data set of the served folder, one line each."""

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.gain import GAIN, GAIN_IN_CAP
from dcp_dashboard.facts.quantities import times
from dcp_dashboard.library.folder import RUN_SUFFIX, STEP_SUFFIX, PlanEntry
from dcp_dashboard.library.index import PlanLine, PlanRow, read_run
from dcp_dashboard.library.plans import PlanLibrary, ReportRow
from dcp_dashboard.pages import tables
from dcp_dashboard.pages.layout import (
    attributes,
    headings,
    number_cells,
    panel,
    table,
    terms,
)
from dcp_dashboard.pages.plan_views import run_badge
from dcp_dashboard.pages.tables import Column, Query

PACKED = """# Packed documents: causal, and nothing crosses a document's border.
segment doc = branch [doc_lens]*
mask document = causal and same(doc)
"""

LAMBDA = """# The first tokens stay visible beside a sliding window (StreamingLLM).
mask streaming(sink: tokens = 64, window: tokens = 4k) = causal and (k < sink or q - k < window)
"""

# Tokens of each document, 32,768 in all; three have more than the 4,096 that are a device's share.
DOCUMENTS = (9000, 400, 5200, 1300, 700, 11000, 2600, 2568)

EXAMPLES: tuple[dict[str, Any], ...] = tuple(  # Any: JSON values
    {
        "label": f"example: {name}",
        "text": text,
        "mask": mask,
        "sample": json.dumps(sample),
        "nodes": 2,
        "devices_per_node": 4,
        "method": method,
        "budget": "fast",
    }
    for name, text, mask, sample, method in (
        ("documents", PACKED, "document", {"doc_lens": DOCUMENTS}, "portfolio"),
        ("documents, zigzag", PACKED, "document", {"doc_lens": DOCUMENTS}, "static:zigzag"),
        ("streaming", LAMBDA, "streaming", {"len": 32_768}, "portfolio"),
    )
)
"""Bodies of requests, each with the `label` that the list shows."""


COLUMNS: tuple[Column[PlanLine], ...] = (
    Column("tokens", "Tokens", "Tokens of the packed batch", lambda s: s.tokens,
           quantities.count),
    Column("devices", "Devices", "Devices of the cluster", lambda s: s.devices,
           quantities.count),
    Column("pairs", "Pairs", "Visible (query, key) pairs", lambda s: s.pairs,
           quantities.count),
    Column("density", "Density", "Visible pairs relative to a causal mask on each sequence",
           lambda s: s.density, quantities.percent),
    Column("compute", "Compute max/mean", "Pairs of the busiest device over the mean",
           lambda s: s.compute_imbalance, quantities.ratio),
    Column("balance", "Token max/mean", "Tokens of the largest owner over the mean",
           lambda s: s.token_imbalance, quantities.ratio),
    Column("bytes", "Bytes moved", "Bytes between devices, forward and backward",
           lambda s: s.total_bytes, quantities.size),
    Column("predicted", "Predicted", "Simulated time, forward and backward, if the file holds it",
           lambda s: s.seconds.get("simulated"), quantities.duration),
    Column("gain", "Gain over static", GAIN, lambda s: s.gains.get("of_all"), times),
    Column("gain_in_cap", "Gain within the cap", GAIN_IN_CAP,
           lambda s: s.gains.get("within_token_cap"), times),
    Column("measured", "Measured", "Measured time, forward and backward",
           lambda s: s.seconds.get("measured"), quantities.duration),
)  # fmt: skip

NAME: Column[PlanLine] = Column("name", "Plan", "Mask and file", lambda s: s.mask, kind="")

RUN_HEADS = ("Run", "Newest step", "Step time, median of the newest", "Attention, slowest rank")
REPORT_HEADS = ("Data set", "Batches", "Tokens, median", "Gain over static, median",
                "Gain within the cap, median", "State")  # fmt: skip


def plan_list_page(library: PlanLibrary, query: str) -> Component:
    """Build the list of plans and data sets; `query` is the URL's: see `tables.read_query`."""
    rows, session, reports = library.index.rows(), library.session_rows(), library.reports()
    steps, runs = library.folder.files(STEP_SUFFIX), library.folder.files(RUN_SUFFIX)
    if not (rows or session or reports or steps or runs):
        return empty_page(library.root)
    asked = tables.read_query(query)
    found = [row for row in rows if matches(row, asked.q)]
    recent = [row for row in session if matches(row, asked.q)]
    sets = [row for row in reports if matches(row, asked.q)]
    count = f"{len(found)} of {len(rows)}" if asked.q else ""
    parts: list[Component] = [_title(library.root, rows), _tools(asked, count)]
    if recent:
        note = "Plans opened or made in the browser. The server keeps them until it stops."
        heads: list[Component] = [
            html.Th(column.heading, scope="col", title=column.meaning, className=column.kind)
            for column in (NAME, *COLUMNS)
        ]
        parts.append(_section("This session", _table(recent, heads), note))
    if sets:
        lines = [_report_row(row) for row in sets]
        shown = table(headings(REPORT_HEADS, (1, 2, 3, 4)), lines, "dcp-reports")
        parts.append(_section("Planned data sets", shown))
    named = False
    for title, page, entries in (("Runs", "run", runs), ("Planned steps", "step", steps)):
        listed = [entry for entry in entries if tables.has_words(asked.q, (entry.relative,))]
        if listed:
            named = True
            parts.append(_section(title, _run_table(listed) if page == "run" else _links(listed)))
    if found:
        heads = tables.sortable_heads((NAME, *COLUMNS), asked, "/", "name")
        on_page, turn = tables.page_of(sort_rows(found, asked), asked, "/")
        # Rows that are shown are read now, however long the thread behind the index takes.
        plans = _table(library.index.read(on_page), heads)
        parts += [html.Div(plans, className="dcp-panel dcp-scroll", tabIndex=0), *turn]
    elif not (recent or sets or named):
        parts.append(html.P("No entry matches the search.", className="dcp-message"))
    if library.folder.bounds():
        parts.append(html.P(f"The folder holds more{library.folder.bounds()}."))
    return html.Div(parts)


def _links(entries: Sequence[PlanEntry]) -> Component:
    return html.Ul([html.Li(dcc.Link(e.relative, href=f"/step/{e.key}")) for e in entries])


def _run_table(entries: Sequence[PlanEntry]) -> Component:
    """Build a line for each run, with the time of its newest steps."""
    rows, q = [], quantities
    for entry in entries:
        run = read_run(entry.path)
        texts = (
            "-" if run.last is None else q.count(run.last),
            *("-" if s is None else q.duration(s) for s in (run.step_s, run.attention_s)),
        )
        name = html.Th(dcc.Link(entry.relative, href=f"/run/{entry.key}"), scope="row")
        rows.append(html.Tr([name, *number_cells(texts)]))
    return table(headings(RUN_HEADS, (1, 2, 3)), rows, "dcp-runs")


def matches(row: PlanRow | ReportRow, search: str) -> bool:
    """Return whether every word of a search is in the file's name or in the texts of its row."""
    names = ("mask", "origin", "partitioner", "dataset", "spec")  # a row has some of them, or none
    texts = (getattr(row.value, name, "") for name in names)
    return tables.has_words(search, (row.entry.relative, row.error, *texts))


def sort_rows(rows: Sequence[PlanRow], asked: Query) -> list[PlanRow]:
    """Sort by the column that the URL names; rows without a value come last in either direction.

    Equal rows are in the order of their paths. If the URL names no column, all rows are, and files
    that cannot be read come last.
    """
    column = next((column for column in COLUMNS if column.name == asked.sort), None)

    # By path, a row that nobody has read yet keeps its place; by a figure, it comes last.
    def value(row: PlanRow) -> object:
        if column is None:
            return None if row.error else row.entry.relative
        return None if row.value is None else column.value(row.value)

    return tables.sort_items(rows, value, lambda row: row.entry.relative, desc=asked.desc)


def _title(root: Path, rows: Sequence[PlanRow]) -> Component:
    broken, unread = sum(bool(row.error) for row in rows), sum(not row.is_read for row in rows)
    text = f"{quantities.count(len(rows))} in {root}"
    text += f", {quantities.count(broken)} of them unreadable" if broken else ""
    text += f"; reload: {quantities.count(unread)} are still being read" if unread else ""
    return html.Div(
        [html.H1("Plans"), html.Span(text, className="dcp-muted")], className="dcp-title"
    )


def _tools(asked: Query, count: str) -> Component:
    search = tables.search_box(asked, "Find plans by mask, file, origin or placement")
    told = [html.Span(count, className="dcp-muted")] if count else []
    return html.Div([search, *told, *_open_button()], className="dcp-tools")


def _open_button() -> tuple[Component, ...]:
    """Build the button that opens a file from this computer, and its status; `page/open.ts`."""
    return (
        html.Button("Open a file…", id="open-file", className="dcp-button", type="button"),
        html.Span("or drop a .dcpplan file here", id="open-status", className="dcp-muted",
                  role="status"),
    )  # fmt: skip


def _section(title: str, content: Component, note: str = "") -> Component:
    beside = html.Span(note, className="dcp-muted")
    return panel(title, [html.Div(content, className="dcp-scroll")], tools=beside)


def empty_page(root: Path) -> Component:
    """Build the page of a folder without plans: examples, and commands to type."""
    examples = html.Button(
        "Plan three examples", id="make-examples", className="dcp-button dcp-primary",
        type="button", **attributes(data_examples=json.dumps(EXAMPLES)),
    )  # fmt: skip
    told = "Plans standard masks for 8 devices in a few seconds. No file is written."
    status = html.Span(told, id="examples-status", className="dcp-muted", role="status")
    own = f"dcpm plan --help   # write the .dcpplan files into {root}"
    steps = (
        ("Run the demonstration", f"dcpm demo --out {root}"),
        ("Plan a batch of your own", own),
        ("Serve another folder", "dcpm dashboard FOLDER"),
    )
    return html.Div(
        [
            html.H1("No plans here yet"),
            html.P(["There is no ", html.Code(".dcpplan"), " file in ", html.Code(str(root)), "."]),
            html.Div([examples, status], className="dcp-tools"),
            html.Div(_open_button(), className="dcp-tools"),
            terms(((title, html.Pre(command)) for title, command in steps), ""),
            html.P("Reload this page afterwards.", className="dcp-muted"),
        ],
        className="dcp-message dcp-empty",
    )


def _table(rows: Sequence[PlanRow], heads: Sequence[Component]) -> Component:
    name, *others = heads
    picture = html.Th("Mask", className="dcp-thumb-head", scope="col")
    run = html.Th("Run", scope="col", title="Whether the file holds a recorded run")
    # Cells are made column by column, for one unit each; rows that cannot be read have none.
    known = [row.value for row in rows if row.value is not None]
    cells = iter(tables.cells_of(COLUMNS, known))
    body = [_row(row, next(cells) if row.value else []) for row in rows]
    return table([picture, name, *others, run], body, "dcp-plans")


def _name(entry: PlanEntry, href: str, title: str) -> Component:
    """Build the cell with a title, the file below it, and a link to its page."""
    above = [html.Span(title, className="dcp-mask-name")] if title else []
    file = html.Span(entry.relative, className="dcp-file")
    return html.Td(dcc.Link([*above, file], href=href))


def _broken_row(entry: PlanEntry, href: str, error: str, columns: int) -> list[Component]:
    reason = html.Td(html.Pre(error, className="dcp-row-error"), colSpan=columns)
    return [_name(entry, href, ""), reason]


def _row(row: PlanRow, figures: Sequence[Component]) -> Component:
    summary, href = row.value, f"/plan/{row.entry.key}"
    if summary is None:
        cells = _broken_row(row.entry, href, row.error, len(COLUMNS) + 1)
        return html.Tr([html.Td(className="dcp-thumb"), *cells], className="dcp-broken")
    # Without a text: the picture says nothing to a screen reader that the row does not.
    picture = html.Img(src=f"/api{href}/thumbnail.png", alt="", width=40, height=40)
    return html.Tr(
        [
            html.Td(picture, className="dcp-thumb"),
            _name(row.entry, href, summary.mask),
            *figures,
            html.Td(run_badge(summary.seconds)),
        ]
    )


def _report_row(row: ReportRow) -> Component:
    href, report = f"/dataset/{row.entry.key}", row.value
    if report is None:
        cells = _broken_row(row.entry, href, row.error, len(REPORT_HEADS) - 1)
        return html.Tr(cells, className="dcp-broken")
    title = PurePosixPath(report.dataset or report.spec or "samples").name
    state = "complete" if report.is_complete else "incomplete"
    q = quantities
    numbers = (
        q.count(len(report.batches)),
        *(
            text(float(np.median(values))) if len(values := report.column(name)) else "-"
            for name, text in (("tokens", q.count), ("of_all", times), ("within_token_cap", times))
        ),
    )
    return html.Tr(
        [
            _name(row.entry, href, title),
            *number_cells(numbers),
            html.Td(html.Span(state, className="dcp-badge dcp-badge-none")),
        ]
    )
