"""Slabs, the normal form of a mask, and rows, for masks whose rows have nothing in common.

A slab is a run of rows; each end of its key range moves by 0 or 1 per row. The visible pairs of
blocks are counted in closed form: a slab is cut at the borders of query blocks; on such a piece
both ends are straight, so the pairs left of a key border have a closed form, and the pairs of a
block are a difference of four of these. Only blocks that hold pairs are ever looked at.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

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
SPARE_CELLS = 8  # most blocks of that array for each entry
SLABS_AT_ONCE = 2**15  # slabs counted at once, so that the processor's cache holds their pieces
MANY = 2**10  # tokens from which on blocks are found by division


def areas(rows: Ints, counts: Ints, kv_bounds: Ints, col: Ints) -> Ints:
    """Return rows times keys of blocks: ``counts[i]`` of them are ``rows[i]`` high."""
    widths = kv_bounds[1:] - kv_bounds[:-1]
    if len(widths) and (widths == widths[0]).all():  # spares looking every block up
        return np.repeat(rows * widths[0], counts)
    return np.repeat(rows, counts) * widths[col]


class CutBlocks(NamedTuple):
    """The blocks that pieces of slabs touch: those inside a piece, and the few that an end cuts.

    Attributes:
        full_from, full_to: of each piece, the block columns that it covers on all of its rows.
        piece, col: int64 ``[B]``, the other blocks.
        pairs: int64 ``[B]``, visible pairs of these.
    """

    full_from: Ints
    full_to: Ints
    piece: Ints
    col: Ints
    pairs: Ints


def cut_blocks(pieces: tuple[Ints, ...], kv_bounds: Ints) -> CutBlocks:
    """Count the pairs of the blocks that an end of a piece cuts; O(pieces + these blocks)."""
    _, _, _, rows, first, last, low, high, touched_from, touched_to = pieces
    # widths from w to w + growth * (rows - 1): the sum of an arithmetic series
    whole = rows * (last - first) + (high - low) * (rows * (rows - 1) // 2)
    full_from, full_to = touched_to.copy(), touched_to.copy()  # none in pieces of one block
    is_wide = touched_to - touched_from > 1
    alone, wide = np.flatnonzero(~is_wide), np.flatnonzero(is_wide)
    first, last, low, high, rows = (own[wide] for own in (first, last, low, high, rows))
    begin, end = touched_from[wide], touched_to[wide]
    # Few blocks are cut by an end: those the start crosses, which lie left of its last place, and
    # those the end crosses, right of its first place.
    inner_from = np.minimum(block_of(kv_bounds, first + low * (rows - 1) - 1) + 1, end)
    inner_to = np.maximum(block_of(kv_bounds, last), inner_from)
    full_from[wide], full_to[wide] = inner_from, inner_to
    cuts = (begin, inner_from), (inner_to, end)
    at, left = (
        np.concatenate(pair) for pair in zip(*(expand(c, d - c) for c, d in cuts), strict=True)
    )
    # Pairs of a block: those left of its right border less those left of its left one. For the
    # last block the first number is all pairs of the piece, for the first block the second is 0.
    own = whole[wide[at]]
    above = np.flatnonzero(left + 1 < end[at])
    below = np.flatnonzero(left > begin[at])
    inner = at[np.concatenate([above, below])]
    border = kv_bounds[np.concatenate([left[above] + 1, left[below]])]
    ends, slopes = np.array([first, last])[:, inner], np.array([low, high])[:, inner]
    until_first, until_last = _pairs_below(border, ends, slopes, rows[inner])
    found = until_last - until_first
    own[above] = found[: len(above)]
    own[below] -= found[len(above) :]
    parts = (alone, wide[at]), (touched_from[alone], left), (whole[alone], own)
    return CutBlocks(full_from, full_to, *map(np.concatenate, parts))


def slab_entries(pieces: tuple[Ints, ...], kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """Return block row, block column and pairs of every block that slabs touch, slab by slab."""
    block, rows, touched_from, touched_to = pieces[1], pieces[3], pieces[-2], pieces[-1]
    counts = touched_to - touched_from
    limit_blocks(int(counts.sum()))
    found = cut_blocks(pieces, kv_bounds)
    # column of an entry, less its place among all entries
    before = touched_from - (np.cumsum(counts) - counts)
    col = np.repeat(before, counts)
    col += np.arange(len(col))
    pairs = areas(rows, counts, kv_bounds, col)  # as if no end cut a block
    pairs[found.col - before[found.piece]] = found.pairs
    return np.repeat(block, counts), col, pairs


def count_pieces(pieces: tuple[Ints, ...], kv_bounds: Ints) -> BlockCounts:
    """Count the pairs of every block that slabs touch, cut as `cut_at_rows` does."""
    block, width = pieces[1], len(kv_bounds) - 1
    # each piece alone in its row of blocks, and in order: nothing to add up
    if (block[1:] > block[:-1]).all():
        return BlockCounts(*slab_entries(pieces, kv_bounds))
    entries = int((pieces[-1] - pieces[-2]).sum())
    low, rows = int(block.min()), int(block.max() - block.min()) + 1
    if rows * width > SPARE_CELLS * entries:
        row, col, pairs = slab_entries(pieces, kv_bounds)
        found = sum_blocks(row - low, col, pairs, (rows, width))
        return BlockCounts(found.row + low, found.col, found.pairs)
    limit_blocks(min(entries, rows * width))
    if rows == 1 or rows * width <= CELLS_AT_ONCE:
        return _count_all(pieces, kv_bounds, low, rows)
    order = np.argsort(block, kind="stable")
    borders = np.arange(low, low + rows, max(1, CELLS_AT_ONCE // width))[1:]
    bunches = np.split(order, np.searchsorted(block[order], borders))
    parts = [count_pieces(tuple(c[own] for c in pieces), kv_bounds) for own in bunches if len(own)]
    return BlockCounts(*map(np.concatenate, zip(*parts, strict=True)))


def _count_all(pieces: tuple[Ints, ...], kv_bounds: Ints, low: int, rows: int) -> BlockCounts:
    """Count the pairs of all blocks of some block rows, from `low` on, in an array of them.

    Blocks inside a piece cost nothing each: their rows are added up from column to column.
    """
    width, place = len(kv_bounds) - 1, pieces[1] - low
    found = cut_blocks(pieces, kv_bounds)
    total = _sums(place[found.piece] * width + found.col, found.pairs, rows * width)
    some = np.flatnonzero(found.full_to > found.full_from)
    if len(some):
        base, height, cells = place[some] * (width + 1), pieces[3][some], rows * (width + 1)
        # sums of rows stay far below 2**53, so float64 is exact
        cover = np.bincount(base + found.full_from[some], height, cells)
        cover -= np.bincount(base + found.full_to[some], height, cells)
        covered = np.cumsum(cover.reshape(rows, width + 1), axis=1)[:, :width]
        total += (covered.astype(np.int64) * np.diff(kv_bounds)).ravel()
    key = np.flatnonzero(total)
    row = key // width
    return BlockCounts(row + low, key - row * width, total[key])


def block_of(bounds: Ints, tokens: Ints) -> Ints:
    """Return which block each token lies in; -1 for tokens before the first block.

    Where all blocks have one size, except a shorter last one, dividing is several times as fast as
    searching.
    """
    if len(tokens) > MANY and bounds[0] == 0:
        size, sizes = int(bounds[1]), bounds[1:] - bounds[:-1]
        if size > 0 and (sizes[:-1] == size).all() and sizes[-1] <= size:
            blocks: Ints = tokens // size
            if sizes[-1] < size:
                blocks[tokens >= bounds[-1]] = len(sizes)
            return np.minimum(blocks, len(sizes), out=blocks)
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
        # it also takes twice as long to turn integers into floats as `astype`
        return np.bincount(place, values.astype(np.float64), size).astype(np.int64)
    total = np.zeros(size, np.int64)
    np.add.at(total, place, values)
    return total


def cut_at_rows(
    slabs: "Slabs", q_bounds: Ints, kv_bounds: Ints, some: slice = slice(None)
) -> tuple[Ints, ...]:
    """Cut slabs, or some of them, at the query borders.

    Returns:
        Of each piece: slab, block row, first row, rows, first key, end key, slopes of both ends,
        first block column that it touches, end of these.
    """
    names = ("q_start", "q_end", "kv_start", "kv_end", "start_slope", "end_slope")
    top, bottom, start, end, low, high = (getattr(slabs, name)[some] for name in names)
    block, last_block = block_of(q_bounds, top), block_of(q_bounds, bottom - 1)
    # every piece touches a block, so too many of them are refused before they are made
    limit_blocks(int((last_block - block).sum()) + len(block))
    slab = np.arange(len(block))
    if (block != last_block).any():
        slab, block = expand(block, last_block + 1 - block)
        top, bottom, start, end, low, high = (c[slab] for c in (top, bottom, start, end, low, high))
    begin: Ints = np.maximum(top, q_bounds[block])
    rows = np.minimum(bottom, q_bounds[block + 1]) - begin
    start_slope, end_slope = low.astype(np.int64), high.astype(np.int64)
    down: Ints = begin - top
    first = start + start_slope * down
    last = end + end_slope * down
    touched_from = block_of(kv_bounds, first)
    touched_to = block_of(kv_bounds, last + end_slope * (rows - 1) - 1) + 1
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
        if len(self) <= SLABS_AT_ONCE:
            return count_pieces(cut_at_rows(self, q_bounds, kv_bounds), kv_bounds)
        # bunches follow one another from row to row, so that few blocks are in two of them
        parts, total = [], 0
        for at in range(0, len(self), SLABS_AT_ONCE):
            some = slice(at, at + SLABS_AT_ONCE)
            parts.append(count_pieces(cut_at_rows(self, q_bounds, kv_bounds, some), kv_bounds))
            total += len(parts[-1].row)
            limit_blocks(total)
        row, col, pairs = (np.concatenate(c) for c in zip(*parts, strict=True))
        return sum_blocks(row, col, pairs, (len(q_bounds) - 1, len(kv_bounds) - 1))


ROW_CELLS_AT_ONCE = 2**17  # blocks counted at once, so that the processor's cache holds them


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
        found = [
            self._count_some(q_bounds[at : at + step + 1], kv_bounds, at)
            for at in range(0, len(q_bounds) - 1, step)
        ]
        columns = [np.concatenate(c) for c in zip(*found, strict=True)] if found else []
        return BlockCounts(*(columns or [np.empty(0, np.int64)] * 3))

    def _count_some(self, q_bounds: Ints, kv_bounds: Ints, at: int) -> tuple[Ints, Ints, Ints]:
        """Count the blocks of a few block rows, from row `at` on, with an array of all of them.

        Ranges are read from left to right: from the block of its start on a range holds all keys,
        from that of its end on none. Of these two blocks it has the keys right of start, or end.
        """
        rows, width = len(q_bounds) - 1, len(kv_bounds) - 1
        ptr = self.row_ptr[q_bounds]
        # a range up to the last key ends behind the last block: each row has one cell more
        base, cells = np.repeat(np.arange(rows) * (width + 1), np.diff(ptr)), rows * (width + 1)
        right = np.append(kv_bounds[1:], kv_bounds[-1])
        cover, whole = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        for keys, sign in ((self.kv_start, 1), (self.kv_end, -1)):
            keys = keys[ptr[0] : ptr[-1]]
            block = block_of(kv_bounds, keys)
            place = base + block
            cover += sign * np.bincount(place, minlength=cells)
            whole += sign * _sums(place, right[block] - keys, cells)
        inside = np.cumsum(cover.reshape(rows, width + 1), axis=1)
        inside -= cover.reshape(rows, width + 1)
        inside *= np.append(np.diff(kv_bounds), 0)
        inside += whole.reshape(rows, width + 1)
        row, col = np.nonzero(inside)
        return row + at, col, inside[row, col]
