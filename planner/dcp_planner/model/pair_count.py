"""Exact visible pairs of every tile, counted from the mask itself: what validation trusts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import PlacedForm, Slabs
from dcp_planner.errors import PlanError

Ints = NDArray[np.int64]

MOST_PIECES = 1 << 26
"""Pieces that slabs are cut into: some gigabytes."""


def count_pairs(
    slabs: Slabs, bounds: Ints, forms: Sequence[PlacedForm] = ()
) -> tuple[Ints, Ints, Ints]:
    """Count the visible pairs of every non-empty tile.

    Args:
        slabs: the mask, in packed positions.
        bounds: int64 ``[D+1]``, borders of the token blocks, for queries and keys alike.
        forms: the masks of sequences without slabs, which lie between borders.

    Returns:
        ``q_block``, ``kv_block``, ``pairs``, each int64 ``[W]``, sorted by (q_block, kv_block). O(N
        + W) up to the sort, for N slabs cut into W pieces.

    Raises:
        PlanError: if the slabs are cut into more than `MOST_PIECES`.
        DatasetError: if the forms have too many tiles.

    >>> q, kv, pairs = count_pairs(Slabs(4, [0], [4], [0], [1], [0], [1]), np.array([0, 2, 4]))
    >>> list(zip(q.tolist(), kv.tolist(), pairs.tolist()))
    [(0, 0, 3), (1, 0, 4), (1, 1, 3)]
    """
    slab, row = _ranges(
        np.searchsorted(bounds, slabs.q_start, side="right") - 1,
        np.searchsorted(bounds, slabs.q_end, side="left"),
    )
    first = np.maximum(slabs.q_start[slab], bounds[row])
    rows = np.minimum(slabs.q_end[slab], bounds[row + 1]) - first
    start_slope = slabs.start_slope[slab].astype(np.int64)
    end_slope = slabs.end_slope[slab].astype(np.int64)
    down: Ints = (first - slabs.q_start[slab]).astype(np.int64)
    start: Ints = (slabs.kv_start[slab] + start_slope * down).astype(np.int64)
    end: Ints = (slabs.kv_end[slab] + end_slope * down).astype(np.int64)
    piece, column = _ranges(
        np.searchsorted(bounds, start, side="right") - 1,
        np.searchsorted(bounds, end + end_slope * (rows - 1), side="left"),
    )
    low, high = bounds[column], bounds[column + 1]
    start, end, rows = start[piece], end[piece], rows[piece]
    start_slope, end_slope = start_slope[piece], end_slope[piece]

    def keys_below(border: Ints) -> Ints:
        return _sum_of_minimum(end, end_slope, border, rows) - _sum_of_minimum(
            start, start_slope, border, rows
        )

    pairs = keys_below(high) - keys_below(low)
    tile = row[piece] * (len(bounds) - 1) + column
    tile, pairs = tile[pairs > 0], pairs[pairs > 0]
    for form in forms:
        own = form.count_blocks(bounds, bounds)
        tile = np.concatenate([tile, own.row * (len(bounds) - 1) + own.col])
        pairs = np.concatenate([pairs, own.pairs])
    found, inverse = np.unique(tile, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    np.add.at(totals, inverse, pairs)
    return found // (len(bounds) - 1), found % (len(bounds) - 1), totals


def find_overlap(slabs: Slabs) -> int | None:
    """Give a slab that shares a pair with another, or ``None``.

    Between two rows where any slab begins or ends, ends are straight lines, so slabs are disjoint
    on all rows if they lie in the same order, side by side, on the first and on the last.

    >>> find_overlap(Slabs(4, [0, 2], [4, 3], [0, 1], [1, 4], [0, 0], [1, 0]))
    1
    """
    edges = np.unique(np.concatenate([slabs.q_start, slabs.q_end]))
    slab, band = _ranges(np.searchsorted(edges, slabs.q_start), np.searchsorted(edges, slabs.q_end))
    spans = []
    for row in (edges[band], edges[band + 1] - 1):
        down = row - slabs.q_start[slab]
        spans.append(
            (
                slabs.kv_start[slab] + slabs.start_slope[slab] * down,
                slabs.kv_end[slab] + slabs.end_slope[slab] * down,
            )
        )
    order = np.lexsort((spans[0][0], band))
    follows = np.diff(band[order]) == 0
    for start, end in spans:
        crossed = np.flatnonzero(follows & (end[order][:-1] > start[order][1:]))
        if crossed.size:
            return int(slab[order][crossed[0] + 1])
    return None


def _ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Give (i, v) for every v in ``first[i]..last[i]-1``, for all i."""
    sizes = np.maximum(last - first, 0)
    total = int(sizes.sum())
    if total > MOST_PIECES:
        raise PlanError(
            f"expected at most {MOST_PIECES:_} pieces of slabs, got {total:_}; take larger blocks"
        )
    owner = np.repeat(np.arange(len(sizes)), sizes)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return owner, first[owner] + offset


def _sum_of_minimum(value: Ints, slope: Ints, border: Ints, rows: Ints) -> Ints:
    """Sum ``min(value + slope * r, border)`` over ``r = 0 .. rows - 1``."""
    free = np.clip(border - value, 0, rows)  # rows in which a rising value stays below the border
    rising = free * value + free * (free - 1) // 2 + (rows - free) * border
    return np.where(slope > 0, rising, rows * np.minimum(value, border))
