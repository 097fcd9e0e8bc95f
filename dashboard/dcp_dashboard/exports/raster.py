"""Mask and timeline of a plan as pixels, computed at once for a whole picture.

The same rules as the canvases of the pages: a mask pixel shows the tile at its middle, tiles
smaller than a pixel still get one; a timeline pixel sums what each kind covers of it.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.palette import KINDS
from dcp_dashboard.api.payloads import event_kinds
from dcp_planner import Plan, Trace

Pixels = NDArray[np.uint8]
"""RGB, uint8 ``[height, width, 3]``."""

PALEST = 0.22
"""What is there at all must be visible."""

BANDS = {
    "compute": (0.04, 0.56), "wait": (0.20, 0.40), "send": (0.58, 0.76), "receive": (0.78, 0.96),
}  # fmt: skip
"""Top and bottom of each lane as shares of a device's row, as in `assets/timeline.js`."""


def tile_of_pixel(plan: Plan, side: int) -> NDArray[np.int64]:
    """Give which tile each pixel of the mask shows, -1 for none; int64 ``[side, side]``.

    O(side^2 log W). With groups of heads, the first group's.
    """
    tiles, blocks = plan.tiles, plan.blocks
    count = len(blocks.start)
    found = np.full((side, side), -1, np.int64)
    if not len(tiles) or not count:
        return found
    key = tiles.q_block.astype(np.int64) * count + tiles.kv_block
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    middle = (np.arange(side) + 0.5) * plan.num_tokens / side
    block = np.searchsorted(blocks.start, middle, side="right") - 1
    wanted = block[:, None] * count + block[None, :]
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    hit = ordered[at] == wanted
    found[hit] = order[at[hit]]
    scale = side / plan.num_tokens
    narrow = (blocks.end - blocks.start) * scale < 1
    small = np.flatnonzero(narrow[tiles.q_block] | narrow[tiles.kv_block])
    first = np.minimum((blocks.start * scale).astype(np.int64), side - 1)
    rows, columns = first[tiles.q_block[small]], first[tiles.kv_block[small]]
    free = found[rows, columns] < 0
    found[rows[free], columns[free]] = small[free]
    return found


def mask_pixels(plan: Plan, side: int, colours: list[str], background: str) -> Pixels:
    """Draw the mask, each tile in the colour of its device."""
    tile = tile_of_pixel(plan, side)
    palette = np.array([rgb(colour) for colour in colours], np.uint8)
    picture = np.empty((side, side, 3), np.uint8)
    picture[:] = rgb(background)
    shown = tile >= 0
    picture[shown] = palette[plan.tiles.device[tile[shown]]]
    return picture


def covered(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    row: NDArray[np.int64],
    rows: int,
    width: int,
) -> NDArray[np.float64]:
    """Give how much of each pixel the events of each row cover, float64 ``[rows, width]``; O(E).

    Args:
        start: of the events, in pixels.
        end: of the events, in pixels.
        row: of the events.
        rows: of the result.
        width: of the result.

    >>> covered(np.array([0.5]), np.array([2.25]), np.array([0]), 1, 4).tolist()
    [[0.5, 1.0, 0.25, 0.0]]
    """
    change = np.zeros((rows, width + 2))
    for edge, sign in ((start, 1.0), (end, -1.0)):
        # From an edge on, the pixels after it count whole and its own pixel counts the rest.
        pixel = np.clip(np.floor(edge), 0, width).astype(np.int64)
        share = np.clip(edge - pixel, 0, 1)
        np.add.at(change, (row, pixel), sign * (1 - share))
        np.add.at(change, (row, pixel + 1), sign * share)
    return np.cumsum(change, axis=1)[:, :width]


def timeline_pixels(
    trace: Trace, devices: int, size: tuple[int, int], span_ns: int, colours: list[str],
    background: str,
) -> Pixels:  # fmt: skip
    """Draw a trace: one row per device, lanes as on the pages.

    Args:
        trace: what is drawn.
        devices: rows.
        size: height and width in pixels.
        span_ns: time that the width stands for.
        colours: by index into `KINDS`.
        background: where nothing happens.
    """
    height, width = size
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = rgb(background)
    if not len(trace):
        return picture
    scale = width / max(1, span_ns)
    base = int(trace.start_ns.min())
    start, end = (trace.start_ns - base) * scale, (trace.end_ns - base) * scale
    kinds = event_kinds(trace)
    cover = np.zeros((len(KINDS), devices, width))
    for kind in range(len(KINDS)):
        of = kinds == kind
        cover[kind] = covered(start[of], end[of], trace.device[of].astype(np.int64), devices, width)
    compute = [KINDS.index(name) for name in ("attention", "reduction", "copy")]
    lanes = {
        "compute": compute,
        **{name: [KINDS.index(name)] for name in ("wait", "send", "receive")},
    }
    row_height = height / devices
    for lane, members in lanes.items():
        line = _line(cover[members], [colours[kind] for kind in members], background)
        is_there = cover[members].sum(axis=0) > 1e-9
        for device in range(devices):
            top, bottom = (round((device + share) * row_height) for share in BANDS[lane])
            picture[top : max(top + 1, bottom), is_there[device]] = line[device, is_there[device]]
    return picture


def _line(cover: NDArray[np.float64], colours: list[str], background: str) -> Pixels:
    """Give the hue of the kind that covers most of each pixel, paler the less is covered."""
    hues = np.array([rgb(colour) for colour in colours], np.float64)[cover.argmax(axis=0)]
    share = PALEST + (1 - PALEST) * np.minimum(1.0, cover.sum(axis=0))[..., None]
    mixed: Pixels = np.rint(np.array(rgb(background)) * (1 - share) + hues * share).astype(np.uint8)
    return mixed


def rgb(colour: str) -> tuple[int, int, int]:
    """Give red, green and blue of ``#rrggbb``.

    >>> rgb("#0072b2")
    (0, 114, 178)
    """
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
