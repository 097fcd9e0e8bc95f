"""The page `/plan/<key>/mask`: the mask as large as the window allows, down to single pairs."""

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.payloads import mask_modes
from dcp_dashboard.library.head_groups import group_labels
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.pages.changed import changed_notice
from dcp_dashboard.pages.choice import choice
from dcp_dashboard.pages.inspector import inspector
from dcp_dashboard.pages.layout import attributes, panel
from dcp_dashboard.pages.plan_tabs import plan_tabs
from dcp_dashboard.pages.plan_title import plan_title

MAX_TILES = 3_000_000
"""Tiles that a browser is sent: some 40 MB."""

LARGE_SIDE = 1040
"""Pixels of the large mask, at most."""


def mask_page(loaded: LoadedPlan) -> Component:
    """Give the whole page."""
    return html.Div(
        [
            changed_notice(loaded.entry),
            plan_title(loaded),
            plan_tabs(loaded, "mask"),
            html.Div(
                [
                    mask_panel(loaded, side=LARGE_SIDE),
                    html.Div([inspector(loaded), tile_table(loaded)], className="dcp-aside"),
                ],
                className="dcp-wide-columns",
            ),
        ],
        **attributes(data_title=f"{loaded.summary.mask} · {loaded.entry.relative}"),
    )


def mask_panel(loaded: LoadedPlan, *, side: int = 0) -> Component:
    """Give the mask with its colourings; `side` bounds the pixels of its edge, 0: as assets say."""
    key = loaded.entry.key
    modes = [(str(mode["id"]), str(mode["label"])) for mode in mask_modes(loaded.plan)]
    tools = choice("colour", modes, modes[0][0], "Colour the mask by", name="mask-mode")
    if loaded.plan.head_groups > 1:
        tools = html.Div([group_choice(group_labels(loaded.plan)), tools], className="dcp-choices")
    size = {"data_side": str(side)} if side else {}
    instead = _nothing_to_draw(loaded)
    if instead:
        return panel("Mask and placement", [html.P(instead, role="status", className="dcp-hint")])
    canvas = html.Div(
        id="mask",
        className="dcp-mask",
        **attributes(data_url=f"/api/plan/{key}/mask", data_pairs=f"/api/plan/{key}/pairs", **size),
    )
    hint = (
        "Rows are queries, columns keys; the edges show who owns the tokens. Wheel zooms, drag "
        "pans, 0 resets; Enter selects a tile, arrows go on, Enter again zooms until its pairs can "
        "be seen."
    )
    return panel("Mask and placement", [canvas, html.P(hint, className="dcp-hint")], tools=tools)


def group_choice(labels: list[str]) -> Component:
    """Give the choice which group of heads a mask shows, by the heads of each."""
    heads = [(str(group), label) for group, label in enumerate(labels)]
    first, *others = heads
    options = [(first[0], f"Heads {first[1]}"), *others]
    return choice("group", options, "0", "Group of heads to show", name="mask-group")


def _nothing_to_draw(loaded: LoadedPlan) -> str:
    """Say why no mask is drawn, nothing if one is."""
    count = len(loaded.plan.tiles)
    if count == 0:
        return "No query of this batch sees a key: the mask is empty, so there is no tile to show."
    if count > MAX_TILES:
        return (
            f"This plan has {count:,} tiles; up to {MAX_TILES:,} are drawn here. Plan with larger "
            "blocks (dcpm plan --block), or see one part of it: dcpm show."
        )
    return ""


def tile_table(loaded: LoadedPlan) -> Component:
    """Give the table of the tiles of the selection; `assets/tile_table.js` fills it once open."""
    table = html.Div(
        className="dcp-tile-table dcp-scroll dcp-tall",
        tabIndex=0,
        **attributes(data_url=f"/api/plan/{loaded.entry.key}/mask", aria_label="Tiles"),
    )
    return html.Details(
        [html.Summary("Tiles as a table"), table], className="dcp-panel dcp-definitions"
    )
