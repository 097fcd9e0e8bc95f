"""Rows, key ranges of each row, for masks whose rows have nothing in common."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dcp_dsl.arrays import Bools, Ints, Record
from dcp_dsl.forms.form import BlockCounts, FormName, RowRanges, digest_of, paint_ranges

CELLS_AT_ONCE = 2**22  # blocks counted at once, to bound memory


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
        step = max(1, CELLS_AT_ONCE // max(1, width))
        found = [
            self._count_some(q_bounds[at : at + step + 1], kv_bounds, at)
            for at in range(0, len(q_bounds) - 1, step)
        ]
        columns = [np.concatenate(c) for c in zip(*found, strict=True)] if found else []
        return BlockCounts(*(columns or [np.empty(0, np.int64)] * 3))

    def _count_some(self, q_bounds: Ints, kv_bounds: Ints, at: int) -> tuple[Ints, Ints, Ints]:
        """Count the blocks of a few block rows with an array of all their blocks."""
        rows, width = len(q_bounds) - 1, len(kv_bounds) - 1
        ptr = self.row_ptr[q_bounds]
        own = np.repeat(np.arange(rows) * (width + 1), np.diff(ptr))
        start, end = self.kv_start[ptr[0] : ptr[-1]], self.kv_end[ptr[0] : ptr[-1]]
        first = np.searchsorted(kv_bounds, start, side="right") - 1
        last = np.searchsorted(kv_bounds, end, side="left")
        # Whole blocks between the ends, less what the ends leave out of the outermost ones.
        cover = np.bincount(own + first, minlength=rows * (width + 1))
        cover -= np.bincount(own + last, minlength=rows * (width + 1))
        sizes = np.append(np.diff(kv_bounds), 0)
        whole = np.cumsum(cover.reshape(rows, width + 1), axis=1) * sizes
        missing = np.bincount(own + first, start - kv_bounds[first], rows * (width + 1))
        missing += np.bincount(own + last - 1, kv_bounds[last] - end, rows * (width + 1))
        pairs = whole - missing.reshape(rows, width + 1).astype(np.int64)
        row, col = np.nonzero(pairs)
        return row + at, col, pairs[row, col]
