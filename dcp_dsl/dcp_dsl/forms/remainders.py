"""Pairs of slabs by the remainder of the distance: dilated windows, strided columns."""

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.forms.slabs import Slabs, cut_at_rows, slab_entries
from dcp_dsl.symbolic.piecewise import expand


def count_remainders(
    slabs: Slabs, which: tuple[int, Ints], q_bounds: Ints, kv_bounds: Ints
) -> tuple[Ints, Ints, Ints]:
    """Count the pairs of slabs whose distance has some remainders.

    Args:
        slabs: a region.
        which: a period, and the remainders of ``(q - k) % period`` that count, int64 ``[M]``.
        q_bounds: borders of blocks of queries.
        kv_bounds: the same of keys.

    Returns:
        Row, column and signed pairs of blocks; a block may come several times.
    """
    period, remainders = which
    is_few = 2 * len(remainders) <= period
    if not is_few:  # count all pairs, take the other remainders away
        remainders = np.setdiff1d(np.arange(period), remainders)
    pieces = cut_at_rows(slabs, q_bounds, kv_bounds)
    piece, col = expand(pieces[-2], pieces[-1] - pieces[-2])
    row, q, rows, first, last, low, high = (column[piece] for column in pieces[1:-2])
    pairs = np.zeros(len(col), np.int64)
    for remainder in remainders.tolist():
        offset = remainder - 1 - q
        for ends, slope, sign in ((last, high, 1), (first, low, -1)):
            for border, side in ((kv_bounds[col + 1], 1), (kv_bounds[col], -1)):
                below = _keys_below((ends, slope), border, rows, offset, period)
                pairs += sign * side * below
    if is_few:
        return row, col, pairs
    all_row, all_col, all_pairs, _ = slab_entries(pieces, kv_bounds)
    parts = (all_row, row), (all_col, col), (all_pairs, -pairs)
    row, col, pairs = (np.concatenate(columns) for columns in parts)
    return row, col, pairs


def _keys_below(
    end: tuple[Ints, Ints], border: Ints, rows: Ints, offset: Ints, period: int
) -> Ints:
    """Sum over the rows how many keys with a remainder lie left of ``min(end, border)``.

    Of the keys below x, row q counts ``(x - 1 - q + remainder) // period``, up to a number that
    depends on q alone and falls out of differences.

    Args:
        end: an end of each piece on its first row, and its slope.
        border: of each piece.
        rows: of each piece.
        offset: the remainder less 1 and the first row.
        period: what the distance is divided by.
    """
    first, slope = end
    moving = np.clip(border - first, 0, rows)
    inside = np.where(slope == 1, moving, np.where(first < border, rows, 0))
    at_end = np.where(
        slope == 1,
        inside * ((first + offset) // period),  # end and row move together
        _falling_sum(first + offset, inside, period),
    )
    return at_end + _falling_sum(border + offset - inside, rows - inside, period)


def _falling_sum(first: Ints, count: Ints, period: int) -> Ints:
    """Return ``sum over i < count of (first - i) // period``."""
    return _sum_below(first + 1, period) - _sum_below(first + 1 - count, period)


def _sum_below(x: Ints, period: int) -> Ints:
    """Return the sum of ``j // period`` for j from 0 up to x (exclusive), also below 0."""
    whole = x // period
    return period * (whole * (whole - 1) // 2) + whole * (x - period * whole)
