"""The frame around every page and the small parts pages are made of."""

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.pages.figures import FONT

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
    """Give the layout of the whole application; pages appear in ``#page``."""
    header = html.Header(
        [
            dcc.Link(
                [html.Span(className="dcp-mark", **attributes(aria_hidden="true")), "dcp-dsl"],
                href="/",
                className="dcp-home",
            ),
            html.Nav(
                [
                    html.A(label, href=href, **attributes(data_page=name, data_plain="link"))
                    for name, label, href in NAVIGATION
                ],
                className="dcp-nav",
                **attributes(aria_label="Pages"),
            ),
            dmc.ColorSchemeToggle(
                lightIcon="☀",
                darkIcon="☾",
                id="colour-scheme",
                variant="subtle",
                size="md",
                className="dcp-scheme",
                **attributes(aria_label="Switch between light and dark"),
            ),
        ],
        className="dcp-header",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh=False),
            html.A("Skip to content", href="#page", className="dcp-skip"),
            header,
            keyboard,
            html.Main(id="page", className="dcp-page", tabIndex=-1),
        ],
        theme=THEME,
        defaultColorScheme="auto",
    )


def attributes(**values: str) -> dict[str, Any]:  # Any: Dash's keywords differ in type
    """Give `data-` and `aria-` attributes as keywords for a Dash component.

    >>> attributes(aria_label="Mask")
    {'aria-label': 'Mask'}
    """
    return {name.replace("_", "-"): value for name, value in values.items()}


def panel(title: str, children: Sequence[Any], *, tools: Any = None, name: str = "") -> Component:
    """Give a titled box; `Any` is whatever Dash takes as children."""
    heading = html.Div([html.H2(title), tools], className="dcp-panel-head")
    return html.Section(
        [heading, *children],
        className=f"dcp-panel {name}".strip(),
        **attributes(aria_label=title),
    )


def message(title: str, text: str, *, is_error: bool = False) -> Component:
    """Give a page that holds one message, keeping its line breaks."""
    return html.Div(
        [
            html.H1(title),
            html.Pre(text, className="dcp-message-text"),
            dcc.Link("To the list of plans", href="/"),
        ],
        className="dcp-message dcp-message-error" if is_error else "dcp-message",
        role="alert" if is_error else "status",
    )


def swatches(items: Sequence[tuple[str, str]]) -> Component:
    """Give a legend: (label, colour) per entry."""
    entries = [
        html.Span(
            [html.Span(className="dcp-swatch", style={"backgroundColor": colour}), label],
            className="dcp-legend-item",
        )
        for label, colour in items
    ]
    return html.Div(entries, className="dcp-legend")
