"""The normal form of a mask: slabs, runs of rows whose key range moves by 0 or 1 per row."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Ints, readonly
from dcp_dsl.forms.block_count import count_slab_blocks
from dcp_dsl.forms.form import (
    BlockCounts,
    FormName,
    RowRanges,
    digest_of,
    paint_ranges,
)
from dcp_dsl.symbolic.bands import expand


@dataclass(frozen=True, slots=True, eq=False)
class Slabs:
    """The normal form of a mask on a sample or a packed batch: a set of disjoint slabs.

    A slab is a run of query rows whose visible keys lie between two ends that each either stand
    still or move by one key per row. With ``r = q - q_start[s]``, row ``q`` of slab ``s`` sees the
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
    q_start: NDArray[np.int64]
    q_end: NDArray[np.int64]
    kv_start: NDArray[np.int64]
    kv_end: NDArray[np.int64]
    start_slope: NDArray[np.uint8]
    end_slope: NDArray[np.uint8]

    def __post_init__(self) -> None:
        size = len(self.q_start)
        for name in ("q_start", "q_end", "kv_start", "kv_end"):
            value = readonly(f"Slabs.{name}", getattr(self, name), np.int64, (size,))
            object.__setattr__(self, name, value)
        for name in ("start_slope", "end_slope"):
            value = readonly(f"Slabs.{name}", getattr(self, name), np.uint8, (size,))
            if (value > 1).any():
                raise ValueError(f"Slabs.{name}: expected 0 or 1, got {value.max()}")
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        rows = self.q_end - self.q_start
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
        """Give all slabs as int64 ``[N, 6]``, columns in the order of the attributes."""
        return np.column_stack(
            [
                self.q_start, self.q_end, self.kv_start, self.kv_end,
                self.start_slope, self.end_slope,
            ]
        ).astype(np.int64)  # fmt: skip

    @property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs; O(N)."""
        rows = self.q_end - self.q_start
        growth = self.end_slope.astype(np.int64) - self.start_slope.astype(np.int64)
        return int((rows * (self.kv_end - self.kv_start) + growth * (rows * (rows - 1) // 2)).sum())

    @property
    def digest(self) -> str:
        """SHA-256 of the slabs: equal for equal masks of a sample, on every machine."""
        return digest_of(self.form, self.num_tokens, self.table())

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Give the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
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
        """Give the mask of some queries and keys, bool ``[queries, keys]``."""
        return paint_ranges(self.row_ranges(q_start, q_end), kv_start, kv_end)

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; see `Form`."""
        return count_slab_blocks(self, q_bounds, kv_bounds)
