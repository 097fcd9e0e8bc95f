"""The page `/`: every plan of the served folder, one line each, sorted as the URL says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard import quantities
from dcp_dashboard.library import PlanLibrary, PlanRow
from dcp_dashboard.shell import attributes
from dcp_dashboard.summary import PlanSummary
from dcp_planner import Source


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
    """Give the list of plans; `query` is the URL's, ``?sort=<column>&desc=1``."""
    rows, is_complete = library.rows()
    if not rows:
        return empty_page(library.root)
    asked = parse_qs(query.removeprefix("?"))
    sort, descending = asked.get("sort", ["name"])[0], asked.get("desc") == ["1"]
    ordered = sort_rows(rows, sort, descending=descending)
    parts: list[Component] = [
        html.Div(
            [
                html.H1("Plans"),
                html.Span(_caption(library.root, rows), className="dcp-muted"),
            ],
            className="dcp-title",
        ),
        html.Div(_table(ordered, sort, descending=descending), className="dcp-panel dcp-scroll"),
    ]
    if not is_complete:
        parts.append(html.P("The folder holds more than is shown; serve a folder further down."))
    return html.Div(parts)


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
    """Give the page of a folder without plans: what to type."""
    steps = (
        ("Run the demonstration", f"dcpm demo --out {root}"),
        (
            "Plan a batch of your own",
            f"dcpm plan --help   # writes .dcpplan files, put them into {root}",
        ),
        ("Serve another folder", "dcpm dashboard FOLDER"),
    )
    return html.Div(
        [
            html.H1("No plans here yet"),
            html.P(["There is no ", html.Code(".dcpplan"), " file in ", html.Code(str(root)), "."]),
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
    )


def _caption(root: Path, rows: Sequence[PlanRow]) -> str:
    broken = sum(row.summary is None for row in rows)
    text = f"{len(rows)} in {root}"
    return f"{text}, {broken} of them unreadable" if broken else text


def _table(rows: Sequence[PlanRow], sort: str, *, descending: bool) -> Component:
    heads: list[Component] = [html.Th("Mask", className="dcp-thumb-head", scope="col")]
    heads.append(_head("name", "Plan", "Mask and file", sort, descending=descending))
    heads += [_head(c.name, c.heading, c.meaning, sort, descending=descending) for c in COLUMNS]
    heads.append(html.Th("Run", scope="col", title="Whether a run was recorded and verified"))
    return html.Table(
        [html.Thead(html.Tr(heads)), html.Tbody([_row(row) for row in rows])],
        className="dcp-table dcp-plans",
    )


def _head(name: str, heading: str, meaning: str, sort: str, *, descending: bool) -> Component:
    is_sorted = sort == name
    href = f"/?sort={name}" + (
        "&desc=1" if not (is_sorted and descending) and name != "name" else ""
    )
    if name == "name" and is_sorted and not descending:
        href += "&desc=1"
    arrow = ("▾" if descending else "▴") if is_sorted else ""
    state = ("descending" if descending else "ascending") if is_sorted else "none"
    return html.Th(
        dcc.Link([heading, html.Span(arrow, className="dcp-arrow")], href=href, title=meaning),
        scope="col",
        className="" if name in ("name", "partitioner") else "dcp-number",
        **attributes(aria_sort=state),
    )


def _row(row: PlanRow) -> Component:
    summary, href = row.summary, f"/plan/{row.entry.key}"
    if summary is None:
        name = [html.Span(row.entry.relative, className="dcp-file")]
        text = html.Pre(row.error, className="dcp-row-error")
        cells = [html.Td(className="dcp-thumb"), html.Td(dcc.Link(name, href=href)),
                 html.Td(text, colSpan=len(COLUMNS) + 1)]  # fmt: skip
        return html.Tr(cells, className="dcp-broken")
    picture = html.Img(src=f"/api{href}/thumbnail.png", alt="", width=40, height=40)
    name = [html.Span(summary.mask, className="dcp-mask-name"),
            html.Span(row.entry.relative, className="dcp-file")]  # fmt: skip
    cells = [html.Td(picture, className="dcp-thumb"), html.Td(dcc.Link(name, href=href))]
    cells += [
        html.Td(
            column.text(summary), className="" if column.name == "partitioner" else "dcp-number"
        )
        for column in COLUMNS
    ]
    cells.append(html.Td(run_badge(summary, is_verified=row.is_verified)))
    return html.Tr(cells)


def run_badge(summary: PlanSummary, *, is_verified: bool | None) -> Component:
    """Give a badge that says whether this plan was run, and whether the run was verified."""
    unverified = ("run" if "measured" in summary.seconds else "not run", "none")
    verdicts = {True: ("✓ verified", "good"), False: ("✗ failed", "bad"), None: unverified}
    text, kind = verdicts[is_verified]
    return html.Span(text, className=f"dcp-badge dcp-badge-{kind}")


def _summary(row: PlanRow) -> PlanSummary:
    assert row.summary is not None, "broken rows are sorted apart"
    return row.summary
