"""Intersect slabs that never share a row: where two intervals meet there is one at most.

Many masks are of this kind, some with a slab for each of a million keys. No sorting is needed:
walk down the rows, take the later start and the earlier end, cut where two of them cross.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_dsl.symbolic.bands import overlaps
from dcp_dsl.symbolic.piecewise import sorted_unique


def is_single(columns: tuple[Ints, ...]) -> bool:
    """Whether slabs are in order and no row belongs to two of them."""
    return bool((columns[0][1:] >= columns[1][:-1]).all())


def intersect(left: tuple[Ints, ...], right: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Give the pairs in both, as slabs that never share a row and are empty on none.

    Args:
        left: six arrays as in `Slabs`, of slabs that never share a row.
        right: the same.
    """
    i, j = overlaps(left[0], left[1], right[0], right[1])
    row: Ints = np.maximum(left[0][i], right[0][j])
    end: Ints = np.minimum(left[1][i], right[1][j])
    a, b = _at_rows(left, i, row), _at_rows(right, j, row)
    cuts = [
        row[is_cut] + offset[is_cut]
        for offset, is_cut in (_crossing(a, b, which, end - row) for which in (0, 1))
        if is_cut.any()
    ]
    if cuts:
        knots = sorted_unique(np.concatenate([row, *cuts]))
        piece = np.searchsorted(row, knots, side="right") - 1
        i, j = i[piece], j[piece]
        end = np.minimum(end[piece], np.append(knots[1:], end[-1:]))
        row = knots
        a, b = _at_rows(left, i, row), _at_rows(right, j, row)
    first, low = _chosen(a, b, 0)
    last, high = _chosen(a, b, 1)
    return _trimmed(row, end, first, last, low, high)


def _at_rows(columns: tuple[Ints, ...], slab: Ints, row: Ints) -> tuple[Ints, ...]:
    """Give start, end and both slopes of slabs, seen from a row of theirs."""
    q_start, _, kv_start, kv_end, low, high = (column[slab] for column in columns)
    down = row - q_start
    return kv_start + low * down, kv_end + high * down, low, high


def _crossing(
    a: tuple[Ints, ...], b: tuple[Ints, ...], which: int, rows: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Give how many rows down two starts (or ends) meet, and where that is inside."""
    offset = (a[which] - b[which]) * (b[which + 2] - a[which + 2])
    return offset, (offset > 0) & (offset < rows)


def _chosen(a: tuple[Ints, ...], b: tuple[Ints, ...], which: int) -> tuple[Ints, Ints]:
    """Give the later start (0) or the earlier end (1), and its slope."""
    gap = a[which] - b[which]
    gap = np.where(gap == 0, a[which + 2] - b[which + 2], gap)  # equal here: who moves decides
    is_left = gap >= 0 if which == 0 else gap <= 0
    slope = np.where(is_left, a[which + 2], b[which + 2])
    return np.where(is_left, a[which], b[which]), slope


def _trimmed(
    row: Ints, end: Ints, first: Ints, last: Ints, low: Ints, high: Ints
) -> tuple[Ints, ...]:
    """Leave out the rows on which the start has passed the end."""
    width, growth = last - first, high - low
    skipped = np.where(growth > 0, np.maximum(1 - width, 0), 0)
    end = np.where(growth < 0, np.minimum(end, row + width), end)
    row = row + skipped
    first, last = first + low * skipped, last + high * skipped
    kept = (row < end) & (first < last)
    is_tall = end - row > 1
    columns = (row, end, first, last, low & is_tall, high & is_tall)
    return columns if kept.all() else tuple(np.compress(kept, column) for column in columns)
