"""Tokens that the next token of their row does not see, and that therefore must not predict it.

Where packed documents meet, or the answers to a shared question, the next token of the row does not
continue the one before it.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Form, Slabs
from dcp_dsl.forms import Parts, RegionPart, Rows

Bools: TypeAlias = NDArray[np.bool_]

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open runs of packed positions, rising."""

TILE = 64
"""Rows of a mask without ranges that are looked at together: pairs grow with it, calls shrink."""


def hidden_from_next(sequences: Sequence[Iterable[Form]]) -> Runs:
    """Return the packed positions of the tokens that the next token of their sequence never sees.

    Args:
        sequences: for each sequence of the batch the masks of its layers. The next token sees a
            token if it does so in one layer at least.

    >>> own = Slabs(4, [0, 2], [2, 4], [0, 2], [1, 3], [0, 0], [1, 1])  # two documents of 2 tokens
    >>> hidden_from_next([[own], [own]])
    ((1, 2), (5, 6))
    """
    is_hidden = [np.zeros(1, np.bool_)]
    for forms in sequences:
        sees = np.logical_or.reduce([sees_previous(form) for form in forms])
        is_hidden += [~sees[1:], np.zeros(min(1, len(sees)), np.bool_)]  # the last has no next one
    edges = np.flatnonzero(np.diff(np.concatenate(is_hidden).astype(np.int8)))
    return tuple((start, end) for start, end in edges.reshape(-1, 2).tolist())


def sees_previous(form: Form) -> Bools:
    """Return for every token whether it sees the one before it, bool ``[T]``; the first sees none.

    O(tokens + slabs), or O(tokens + ranges); a mask of tiles is evaluated along its diagonal.

    >>> sees_previous(Slabs(3, [0, 1], [1, 3], [0, 1], [1, 2], [0, 0], [0, 1])).tolist()
    [False, False, True]
    """
    return _diagonal(form, -1)


def _diagonal(form: Form, offset: int) -> Bools:
    """Return for every row ``r`` whether it sees key ``r + offset``, bool ``[T]``."""
    match form:
        case Slabs():
            return _diagonal_of_slabs(form, offset)
        case Rows():
            return _diagonal_of_rows(form, offset)
        case Parts(parts=parts):
            found = [_diagonal_of_part(p, offset) for p in parts if isinstance(p, RegionPart)]
            if len(found) < len(parts):
                return _diagonal_of_tiles(form, offset)
            none = np.zeros(form.num_tokens, np.bool_)
            return np.asarray(np.logical_or.reduce([none, *found]))
    raise AssertionError(f"no form: {type(form).__name__}")


def _diagonal_of_part(part: RegionPart, offset: int) -> Bools:
    if -offset % part.period not in part.remainders:
        return np.zeros(part.region.num_tokens, np.bool_)
    if part.is_transposed:  # row r sees key r + d if of the transposed r + d sees r
        return np.roll(_diagonal(part.region, -offset), -offset)
    return _diagonal(part.region, offset)


def _diagonal_of_slabs(slabs: Slabs, offset: int) -> Bools:
    """Mark, slab by slab, the run of rows whose keys hold the one on the diagonal.

    An end that moves with the rows lies on the same side of the diagonal on all of them; an end
    that stands still is passed once.
    """
    first, last = slabs.q_start, slabs.q_end
    start_moves, end_moves = slabs.start_slope == 1, slabs.end_slope == 1
    begin = np.where(start_moves, first, np.maximum(first, slabs.kv_start - offset))
    end = np.where(end_moves, last, np.minimum(last, slabs.kv_end - offset))
    is_off = start_moves & (slabs.kv_start > first + offset)
    is_off |= end_moves & (slabs.kv_end <= first + offset)
    kept = ~is_off & (begin < end)
    change = np.zeros(slabs.num_tokens + 1, np.int64)
    np.add.at(change, begin[kept], 1)
    np.add.at(change, end[kept], -1)
    return np.asarray(np.cumsum(change)[:-1] > 0)


def _diagonal_of_rows(rows: Rows, offset: int) -> Bools:
    row = np.repeat(np.arange(rows.num_tokens), np.diff(rows.row_ptr))
    holds = (rows.kv_start <= row + offset) & (row + offset < rows.kv_end)
    found = np.zeros(rows.num_tokens, np.bool_)
    found[row[holds]] = True
    return found


def _diagonal_of_tiles(form: Parts, offset: int) -> Bools:
    count = form.num_tokens
    found = np.zeros(count, np.bool_)
    first, last = max(0, -offset), min(count, count - offset)
    for begin in range(first, last, TILE):
        end = min(begin + TILE, last)
        found[begin:end] = form.tile(begin, end, begin + offset, end + offset).diagonal()
    return found
