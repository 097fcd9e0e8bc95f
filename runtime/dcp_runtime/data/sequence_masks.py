"""Masks of single sequences: cut to their first tokens, and asked what each next token sees."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from dcp_dsl import Form, Slabs
from dcp_dsl.arrays import Bools
from dcp_dsl.forms import Parts, RegionPart, Rows


def truncate(form: Form, num_tokens: int) -> Form:
    """Restrict an exact mask to its first rows and keys, in the form it has.

    >>> truncate(Rows(3, [0, 1, 2, 3], [0, 1, 0], [3, 3, 1]), 2).tile(0, 2, 0, 2).tolist()
    [[True, True], [False, True]]
    """
    if isinstance(form, Slabs | Rows):
        return _truncate_region(form, num_tokens)
    assert isinstance(form, Parts), f"no form: {type(form).__name__}"
    cut = (  # labels and predicates are told where to end when they are asked
        replace(part, region=_truncate_region(part.region, num_tokens))
        if isinstance(part, RegionPart)
        else part
        for part in form.parts
    )
    return Parts(num_tokens, tuple(cut))


def _truncate_region(region: Slabs | Rows, num_tokens: int) -> Slabs | Rows:
    if isinstance(region, Slabs):
        return truncate_slabs(region, num_tokens)
    return _truncate_rows(region, num_tokens)


def _truncate_rows(rows: Rows, num_tokens: int) -> Rows:
    row_ptr, start, end = rows.row_ranges(0, num_tokens)
    kept = start < num_tokens
    counts = np.append(0, np.cumsum(kept))[row_ptr]
    return Rows(num_tokens, counts, start[kept], np.minimum(end[kept], num_tokens))


def truncate_slabs(slabs: Slabs, num_tokens: int) -> Slabs:
    """Restrict a mask to its first rows and keys.

    A slab whose moving end passes the border is cut where it does; O(slabs).

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> truncate_slabs(causal, 3).num_pairs
    6
    """
    parts = []
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        stop = min(q1, num_tokens)
        if a:  # rows whose first key is inside
            stop = min(stop, q0 + max(0, num_tokens - k0))
        if stop <= q0 or k0 >= num_tokens:
            continue
        inside = stop if k1 + b * (stop - 1 - q0) <= num_tokens else q0
        if b and inside == q0:
            inside = q0 + max(0, num_tokens - k1 + 1)
        inside = min(max(inside, q0), stop)
        if inside > q0:
            parts.append((q0, inside, k0, k1, a, b))
        if inside < stop:  # from here on the last key is the border
            parts.append((inside, stop, k0 + a * (inside - q0), num_tokens, a, 0))
    parts.sort(key=lambda slab: (slab[0], slab[2]))
    table = np.asarray(parts, np.int64).reshape(-1, 6)
    ends, slopes = table[:, :4].T, table[:, 4:].T.astype(np.uint8)
    return Slabs(num_tokens, *ends, *slopes)


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
