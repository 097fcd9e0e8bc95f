"""The page `/help`, and the keyboard map that `?` opens anywhere."""

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.api.mask import FETCH_COLOURS, FETCHES
from dcp_dashboard.facts.findings import DEFINITIONS
from dcp_dashboard.pages.layout import attributes, framed, plain_link, swatches, terms

PAGES = (
    ("Plans", "/", "Every plan of the served folder; a click on a heading sorts, a file that "
     "cannot be read says why."),
    ("A plan: overview", "", "Key metrics, what stands out, the mask with its placement, the "
     "balance of all devices, the timeline, the traffic between devices, every device in numbers."),
    ("A plan: timeline", "", "What every device does when: compute, sends, receives and waits; "
     "with filters, search and a table of events."),
    ("A plan: mask", "", "Where every tile is computed, down to single pairs."),
    ("Compare", "/compare", "Two plans, or what was predicted against what was measured."),
    ("Edit", "/edit", "Write a mask, see it at once, plan it."),
)  # fmt: skip

KIND_MEANINGS = {
    "attention": "computes tiles",
    "reduction": "merges partial results that arrived",
    "copy": "starts a direction: the host prepares its messages and kernels, the device copies its "
    "own tokens into working buffers",
    "send": "a message on its way out",
    "receive": "a message on its way in",
    "wait": "stands still until a message is there: communication that nothing hides",
}

FETCH_MEANINGS = {
    "nothing": "the device of the tile owns its queries and its keys",
    "keys and values": "it owns the queries; keys and values come from their owner",
    "queries": "it owns the keys; queries come, partial results go back",
    "both": "it owns neither",
}

COMMANDS = (
    ("Plan one batch", "dcpm plan train.dcpm --sample '{\"len\": 131072}' --cluster 4x8 "
     "--out runs/causal.dcpplan"),
    ("Plan batches of a data set", "dcpm plan train.dcpm --dataset rows.parquet --batches 8 "
     "--out runs/rows"),
    ("Run it and keep what was measured", "dcpm run runs/causal.dcpplan --trace "
     "runs/measured.dcpplan"),
    ("Look at a folder", "dcpm dashboard runs"),
    ("Everything at once", "dcpm demo --out runs"),
)  # fmt: skip

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
        ("t", "pin the selected device to the top, or let it go"),
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


READING = (
    "Start with what stands out: each sentence selects what it is about and shows the moment in "
    "the timeline. Its rule says how it was found, so it can be checked.",
    "The balance shows each device as a bar; max/mean says how far the busiest is above the mean. "
    "The longest bar of a row is named: that is the slow device.",
    "Select it. The mask keeps the colour of its tiles, the timeline that of its events, and the "
    "panel of the selection says for which device it waits, division by division.",
    "Where heads are placed in groups, every tile is there once per group and the mask shows one "
    "group at a time: choose it beside the colours. A selected tile brings its own group.",
    "The address holds everything that is selected, shown and filtered: a reload or a shared link "
    "shows the same.",
)


def help_page() -> Component:
    """Build the help page; every section has an anchor to link to."""
    pages = ((dcc.Link(name, href=path) if path else name, text) for name, path, text in PAGES)
    commands = ((name, html.Pre(command)) for name, command in COMMANDS)
    files = "Plans are files that end in .dcpplan; all of them in the served folder are listed."
    steps = html.Ol([html.Li(text) for text in READING], className="dcp-prose")
    sections: tuple[tuple[str, str, str, list[Component]], ...] = (
        ("pages", "Pages", "What the pages show", [terms(pages)]),
        ("reading", "Reading a plan", "How to read a plan", [steps]),
        ("colours", "Colours", "Colours", _colours()),
        ("keys", "Keyboard", "Keyboard", [keyboard_map()]),
        ("definitions", "Definitions", "What the numbers mean", [terms(DEFINITIONS)]),
        ("plans", "Making plans", "How to make plans", [html.P(files), terms(commands)]),
    )
    links = [html.A(label, href=f"#{name}", className="dcp-tab") for name, label, *_ in sections]
    return framed(
        "Help",
        html.Div(html.H1("Help"), className="dcp-title"),
        html.Nav(links, className="dcp-tabs", **attributes(aria_label="Sections")),
        *(
            html.Section([html.H2(title), *children], id=name, className="dcp-panel")
            for name, _label, title, children in sections
        ),
        kind="dcp-help",
    )


def _colours() -> list[Component]:
    kinds = ((swatches([(k, colour)]), KIND_MEANINGS[k]) for k, colour in KIND_COLOURS.items())
    pairs = zip(FETCHES, FETCH_COLOURS, strict=True)
    fetched = ((swatches([(name, colour)]), FETCH_MEANINGS[name]) for name, colour in pairs)
    return [
        html.P("The kind of an event has the same colour everywhere, and people who see few "
               "colours can tell them apart. In the timeline a partly covered pixel is paler."),
        terms(kinds),
        html.P("In the mask a node is a hue and its devices are steps of lightness; divisions and "
               "densities run from dark to light and from pale to strong. What does not belong to "
               "the selection is faint; zoomed in, so are pairs that are not visible. Coloured by "
               "what is fetched:"),
        terms(fetched),
    ]  # fmt: skip


def keyboard_map() -> Component:
    """Build the list of all keys and their meanings."""
    parts = []
    for heading, keys in KEYS:
        shown = ((_keys(names), meaning) for names, meaning in keys)
        parts += [html.H3(heading), terms(shown, "dcp-keys")]
    return html.Div(parts)


def _keys(names: str) -> list[Component]:
    # ". ," names two keys of a sign each; a longer text, "Shift and drag", is one thing.
    return [html.Kbd(name) for name in (names.split(" ") if len(names) < 4 else [names])]


def keyboard_dialog() -> Component:
    """Build the dialog that `?` opens; `page/keyboard.ts` opens it."""
    close = html.Button("Close", type="button", className="dcp-quiet", title="Esc")
    head = html.Div([html.H2("Keyboard"), close], className="dcp-panel-head")
    return html.Dialog(
        [head, keyboard_map(), html.P(plain_link("All help", "/help"))],
        id="keyboard",
        className="dcp-dialog",
        **attributes(aria_label="Keyboard"),
    )
