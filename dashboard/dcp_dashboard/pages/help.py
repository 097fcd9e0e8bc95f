"""The page `/help`, and the keyboard map that `?` opens anywhere."""

from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.api.mask import FETCH_COLOURS, FETCHES
from dcp_dashboard.facts.findings import DEFINITIONS
from dcp_dashboard.facts.text import EVENT_WORDS
from dcp_dashboard.pages.layout import attributes, framed, plain_link, swatches, terms

PAGES = (
    ("Plans", "/", "All plans of the served folder. Click a heading to sort. An unreadable file "
     "shows the reason."),
    ("A plan: overview", "", "Where the time goes, key metrics, findings, the mask with its "
     "placement, the balance of all devices, the timeline, the traffic between devices, every "
     "device in numbers."),
    ("A plan: timeline", "", "Compute, sends, receives and waits of every device over time, with "
     "filters, search and a table of events."),
    ("A plan: mask", "", "The device that computes each tile; zoom in to see single pairs."),
    ("Compare", "/compare", "Two plans, or the prediction and the run of one plan."),
    ("Edit", "/edit", "Write a mask, see its picture at once, and plan it."),
)  # fmt: skip

KIND_MEANINGS = {
    "attention": "the device computes tiles",
    "reduction": "the device merges partial results that have arrived",
    "copy": "before forward or backward: the device stands still for a host that prepares kernels "
    "and messages; in a run it copies its own tokens into working buffers",
    "send": "an outgoing message",
    "receive": "an incoming message",
    "wait": "the device stands still until a message is there: no compute hides this communication",
}

FETCH_MEANINGS = {
    "nothing": "the device of the tile owns its queries and its keys",
    "keys and values": "the device owns the queries; keys and values come from their owner",
    "queries": "the device owns the keys; queries come from their owner, and partial results go "
    "back",
    "both": "the device owns neither queries nor keys",
}

COMMANDS = (
    ("Plan one batch", "dcpm plan train.dcpm --sample '{\"len\": 131072}' --cluster 4x8 "
     "--out runs/causal.dcpplan"),
    ("Plan batches of a data set", "dcpm plan train.dcpm --dataset rows.parquet --batches 8 "
     "--out runs/rows"),
    ("Run the plan and record a trace", "dcpm run runs/causal.dcpplan --trace "
     "runs/measured.dcpplan"),
    ("Show a folder in the browser", "dcpm dashboard runs"),
    ("Run the whole demonstration", "dcpm demo --out runs"),
)  # fmt: skip

KEYS = (
    ("Everywhere", (
        ("Click, Enter", "select a tile, bar, cell, event or device; related items keep their "
                         "colour in every view"),
        ("Esc", "clear the selection; press again to show the whole canvas"),
        (". ,", "next or previous division; a selected device stays selected, and the timeline "
                "page zooms to the division"),
        ("p", "play all divisions, or pause"),
        ("?", "show these keys"),
        ("Tab", "go to the next control or canvas"),
    )),
    ("In a mask or a timeline", (
        ("Wheel, w s, + -", "zoom in and out"),
        ("Drag, a d", "pan"),
        ("Arrows", "pan; in the mask with a selected tile: select the next tile in that direction"),
        ("Enter", "in the mask: select the tile in the middle; press again to zoom in until its "
                  "pairs are visible"),
        ("0, double click", "show all"),
    )),
    ("In the timeline", (
        ("f Enter", "zoom to the selection"),
        ("[ ]", "previous or next event"),
        ("/ n", "on the timeline page: search, next match"),
        ("o", "open or close a node"),
        ("t", "pin the selected device to the top, or unpin it"),
        ("Shift and drag", "on the timeline page: mark an area and add up its events"),
        ("m", "on the timeline page: mark the visible area"),
    )),
    ("In the list and in a data set", (
        ("/", "search"),
    )),
    ("In balance and traffic", (
        ("Arrows", "select the next device or pair"),
    )),
)  # fmt: skip


READING = (
    "Start with the findings. Click a sentence to select its subject and show the moment in the "
    'timeline. The link "how?" explains how the finding was made.',
    "The balance chart has a bar for each device. max/mean compares the busiest device with the "
    "mean. Each row names the device with the longest bar: this is the slow device.",
    "Select the slow device. Its tiles keep their colour in the mask, its events in the timeline. "
    "The selection panel lists the devices that it waits for, division by division.",
    "If heads are placed in groups, every tile exists once per group. The mask shows one group at "
    "a time; choose the group beside the colours. Selecting a tile also shows its group.",
    "The page address stores all selections, views and filters: a reload or a shared link shows "
    "the same page.",
)


def help_page() -> Component:
    """Build the help page; every section has an anchor to link to."""
    pages = ((dcc.Link(name, href=path) if path else name, text) for name, path, text in PAGES)
    commands = ((name, html.Pre(command)) for name, command in COMMANDS)
    files = "Plans are files that end in .dcpplan. The dashboard lists all plans of its folder."
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
    kinds = (
        (swatches([(EVENT_WORDS.get(kind, kind), colour)]), KIND_MEANINGS[kind])
        for kind, colour in KIND_COLOURS.items()
    )
    pairs = zip(FETCHES, FETCH_COLOURS, strict=True)
    fetched = ((swatches([(name, colour)]), FETCH_MEANINGS[name]) for name, colour in pairs)
    return [
        html.P("Each kind of event has the same colour in every view. The colours suit people with "
               "colour-blindness. Events cover a paler pixel of the timeline only in part."),
        terms(kinds),
        html.P("In the mask, a node has a hue, and each of its devices has a lightness. Divisions "
               "run from dark to light, densities from pale to strong. Items outside the selection "
               "are faint; when zoomed in, so are pairs that are not visible. Colours by fetched "
               "data:"),
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
