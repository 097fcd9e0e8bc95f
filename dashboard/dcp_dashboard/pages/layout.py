"""The frame around every page and the small parts that pages are made of."""

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.plans import version_of

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

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
    """Return `data-` and `aria-` attributes as keywords for a Dash component.

    >>> attributes(aria_label="Mask")
    {'aria-label': 'Mask'}
    """
    return {name.replace("_", "-"): value for name, value in values.items()}


def panel(title: str, children: Sequence[Any], *, tools: Any = None, name: str = "") -> Component:
    """Build a titled box; `Any` is whatever Dash takes as children."""
    heading = html.Div([html.H2(title), tools], className="dcp-panel-head")
    return html.Section(
        [heading, *children],
        className=f"dcp-panel {name}".strip(),
        **attributes(aria_label=title),
    )


def message(title: str, text: str, *, is_error: bool = False) -> Component:
    """Build a page that holds one message, keeping its line breaks."""
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
    """Build a legend: (label, colour) per entry."""
    entries = [
        html.Span(
            [html.Span(className="dcp-swatch", style={"backgroundColor": colour}), label],
            className="dcp-legend-item",
        )
        for label, colour in items
    ]
    return html.Div(entries, className="dcp-legend")


def choice(
    key: str, options: Sequence[tuple[str, str]], default: str, label: str, *, name: str
) -> Component:
    """Build a row of buttons, one of which is chosen: one key of the state.

    Args:
        key: of the state, see `assets/state.js`; `assets/choice.js` connects the buttons.
        options: (value, text) each.
        default: value while the state has none.
        label: what is chosen, for people who cannot see it.
        name: id of the element.
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
    """Build the bar that announces a change of the shown files on disk, hidden until one changes.

    `assets/changed.js` asks `/api/changes` for their versions every few seconds.
    """
    shown = {entry.key: entry for entry in entries}
    return html.Div(
        className="dcp-changed",
        hidden=True,
        role="status",
        **attributes(
            data_keys=",".join(shown),
            data_versions=",".join(version_of(entry) for entry in shown.values()),
            data_names="/".join(entry.relative.rsplit("/", 1)[-1] for entry in shown.values()),
        ),
    )
