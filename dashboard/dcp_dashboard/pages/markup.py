"""Components of `dash.html` as HTML: for pages without a server, and where React is too slow."""

from html import escape
from typing import Any

from dash import html
from dash.development.base_component import Component

VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})
RENAMED = {"className": "class", "htmlFor": "for", "colSpan": "colspan", "tabIndex": "tabindex"}
BOOLEAN = frozenset({"open", "hidden", "disabled"})

HTML = "data-html"
"""Attribute with the HTML inside of an element; `web/src/mount.ts` puts it there."""


def written(inside: Any, **properties: Any) -> Component:  # Any: as Dash takes them
    """Build an element whose inside the browser makes from HTML, at once.

    Dash spends 1 to 2 ms of the browser's time on every component, so a table of some hundred cells
    held up the whole page for a second. Nothing inside can be the input or output of a callback.

    >>> written(html.B("1 < 2"), className="a")
    Div(className='a', data-html='<b>1 &lt; 2</b>')
    """
    properties[HTML] = markup(inside)
    return html.Div(**properties)


def markup(node: Any) -> str:
    """Write a tree of `dash.html` components as HTML; texts and values are escaped.

    Args:
        node: a component of `dash.html`, a text, a number, a list of these, or nothing; `Any`
            because Dash does not say it closer.

    Raises:
        TypeError: for a component of another library: it has no HTML of its own.

    >>> from dash import html
    >>> markup(html.P(["1 < 2", html.Br()], className="a"))
    '<p class="a">1 &lt; 2<br></p>'
    """
    if node is None:
        return ""
    if isinstance(node, (list, tuple)):
        return "".join(markup(child) for child in node)
    if not isinstance(node, Component):
        return escape(str(node), quote=False)
    described = node.to_plotly_json()  # type: ignore[no-untyped-call]  # Dash has no types here
    if described["namespace"] != "dash_html_components":
        raise TypeError(f"expected a component of dash.html, got {described['type']}")
    tag = described["type"].lower()
    properties = dict(described["props"])
    inside = properties.pop(HTML, None) or markup(properties.pop("children", None))
    opening = f"<{tag}{''.join(_attribute(name, value) for name, value in properties.items())}>"
    return opening if tag in VOID else f"{opening}{inside}</{tag}>"


def _attribute(name: str, value: Any) -> str:  # Any: a property of whatever type
    name = RENAMED.get(name, name)
    if name in BOOLEAN:
        return f" {name}" if value else ""
    if name == "style":
        value = ";".join(f"{_hyphened(key)}:{text}" for key, text in value.items())
    return f' {name}="{escape(str(value))}"'


def _hyphened(name: str) -> str:
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in name)
