"""The values a compiled mask is made of: batch shape, slabs, block sparsity.

Positions are tokens of one packed batch, sequence after sequence; ranges are half-open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bytes, Indices, Ints, Record
from dcp_dsl.forms.form import Form, PlacedForm
from dcp_dsl.forms.slabs import Slabs


class BlockKind(IntEnum):
    """Partial or full: empty blocks are never stored."""

    PARTIAL = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class BatchShape(Record):
    """The borders of the sequences of a packed batch.

    Attributes:
        cu_seqlens: int32 ``[S+1]``, cumulative lengths, tokens; starts with 0.

    >>> BatchShape.of([3, 5]).num_tokens
    8
    """

    cu_seqlens: Annotated[Indices, "S+1"]

    def _check(self) -> None:
        cu = self.cu_seqlens
        if cu.size == 0 or cu[0] != 0 or (np.diff(cu) < 0).any():
            raise ValueError(f"BatchShape.cu_seqlens: expected 0 and rising values, got {cu}")

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


def place_forms(sequences: Sequence[Form], batch: BatchShape) -> tuple[PlacedForm, ...]:
    """Return the masks that are no slabs, each where its sequence lies in the batch."""
    starts = batch.cu_seqlens[:-1].tolist()
    found = zip(sequences, starts, strict=True)
    return tuple(PlacedForm(s, at, at) for s, at in found if not isinstance(s, Slabs))


@dataclass(frozen=True, slots=True, eq=False)
class BlockSparsity(Record):
    """The blocks of the attention matrix that hold visible pairs, and exactly how many.

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
        slabs: the exact masks of the sequences that are slabs, in the coordinates of the batch.
        forms: the exact mask of each sequence, in its own coordinates.

    To rebuild the matrix of pair counts::

        counts = np.zeros((len(s.q_bounds) - 1, len(s.kv_bounds) - 1), np.int64)
        counts[np.repeat(np.arange(len(counts)), np.diff(s.row_ptr)), s.col_idx] = s.pairs
    """

    batch: BatchShape
    block_q: int
    block_kv: int
    q_bounds: Annotated[Ints, "Nq+1"]
    kv_bounds: Annotated[Ints, "Nk+1"]
    row_ptr: Annotated[Ints, "Nq+1"]
    col_idx: Annotated[Indices, "B"]
    kind: Annotated[Bytes, "B"]
    pairs: Annotated[Ints, "B"]
    slabs: Slabs
    forms: tuple[Form, ...] = ()

    def _check(self) -> None:
        if self.row_ptr[-1] != self.num_blocks:
            raise ValueError(
                f"BlockSparsity: row_ptr ends at {self.row_ptr[-1]}, {self.num_blocks} blocks given"
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
    def row_idx(self) -> Indices:
        """Query block of each non-empty block, int32 ``[B]``."""
        rows = np.arange(len(self.row_ptr) - 1, dtype=np.int32)
        return np.repeat(rows, np.diff(self.row_ptr))

    @property
    def num_pairs(self) -> int:
        """Visible (query, key) pairs of the whole batch."""
        return int(self.pairs.sum())

    @property
    def others(self) -> tuple[PlacedForm, ...]:
        """The masks of the sequences that are no slabs: with `slabs`, the mask of the batch."""
        return place_forms(self.forms, self.batch) if self.forms else ()

    def tile(self, block: int) -> NDArray[np.bool_]:
        """Return the exact mask inside a block, bool ``[queries, keys]``, whatever its form."""
        row = int(np.searchsorted(self.row_ptr, block, side="right")) - 1
        col = int(self.col_idx[block])
        q_start, q_end = self.q_bounds[row : row + 2].tolist()
        kv_start, kv_end = self.kv_bounds[col : col + 2].tolist()
        which = int(np.searchsorted(self.batch.cu_seqlens, q_start, side="right")) - 1
        at = int(self.batch.cu_seqlens[which])
        return self.forms[which].tile(q_start - at, q_end - at, kv_start - at, kv_end - at)
