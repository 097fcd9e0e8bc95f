"""The mask with its placement as SVG: sharp at any size, editable in drawing programs."""

import numpy as np

from dcp_dashboard.api.palette import device_colours
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.head_groups import caption_of_first_group, tiles_of_group
from dcp_dashboard.library.plans import LoadedPlan

MOST_RUNS = 100_000
"""Rectangles in one drawing; programs that edit SVG give up at about that many."""


def mask_svg(loaded: LoadedPlan) -> str:
    """Draw tiles in the colours of their devices, one unit per token, and the owners at the edges.

    Neighbouring tiles of a row on the same device become one rectangle. Of several groups of heads
    the first is drawn, and a line below says so.

    Raises:
        DashboardError: if more than `MOST_RUNS` rectangles are needed.
    """
    plan = loaded.plan
    colours = device_colours(plan.cluster.nodes, plan.cluster.devices_per_node)
    start, end, size = plan.blocks.start, plan.blocks.end, plan.num_tokens
    runs = _runs(loaded)
    if len(runs) > MOST_RUNS:
        raise DashboardError(
            f"{loaded.entry.relative}: expected at most {MOST_RUNS:,} rectangles in an SVG, got "
            f"{len(runs):,}; take the PNG instead"
        )
    shapes = [
        f'<rect class="d{device}" x="{start[first]}" y="{start[q]}" '
        f'width="{end[last] - start[first]}" height="{end[q] - start[q]}"/>'
        for q, first, last, device in runs.tolist()
    ]
    edge = max(1, size // 80)
    for low, high, owner in zip(
        start.tolist(), end.tolist(), plan.blocks.owner.tolist(), strict=True
    ):
        extent = high - low
        shapes.append(
            f'<rect class="d{owner}" x="{low}" y="{size + edge}" width="{extent}" height="{edge}"/>'
        )
        shapes.append(
            f'<rect class="d{owner}" x="{-2 * edge}" y="{low}" width="{edge}" height="{extent}"/>'
        )
    style = "".join(f".d{device}{{fill:{colour}}}" for device, colour in enumerate(colours))
    caption, room = caption_of_first_group(plan), 0
    if caption:
        room = 3 * edge
        shapes.append(
            f'<text y="{size + 4 * edge - edge // 4}" font-family="sans-serif" '
            f'font-size="{1.5 * edge:g}" fill="#59636f">{caption}</text>'
        )
    box = f"{-2 * edge} 0 {size + 2 * edge} {size + 2 * edge + room}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="800" height="800" '
        f'shape-rendering="crispEdges"><style>{style}</style>\n'
        f'<rect width="{size}" height="{size}" fill="#f3f4f7"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _runs(loaded: LoadedPlan) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Give (q block, first and last kv block, device) of every run of tiles, int64 ``[N, 4]``."""
    plan, tiles = loaded.plan, loaded.plan.tiles
    shown = tiles_of_group(plan, 0)
    order = shown[np.lexsort((tiles.kv_block[shown], tiles.q_block[shown]))]
    q, kv, device = (
        column[order].astype(np.int64) for column in (tiles.q_block, tiles.kv_block, tiles.device)
    )
    if not len(q):
        return np.empty((0, 4), np.int64)
    touches = plan.blocks.end[kv[:-1]] == plan.blocks.start[kv[1:]]
    goes_on = (q[1:] == q[:-1]) & (device[1:] == device[:-1]) & touches & (kv[1:] == kv[:-1] + 1)
    first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    last = np.concatenate((first[1:] - 1, [len(q) - 1]))
    return np.stack((q[first], kv[first], kv[last], device[first]), axis=1)
