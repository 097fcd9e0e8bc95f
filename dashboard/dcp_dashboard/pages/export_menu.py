"""What a plan can be taken along as: links to files, folded behind one word."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.library.plans import LoadedPlan

FILES = (
    ("file", "Plan (.dcpplan)", "to open elsewhere: dcpm dashboard, dcpm simulate, dcpm compare"),
    (
        "overview.html",
        "Page (.html)",
        "this overview as one file; zooms and selects without a server",
    ),
    ("overview.png", "Picture (.png)", "figures, mask, balance and timelines"),
    ("mask.svg", "Mask (.svg)", "sharp at any size"),
    ("trace.pftrace", "Traces for ui.perfetto.dev", "predicted and measured"),
    ("devices.csv", "Devices (.csv)", "one line per device"),
    ("tiles.csv", "Tiles (.csv)", "one line per tile"),
    ("events.csv", "Events (.csv)", "one line per event of the traces"),
)
"""Last part of the address, name, what it is for."""


def export_menu(loaded: LoadedPlan) -> Component:
    """Give the links to all files of a plan."""
    # A refusal comes as a page of its own, the files themselves as downloads.
    base = f"/api/plan/{loaded.entry.key}"
    links = [
        html.Li(
            [
                html.A(name, href=f"{base}/{address}", target="_blank"),
                html.Span(purpose, className="dcp-muted"),
            ]
        )
        for address, name, purpose in FILES
    ]
    return html.Details([html.Summary("Export"), html.Ul(links)], className="dcp-export")
