"""Masks that repeat with the distance: dilated windows, strided columns, sparse transformers."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dcp_dsl.arrays import Bools, Ints, Record
from dcp_dsl.forms.form import (
    BlockCounts,
    FormName,
    RowRanges,
    digest_of,
    limit_blocks,
    ranges_of_tile,
)
from dcp_dsl.forms.slabs import Slabs, cut_at_rows, slab_entries, sum_blocks
from dcp_dsl.symbolic.piecewise import expand


@dataclass(frozen=True, slots=True, eq=False)
class StridedPart(Record):
    """Slabs that count for some remainders only.

    Attributes:
        slabs: a region.
        remainders: int64 ``[M]``, rising: a pair of the region is visible if ``(q - k) % period``
            is one of them.
    """

    slabs: Slabs
    remainders: Annotated[Ints, "M"]


@dataclass(frozen=True, slots=True, eq=False)
class Strided(Record):
    """A mask given by one region for each class of ``(q - k) % period``.

    Attributes:
        num_tokens: rows, and keys, of the mask.
        period: what the distance is divided by, at least 2.
        parts: regions with the remainders they count for; no remainder comes twice.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> Strided(4, 2, (StridedPart(causal, [0]),)).tile(0, 4, 0, 4).astype(int)[3].tolist()
    [0, 1, 0, 1]
    """

    form: ClassVar[FormName] = "strided"

    num_tokens: int
    period: int
    parts: tuple[StridedPart, ...]

    def _check(self) -> None:
        for part in self.parts:
            if (part.remainders < 0).any() or (part.remainders >= self.period).any():
                raise ValueError(f"Strided: remainders of {self.period}, got {part.remainders}")

    @property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs."""
        bounds = np.array([0, self.num_tokens])
        return int(self.count_blocks(bounds, bounds).pairs.sum())

    @property
    def digest(self) -> str:
        """SHA-256 of period, regions and remainders; see `Form`."""
        arrays = [np.array([self.period])]
        for part in self.parts:
            arrays += [part.remainders, part.slabs.table()]
        return digest_of(self.form, self.num_tokens, *arrays)

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of some queries and keys, bool ``[queries, keys]``."""
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        if not seen.size:
            return seen
        # All pairs of one distance lie on one diagonal: rows are windows that step to the left.
        remainder = np.arange(q_end - 1 - kv_start, q_start - kv_end, -1) % self.period
        for part in self.parts:
            counts = np.zeros(self.period, np.bool_)
            counts[part.remainders] = True
            diagonals = sliding_window_view(counts[remainder], kv_end - kv_start)[::-1]
            seen |= part.slabs.tile(q_start, q_end, kv_start, kv_end) & diagonals
        return seen

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
        return ranges_of_tile(self.tile(q_start, q_end, 0, self.num_tokens))

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; see `Form`."""
        found = [(np.empty(0, np.int64),) * 3]
        found += [_count_part(part, self.period, q_bounds, kv_bounds) for part in self.parts]
        row, col, pairs = (np.concatenate(c) for c in zip(*found, strict=True))
        return sum_blocks(row, col, pairs, (len(q_bounds) - 1, len(kv_bounds) - 1))


def _count_part(
    part: StridedPart, period: int, q_bounds: Ints, kv_bounds: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return (row, col, pairs) of the blocks a part touches; a block may come several times."""
    remainders = part.remainders
    is_few = 2 * len(remainders) <= period
    if not is_few:  # count all pairs, take the other remainders away
        remainders = np.setdiff1d(np.arange(period), remainders)
    entries = _touched(part.slabs, q_bounds, kv_bounds)
    pairs = np.zeros(len(entries.col), np.int64)
    for remainder in remainders.tolist():
        pairs += _count_remainder(entries, kv_bounds, period, remainder)
    if is_few:
        return entries.row, entries.col, pairs
    whole = slab_entries(part.slabs, q_bounds, kv_bounds)
    return (
        np.concatenate([whole[0], entries.row]), np.concatenate([whole[1], entries.col]),
        np.concatenate([whole[2], -pairs]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Pieces of slabs in blocks: rows ``q .. q + rows`` and both ends on the first of them."""

    row: Ints
    col: Ints
    q: Ints
    rows: Ints
    first: Ints
    last: Ints
    low: Ints
    high: Ints


def _touched(slabs: Slabs, q_bounds: Ints, kv_bounds: Ints) -> _Entries:
    slab, block, rows, first, last, low, high = cut_at_rows(slabs, q_bounds)
    q = np.maximum(slabs.q_start[slab], q_bounds[block])
    begin = np.searchsorted(kv_bounds, first, side="right") - 1
    end = np.searchsorted(kv_bounds, last + high * (rows - 1), side="left")
    limit_blocks(int((end - begin).sum()))
    piece, col = expand(begin, end - begin)
    return _Entries(
        block[piece], col, q[piece], rows[piece], first[piece], last[piece], low[piece], high[piece]
    )


def _count_remainder(entries: _Entries, kv_bounds: Ints, period: int, remainder: int) -> Ints:
    """Return the pairs of each entry whose distance has one remainder."""
    left, right = kv_bounds[entries.col], kv_bounds[entries.col + 1]
    ends = ((entries.last, entries.high, 1), (entries.first, entries.low, -1))
    total = np.zeros(len(entries.col), np.int64)
    for end, slope, sign in ends:
        for border, side in ((right, 1), (left, -1)):
            total += sign * side * _keys_below(entries, end, slope, border, (period, remainder))
    return total


def _keys_below(
    entries: _Entries, end: Ints, slope: Ints, border: Ints, which: tuple[int, int]
) -> Ints:
    """Sum over the rows how many keys with a remainder lie left of ``min(end, border)``.

    Of the keys below x, row q counts ``(x - 1 - q + remainder) // period``, up to a number that
    depends on q alone and falls out of differences.
    """
    period, remainder = which
    moving = np.clip(border - end, 0, entries.rows)
    inside = np.where(slope == 1, moving, np.where(end < border, entries.rows, 0))
    offset = remainder - 1 - entries.q
    at_end = np.where(
        slope == 1,
        inside * ((end + offset) // period),  # end and row move together
        _falling_sum(end + offset, inside, period),
    )
    return at_end + _falling_sum(border + offset - inside, entries.rows - inside, period)


def _falling_sum(first: Ints, count: Ints, period: int) -> Ints:
    """Return ``sum over i < count of (first - i) // period``."""
    return _sum_below(first + 1, period) - _sum_below(first + 1 - count, period)


def _sum_below(x: Ints, period: int) -> Ints:
    """Return the sum of ``j // period`` for j from 0 up to x (exclusive), also below 0."""
    whole = x // period
    return period * (whole * (whole - 1) // 2) + whole * (x - period * whole)
