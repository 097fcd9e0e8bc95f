"""The values a compiled mask is made of: batch shape, slabs, block sparsity.

Positions are tokens of one packed batch, sequence after sequence; ranges are half-open.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import readonly


class BlockKind(IntEnum):
    """How many pairs of a block are visible; empty blocks are never stored."""

    PARTIAL = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Where each sequence of a packed batch begins and ends.

    Attributes:
        cu_seqlens: int32 ``[S+1]``, cumulative lengths, tokens; starts with 0.

    >>> BatchShape.of([3, 5]).num_tokens
    8
    """

    cu_seqlens: NDArray[np.int32]

    def __post_init__(self) -> None:
        cu = readonly("BatchShape.cu_seqlens", self.cu_seqlens, np.int32, (None,))
        if cu.size == 0 or cu[0] != 0 or (np.diff(cu) < 0).any():
            raise ValueError(f"BatchShape.cu_seqlens: expected 0 and rising values, got {cu}")
        object.__setattr__(self, "cu_seqlens", cu)

    @classmethod
    def of(cls, lengths: "list[int] | tuple[int, ...]") -> "BatchShape":
        """Pack sequences of the given lengths, in tokens, one behind the other."""
        return cls(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32))

    @property
    def num_sequences(self) -> int:
        """Number of sequences S."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens T of the whole batch."""
        return int(self.cu_seqlens[-1])


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

    def _repr_svg_(self) -> str:
        """Draw the visible pairs, for notebooks."""
        from dcp_dsl.pictures.picture import Picture

        return Picture(f"{len(self):,} slabs", self).svg()


@dataclass(frozen=True, slots=True, eq=False)
class BlockSparsity:
    """Which blocks of the attention matrix hold visible pairs, and exactly how many.

    Blocks never cross a sequence border, so the last block of each sequence may be short; queries
    and keys are cut at the same places when ``block_q == block_kv``.

    Attributes:
        batch: the packed sequences.
        block_q, block_kv: nominal tokens per block.
        q_bounds: int64 ``[Nq+1]``, block i holds the queries ``[q_bounds[i], q_bounds[i+1])``.
        kv_bounds: int64 ``[Nk+1]``, the same for keys.
        row_ptr: int64 ``[Nq+1]``, CSR: row i's blocks are ``row_ptr[i]:row_ptr[i+1]``.
        col_idx: int32 ``[B]``, key block of each non-empty block, ascending in a row.
        kind: uint8 ``[B]``, `BlockKind`.
        pairs: int64 ``[B]``, visible pairs, at least 1.
        slabs: the exact mask; the mask inside a partial block is `slabs` cut to the block.

    To rebuild the matrix of pair counts::

        counts = np.zeros((len(s.q_bounds) - 1, len(s.kv_bounds) - 1), np.int64)
        counts[np.repeat(np.arange(len(counts)), np.diff(s.row_ptr)), s.col_idx] = s.pairs
    """

    batch: BatchShape
    block_q: int
    block_kv: int
    q_bounds: NDArray[np.int64]
    kv_bounds: NDArray[np.int64]
    row_ptr: NDArray[np.int64]
    col_idx: NDArray[np.int32]
    kind: NDArray[np.uint8]
    pairs: NDArray[np.int64]
    slabs: Slabs

    def __post_init__(self) -> None:
        num_q, size = len(self.q_bounds) - 1, len(self.col_idx)
        for name, dtype, length in (
            ("q_bounds", np.int64, None), ("kv_bounds", np.int64, None),
            ("row_ptr", np.int64, num_q + 1), ("col_idx", np.int32, size),
            ("kind", np.uint8, size), ("pairs", np.int64, size),
        ):  # fmt: skip
            value = readonly(f"BlockSparsity.{name}", getattr(self, name), dtype, (length,))
            object.__setattr__(self, name, value)
        if self.row_ptr[-1] != size:
            raise ValueError(
                f"BlockSparsity: row_ptr ends at {self.row_ptr[-1]}, {size} blocks given"
            )
        if self.slabs.num_tokens != self.batch.num_tokens:
            raise ValueError(
                f"BlockSparsity: slabs of {self.slabs.num_tokens} tokens, batch of "
                f"{self.batch.num_tokens}"
            )

    @property
    def num_blocks(self) -> int:
        """Number of non-empty blocks B."""
        return len(self.col_idx)

    @property
    def row_idx(self) -> NDArray[np.int32]:
        """Query block of each non-empty block, int32 ``[B]``."""
        rows = np.arange(len(self.row_ptr) - 1, dtype=np.int32)
        return np.repeat(rows, np.diff(self.row_ptr))

    @property
    def num_pairs(self) -> int:
        """Visible (query, key) pairs of the whole batch."""
        return int(self.pairs.sum())
