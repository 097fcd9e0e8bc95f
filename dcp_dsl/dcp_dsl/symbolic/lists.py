"""Pairs of a list on one side and a number in it on the other, as ``k // 64 in q.chosen``."""

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.symbolic.piecewise import Piecewise, expand, limit_pieces
from dcp_dsl.symbolic.region import MAX_PAIRS, Region


def listed(rows: Piecewise, lists: Ints, numbers: Piecewise) -> Region:
    """Return the pairs of a row and a key whose number is in the list of the row.

    Args:
        rows: which list each row has; flat, undefined where it has none.
        lists: int64 ``[R, size]``, every number once, -1 for none.
        numbers: the number of each key.

    Raises:
        TooManyPieces: if there are too many places of lists, or of keys.
    """
    n, numbers = numbers.num_tokens, _flat(numbers)
    kept = np.flatnonzero(numbers.is_defined)
    kept = kept[np.argsort(numbers.values[kept], kind="stable")]
    value, start = numbers.values[kept], numbers.starts[kept]
    end = start + numbers.lengths[kept]
    piece = np.flatnonzero(rows.is_defined)
    entries = lists[rows.values[piece]]
    limit_pieces(int(np.count_nonzero(entries >= 0)), MAX_PAIRS, "places of lists")
    row, place = np.nonzero(entries >= 0)
    wanted = entries[row, place]
    top = int(value.max(initial=-1)) + 1
    if top <= n:  # a table of all numbers is several times as fast
        firsts = np.searchsorted(value, np.arange(top + 2))
        wanted = np.minimum(wanted, top)
        first, counts = firsts[wanted], np.diff(firsts)[wanted]
    else:
        first = np.searchsorted(value, wanted)
        counts = np.searchsorted(value, wanted, side="right") - first
    limit_pieces(int(counts.sum()), MAX_PAIRS, "stretches of keys that lists name")
    entry, at = expand(first, counts)
    row, start, end = row[entry], start[at], end[at]
    order = np.argsort(row * n + start, kind="stable")
    row, start, end = row[order], start[order], end[order]
    is_new = np.ones(len(row), np.bool_)
    is_new[1:] = (row[1:] != row[:-1]) | (start[1:] != end[:-1])
    start, end = start[is_new], end[np.append(is_new[1:], True)[: len(end)]]
    which = piece[row[is_new]]
    q_start, flat = rows.starts[which], np.zeros(len(which), np.int64)
    q_end = q_start + rows.lengths[which]
    return Region(n, q_start, q_end, start, end, flat, flat, is_maximal=False)


def _flat(function: Piecewise) -> Piecewise:
    """Return a function in pieces of one value each."""
    sloped = np.flatnonzero(function.slopes)
    if not len(sloped):
        return function
    tokens = expand(function.starts[sloped], function.lengths[sloped])[1]
    return function.cut(tokens)
