"""Tables whose search, sort order and page number stand in the URL."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs, urlencode

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from dcp_dashboard.pages.layout import attributes, plain_link

MAX_SEARCH = 100
PAGE_ROWS = 50

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Query:
    """Search, order and page of a table, as its URL holds them."""

    q: str = ""
    sort: str = ""  # name of a column, empty for the table's own order
    desc: bool = False
    page: int = 0

    def url(self, **changed: Any) -> str:  # Any: values of the attributes
        """Return the query of a link with some attributes changed."""
        asked = asdict(replace(self, **changed))
        # Defaults are all false: the URL names only what differs from them.
        text = urlencode({n: 1 if v is True else v for n, v in asked.items() if v})
        return f"?{text}" if text else ""


def read_query(text: str) -> Query:
    """Read the query of a URL; wrong values count as left out."""
    try:
        asked = parse_qs(text.removeprefix("?"), max_num_fields=50)
    except ValueError:
        return Query()
    first = {name: values[0] for name, values in asked.items()}
    page = first.get("page", "0")
    # Texts are cut: each link of the table carries them on.
    return Query(
        q=first.get("q", "")[:MAX_SEARCH],
        sort=first.get("sort", "")[:40],
        desc=asked.get("desc") == ["1"],
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 0,
    )


def has_words(search: str, texts: Iterable[str]) -> bool:
    """Return whether every word of a search is in the texts, in upper or lower case."""
    text = " ".join(texts).lower()
    return all(word in text for word in search.lower().split())


def search_box(asked: Query, label: str) -> Component:
    """Build a field whose text goes into the URL; `page/search.ts` puts it there."""
    box: Component = dmc.TextInput(
        id="search", value=asked.q, placeholder="Search", size="xs",
        className="dcp-search", **attributes(aria_label=label),
    )  # fmt: skip
    return box


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a table; its meaning shows when the mouse rests on the heading."""

    name: str  # in the URL
    heading: str
    meaning: str
    value: Callable[[Item], Any]  # Any: a number or a text; None if the item has none
    text: Callable[[Any], str] = str
    kind: str = "dcp-number"

    def cells(self, items: Iterable[Item]) -> list[Component]:
        """Build the cells of some items, each number in its own unit: rows are no series."""
        values = [self.value(item) for item in items]
        return [
            html.Td("-" if value is None else self.text(value), className=self.kind)
            for value in values
        ]


def cells_of(columns: Sequence[Column[Item]], items: Sequence[Item]) -> list[list[Component]]:
    """Build the cells of every item, in the order of the columns."""
    return [list(row) for row in zip(*(column.cells(items) for column in columns), strict=True)]


def sort_items(
    items: Iterable[Item],
    value: Callable[[Item], Any],  # Any: a number or a text
    tie: Callable[[Item], Any],
    *,
    desc: bool,
) -> list[Item]:
    """Sort by a value, by `tie` where equal; items without a value come last either way."""
    # Sorting is stable, falling order included: by the tie first, then by the value.
    ordered = sorted(items, key=tie)
    known = [item for item in ordered if value(item) is not None]
    known.sort(key=value, reverse=desc)
    return known + [item for item in ordered if value(item) is None]


def sortable_heads(
    columns: Sequence[Column[Any]], asked: Query, address: str, default: str
) -> list[Component]:
    """Build headings; a click sorts by the column, a second click in the other direction.

    `default` names the column that sorts the table at first, rising. Other columns begin falling:
    people look for the largest.
    """
    heads: list[Component] = []
    for column in columns:
        state, arrow, descends = "none", "", column.name != default
        if column.name == (asked.sort or default):
            state, arrow = ("descending", "▾") if asked.desc else ("ascending", "▴")
            descends = not asked.desc
        link = plain_link(
            [column.heading, html.Span(arrow, className="dcp-arrow")],
            address + asked.url(sort=column.name, desc=descends, page=0),
            title=column.meaning,
        )
        heads.append(
            html.Th(link, scope="col", className=column.kind, **attributes(aria_sort=state))
        )
    return heads


def page_of(
    items: Sequence[Item], asked: Query, address: str
) -> tuple[Sequence[Item], list[Component]]:
    """Return the items of the asked page, and the links to its neighbours if there are any."""
    last = max(0, (len(items) - 1) // PAGE_ROWS)
    page = min(asked.page, last)  # a search may leave fewer pages than the URL asks for
    shown = items[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]

    def link(label: str, to: int) -> Component:
        if not 0 <= to <= last:
            return html.Span(label, className="dcp-muted")
        return plain_link(label, address + asked.url(page=to))

    text = html.Span(f"Page {page + 1} of {last + 1}")
    turn = html.Nav(
        [link("Previous", page - 1), text, link("Next", page + 1)],
        className="dcp-pages", **attributes(aria_label="Pages of the table"),
    )  # fmt: skip
    return shown, [turn] if last else []
