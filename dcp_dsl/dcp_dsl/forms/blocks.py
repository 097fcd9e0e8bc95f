"""Count exactly how many visible pairs every block of the attention matrix holds.

Every sequence is counted in its own form; only blocks that hold pairs are ever looked at.
"""

from collections.abc import Sequence

import numpy as np

from dcp_dsl.arrays import Ints, sealed
from dcp_dsl.forms.form import BlockCounts, Form
from dcp_dsl.forms.slabs import Slabs, count_slab_blocks
from dcp_dsl.forms.sparsity import BatchShape, BlockKind, BlockSparsity, place_forms


def _grid(lengths: Sequence[int], block: int) -> Ints:
    """Return the borders of blocks of one size."""
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    parts = [
        np.arange(start, start + length, block)
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
    if sum(lengths) >= 2**31:
        raise ValueError(f"a batch holds at most {2**31 - 1} tokens, got {sum(lengths)}")
    batch = BatchShape.of(lengths)
    slabs = _pack(sequences, batch)
    q_bounds = _grid(lengths, block_q)
    kv_bounds = q_bounds if block_q == block_kv else _grid(lengths, block_kv)
    counts = _count(sequences, batch, slabs, (q_bounds, kv_bounds))
    row_ptr = np.searchsorted(counts.row, np.arange(len(q_bounds)))
    area = np.repeat(np.diff(q_bounds), np.diff(row_ptr))
    area *= np.diff(kv_bounds)[counts.col]
    kind = (counts.pairs == area).view(np.uint8) + np.uint8(BlockKind.PARTIAL)  # full is one more
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
    )


def _pack(sequences: Sequence[Form], batch: BatchShape) -> Slabs:
    """Shift the slabs of every sequence to their place in the batch; sorted stays sorted."""
    offsets = batch.cu_seqlens[:-1].tolist()
    own = [(s, at) for s, at in zip(sequences, offsets, strict=True) if isinstance(s, Slabs)]
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


def _count(
    sequences: Sequence[Form], batch: BatchShape, slabs: Slabs, bounds: tuple[Ints, Ints]
) -> BlockCounts:
    """Count the blocks of all slabs at once and those of other forms one by one."""
    found = count_slab_blocks(slabs, *bounds)
    others = place_forms(sequences, batch)
    if not others:
        return found
    parts = [found, *(placed.count_blocks(*bounds) for placed in others)]
    row, col, pairs = (np.concatenate(c) for c in zip(*parts, strict=True))
    key = row * len(bounds[1]) + col
    if (key[1:] > key[:-1]).all():
        return BlockCounts(row, col, pairs)
    order = np.argsort(key, kind="stable")
    return BlockCounts(row[order], col[order], pairs[order])
