"""The keyboard map: one table for the help page and for the dialog that `?` opens."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.pages.layout import attributes

KEYS = (
    ("Everywhere", (
        ("Click, Enter", "select a tile, bar, cell, event or device; what belongs to it keeps its "
                         "colour in every view"),
        ("Esc", "clear the selection; once more: show all of a canvas"),
        (". ,", "next division, division before; a selected device stays selected, the page of the "
                "timeline zooms to it"),
        ("p", "play all divisions, pause"),
        ("?", "show these keys"),
        ("Tab", "to the next control or canvas"),
    )),
    ("In a mask or a timeline", (
        ("Wheel, w s, + -", "zoom in and out"),
        ("Drag, a d", "pan"),
        ("Arrows", "pan; in the mask with a tile selected: the next tile that way"),
        ("Enter", "in the mask: select the tile in the middle, then zoom to it until its pairs can "
                  "be seen"),
        ("0, double click", "show all"),
    )),
    ("In the timeline", (
        ("f Enter", "zoom to the selection"),
        ("[ ]", "the event before, the next event"),
        ("/ n", "on its own page: search, next hit"),
        ("o", "open or close a node"),
        ("Shift and drag", "on its own page: mark an area and sum it up"),
        ("m", "on its own page: mark what is shown"),
    )),
    ("In the list and in a data set", (
        ("/", "search"),
    )),
    ("In balance and traffic", (
        ("Arrows", "select the next device or pair"),
    )),
)  # fmt: skip


def keyboard_map() -> Component:
    """Give all keys and what they do."""
    parts = []
    for heading, keys in KEYS:
        rows = [
            part for names, meaning in keys for part in (html.Dt(_keys(names)), html.Dd(meaning))
        ]
        parts += [html.H3(heading), html.Dl(rows, className="dcp-keys")]
    return html.Div(parts)


def _keys(names: str) -> list[Component]:
    return [html.Kbd(name) for name in names.split(" ")] if len(names) < 4 else [html.Kbd(names)]


def keyboard_dialog() -> Component:
    """Give the dialog that `?` opens; `assets/keyboard.js` does."""
    return html.Dialog(
        [
            html.Div(
                [
                    html.H2("Keyboard"),
                    html.Button("Close", type="button", className="dcp-quiet", title="Esc"),
                ],
                className="dcp-panel-head",
            ),
            keyboard_map(),
            html.P(html.A("All help", href="/help", **attributes(data_plain="link"))),
        ],
        id="keyboard",
        className="dcp-dialog",
        **attributes(aria_label="Keyboard"),
    )
