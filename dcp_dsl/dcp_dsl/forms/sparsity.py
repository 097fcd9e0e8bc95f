"""Count exactly how many visible pairs every block of the attention matrix holds.

Positions are tokens of one packed batch, sequence after sequence; ranges are half-open. The slabs
of all sequences are counted together, masks of other forms one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bytes, Indices, Ints, Record, sealed
from dcp_dsl.forms.form import BlockCounts, CrossForm, Form, PlacedForm, num_keys
from dcp_dsl.forms.slabs import Slabs, areas


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


def place_forms(
    sequences: Sequence[Form], batch: BatchShape, keys: BatchShape | None = None
) -> tuple[PlacedForm, ...]:
    """Return the masks other than slabs, each where its queries and keys lie in the batch."""
    starts = ((keys or batch).cu_seqlens[:-1] for keys in (batch, keys))
    found = zip(sequences, *(start.tolist() for start in starts), strict=True)
    return tuple(PlacedForm(s, q, k) for s, q, k in found if not isinstance(s, Slabs))


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
        keys: the sequences of the keys, where they are others; None where both are the same.

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
    keys: BatchShape | None = None

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
        """The masks of other forms than slabs; with `slabs` they are the mask of the batch."""
        return place_forms(self.forms, self.batch, self.keys) if self.forms else ()

    def tile(self, block: int) -> NDArray[np.bool_]:
        """Return the exact mask inside a block, bool ``[queries, keys]``, whatever its form."""
        row = int(np.searchsorted(self.row_ptr, block, side="right")) - 1
        col = int(self.col_idx[block])
        q_start, q_end = self.q_bounds[row : row + 2].tolist()
        kv_start, kv_end = self.kv_bounds[col : col + 2].tolist()
        which = int(np.searchsorted(self.batch.cu_seqlens, q_start, side="right")) - 1
        at = int(self.batch.cu_seqlens[which])
        kv_at = int((self.keys or self.batch).cu_seqlens[which])
        return self.forms[which].tile(q_start - at, q_end - at, kv_start - kv_at, kv_end - kv_at)


def _grid(lengths: Sequence[int], block: int) -> Ints:
    """Return the borders of blocks of one size."""
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    parts = [
        np.arange(start, start + length, block)
        # `starts` has one entry more: the end of the batch
        for start, length in zip(starts.tolist(), lengths, strict=False)
    ]
    return np.concatenate([*parts, starts[-1:]]).astype(np.int64)


def block_sparsity(sequences: Sequence[Form], block_q: int, block_kv: int) -> BlockSparsity:
    """Pack sequences one behind the other and count the visible pairs of every block.

    Blocks never cross a sequence border; the last block of a sequence may be short. The answer is
    exact for every mask. Cost for slabs: O(slabs + non-empty blocks), no token is visited.

    Args:
        sequences: the mask of each sequence, in its own coordinates; empty sequences are allowed.
        block_q: tokens per query block.
        block_kv: tokens per key block.

    Returns:
        Non-empty blocks in CSR order with kinds and pair counts.

    Raises:
        ValueError: if a block size is not positive or the batch exceeds 2**31 - 1 tokens.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> blocks = block_sparsity([causal, causal], 2, 2)
    >>> blocks.col_idx.tolist(), blocks.pairs.tolist(), blocks.kind.tolist()
    ([0, 0, 1, 2, 2, 3], [3, 4, 3, 3, 4, 3], [1, 2, 1, 1, 2, 1])
    """
    for name, size in (("block_q", block_q), ("block_kv", block_kv)):
        if size < 1:
            raise ValueError(f"{name}: expected at least 1 token, got {size}")
    lengths = [s.num_tokens for s in sequences]
    kv_lengths = [num_keys(s) for s in sequences]
    for each in (lengths, kv_lengths):
        # cu_seqlens are int32, as attention kernels take them
        if sum(each) >= 2**31:
            raise ValueError(f"a batch holds at most {2**31 - 1} tokens, got {sum(each)}")
    batch = BatchShape.of(lengths)
    is_cross = any(isinstance(s, CrossForm) for s in sequences)
    keys = BatchShape.of(kv_lengths) if is_cross else None
    slabs = _pack(sequences, batch)
    # slabs of a batch number queries and keys alike, which masks with `@keys` do not
    if keys is not None and len(slabs):
        raise ValueError("expected masks with `@keys` in a batch of their own, got others too")
    q_bounds = _grid(lengths, block_q)
    is_same = block_q == block_kv and keys is None
    kv_bounds = q_bounds if is_same else _grid(kv_lengths, block_kv)
    counts = _count(place_forms(sequences, batch, keys), slabs, (q_bounds, kv_bounds))
    row_ptr = np.searchsorted(counts.row, np.arange(len(q_bounds)))
    area = areas(np.diff(q_bounds), np.diff(row_ptr), kv_bounds, counts.col)
    # a truth seen as 0 or 1: FULL is one more than PARTIAL
    kind = (counts.pairs == area).view(np.uint8) + np.uint8(BlockKind.PARTIAL)
    return BlockSparsity(
        batch=batch,
        block_q=block_q,
        block_kv=block_kv,
        q_bounds=sealed(q_bounds),
        kv_bounds=sealed(kv_bounds),
        row_ptr=sealed(row_ptr),
        col_idx=sealed(counts.col.astype(np.int32)),
        kind=sealed(kind),
        pairs=sealed(counts.pairs),
        slabs=slabs,
        forms=tuple(sequences),
        keys=keys,
    )


def _pack(sequences: Sequence[Form], batch: BatchShape) -> Slabs:
    """Shift the slabs of every sequence to their place in the batch; they stay sorted."""
    offsets = batch.cu_seqlens[:-1].tolist()
    own = [(s, at) for s, at in zip(sequences, offsets, strict=True) if isinstance(s, Slabs)]
    # a batch of one sequence, perhaps beside empty ones
    if len(own) == 1 and batch.num_tokens == own[0][0].num_tokens:
        return own[0][0]
    shift = np.repeat(np.array([at for _, at in own], np.int64), [len(s) for s, _ in own])

    def join(name: str) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *(getattr(s, name) for s, _ in own)])

    return Slabs(
        batch.num_tokens,
        join("q_start") + shift,
        join("q_end") + shift,
        join("kv_start") + shift,
        join("kv_end") + shift,
        join("start_slope").astype(np.uint8),
        join("end_slope").astype(np.uint8),
    )


def _count(others: Sequence[PlacedForm], slabs: Slabs, bounds: tuple[Ints, Ints]) -> BlockCounts:
    """Count the blocks of all slabs at once and those of other forms one by one."""
    found = slabs.count_blocks(*bounds)
    if not others:
        return found
    parts = [found, *(placed.count_blocks(*bounds) for placed in others)]
    row, col, pairs = (np.concatenate(c) for c in zip(*parts, strict=True))
    key = row * len(bounds[1]) + col
    # sequences share no row of blocks, but slabs are counted before all other forms
    if (key[1:] > key[:-1]).all():
        return BlockCounts(row, col, pairs)
    order = np.argsort(key, kind="stable")
    return BlockCounts(row[order], col[order], pairs[order])
