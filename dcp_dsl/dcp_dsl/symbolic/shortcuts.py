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

ROWS_AT_ONCE = 2**15
REMAINDERS = 2**18

Slab: TypeAlias = tuple[int, int, int, int, int, int]  # columns as in `Slabs`
KeyRange: TypeAlias = tuple[int, int, int, int]  # start, end, and the slopes of both


def sweep_few(slabs: Sequence[Slab], weights: Sequence[int], truth: Sequence[bool]) -> list[Slab]:
    """Return maximal slabs of the pairs where `truth` holds for the sum of the weights that cover.

    No slab has an end before its start; those of one weight are disjoint.

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


def are_linked(rows: tuple[Ints, ...]) -> NDArray[np.bool_]:
    """Return which slabs of one row each are continued on the next row, as `region` joins them."""
    row, _, first, last = rows[:4]
    if is_single(rows):
        move = first[1:] - first[:-1]
        move |= last[1:] - last[:-1]
        return np.append((move >> 1 == 0) & (row[1:] - row[:-1] == 1), False)
    cuts = np.searchsorted(row, row[::ROWS_AT_ONCE]).tolist()
    found = np.zeros(len(row), np.bool_)
    for begin, end in pairwise([*cuts, len(row)]):
        if begin == end:
            continue
        # the slabs of these rows and of the next one
        stop = int(np.searchsorted(row, row[end - 1] + 1, side="right"))
        base, top = (int(last[begin:stop].max()) + 2) | 1, row[begin]
        keys = (row[begin:stop] - top) * base + first[begin:stop]
        # most are continued by none: a table of remainders, which a cache holds, tells at once
        is_taken = np.zeros(REMAINDERS, np.bool_)
        is_taken[keys & (REMAINDERS - 1)] = True
        wanted = keys[: end - begin] + base
        place = wanted & (REMAINDERS - 1)
        near = np.flatnonzero(is_taken[place] | is_taken[place + 1 - REMAINDERS])
        wanted = wanted[near]
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        step = last[begin + at] - last[begin + near]
        found[begin + near] = ((keys[at] - wanted) >> 1 == 0) & (step >> 1 == 0)
    return found


def rows_of_keys(slab: Slab, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the rows on which a slab has a key in each of some ranges; those without end first.

    >>> [c.tolist() for c in rows_of_keys((0, 8, 0, 1, 0, 1), np.array([2]), np.array([4]))]
    [[2], [8]]
    """
    top, bottom, first, last, low, high = slab
    # the end of the slab passes the start of a range, and its start has not passed the range's end
    begin = np.maximum(start - last + 1, 0) if high else np.where(last > start, 0, bottom - top)
    stop = np.minimum(end - first, bottom - top) if low else np.where(first < end, bottom - top, 0)
    return top + begin, top + stop


def is_of_rows(columns: tuple[Ints, ...]) -> bool:
    """Return whether every slab has one row."""
    return len(columns[0]) > 0 and int((columns[1] - columns[0]).max()) == 1


def _rows_within(rows: tuple[Ints, ...], single: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Return the pairs of slabs of one row each that lie in slabs that never share a row."""
    parts = []
    for at in range(0, len(rows[0]), ROWS_AT_ONCE):
        row, _, first, last = (column[at : at + ROWS_AT_ONCE] for column in rows[:4])
        own = single  # one slab broadcasts
        if len(single[0]) > 1:
            slab = np.searchsorted(single[1], row, side="right")
            slab[slab == len(single[0])] = 0  # behind the last one, above the first row of another
            own = tuple(column[slab] for column in single)
        top, bottom, start, end, low, high = own
        down = row - top
        first = np.maximum(first, start + low * down)
        last = np.minimum(last, end + high * down)
        kept = (first < last) & (down >= 0) & (row < bottom)
        parts.append([np.compress(kept, column) for column in (row, first, last)])
    return _of_rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _of_rows(row: Ints, first: Ints, last: Ints) -> tuple[Ints, ...]:
    flat = np.zeros_like(row)
    return row, row + 1, first, last, flat, flat


def unite_rows(rows: tuple[Ints, ...], single: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Return the pairs of slabs of one row each, and of slabs that never share a row."""
    height = single[1] - single[0]
    slab, at = expand(single[0], height)
    down = at - single[0][slab]
    ends = single[2][slab] + single[4][slab] * down, single[3][slab] + single[5][slab] * down
    # in bunches, each of whole rows, that the processor's cache holds
    cuts = np.arange(ROWS_AT_ONCE, len(rows[0]), ROWS_AT_ONCE)
    cuts = np.searchsorted(rows[0], rows[0][cuts])
    own, other = (np.append(np.append(0, c), size) for c, size in (
        (cuts, len(rows[0])), (np.searchsorted(at, rows[0][cuts]), len(at)),
    ))  # fmt: skip
    parts = []
    for i, j in zip(pairwise(own.tolist()), pairwise(other.tolist()), strict=True):
        many = tuple(column[slice(*i)] for column in (rows[0], rows[2], rows[3]))
        parts.append(_united(many, tuple(column[slice(*j)] for column in (at, *ends))))
    return _of_rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _united(many: tuple[Ints, ...], one: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Return the union of ranges, in order, and of at most one more in each row."""
    row, first, last = many
    at, start, end = one[0], one[1].copy(), one[2].copy()
    if not len(at) or not len(row):
        return one if len(at) else many
    # the range of the same row, or the next one below
    which = np.searchsorted(at, np.arange(row[0], row[-1] + 1))[row - row[0]]
    near = np.minimum(which, len(at) - 1)
    is_there = at[near] == row
    is_right = is_there & (first > end[near])
    is_touched = is_there & (last >= start[near]) & ~is_right
    touched = np.flatnonzero(is_touched)
    if len(touched):
        # those of a row follow one another: the first has the least start, the last the largest end
        owner = near[touched]
        is_first = np.append(True, owner[1:] != owner[:-1])
        is_last = np.append(is_first[1:], True)
        head, tail = touched[is_first], touched[is_last]
        start[near[head]] = np.minimum(start[near[head]], first[head])
        end[near[tail]] = np.maximum(end[near[tail]], last[tail])
    kept = np.flatnonzero(~is_touched)
    place = np.arange(len(kept)) + which[kept] + is_right[kept]
    is_free = np.ones(len(kept) + len(at), np.bool_)
    is_free[place] = False
    found = []
    for column, other in ((row, at), (first, start), (last, end)):
        merged = np.empty(len(is_free), np.int64)
        merged[place], merged[is_free] = column[kept], other
        found.append(merged)
    return tuple(found)


def intersect_single(
    left: tuple[Ints, ...], right: tuple[Ints, ...], most: int
) -> tuple[Ints, ...]:
    """Return the pairs in both, as slabs that are empty on no row; `left` is by row, then by key.

    Slabs of `right` never share a row. TooManyPieces if more than `most` pairs of slabs share rows.
    """
    if len(right[0]) and is_of_rows(left):
        return _rows_within(left, right)
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


def glue_rows(row: Ints, start: Ints, end: Ints) -> tuple[Ints, ...]:
    """Return maximal slabs of rising rows with one range each, as `region` makes them of slabs."""
    # Both moves from row to row as one number, 2 * start + end; -1 where a slab must end.
    move, growth = start[1:] - start[:-1], end[1:] - end[:-1]
    is_linked = ((move | growth) >> 1 == 0) & (row[1:] - row[:-1] == 1)
    step = np.where(is_linked, 2 * move + growth, -1)
    begin = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
    lengths = np.append(begin[1:], len(step)) - begin
    is_run = step[begin] >= 0
    # runs of steps with nothing between them belong to one chain
    chain = np.cumsum(~is_run, dtype=np.int64)[is_run]
    begin, lengths = begin[is_run], lengths[is_run]
    skip = skips(chain, lengths)
    is_tall = lengths > skip
    used = np.flatnonzero(is_tall | np.append(chain[1:] != chain[:-1], True)[: len(chain)])
    rows, slope = np.zeros((2, len(row)), np.int64)
    # rows without steps on either side are slabs of their own
    rows[np.append(True, ~is_linked) & np.append(~is_linked, True)] = 1
    at = (begin + skip)[used]
    rows[at], slope[at] = (lengths - skip + 1)[used], (step[begin] * is_tall)[used]
    found = np.flatnonzero(rows)
    first, slope = row[found], slope[found]
    return first, first + rows[found], start[found], end[found], slope >> 1, slope & 1


def skips(chain: Ints, lengths: Ints) -> Ints:
    """Return 1 for runs whose first step leads from the slab before into this one, else 0.

    A slab of r rows uses r - 1 steps, and the step to the next slab belongs to neither; so each run
    loses its first step unless the run before was a single step that was itself lost.
    """
    # The first run of a chain, and each of two steps or more, keeps a step, so the run behind it
    # loses one. Runs of a single step that follow lose it in turns, counted from that anchor.
    index = np.arange(len(chain))
    is_first = np.append(True, chain[1:] != chain[:-1])
    anchor = np.maximum.accumulate(np.where(is_first | (lengths >= 2), index, -1))
    before = np.concatenate([[0], anchor[:-1]])
    return np.where(is_first, 0, (index - before) % 2)
