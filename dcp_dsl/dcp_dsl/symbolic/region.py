"""The algebra of slabs: sets of (query, key) pairs closed under and, or and minus.

A region is a set of slabs in normal form. To combine two of them, cut the rows of both at all
common borders into cells. Inside a cell two ends of slope 0 and 1 meet at most once; cutting out
the row where they meet leaves cells in which the order of all ends is the same on every row, so
sorting them on the first row (packed as ``2 * value + slope``) and sweeping once decides the whole
cell. Gluing the cells together again gives maximal slabs, which depend on the set of pairs only:
equal sets have equal arrays. No step looks at single tokens.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints, expand
from dcp_dsl.symbolic.piecewise import limit_pieces, sorted_unique
from dcp_dsl.symbolic.shortcuts import (
    glue_rows,
    in_order,
    intersect_single,
    is_of_rows,
    is_single,
    skips,
    sweep_few,
    unite_rows,
)

MAX_CELLS = 2**19  # beside some for each slab: many slabs of one row each are no waste
CELLS_PER_SLAB = 4
MAX_PAIRS = 2**21  # of slabs that share rows, where one side has one slab a row; and as above
GLUED_AT_ONCE = range(2**8, 2**13)  # slabs that are glued after each operation, not at the end
FEW = 12  # slabs that are faster one by one than in arrays

# Which coverages (left + 2 * right) are visible.
_AND = np.array([False, False, False, True])
_OR = np.array([False, True, True, True])
_MINUS = np.array([False, True, False, False])


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Slabs in normal form over `num_tokens` rows and keys; all columns int64 ``[N]``.

    Until `maximal` is called, rows may be cut more often than needed; on each row the key ranges
    are maximal always.
    """

    num_tokens: int
    q_start: Ints
    q_end: Ints
    kv_start: Ints
    kv_end: Ints
    start_slope: Ints
    end_slope: Ints
    is_maximal: bool = field(default=True, kw_only=True)

    @classmethod
    def empty(cls, num_tokens: int) -> "Region":
        """Return the region without pairs."""
        return cls(num_tokens, *(np.empty(0, np.int64) for _ in range(6)))

    @classmethod
    def rectangles(
        cls, num_tokens: int, q_start: object, q_end: object, kv_start: object, kv_end: object
    ) -> "Region":
        """Return the union of disjoint rectangles; empty ones are dropped."""
        rows = [np.asarray(v, np.int64) for v in (q_start, q_end, kv_start, kv_end)]
        flat = np.zeros(len(rows[0]), np.int64)
        return cls.of(num_tokens, (*rows, flat, flat))

    @classmethod
    def of(cls, num_tokens: int, columns: tuple[Ints, ...]) -> "Region":
        """Bring six arrays, as in `Slabs`, into normal form.

        The slabs are disjoint on every row, lie inside, and no end lies before its start; they may
        be empty, touch, and come in any order.
        """
        # no slab has the weight of the right side, so `minus` shows all that the left one covers
        if len(columns[0]) <= FEW:
            return _few(num_tokens, columns, [1] * len(columns[0]), _MINUS)
        q_start, q_end, kv_start, kv_end, start_slope, end_slope = columns
        rows, width = q_end - q_start, kv_end - kv_start
        # a width is straight over the rows, so its signs on the first and last row decide
        last_width = width + (end_slope - start_slope) * (rows - 1)
        is_empty = (rows <= 0) | (np.maximum(width, last_width) <= 0)
        if is_empty.any():
            kept = ~is_empty
            columns = tuple(c[kept] for c in columns)
            rows, width, last_width = rows[kept], width[kept], last_width[kept]
        if (np.minimum(width, last_width) > 0).all():
            is_tall = rows > 1  # the slope of a single row means nothing: call it 0
            slopes = columns[4] * is_tall, columns[5] * is_tall
            slabs = in_order((*columns[:4], *slopes))
            if _is_apart(slabs):
                return _glue_later(num_tokens, slabs)
        return _sweep(num_tokens, columns, np.ones(len(columns[0]), np.int64), _MINUS)

    @classmethod
    def covered(cls, num_tokens: int, columns: tuple[Ints, ...]) -> tuple["Region", "Region"]:
        """Return the pairs that slabs, which may overlap, cover at least once, and at least twice.

        Every slab is non-empty on each of its rows.
        """
        once = np.ones(len(columns[0]), np.int64)
        times = np.arange(len(once) + 1)
        return (
            _sweep(num_tokens, columns, once, times >= 1),
            _sweep(num_tokens, columns, once, times >= 2),
        )

    def __and__(self, other: "Region") -> "Region":
        return self._combine(other, _AND) if isinstance(other, Region) else NotImplemented

    def __or__(self, other: "Region") -> "Region":
        return self._combine(other, _OR) if isinstance(other, Region) else NotImplemented

    def __sub__(self, other: "Region") -> "Region":
        return self._combine(other, _MINUS) if isinstance(other, Region) else NotImplemented

    @property
    def is_of_bands(self) -> bool:
        """True if no two slabs share a row, and the keys are the same on all rows of each."""
        is_sloped = self.start_slope.any() or self.end_slope.any()
        return not is_sloped and is_single(self.columns())

    def columns(self) -> tuple[Ints, ...]:
        """Return the six arrays."""
        return (
            self.q_start, self.q_end, self.kv_start, self.kv_end, self.start_slope, self.end_slope,
        )  # fmt: skip

    def maximal(self, followers: Ints | None = None) -> "Region":
        """Return the same pairs in maximal slabs, which depend on the set of pairs only."""
        return self if self.is_maximal else _glue(self.num_tokens, self.columns(), followers)

    def followers(self) -> Ints:
        """Return for each slab the slab that continues it on the next row, or -1."""
        return _followers(self.num_tokens, self.columns())

    def is_equal(self, other: "Region") -> bool:
        """Return whether both hold the same pairs."""
        pairs = zip(self.maximal().columns(), other.maximal().columns(), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    def _combine(self, other: "Region", truth: NDArray[np.bool_]) -> "Region":
        sizes = len(self.q_start), len(other.q_start)
        pairs = zip(self.columns(), other.columns(), strict=True)
        columns = tuple(np.concatenate(pair) for pair in pairs)
        if sum(sizes) <= FEW:
            return _few(self.num_tokens, columns, [1] * sizes[0] + [2] * sizes[1], truth)
        if truth is _AND:
            # a side with one slab a row needs no sweep: each pair of slabs is intersected alone
            for one, many in ((other, self), (self, other)):
                if is_single(one.columns()):
                    most = MAX_PAIRS + CELLS_PER_SLAB * sum(sizes)
                    columns = intersect_single(many.columns(), one.columns(), most)
                    return _glue_later(self.num_tokens, columns)
        for one, many in ((other, self), (self, other)) if truth is _OR else ():
            rows = int((one.q_end - one.q_start).sum())
            is_short = 0 < rows <= CELLS_PER_SLAB * sum(sizes) and is_single(one.columns())
            if is_short and is_of_rows(many.columns()):
                columns = unite_rows(many.columns(), one.columns())
                return _glue_later(self.num_tokens, columns)
        weight = np.repeat(np.array([1, 2]), sizes)
        return _sweep(self.num_tokens, columns, weight, truth)


def _few(
    num_tokens: int, columns: tuple[Ints, ...], weights: list[int], truth: NDArray[np.bool_]
) -> Region:
    """Combine a handful of slabs, as `_sweep` does."""
    slabs = list(zip(*(column.tolist() for column in columns), strict=True))
    found = sweep_few(slabs, weights, truth.tolist())
    if not found:
        return Region.empty(num_tokens)
    return Region(num_tokens, *np.array(list(zip(*found, strict=True)), np.int64))


def _is_apart(columns: tuple[Ints, ...]) -> bool:
    """Return whether slabs in order need no sweep.

    Neighbours then share no row, or they share all rows and leave a gap between their keys.
    """
    q_start, q_end, kv_start, kv_end, start_slope, end_slope = columns
    is_below = q_start[1:] >= q_end[:-1]
    if is_below.all():
        return True
    gap = kv_start[1:] - kv_end[:-1]
    last_gap = gap + (start_slope[1:] - end_slope[:-1]) * (q_end - q_start - 1)[1:]
    is_beside = (q_start[1:] == q_start[:-1]) & (q_end[1:] == q_end[:-1])
    return bool((is_below | (is_beside & (np.minimum(gap, last_gap) > 0))).all())


def _sweep(
    num_tokens: int, columns: tuple[Ints, ...], weight: Ints, truth: NDArray[np.bool_]
) -> Region:
    """Combine slabs: a pair is visible if `truth` holds for the sum of the weights that cover it.

    O(C log C) for C pieces of slabs in cells.
    """
    q_start, q_end = columns[:2]
    if len(q_start) == 0:
        return Region.empty(num_tokens)
    knots = sorted_unique(np.concatenate([q_start, q_end]))
    cuts = _meetings(knots, columns, num_tokens)
    if len(cuts):
        knots = sorted_unique(np.concatenate([knots, cuts]))
    slab, cell = _cells(knots, q_start, q_end)
    first, last = _ends(knots, columns, slab, cell)
    # packed ends are at most 2 * num_tokens + 1, so a key holds the cell and the end
    base = 2 * (num_tokens + 2)
    keys = np.concatenate([cell * base + first, cell * base + last])
    change = np.concatenate([weight[slab], -weight[slab]])
    order = np.argsort(keys, kind="stable")
    # the sum of weights behind each end, from left to right and cell by cell
    keys, coverage = keys[order], np.cumsum(change[order])
    # of equal ends the last one has the sum that counts
    is_final = np.append(keys[1:] != keys[:-1], True)
    keys, is_seen = keys[is_final], truth[coverage[is_final]]
    was_seen = np.concatenate([[False], is_seen[:-1]])  # a cell ends uncovered, so cells do not mix
    starts, ends = keys[is_seen & ~was_seen], keys[was_seen & ~is_seen]
    # n-th start and n-th end belong together: unpack cell, value and slope of both
    rows, low, high = starts // base, starts % base, ends % base
    ends_ = (low >> 1, high >> 1, low & 1, high & 1)
    return _glue_later(num_tokens, (knots[rows], knots[rows + 1], *ends_))


def _cells(knots: Ints, q_start: Ints, q_end: Ints) -> tuple[Ints, Ints]:
    """Return (slab, cell) for every cell that a slab covers."""
    low, high = np.searchsorted(knots, q_start), np.searchsorted(knots, q_end)
    most = MAX_CELLS + CELLS_PER_SLAB * len(low)
    limit_pieces(int((high - low).sum()), most, "pieces of slabs")
    return expand(low, high - low)


def _ends(knots: Ints, columns: tuple[Ints, ...], slab: Ints, cell: Ints) -> tuple[Ints, Ints]:
    """Return both ends on the first row of each cell, packed as ``2 * value + slope``."""
    q_start, _, kv_start, kv_end, start_slope, end_slope = (c[slab] for c in columns)
    down = knots[cell] - q_start
    # the slope of a single row means nothing: call it 0
    is_tall = knots[cell + 1] - knots[cell] > 1
    first = 2 * (kv_start + start_slope * down) + (start_slope & is_tall)
    last = 2 * (kv_end + end_slope * down) + (end_slope & is_tall)
    return first, last


def _meetings(knots: Ints, columns: tuple[Ints, ...], num_tokens: int) -> Ints:
    """Return the rows to cut at, so that no two ends of different slope meet inside a cell.

    An end that moves meets one that stands still on the row at which it has moved by their gap.
    """
    slopes = np.concatenate(columns[4:])
    # ends of one slope keep their distance
    if not slopes.any() or slopes.all():
        return np.empty(0, np.int64)
    slab, cell = _cells(knots, columns[0], columns[1])
    packed = np.concatenate(_ends(knots, columns, slab, cell))
    cells = np.concatenate([cell, cell])
    rows = (knots[1:] - knots[:-1])[cells]
    is_still = (packed & 1 == 0) & (rows > 1)
    is_moving = packed & 1 == 1
    base = num_tokens + 2
    still = sorted_unique(cells[is_still] * base + (packed[is_still] >> 1))
    moving = sorted_unique(cells[is_moving] * base + (packed[is_moving] >> 1))
    if not len(still) or not len(moving):
        return np.empty(0, np.int64)
    at = moving // base
    # a moving end meets only ends of its own cell, whose numbers go up to (at + 1) * base - 1
    reach = np.minimum(moving + (knots[at + 1] - knots[at]) - 1, (at + 1) * base - 1)
    low, high = np.searchsorted(still, moving), np.searchsorted(still, reach, side="right")
    most = MAX_CELLS + CELLS_PER_SLAB * len(slab)
    limit_pieces(int((high - low).sum()), most, "meetings of slabs")
    which, met = expand(low, high - low)
    # the row of the meeting becomes a cell of its own: cut before it and behind it
    row = knots[at[which]] + still[met] - moving[which]
    cuts: Ints = np.concatenate([row, row + 1])
    return np.compress(cuts < knots[-1], cuts)


def _glue_later(num_tokens: int, columns: tuple[Ints, ...]) -> Region:
    """Glue slabs now if later operations save more time than this takes, else in `maximal`."""
    if len(columns[0]) not in GLUED_AT_ONCE:
        return Region(num_tokens, *columns, is_maximal=False)
    return _glue(num_tokens, columns)


def _glue(num_tokens: int, columns: tuple[Ints, ...], followers: Ints | None = None) -> Region:
    """Join slabs that continue one another, from the first row down, into maximal ones.

    On every row the intervals are maximal already. Following an interval from row to row gives
    chains; a chain is a sequence of steps (how far each end moves), and a maximal slab is a run of
    equal steps, taken greedily from the top.
    """
    q_start, q_end, kv_start, kv_end, start_slope, end_slope = columns
    if len(q_start) < 2:
        return Region(num_tokens, *columns)
    if (q_start[1:] > q_start[:-1]).all() and int((q_end - q_start).max()) == 1:
        return Region(num_tokens, *glue_rows(q_start, kv_start, kv_end))
    follower = _followers(num_tokens, columns) if followers is None else followers
    is_linked = follower >= 0
    inner = q_end - q_start - 1
    last = 2 * (kv_start + start_slope * inner) + (kv_end + end_slope * inner)
    # Both moves as one number, 2 * start + end: a follower moves each by 0 or 1. Where there is
    # none, -1 reads the last slab, and `is_linked` hides it.
    step = (2 * kv_start + kv_end)[follower] - last  # to the follower
    if not (is_linked & ((inner == 0) | (step == 2 * start_slope + end_slope))).any():
        return Region(num_tokens, *columns)  # each takes as many rows as it can already
    if is_single(columns):
        order, is_head = np.arange(len(q_start)), np.append(True, ~is_linked[:-1])
    else:
        in_chain = is_linked.copy()
        in_chain[follower[is_linked]] = True
        if 2 * np.count_nonzero(in_chain) < len(in_chain):
            return _glue_chains(num_tokens, columns, in_chain)
        order, is_head = _chain_order(follower)
    return _glue_in_order(num_tokens, columns, order, is_head, np.where(is_linked, step, -1))


def _glue_chains(num_tokens: int, columns: tuple[Ints, ...], in_chain: NDArray[np.bool_]) -> Region:
    """Join the few slabs that continue one another; the others are maximal already."""
    # all of these are in chains, so `_glue` does not come back here
    chains = _glue(num_tokens, tuple(column[in_chain] for column in columns)).columns()
    alone = (column[~in_chain] for column in columns)
    merged = tuple(np.concatenate(pair) for pair in zip(alone, chains, strict=True))
    return Region(num_tokens, *in_order(merged))


def _followers(num_tokens: int, columns: tuple[Ints, ...]) -> Ints:
    """Return for each slab the slab that continues it on the next row, or -1."""
    q_start, q_end, kv_start, kv_end, start_slope, end_slope = columns
    inner = q_end - q_start - 1
    last_start, last_end = kv_start, kv_end
    if inner.any():
        last_start, last_end = kv_start + start_slope * inner, kv_end + end_slope * inner
    if is_single(columns):
        moves = kv_start[1:] - last_start[:-1]
        moves |= kv_end[1:] - last_end[:-1]
        is_next = (q_start[1:] == q_end[:-1]) & (moves >> 1 == 0)  # both are 0 or 1
        follower = np.arange(1, len(q_start) + 1)
        follower[-1:] = -1
        follower[:-1][~is_next] = -1
        return follower
    base = num_tokens + 2
    keys = q_start * base + kv_start  # ascending: the sweep goes cell by cell, left to right
    wanted = q_end * base + last_start
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    start_step, end_step = keys[found] - wanted, kv_end[found] - last_end
    is_next = (start_step >= 0) & (start_step <= 1) & (end_step >= 0) & (end_step <= 1)
    return np.where(is_next, found, -1)


def _chain_order(follower: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Order slabs chain by chain from the top, and mark the heads; O(N log N) by doubling."""
    size = len(follower)
    # each slab points at one above it in its chain, `distance` steps away; heads at themselves
    ahead = np.arange(size)
    linked = np.flatnonzero(follower >= 0)
    ahead[follower[linked]] = linked
    distance = (ahead != np.arange(size)).astype(np.int64)
    # every round doubles the steps, until all point at the heads
    while True:
        farther = ahead[ahead]
        if np.array_equal(farther, ahead):
            break
        distance = distance + distance[ahead]
        ahead = farther
    order = np.lexsort((distance, ahead))
    return order, distance[order] == 0


def _glue_in_order(
    num_tokens: int, columns: tuple[Ints, ...], order: Ints, is_head: NDArray[np.bool_], step: Ints
) -> Region:
    """Turn the steps of all chains into maximal slabs.

    `order` has the slabs chain by chain from the top, `is_head` those that begin one, `step` those
    to the slab that continues each, -1 if there is none.
    """
    q_start, q_end, kv_start, kv_end, start_slope, end_slope = columns
    inner = q_end - q_start - 1
    # Two entries per slab: its inner steps, then the step to its follower.
    pairs = (2 * start_slope + end_slope, step), (inner, step >= 0)
    steps, lengths = (np.column_stack([own[order] for own in pair]).ravel() for pair in pairs)
    kept = np.flatnonzero(lengths)
    chain, steps, lengths = (np.cumsum(is_head) - 1)[kept >> 1], steps[kept], lengths[kept]
    begin = np.flatnonzero(np.append(True, (chain[1:] != chain[:-1]) | (steps[1:] != steps[:-1])))
    chain, steps, lengths = chain[begin], steps[begin], np.add.reduceat(lengths, begin)
    skip = skips(chain, lengths)
    low, high = steps >> 1, steps & 1
    # The first step of a run sets out from the first row of a slab, or from its last one.
    slab = order[kept[begin] >> 1]
    down = inner[slab] * (kept[begin] & 1)
    row = q_start[slab] + down + skip
    first = kv_start[slab] + start_slope[slab] * down + low * skip
    last = kv_end[slab] + end_slope[slab] * down + high * skip
    # A chain whose last step was used up by the run before leaves its last row alone.
    is_tall = lengths > skip
    used = np.flatnonzero(is_tall | np.append(chain[1:] != chain[:-1], True))
    glued = (row, row + lengths - skip + 1, first, last, low * is_tall, high * is_tall)
    # Chains of a single row have no steps at all.
    has_steps = np.zeros(np.count_nonzero(is_head), np.bool_)
    has_steps[chain] = True
    single = order[is_head][~has_steps]
    both = zip(glued, columns, strict=True)
    merged = tuple(np.concatenate([one[used], other[single]]) for one, other in both)
    return Region(num_tokens, *in_order(merged))
