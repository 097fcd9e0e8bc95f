"""What the URL of a page with a table says: search, order and page of the table."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

import dash_mantine_components as dmc
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
        """Give the query of a link with some of it changed.

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
    """Give a field whose text goes into the URL; `assets/search.js` puts it there."""
    box: Component = dmc.TextInput(
        id="search", value=asked.search, placeholder="Search", size="xs",
        className="dcp-search", **attributes(aria_label=label),
    )  # fmt: skip
    return box
