"""The panel of the selected thing and the control that steps through the divisions."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.layout import attributes, panel

PAUSE_MS = 900
"""How long each division stays while they are played."""


def inspector(loaded: LoadedPlan) -> Component:
    """Give the panel that says all about what is selected; `assets/inspector.js` fills it."""
    hint = html.P(
        [
            "Nothing is selected. Click a tile, a bar, an event or a device, or step through the "
            "divisions with ",
            html.Kbd("."),
            " and ",
            html.Kbd(","),
            "; what belongs to it stays in colour everywhere. ",
            html.Kbd("Esc"),
            " clears, ",
            html.Kbd("?"),
            " shows all keys.",
        ],
        className="dcp-hint",
    )
    body = html.Div(
        hint,
        className="dcp-inspector",
        **attributes(data_key=loaded.entry.key, aria_live="polite"),
    )
    return panel("Selection", [body], tools=steps(loaded), name="dcp-inspector-panel")


def steps(loaded: LoadedPlan) -> Component:
    """Give the control that selects one division after the other."""
    tiles = loaded.plan.tiles
    counts = {
        "data_forward": str(int(tiles.division.max(initial=-1)) + 1),
        "data_backward": str(int(tiles.backward_division.max(initial=-1)) + 1),
    }
    buttons = [
        html.Button(
            sign, type="button", className="dcp-quiet", title=f"{label} ({key})",
            **attributes(data_step=step, aria_label=label),
        )
        for step, sign, label, key in (
            ("before", "\u2039", "Division before", ","),
            ("play", "\u25b6", "Play all divisions", "p"),
            ("next", "\u203a", "Next division", "."),
        )
    ]  # fmt: skip
    return html.Div(
        [html.Output(), *buttons],
        className="dcp-steps",
        role="group",
        **attributes(aria_label="Step by division", data_pause=str(PAUSE_MS), **counts),
    )
