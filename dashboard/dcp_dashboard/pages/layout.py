"""The layout of every page: its frame, and the components that pages share, also as HTML."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.facts.text import EVENT_WORDS
from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.plans import version_of

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

# Dash's own page has neither a language nor a hint that it knows dark colours.
INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <title>{%title%}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/favicon.svg">
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>
      {%config%}
      {%scripts%}
      {%renderer%}
    </footer>
  </body>
</html>
"""

THEME: dict[str, Any] = {  # Any: texts and numbers
    "fontFamily": FONT,
    "fontFamilyMonospace": "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, monospace",
    "primaryColor": "blue",
    "defaultRadius": 4,
    "focusRing": "auto",
}

NAVIGATION = (
    ("plans", "Plans", "/"),
    ("compare", "Compare", "/compare"),
    ("edit", "Edit", "/edit"),
    ("help", "Help", "/help"),
)
"""Links of the header: name, label, path."""


def shell(keyboard: Component) -> dmc.MantineProvider:
    """Build the layout of the whole application; pages appear in ``#page``."""
    header = html.Header(
        [
            dcc.Link(
                [html.Span(className="dcp-mark", **attributes(aria_hidden="true")), "dcp-dsl"],
                href="/",
                className="dcp-home",
            ),
            html.Nav(
                [plain_link(label, href, data_page=name) for name, label, href in NAVIGATION],
                className="dcp-nav",
                **attributes(aria_label="Pages"),
            ),
            dmc.ColorSchemeToggle(
                lightIcon="☀", darkIcon="☾", id="colour-scheme", variant="subtle", size="md",
                className="dcp-scheme", **attributes(aria_label="Switch between light and dark"),
            ),
        ],
        className="dcp-header",
    )  # fmt: skip
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh=False),
            html.A("Skip to content", href="#page", className="dcp-skip"),
            header,
            keyboard,
            # The link above moves the keyboard's focus here, which needs a tab index.
            html.Main(id="page", className="dcp-page", tabIndex=-1),
        ],
        theme=THEME,
        defaultColorScheme="auto",
    )


def attributes(**values: str) -> dict[str, Any]:  # Any: Dash's keywords differ in type
    """Return `data-` and `aria-` attributes as keywords for a Dash component."""
    return {name.replace("_", "-"): value for name, value in values.items()}


def plain_link(text: Any, href: str, **values: str) -> Component:
    """Build a link to another page of the dashboard; `values` as `attributes` takes them."""
    # `page/navigation.ts` follows it without loading the application again.
    return html.A(text, href=href, **attributes(data_plain="link", **values))


def hint(text: Any) -> Component:  # Any: children as Dash takes them
    """Build a small grey paragraph below something that it explains."""
    return html.P(text, className="dcp-hint")


def folded_rule(rule: str) -> Component:
    """Build what unfolds how a sentence beside it was found."""
    return html.Details([html.Summary("how?"), html.Span(rule)], className="dcp-rule")


def canvas(kind: str, url: str, label: str, *, name: str = "", **values: str) -> Component:
    """Build the place of a canvas that a script fills with the data of a URL.

    `kind` is its class, such as ``"dcp-timeline"``: `web/src/main.ts` knows them. `label` is for
    people who cannot see it, empty if the script writes it.
    """
    if label:
        values["data_label"] = label
    if name:
        values["id"] = name
    return html.Div(className=kind, **attributes(data_url=url, **values))


def table(heads: Sequence[Any], rows: Sequence[Component], kind: str = "") -> Component:
    """Build a table from the cells of its heading and the rows of its body."""
    return html.Table(
        [html.Thead(html.Tr(heads)), html.Tbody(rows)], className=f"dcp-table {kind}".strip()
    )


def headings(texts: Iterable[str], numbers: Sequence[int]) -> list[Component]:
    """Build the heading cells of a table; those at the places `numbers` stand above numbers."""
    return [
        html.Th(text, scope="col", className="dcp-number" if at in numbers else "")
        for at, text in enumerate(texts)
    ]


def number_cells(texts: Iterable[str]) -> list[Component]:
    """Build the cells of a row of numbers."""
    return [html.Td(text, className="dcp-number") for text in texts]


def scrolling(content: Any, kind: str = "") -> Component:
    """Build a box whose content scrolls if it is wider than the page; the keyboard reaches it."""
    return html.Div(content, className=f"dcp-scroll {kind}".strip(), tabIndex=0)


def title_bar(heading: str, *others: Component | str) -> Component:
    """Build the title of a page below the list of plans; texts become grey facts beside it."""
    parts = [
        html.Span(part, className="dcp-muted dcp-facts") if isinstance(part, str) else part
        for part in others
    ]
    crumb = dcc.Link("Plans", href="/", className="dcp-crumb")
    return html.Div([crumb, html.H1(heading), *parts], className="dcp-title")


def terms(pairs: Iterable[tuple[Any, Any]], kind: str = "dcp-terms") -> Component:
    """Build a list of terms and their meanings; `Any` is whatever Dash takes as children."""
    parts = [part for term, text in pairs for part in (html.Dt(term), html.Dd(text))]
    return html.Dl(parts, className=kind)


def notes_list(notes: Iterable[str]) -> Component:
    """Build a list of reservations about what a page shows."""
    return html.Div(html.Ul([html.Li(note) for note in notes]), className="dcp-limits")


def panel(title: str, children: Sequence[Any], *, tools: Any = None, name: str = "") -> Component:
    """Build a titled box; `Any` is whatever Dash takes as children."""
    heading = html.Div([html.H2(title), tools], className="dcp-panel-head")
    return box([heading, *children], title, f"dcp-panel {name}".strip())


def box(children: Sequence[Any], label: str, kind: str = "dcp-panel") -> Component:
    """Build a box without a visible title; screen readers get `label`."""
    return html.Section(children, className=kind, **attributes(aria_label=label))


def error_page(title: str, text: str) -> Component:
    """Build a page that holds one error message, keeping its line breaks."""
    told = html.Pre(text, className="dcp-message-text")
    back = dcc.Link("To the list of plans", href="/")
    kind = "dcp-message dcp-message-error"
    return html.Div([html.H1(title), told, back], className=kind, role="alert")


def swatches(items: Sequence[tuple[str, str]]) -> Component:
    """Build a legend: (label, colour) per entry."""
    entries = [
        html.Span(
            [html.Span(className="dcp-swatch", style={"backgroundColor": colour}), label],
            className="dcp-legend-item",
        )
        for label, colour in items
    ]
    return html.Div(entries, className="dcp-legend")


def kind_legend() -> Component:
    """Build the legend of a timeline."""
    return swatches([(EVENT_WORDS.get(kind, kind), c) for kind, c in KIND_COLOURS.items()])


def choice(
    key: str, options: Sequence[tuple[str, str]], default: str, label: str, *, name: str
) -> Component:
    """Build a row of buttons, (value, text) each, one of which is chosen by `page/choice.ts`.

    `key` names the choice in the page's state, see `web/src/state.ts`.
    """
    buttons = [
        html.Button(
            text, role="radio", type="button",
            **attributes(data_value=value, aria_checked=str(value == default).lower()),
        )
        for value, text in options
    ]  # fmt: skip
    return html.Div(
        buttons, id=name, className="dcp-choice", role="radiogroup",
        **attributes(data_key=key, data_default=default, aria_label=label),
    )  # fmt: skip


def changed_notice(*entries: PlanEntry) -> Component:
    """Build the bar that announces a change of the shown files on disk; hidden until one changes.

    `page/changed.ts` asks `/api/changes` for their versions every few seconds.
    """
    shown = {entry.key: entry for entry in entries}
    # One plan on both sides is watched once. "/" is in no name of a file, so it may part the names.
    data = attributes(
        data_keys=",".join(shown),
        data_versions=",".join(version_of(entry) for entry in shown.values()),
        data_names="/".join(entry.relative.rsplit("/", 1)[-1] for entry in shown.values()),
    )
    return html.Div(className="dcp-changed", hidden=True, role="status", **data)


def framed(title: str, *children: Component, kind: str = "", **values: str) -> Component:
    """Build the content of a page; `title` goes into the title of the window."""
    return html.Div(list(children), className=kind, **attributes(data_title=title, **values))


VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})
"""Elements without content and without an end tag."""
RENAMED = {"className": "class", "htmlFor": "for", "colSpan": "colspan", "tabIndex": "tabindex"}
BOOLEAN = frozenset({"open", "hidden", "disabled"})
"""Attributes that are there or not, without a value."""

HTML = "data-html"
"""Attribute that holds the content of an element as HTML until `web/src/mount.ts` inserts it."""


def written(inside: Any, **properties: Any) -> Component:  # Any: as Dash takes them
    """Build an element whose content travels as HTML, which the browser's own parser reads.

    Dash spends 1 to 2 ms of the browser's time on every component, a second on a table of some
    hundred cells. Nothing inside can be the input or output of a callback.
    """
    properties[HTML] = markup(inside)
    return html.Div(**properties)


def markup(node: Any) -> str:
    """Write a tree of `dash.html` components, texts and numbers as HTML; others: `TypeError`.

    `Any`: Dash has no narrower type for it.
    """
    if node is None:
        return ""
    if isinstance(node, (list, tuple)):
        return "".join(markup(child) for child in node)
    if not isinstance(node, Component):
        return escape(str(node), quote=False)
    described = node.to_plotly_json()  # type: ignore[no-untyped-call]  # Dash has no types here
    # Components of other libraries become HTML only in the browser, by scripts.
    if described["namespace"] != "dash_html_components":
        raise TypeError(f"expected a component of dash.html, got {described['type']}")
    tag = described["type"].lower()
    properties = dict(described["props"])
    # What `written` made is HTML already.
    inside = properties.pop(HTML, None) or markup(properties.pop("children", None))
    # Sorted: Dash keeps `data-` attributes in a set, whose order is another in each process.
    opening = f"<{tag}{''.join(_attribute(*each) for each in sorted(properties.items()))}>"
    return opening if tag in VOID else f"{opening}{inside}</{tag}>"


def _attribute(name: str, value: Any) -> str:  # Any: a property of whatever type
    name = RENAMED.get(name, name)
    if name in BOOLEAN:
        return f" {name}" if value else ""
    if name == "style":
        # Dash takes CSS properties as in scripts: `backgroundColor` for `background-color`.
        value = ";".join(
            f"{re.sub('[A-Z]', lambda c: f'-{c[0].lower()}', key)}:{text}"
            for key, text in value.items()
        )
    return f' {name}="{escape(str(value))}"'
