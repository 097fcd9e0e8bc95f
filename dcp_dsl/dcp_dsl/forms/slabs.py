"""Slabs, the normal form of a mask, and rows, for masks whose rows have nothing in common.

A slab is a run of rows; each end of its key range moves by 0 or 1 per row. The visible pairs of
blocks are counted in closed form: a slab is cut at the borders of query blocks; on such a piece
both ends are straight, so the pairs left of a key border have a closed form, and the pairs of a
block are a difference of four of these. Only blocks that hold pairs are ever looked at.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Bytes, Ints, Record, expand
from dcp_dsl.forms.form import (
    BlockCounts,
    FormName,
    RowRanges,
    digest_of,
    limit_blocks,
    paint_ranges,
)

CELLS_AT_ONCE = 2**22  # most blocks of which an array of all is made, which is faster than to sort
SPARE_CELLS = 4  # most blocks of that array for each entry
MANY = 2**10  # tokens from which on blocks are found by division


def areas(rows: Ints, counts: Ints, kv_bounds: Ints, col: Ints) -> Ints:
    """Return rows times keys of blocks: ``counts[i]`` of them are ``rows[i]`` high."""
    widths = kv_bounds[1:] - kv_bounds[:-1]
    if len(widths) and (widths == widths[0]).all():  # spares looking every block up
        return np.repeat(rows * widths[0], counts)
    return np.repeat(rows, counts) * widths[col]


def slab_entries(pieces: tuple[Ints, ...], kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """Count the pairs of every block that slabs touch, slab by slab.

    Returns:
        Block row, block column and pairs of each entry.
    """
    _, block, _, rows, first, last, low, high, touched_from, touched_to = pieces
    counts = touched_to - touched_from
    begin = np.cumsum(counts) - counts
    before = touched_from - begin  # column of an entry, less its place among all entries
    col = np.repeat(before, counts)
    col += np.arange(len(col))
    pairs = areas(rows, counts, kv_bounds, col)  # as if no end cut a block
    # widths from w to w + growth * (rows - 1): the sum of an arithmetic series
    whole = rows * (last - first) + (high - low) * (rows * (rows - 1) // 2)
    alone = np.flatnonzero(counts == 1)
    pairs[begin[alone]] = whole[alone]
    wide = np.flatnonzero(counts > 1)
    first, last, low, high, rows = (own[wide] for own in (first, last, low, high, rows))
    before, touched_from, touched_to = (own[wide] for own in (before, touched_from, touched_to))
    # Few blocks are cut by an end: those the start crosses, which lie left of its last place, and
    # those the end crosses, right of its first place.
    full_from = block_of(kv_bounds, first + low * (rows - 1) - 1) + 1
    full_from = np.minimum(full_from, touched_to)
    full_to = np.maximum(block_of(kv_bounds, last), full_from)
    cuts = (touched_from, full_from), (full_to, touched_to)
    at, left = (
        np.concatenate(pair) for pair in zip(*(expand(c, d - c) for c, d in cuts), strict=True)
    )
    # Pairs of a block: those left of its right border less those left of its left one. For the
    # last block the first number is all pairs of the piece, for the first block the second is 0.
    own = whole[wide[at]]
    above = np.flatnonzero(left + 1 < touched_to[at])
    below = np.flatnonzero(left > touched_from[at])
    inner = at[np.concatenate([above, below])]
    border = kv_bounds[np.concatenate([left[above] + 1, left[below]])]
    ends, slopes = np.array([first, last])[:, inner], np.array([low, high])[:, inner]
    until_first, until_last = _pairs_below(border, ends, slopes, rows[inner])
    found = until_last - until_first
    own[above] = found[: len(above)]
    own[below] -= found[len(above) :]
    pairs[left - before[at]] = own
    return np.repeat(block, counts), col, pairs


def block_of(bounds: Ints, tokens: Ints) -> Ints:
    """Return which block each token lies in; -1 for tokens before the first block.

    Where all blocks have one size, dividing is several times as fast as searching.
    """
    if len(tokens) > MANY:
        sizes = bounds[1:] - bounds[:-1]
        if bounds[0] == 0 and (sizes == sizes[0]).all():
            blocks: Ints = np.minimum(tokens // sizes[0], len(sizes))
            return blocks
    return np.searchsorted(bounds, tokens, side="right") - 1


def sum_blocks(row: Ints, col: Ints, pairs: Ints, shape: tuple[int, int]) -> BlockCounts:
    """Add up entries of the same block, in any order, and leave out the empty ones."""
    key, cells = row * shape[1] + col, shape[0] * shape[1]
    if cells <= min(CELLS_AT_ONCE, SPARE_CELLS * len(key)):
        total = _sums(key, pairs, cells)
        key = np.flatnonzero(total)
        counts = total[key]
    else:
        order = np.argsort(key, kind="stable")
        key = key[order]
        begin = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])[: len(key)])
        key, counts = key[begin], np.add.reduceat(pairs[order], begin)
        key, counts = key[counts != 0], counts[counts != 0]
    row = key // shape[1]  # several times as fast as `divmod`
    return BlockCounts(row, key - row * shape[1], counts)


def _sums(place: Ints, values: Ints, size: int) -> Ints:
    """Add up the values of each place, int64 ``[size]``."""
    # `bincount` is faster, but adds in float64; one block of the longest sample has 2**62 pairs
    if int(np.abs(values).max(initial=0)) * len(values) < 2**53:
        return np.bincount(place, values, size).astype(np.int64)
    total = np.zeros(size, np.int64)
    np.add.at(total, place, values)
    return total


def cut_at_rows(slabs: "Slabs", q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, ...]:
    """Cut slabs at the query borders.

    Returns:
        Of each piece: slab, block row, first row, rows, first key, end key, slopes of both ends,
        first block column that it touches, end of these.
    """
    low = block_of(q_bounds, slabs.q_start)
    high = block_of(q_bounds, slabs.q_end - 1) + 1
    # every piece touches a block, so too many of them are refused before they are made
    limit_blocks(int((high - low).sum()))
    slab, block = expand(low, high - low)
    q_start = slabs.q_start[slab]
    begin: Ints = np.maximum(q_start, q_bounds[block])
    rows = np.minimum(slabs.q_end[slab], q_bounds[block + 1]) - begin
    start_slope = slabs.start_slope[slab].astype(np.int64)
    end_slope = slabs.end_slope[slab].astype(np.int64)
    down: Ints = begin - q_start
    first = slabs.kv_start[slab] + start_slope * down
    last = slabs.kv_end[slab] + end_slope * down
    touched_from = block_of(kv_bounds, first)
    touched_to = block_of(kv_bounds, last + end_slope * (rows - 1) - 1) + 1
    limit_blocks(int((touched_to - touched_from).sum()))
    places = (slab, block, begin, rows)
    return *places, first, last, start_slope, end_slope, touched_from, touched_to


def _pairs_below(border: Ints, end: Ints, slope: Ints, rows: Ints) -> Ints:
    """Return ``sum over r < rows of min(end + slope * r, border)``."""
    # Rows on which the end is still left of the border.
    moving = np.maximum(np.minimum(border - end, rows), 0)
    still = np.where(end < border, rows, 0)
    inside = np.where(slope == 1, moving, still)
    below: Ints = inside * end + slope * (inside * (inside - 1) // 2) + (rows - inside) * border
    return below


@dataclass(frozen=True, slots=True, eq=False)
class Slabs(Record):
    """The normal form of a mask on a sample or a packed batch: a set of disjoint slabs.

    A slab is a run of query rows. Its visible keys lie between two ends, each of which stands still
    or moves by one key per row. With ``r = q - q_start[s]``, row ``q`` of slab ``s`` sees the
    keys ``[kv_start[s] + start_slope[s] * r, kv_end[s] + end_slope[s] * r)``.
    Slabs are disjoint, never empty on any of their rows, and sorted by ``(q_start, kv_start)``.

    Attributes:
        num_tokens: rows, and keys, of the mask.
        q_start, q_end: int64 ``[N]``, the rows of each slab.
        kv_start, kv_end: int64 ``[N]``, its keys at row ``q_start``.
        start_slope, end_slope: uint8 ``[N]``, 0 or 1: keys that each end moves per row.

    To rebuild the dense mask::

        dense = np.zeros((slabs.num_tokens, slabs.num_tokens), bool)
        for q0, q1, k0, k1, a, b in slabs.table():
            for q in range(q0, q1):
                dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> causal.num_pairs
    10
    """

    form: ClassVar[FormName] = "slabs"

    num_tokens: int
    q_start: Annotated[Ints, "N"]
    q_end: Annotated[Ints, "N"]
    kv_start: Annotated[Ints, "N"]
    kv_end: Annotated[Ints, "N"]
    start_slope: Annotated[Bytes, "N"]
    end_slope: Annotated[Bytes, "N"]

    def _check(self) -> None:
        if ((self.start_slope > 1) | (self.end_slope > 1)).any():
            raise ValueError(f"Slabs: expected slopes of 0 or 1, got {self.table()}")
        rows = self.q_end - self.q_start
        # ends are straight, so what holds on the first and on the last row holds between them
        last_start = self.kv_start + self.start_slope * (rows - 1)
        last_end = self.kv_end + self.end_slope * (rows - 1)
        inside = (
            (self.q_start >= 0)
            & (self.q_end <= self.num_tokens)
            & (self.kv_start >= 0)
            & (np.maximum(self.kv_end, last_end) <= self.num_tokens)
        )
        if not (
            inside & (rows > 0) & (self.kv_start < self.kv_end) & (last_start < last_end)
        ).all():
            raise ValueError(
                f"Slabs: expected non-empty slabs inside {self.num_tokens} tokens, got "
                f"{self.table()}"
            )

    def __len__(self) -> int:
        return len(self.q_start)

    def table(self) -> NDArray[np.int64]:
        """Return all slabs as int64 ``[N, 6]``, columns in the order of the attributes."""
        return np.column_stack(
            [self.q_start, self.q_end, self.kv_start, self.kv_end, self.start_slope, self.end_slope]
        ).astype(np.int64)

    @property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs; O(N)."""
        rows = self.q_end - self.q_start
        # uint8 would turn 0 - 1 into 255
        growth = self.end_slope.astype(np.int64) - self.start_slope.astype(np.int64)
        return int((rows * (self.kv_end - self.kv_start) + growth * (rows * (rows - 1) // 2)).sum())

    @property
    def digest(self) -> str:
        """SHA-256 of the slabs: equal for equal masks of a sample, on every machine."""
        return digest_of(self.form, self.num_tokens, self.table())

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
        index = np.flatnonzero((self.q_start < q_end) & (self.q_end > q_start))
        first = np.maximum(self.q_start[index], q_start)
        counts = np.minimum(self.q_end[index], q_end) - first
        which, row = expand(first, counts)
        slab = index[which]
        down = row - self.q_start[slab]
        start = self.kv_start[slab] + self.start_slope[slab] * down
        end = self.kv_end[slab] + self.end_slope[slab] * down
        order = np.lexsort((start, row))
        row_ptr = np.searchsorted(row[order], np.arange(q_start, q_end + 1))
        return row_ptr, start[order], end[order]

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of some queries and keys, bool ``[queries, keys]``."""
        return paint_ranges(self.row_ranges(q_start, q_end), kv_start, kv_end)

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; O(slabs + blocks); see `Form`."""
        pieces = cut_at_rows(self, q_bounds, kv_bounds)
        row, col, pairs = slab_entries(pieces, kv_bounds)
        # each piece alone in its row of blocks, and in order: nothing to add up
        if (pieces[1][1:] > pieces[1][:-1]).all():
            return BlockCounts(row, col, pairs)
        return sum_blocks(row, col, pairs, (len(q_bounds) - 1, len(kv_bounds) - 1))


ROW_CELLS_AT_ONCE = 2**22  # blocks counted at once, to bound memory


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Record):
    """Key ranges per row, in CSR.

    Attributes:
        num_tokens: rows, and keys, of the mask.
        row_ptr: int64 ``[T+1]``, row q's ranges are ``row_ptr[q]:row_ptr[q+1]``.
        kv_start, kv_end: int64 ``[P]``, half-open, rising in a row, neither overlapping nor
            touching.

    >>> Rows(3, [0, 1, 1, 3], [0, 0, 2], [1, 1, 3]).num_pairs
    3
    """

    form: ClassVar[FormName] = "rows"

    num_tokens: int
    row_ptr: Annotated[Ints, "T+1"]
    kv_start: Annotated[Ints, "P"]
    kv_end: Annotated[Ints, "P"]

    def _check(self) -> None:
        if len(self.row_ptr) != self.num_tokens + 1:
            raise ValueError(
                f"Rows.row_ptr: expected {self.num_tokens + 1} values, got {len(self.row_ptr)}"
            )
        if (self.kv_start >= self.kv_end).any() or self.row_ptr[-1] != len(self.kv_start):
            raise ValueError("Rows: expected non-empty ranges, as many as row_ptr says")

    def __len__(self) -> int:
        return len(self.kv_start)

    @property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs."""
        return int((self.kv_end - self.kv_start).sum())

    @property
    def digest(self) -> str:
        """SHA-256 of the ranges; see `Form`."""
        return digest_of(self.form, self.num_tokens, self.row_ptr, self.kv_start, self.kv_end)

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
        first, last = self.row_ptr[q_start], self.row_ptr[q_end]
        row_ptr = self.row_ptr[q_start : q_end + 1] - first
        return row_ptr, self.kv_start[first:last], self.kv_end[first:last]

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of some queries and keys, bool ``[queries, keys]``."""
        return paint_ranges(self.row_ranges(q_start, q_end), kv_start, kv_end)

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; see `Form`."""
        width = len(kv_bounds) - 1
        step = max(1, ROW_CELLS_AT_ONCE // max(1, width))
        # int64 [T]; reading it is cheaper than searching the borders for each range
        block = np.repeat(np.arange(width), np.diff(kv_bounds))  # of each key
        found = [
            self._count_some(q_bounds[at : at + step + 1], (kv_bounds, block), at)
            for at in range(0, len(q_bounds) - 1, step)
        ]
        columns = [np.concatenate(c) for c in zip(*found, strict=True)] if found else []
        return BlockCounts(*(columns or [np.empty(0, np.int64)] * 3))

    def _count_some(
        self, q_bounds: Ints, keys: tuple[Ints, Ints], at: int
    ) -> tuple[Ints, Ints, Ints]:
        """Count the blocks of a few block rows with an array of all their blocks.

        Args:
            q_bounds: of these rows.
            keys: borders of the blocks of keys, and the block of each key.
            at: the first block row.
        """
        kv_bounds, block = keys
        rows, width = len(q_bounds) - 1, len(kv_bounds) - 1
        ptr = self.row_ptr[q_bounds]
        # a range up to the last key ends behind the last block: each row has one cell more
        own = np.repeat(np.arange(rows) * (width + 1), np.diff(ptr))
        start, end = self.kv_start[ptr[0] : ptr[-1]], self.kv_end[ptr[0] : ptr[-1]]
        first, last = block[start], block[end - 1] + 1
        # the keys of all blocks that a range touches, less what it lacks of the outermost two
        cover = np.bincount(own + first, minlength=rows * (width + 1))
        cover -= np.bincount(own + last, minlength=rows * (width + 1))
        sizes = np.append(np.diff(kv_bounds), 0)
        whole = np.cumsum(cover.reshape(rows, width + 1), axis=1) * sizes
        missing = _sums(own + first, start - kv_bounds[first], rows * (width + 1))
        missing += _sums(own + last - 1, kv_bounds[last] - end, rows * (width + 1))
        pairs = whole - missing.reshape(rows, width + 1)
        row, col = np.nonzero(pairs)
        return row + at, col, pairs[row, col]
