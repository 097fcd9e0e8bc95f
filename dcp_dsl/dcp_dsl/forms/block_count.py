"""Closed-form counting: how many visible pairs of slabs every block holds.

A slab is cut at the borders of query blocks; on one such piece both ends are straight, so the pairs
left of any key border have a closed form, and the pairs of a block are a difference of four of
them. Only blocks that hold pairs are ever looked at.
"""

from typing import TYPE_CHECKING

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.forms.form import BlockCounts, limit_blocks
from dcp_dsl.symbolic.bands import expand

if TYPE_CHECKING:
    from dcp_dsl.forms.slabs import Slabs


def count_slab_blocks(slabs: "Slabs", q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
    """Count the pairs of every block that slabs touch; O(slabs + blocks)."""
    pieces = cut_at_rows(slabs, q_bounds)
    if (pieces[1][1:] < pieces[1][:-1]).any():
        order = np.argsort(pieces[1], kind="stable")
        pieces = tuple(column[order] for column in pieces)
    slab, block, rows, first, last, low, high = pieces
    touched_from = np.searchsorted(kv_bounds, first, side="right") - 1
    touched_to = np.searchsorted(kv_bounds, last + high * (rows - 1), side="left")
    counts = touched_to - touched_from
    limit_blocks(int(counts.sum()))
    begin = np.cumsum(counts) - counts
    piece = np.repeat(np.arange(len(counts)), counts)
    col = np.arange(len(piece)) - np.repeat(begin - touched_from, counts)
    pairs = np.repeat(rows, counts) * np.diff(kv_bounds)[col]  # as if both ends lay outside
    # Few blocks are cut by an end: those left of where the start comes to rest, and those right
    # of where the end sets out.
    full_from = np.searchsorted(kv_bounds, first + low * (rows - 1), side="left")
    full_to = np.searchsorted(kv_bounds, last, side="right") - 1
    full_from = np.minimum(full_from, touched_to)
    full_to = np.maximum(full_to, full_from)
    cut = expand(begin, full_from - touched_from)[1]
    cut = np.concatenate([cut, expand(begin + full_to - touched_from, touched_to - full_to)[1]])
    at = piece[cut]
    pairs[cut] = sum(
        sign * (_pairs_below(border, last[at], high[at], rows[at])
                - _pairs_below(border, first[at], low[at], rows[at]))
        for sign, border in ((1, kv_bounds[col[cut] + 1]), (-1, kv_bounds[col[cut]]))
    )  # fmt: skip
    is_shared = np.zeros(len(block) + 1, np.bool_)  # alone in its row of blocks: already in order
    np.equal(block[1:], block[:-1], out=is_shared[1:-1])
    shared = np.flatnonzero(is_shared[1:] | is_shared[:-1])
    crowd = expand(begin[shared], counts[shared])[1]
    return merge_blocks(
        np.repeat(block, counts), col, pairs, slab[piece], len(kv_bounds), crowd=crowd
    )


def cut_at_rows(slabs: "Slabs", q_bounds: Ints) -> tuple[Ints, ...]:
    """Cut slabs at the query borders.

    Returns:
        Of each piece: slab, block, rows, first key, end key, slopes of both ends.
    """
    low = np.searchsorted(q_bounds, slabs.q_start, side="right") - 1
    high = np.searchsorted(q_bounds, slabs.q_end, side="left")
    limit_blocks(int((high - low).sum()))  # every piece touches one: refused before they are made
    slab, block = expand(low, high - low)
    q_start = slabs.q_start[slab]
    begin: Ints = np.maximum(q_start, q_bounds[block])
    rows = np.minimum(slabs.q_end[slab], q_bounds[block + 1]) - begin
    start_slope = slabs.start_slope[slab].astype(np.int64)
    end_slope = slabs.end_slope[slab].astype(np.int64)
    down: Ints = begin - q_start
    first = slabs.kv_start[slab] + start_slope * down
    last = slabs.kv_end[slab] + end_slope * down
    return slab, block, rows, first, last, start_slope, end_slope


def _pairs_below(border: Ints, end: Ints, slope: Ints, rows: Ints) -> Ints:
    """Give ``sum over r < rows of min(end + slope * r, border)``."""
    # Rows on which the end is still left of the border.
    moving = np.clip(border - end, 0, rows)
    still = np.where(end < border, rows, 0)
    inside = np.where(slope == 1, moving, still)
    below: Ints = inside * end + slope * (inside * (inside - 1) // 2) + (rows - inside) * border
    return below


def merge_blocks(
    row: Ints, col: Ints, pairs: Ints, slab: Ints, base: int, *, crowd: Ints | None = None
) -> BlockCounts:
    """Add up the entries of the same block and sort by (row, col), in place.

    Args:
        row: int64 ``[N]``, like the next three.
        col: key block of each entry.
        pairs: its pairs.
        slab: where they come from.
        base: more than every column.
        crowd: the entries that may be out of order, all those of their rows; by default any.
    """
    if crowd is None:
        crowd = np.arange(len(row))
    key = row[crowd] * base + col[crowd]
    order = np.argsort(key, kind="stable")
    key, moved = key[order], crowd[order]
    row[crowd], col[crowd], slab[crowd] = row[moved], col[moved], slab[moved]
    begin = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])[: len(key)])
    if len(begin) == len(key):
        pairs[crowd] = pairs[moved]
        return BlockCounts(row, col, pairs, np.arange(len(row) + 1), slab)
    first = crowd[begin]
    pairs[first] = np.add.reduceat(pairs[moved], begin)
    kept = np.ones(len(row), np.bool_)
    kept[crowd] = False
    kept[first] = True
    row, col, pairs = (np.compress(kept, column) for column in (row, col, pairs))
    return BlockCounts(row, col, pairs, np.append(np.flatnonzero(kept), len(slab)), slab)
