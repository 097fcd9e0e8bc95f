"""Tables that the URL of a page searches, sorts and turns over."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from dcp_dashboard.pages.layout import attributes

MAX_SEARCH = 100


@dataclass(frozen=True, slots=True)
class Query:
    """Search, order and page of a table.

    Attributes:
        search: words, empty for all.
        sort: name of a column, empty for the table's own order.
        is_descending: whether the largest come first.
        page: from 0.
        pick: key of a plan that waits for another one to be compared with.
    """

    search: str = ""
    sort: str = ""
    is_descending: bool = False
    page: int = 0
    pick: str = ""

    def url(
        self,
        *,
        sort: str | None = None,
        desc: bool | None = None,
        page: int | None = None,
        pick: str | None = None,
    ) -> str:
        """Write the query of a link with some of it changed.

        >>> Query(search="a b").url(sort="tokens", desc=True)
        '?q=a+b&sort=tokens&desc=1'
        """
        values = (
            ("q", self.search),
            ("sort", self.sort if sort is None else sort),
            ("desc", "1" if (self.is_descending if desc is None else desc) else ""),
            ("page", str(self.page if page is None else page)),
            ("pick", self.pick if pick is None else pick),
        )
        text = urlencode([(name, value) for name, value in values if value and value != "0"])
        return f"?{text}" if text else ""


def read_query(text: str) -> Query:
    """Read the query of a URL; whatever is wrong counts as left out.

    >>> read_query("?q=x&sort=tokens&desc=1&page=-3")
    Query(search='x', sort='tokens', is_descending=True, page=0, pick='')
    """
    try:
        asked = parse_qs(text.removeprefix("?"), max_num_fields=50)
    except ValueError:
        return Query()
    page = asked.get("page", ["0"])[0]
    return Query(
        search=asked.get("q", [""])[0][:MAX_SEARCH],
        sort=asked.get("sort", [""])[0][:40],
        is_descending=asked.get("desc") == ["1"],
        pick=asked.get("pick", [""])[0][:16],
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 0,
    )


def search_box(asked: Query, label: str) -> Component:
    """Build a field whose text goes into the URL; `assets/search.js` puts it there."""
    box: Component = dmc.TextInput(
        id="search", value=asked.search, placeholder="Search", size="xs",
        className="dcp-search", **attributes(aria_label=label),
    )  # fmt: skip
    return box


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column.

    Attributes:
        name: of the column in the URL.
        text: shown.
        meaning: shown when the mouse rests on it.
        is_number: whether the column holds numbers.
    """

    name: str
    text: str
    meaning: str
    is_number: bool = True


def sortable_head(heading: Heading, asked: Query, address: str, default: str) -> Component:
    """Build a heading; a click sorts by its column, another click the other way round.

    Args:
        heading: of the column.
        asked: present order of the table.
        address: path of the page.
        default: name of the column that sorts the table at first, rising; others begin falling.
    """
    is_sorted, is_descending = (asked.sort or default) == heading.name, asked.is_descending
    descends = not is_descending if is_sorted else heading.name != default
    arrow = ("▾" if is_descending else "▴") if is_sorted else ""
    state = ("descending" if is_descending else "ascending") if is_sorted else "none"
    link = html.A(
        [heading.text, html.Span(arrow, className="dcp-arrow")],
        href=address + asked.url(sort=heading.name, desc=descends, page=0),
        title=heading.meaning,
        **attributes(data_plain="link"),
    )
    return html.Th(
        link,
        scope="col",
        className="dcp-number" if heading.is_number else "",
        **attributes(aria_sort=state),
    )
