"""Fast paths of the region algebra: for a few slabs, and for slabs that never share a row.

An operation on arrays costs some microseconds however short they are, and a general sweep sorts
what two lists in order need not sort. Both shortcuts give the same slabs as the sweep.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints, expand
from dcp_dsl.symbolic.piecewise import limit_pieces

Slab: TypeAlias = tuple[int, int, int, int, int, int]  # columns as in `Slabs`
KeyRange: TypeAlias = tuple[int, int, int, int]  # start, end, and the slopes of both


def sweep_few(slabs: Sequence[Slab], weights: Sequence[int], truth: Sequence[bool]) -> list[Slab]:
    """Return maximal slabs of the pairs where `truth` holds for the sum of the weights that cover.

    Args:
        slabs: none has an end before its start; those of one weight are disjoint.
        weights: one for each slab.
        truth: for each sum of weights.

    >>> causal, window = (0, 4, 0, 1, 0, 1), (0, 4, 0, 4, 1, 0)
    >>> sweep_few([causal, window], [1, 2], [False, False, False, True])
    [(0, 4, 0, 1, 1, 1)]
    """
    knots = sorted({row for slab in slabs for row in slab[:2]})
    done: list[Slab] = []
    growing: list[Slab] = []
    # the same steps as in `region`: cells, cuts where ends meet, one sweep, gluing
    for begin, end in pairwise(knots):
        lines = [
            line
            for slab, weight in zip(slabs, weights, strict=True)
            if slab[0] <= begin < slab[1]
            for line in _lines(slab, weight, begin)
        ]
        cuts = [begin, *_meetings(lines, begin, end), end]
        for row, next_row in pairwise(cuts):
            found = _intervals(lines, row - begin, next_row - row > 1, truth)
            growing = _glue(growing, row, next_row, found, done)
    return sorted(done + growing, key=lambda slab: (slab[0], slab[2]))


def _lines(slab: Slab, weight: int, row: int) -> Iterable[tuple[int, int, int]]:
    """Return (value at a row, slope, change of the sum) of both ends."""
    q_start, _, kv_start, kv_end, low, high = slab
    down = row - q_start
    return (kv_start + low * down, low, weight), (kv_end + high * down, high, -weight)


def _meetings(lines: Sequence[tuple[int, int, int]], begin: int, end: int) -> list[int]:
    """Return the rows to cut at so that ends of different slope meet on rows of their own."""
    rows = end - begin
    still = {value for value, slope, _ in lines if not slope}
    moving = {value for value, slope, _ in lines if slope}
    met = {value - other for value in still for other in moving if 0 <= value - other < rows}
    return sorted({begin + cut for at in met for cut in (at, at + 1) if 0 < cut < rows})


def _intervals(
    lines: Sequence[tuple[int, int, int]], down: int, is_tall: bool, truth: Sequence[bool]
) -> list[KeyRange]:
    """Return the visible intervals of the rows from `down` on; a single row has slope 0."""
    events: dict[tuple[int, int], int] = {}
    for value, slope, change in lines:
        key = (value + slope * down, slope if is_tall else 0)
        events[key] = events.get(key, 0) + change
    found = []
    total, first = 0, None
    for key in sorted(events):
        total += events[key]
        if truth[total] and first is None:
            first = key
        elif first is not None and not truth[total]:
            found.append((first[0], key[0], first[1], key[1]))
            first = None
    return found


def _glue(
    growing: list[Slab], row: int, next_row: int, found: list[KeyRange], done: list[Slab]
) -> list[Slab]:
    """Extend slabs from the rows above by the keys visible on ``[row, next_row)``.

    A slab takes up rows, from the top down, as long as each of its ends makes equal steps. Slabs
    that end move to `done`.
    """
    continued: list[Slab] = []
    taken: set[int] = set()
    for start, end, low, high in found:
        for index, (top, bottom, kv_start, kv_end, a, b) in enumerate(growing):
            down = bottom - top - 1
            step = start - kv_start - a * down, end - kv_end - b * down
            if bottom == row and 0 <= step[0] <= 1 and 0 <= step[1] <= 1:
                taken.add(index)
                break
        else:
            continued.append((row, next_row, start, end, low, high))
            continue
        if down and step != (a, b):  # the slab has its steps already, and this is another one
            done.append(growing[index])
            continued.append((row, next_row, start, end, low, high))
        elif next_row - row == 1 or (low, high) == step:
            continued.append((top, next_row, kv_start, kv_end, *step))
        else:  # only the first row belongs to the slab above
            done.append((top, row + 1, kv_start, kv_end, *step))
            slopes = (low, high) if next_row - row > 2 else (0, 0)
            continued.append((row + 1, next_row, start + low, end + high, *slopes))
    done += [slab for index, slab in enumerate(growing) if index not in taken]
    return continued


def is_single(columns: tuple[Ints, ...]) -> bool:
    """Return whether slabs are in order and no row belongs to two of them."""
    return bool((columns[0][1:] >= columns[1][:-1]).all())


def intersect_single(
    left: tuple[Ints, ...], right: tuple[Ints, ...], most: int
) -> tuple[Ints, ...]:
    """Return the pairs in both, as slabs that are empty on no row.

    Args:
        left: six arrays as in `Slabs`, by row and then by key.
        right: the same, of slabs that never share a row.
        most: how many pairs of slabs may share rows.

    Raises:
        TooManyPieces: if there are more.
    """
    first = np.searchsorted(right[1], left[0], side="right")
    counts = np.maximum(np.searchsorted(right[0], left[1], side="left") - first, 0)
    limit_pieces(int(counts.sum()), most, "pieces of slabs")
    i, j = expand(first, counts)
    own = left if (counts == 1).all() else tuple(column[i] for column in left)
    other = tuple(column[j] for column in right)
    # mostly one slab lies inside the other on the rows of both; the rest is cut where ends cross
    row: Ints = np.maximum(own[0], other[0])
    end: Ints = np.minimum(own[1], other[1])
    whole = _at_rows(own, row)
    is_inside = _contains(_at_rows(other, row), whole, end - row)
    is_tall = end - row > 1  # the slope of a single row means nothing: call it 0
    columns = row, end, *whole[:2], whole[2] & is_tall, whole[3] & is_tall
    rest = np.flatnonzero(~is_inside)
    if len(rest):
        one, two = (tuple(column[rest] for column in side) for side in (own, other))
        cut = _cut(one, two, row[rest], end[rest])
        parts = [np.compress(is_inside, column) for column in columns]
        columns = tuple(np.concatenate(pair) for pair in zip(parts, cut, strict=True))
    return in_order(columns)


def in_order(columns: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Sort slabs by row and then by key."""
    keys = columns[0] * (int(columns[3].max(initial=0)) + 1) + columns[2]
    if (keys[1:] >= keys[:-1]).all():
        return columns
    order = np.argsort(keys, kind="stable")
    return tuple(column[order] for column in columns)


def _contains(outer: tuple[Ints, ...], inner: tuple[Ints, ...], rows: Ints) -> NDArray[np.bool_]:
    """Return which slabs lie inside others on some rows.

    Ends are straight, so a slab that is inside on the first and on the last row is inside between.
    """
    low, high = inner[0] - outer[0], outer[1] - inner[1]
    down = rows - 1
    is_left: NDArray[np.bool_] = np.minimum(low, low + (inner[2] - outer[2]) * down) >= 0
    is_right: NDArray[np.bool_] = np.minimum(high, high + (outer[3] - inner[3]) * down) >= 0
    return is_left & is_right


def _cut(left: tuple[Ints, ...], right: tuple[Ints, ...], row: Ints, end: Ints) -> tuple[Ints, ...]:
    """Intersect pairs of slabs, each on a run of rows that both have."""
    a, b = _at_rows(left, row), _at_rows(right, row)
    crossings = [_crossing(a, b, which, end - row) for which in (0, 1)]
    cut = np.concatenate([np.flatnonzero(is_cut) for _, is_cut in crossings])
    if len(cut):
        offset = np.concatenate([offset[is_cut] for offset, is_cut in crossings])
        # pieces of each pair of slabs: one from its first row, one from each row with a crossing
        pair = np.concatenate([np.arange(len(row)), cut])
        starts = np.concatenate([row, row[cut] + offset])
        order = np.lexsort((starts, pair))
        pair, starts = pair[order], starts[order]
        is_last = np.append(pair[1:] != pair[:-1], True)
        end = np.where(is_last, end[pair], np.append(starts[1:], 0))
        row = starts
        a, b = (_at_rows(tuple(c[pair] for c in side), row) for side in (left, right))
    first, low = _chosen(a, b, 0)
    last, high = _chosen(a, b, 1)
    return trimmed(row, end, first, last, low, high)


def _at_rows(columns: tuple[Ints, ...], row: Ints) -> tuple[Ints, ...]:
    """Return start, end and both slopes of slabs, each seen from a row of its own."""
    q_start, _, kv_start, kv_end, low, high = columns
    down = row - q_start
    return kv_start + low * down, kv_end + high * down, low, high


def _crossing(
    a: tuple[Ints, ...], b: tuple[Ints, ...], which: int, rows: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Count the rows down to where two starts (or ends) meet; mark those that meet inside."""
    offset = (a[which] - b[which]) * (b[which + 2] - a[which + 2])
    return offset, (offset > 0) & (offset < rows)


def _chosen(a: tuple[Ints, ...], b: tuple[Ints, ...], which: int) -> tuple[Ints, Ints]:
    """Return the later start (0) or the earlier end (1), and its slope."""
    gap = a[which] - b[which]
    # ends that are equal on this row part on the next one: the one that moves is later
    gap = np.where(gap == 0, a[which + 2] - b[which + 2], gap)
    is_left = gap >= 0 if which == 0 else gap <= 0
    slope = np.where(is_left, a[which + 2], b[which + 2])
    return np.where(is_left, a[which], b[which]), slope


def trimmed(
    row: Ints, end: Ints, first: Ints, last: Ints, low: Ints, high: Ints
) -> tuple[Ints, ...]:
    """Leave out the rows on which the start has passed the end."""
    width, growth = last - first, high - low
    # a width that grows is positive from row 1 - width on, one that shrinks before row `width`
    skipped = np.where(growth > 0, np.maximum(1 - width, 0), 0)
    end = np.where(growth < 0, np.minimum(end, row + width), end)
    row = row + skipped
    first, last = first + low * skipped, last + high * skipped
    kept = (row < end) & (first < last)
    is_tall = end - row > 1
    columns = (row, end, first, last, low & is_tall, high & is_tall)
    return columns if kept.all() else tuple(np.compress(kept, column) for column in columns)
