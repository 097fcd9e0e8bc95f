"""Mask and timeline of a plan as pictures: arrays of pixels, and the mask as SVG.

The pixels follow the rules of the canvases in the browser: a pixel of the mask shows the tile at
its middle, and a tile smaller than a pixel still gets one; a pixel of a timeline has the colour of
the kind of event that covers most of it.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageColor import getrgb

from dcp_dashboard.api.encoding import cluster_colours
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import caption_of_first_group, tiles_of_group
from dcp_dsl.pictures.frame import PictureFrame, Stripe
from dcp_dsl.pictures.svg import rect, write_svg
from dcp_planner import Plan, Trace
from dcp_planner.simulation import EVENT_KINDS

Pixels = NDArray[np.uint8]
"""RGB, uint8 ``[height, width, 3]``."""

PALEST = 0.22
"""Least opacity of a timeline pixel that an event covers at all: short events stay visible."""

BANDS = {
    "compute": (0.04, 0.56), "wait": (0.20, 0.40), "send": (0.58, 0.76), "receive": (0.78, 0.96),
}  # fmt: skip
"""Top and bottom of each lane as shares of a device's row, as in `web/src/timeline/layout.ts`.

Kinds of events without a lane of their own, such as reductions, belong to ``"compute"``."""

MOST_RUNS = 100_000
"""Rectangles in one drawing; programs that edit SVG give up at about that many."""

SIDE = 64
COLOUR = (0x3A, 0x7F, 0xC6)
"""Pixels of the edge of a thumbnail, and its blue."""


def tile_of_pixel(plan: Plan, side: int) -> NDArray[np.int64]:
    """Find the tile that each pixel of the mask shows, -1 for none; int64 ``[side, side]``.

    O(side^2 log W) for W tiles. Of several groups of heads the first is shown.
    """
    tiles, blocks = plan.tiles, plan.blocks
    count = len(blocks.start)
    found = np.full((side, side), -1, np.int64)
    if not len(tiles):
        return found
    # One number for each pair of blocks. The sort is stable, and tiles of the first group of heads
    # come first, so the search finds theirs.
    key = tiles.q_block.astype(np.int64) * count + tiles.kv_block
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    middle = (np.arange(side) + 0.5) * plan.num_tokens / side
    block = np.searchsorted(blocks.start, middle, side="right") - 1
    wanted = block[:, None] * count + block[None, :]
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    hit = ordered[at] == wanted
    found[hit] = order[at[hit]]
    # Tiles without the middle of a pixel: they get the pixel of their corner, where it is empty.
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
    palette = np.array([getrgb(colour) for colour in colours], np.uint8)
    picture = np.full((side, side, 3), getrgb(background), np.uint8)
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
    """Compute the share of each pixel that its row's events cover, float64 ``[rows, width]``; O(E).

    `start`, `end` and `row` are those of the events, in pixels.
    """
    # Differences from pixel to pixel, whose running sum is the coverage. An edge at the right end
    # changes two pixels behind the picture.
    change = np.zeros((rows, width + 2))
    for edge, sign in ((start, 1.0), (end, -1.0)):
        # A start covers the rest of its own pixel and all of those after it; an end takes that
        # back.
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

    `size` is height and width in pixels; the width stands for `span_ns`. `colours` are those of
    `EVENT_KINDS`.
    """
    height, width = size
    picture = np.full((height, width, 3), getrgb(background), np.uint8)
    if not len(trace):
        return picture
    scale = width / max(1, span_ns)
    base = int(trace.start_ns.min())
    start, end = (trace.start_ns - base) * scale, (trace.end_ns - base) * scale
    row = trace.device.astype(np.int64)
    masks = [trace.kind == kind for kind in range(len(EVENT_KINDS))]
    cover = np.stack([covered(start[of], end[of], row[of], devices, width) for of in masks])
    lanes = [kind if kind in BANDS else "compute" for kind in EVENT_KINDS]
    row_height = height / devices
    for lane, band in BANDS.items():
        members = [kind for kind, its_lane in enumerate(lanes) if its_lane == lane]
        line = _line(cover[members], [colours[kind] for kind in members], background)
        # Sums that should be 0 keep a rounding error, which must not paint over the background.
        is_there = cover[members].sum(axis=0) > 1e-9
        for device in range(devices):
            top, bottom = (round((device + share) * row_height) for share in band)
            picture[top : max(top + 1, bottom), is_there[device]] = line[device, is_there[device]]
    return picture


def _line(cover: NDArray[np.float64], colours: list[str], background: str) -> Pixels:
    """Colour each pixel of all rows by the kind that covers most of it, paler the less is covered.

    `cover` is ``[kinds, devices, width]``, the result ``[devices, width, 3]``.
    """
    hues = np.array([getrgb(colour) for colour in colours], np.float64)[cover.argmax(axis=0)]
    share = PALEST + (1 - PALEST) * np.minimum(1.0, cover.sum(axis=0))[..., None]
    ground = np.array(getrgb(background))
    mixed: Pixels = np.rint(ground * (1 - share) + hues * share).astype(np.uint8)
    return mixed


def mask_svg(loaded: LoadedPlan) -> str:
    """Draw tiles in the colours of their devices, one unit per token, and the owners at the edges.

    Neighbouring tiles of a row on the same device become one rectangle. Of several groups of heads
    the drawing shows the first and says so.
    """
    plan = loaded.plan
    start, end = plan.blocks.start, plan.blocks.end
    runs = _runs(loaded)
    if len(runs) > MOST_RUNS:
        raise DashboardError(
            f"{loaded.entry.relative}: expected at most {MOST_RUNS:,} rectangles in an SVG, got "
            f"{len(runs):,}; take the PNG instead"
        )
    shapes = [
        rect(start[first], start[q], end[last] - start[first], end[q] - start[q],
             f'class="dcp-k{device}"')
        for q, first, last, device in runs.tolist()
    ]  # fmt: skip
    names = [f"device {device}" for device in range(plan.num_devices)]
    owners = zip(plan.blocks.owner.tolist(), start.tolist(), end.tolist(), strict=True)
    stripes = [Stripe(names[owner], low, high, 0) for owner, low, high in owners]
    note = caption_of_first_group(plan) or f"{plan.num_tokens:,} tokens, tiles by device"
    colours = dict(zip(names, cluster_colours(plan.cluster), strict=True))
    name, size = loaded.summary.mask, plan.num_tokens
    frame = PictureFrame(name, note, note, size, size, stripes, stripes, colours)
    # Smoothed edges would leave light seams between rectangles that touch.
    return write_svg(frame, ['<g shape-rendering="crispEdges">', *shapes, "</g>"], zoom=2)


def _runs(loaded: LoadedPlan) -> NDArray[np.int64]:
    """Find (q block, first and last kv block, device) of every run of tiles, int64 ``[N, 4]``."""
    plan, tiles = loaded.plan, loaded.plan.tiles
    shown = tiles_of_group(plan, 0)
    order = shown[np.lexsort((tiles.kv_block[shown], tiles.q_block[shown]))]
    q, kv, device = (
        column[order].astype(np.int64) for column in (tiles.q_block, tiles.kv_block, tiles.device)
    )
    if not len(q):
        return np.empty((0, 4), np.int64)
    # A run ends with its row, its device, or before an empty block. Blocks tile the batch in order.
    goes_on = (q[1:] == q[:-1]) & (device[1:] == device[:-1]) & (kv[1:] == kv[:-1] + 1)
    first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    last = np.concatenate((first[1:] - 1, [len(q) - 1]))
    return np.stack((q[first], kv[first], kv[last], device[first]), axis=1)


def thumbnail(plan: Plan) -> bytes:
    """Draw the mask of a plan as a PNG, transparent where nothing is visible; O(W)."""
    shares = pair_shares(plan)
    # From 110 of 255 on, so that the palest share is still visible.
    alpha = np.where(shares > 0, 110 + np.round(145 * np.minimum(1.0, shares)), 0)
    picture = Image.fromarray(alpha.astype(np.uint8), "P")
    picture.putpalette(bytes(COLOUR) * 256)  # one colour, the index of a pixel is its opacity
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", transparency=bytes(range(256)))
    return buffer.getvalue()


def pair_shares(plan: Plan) -> NDArray[np.float64]:
    """Return the visible share of each pixel's area, float64 ``[SIDE, SIDE]``; rows are queries.

    The pairs of a tile are spread evenly over the pixels that it touches.
    """
    scale = SIDE / max(1, plan.num_tokens)
    first = np.minimum((plan.blocks.start * scale).astype(np.int64), SIDE - 1)
    last = np.maximum(np.ceil(plan.blocks.end * scale).astype(np.int64), first + 1)
    tiles = plan.tiles
    area = np.zeros((SIDE, SIDE))
    rows, columns = (last - first)[tiles.q_block], (last - first)[tiles.kv_block]
    per_pixel = tiles.pairs / (rows * columns * plan.head_groups)  # every group has all tiles
    # Few passes, each over all tiles: the loops end at the pixels of the largest tile.
    for down in range(int(rows.max(initial=0))):
        for right in range(int(columns.max(initial=0))):
            inside = (down < rows) & (right < columns)
            at = (first[tiles.q_block[inside]] + down, first[tiles.kv_block[inside]] + right)
            np.add.at(area, at, per_pixel[inside])
    shares: NDArray[np.float64] = area * scale**2
    return shares
