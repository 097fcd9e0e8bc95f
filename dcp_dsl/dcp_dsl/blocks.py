"""Exact block sparsity: how many visible pairs every block of the attention matrix holds.

Works on slabs only. A slab is cut at the borders of query blocks; on one such piece both ends are
straight, so the pairs left of any key border have a closed form, and the pairs of a block are a
difference of four of them. Only blocks that hold pairs are ever looked at.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.sparsity import BatchShape, BlockKind, BlockSparsity, Slabs

Ints = NDArray[np.int64]


def block_sparsity(sequences: Sequence[Slabs], block_q: int, block_kv: int) -> BlockSparsity:
    """Pack sequences one behind the other and count the visible pairs of every block.

    Blocks never cross a sequence border; the last block of a sequence may be short. The answer is
    exact for every mask. Cost: O(slabs + non-empty blocks), no token is visited.

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
    q_bounds, kv_bounds = _bounds(lengths, block_q), _bounds(lengths, block_kv)
    row, col, pairs = _count(slabs, q_bounds, kv_bounds)
    height, width = np.diff(q_bounds)[row], np.diff(kv_bounds)[col]
    kind = np.where(pairs == height * width, BlockKind.FULL, BlockKind.PARTIAL)
    row_ptr = np.searchsorted(row, np.arange(len(q_bounds)))
    return BlockSparsity(
        batch=batch,
        block_q=block_q,
        block_kv=block_kv,
        q_bounds=q_bounds,
        kv_bounds=kv_bounds,
        row_ptr=row_ptr,
        col_idx=col.astype(np.int32),
        kind=kind.astype(np.uint8),
        pairs=pairs,
        slabs=slabs,
    )


def _pack(sequences: Sequence[Slabs], batch: BatchShape) -> Slabs:
    """Shift every sequence to its place in the batch; sorted stays sorted."""
    offsets = batch.cu_seqlens[:-1].astype(np.int64)
    shift = np.repeat(offsets, [len(s) for s in sequences])

    def join(name: str) -> Ints:
        parts = [np.empty(0, np.int64), *(getattr(s, name) for s in sequences)]
        return np.concatenate(parts).astype(np.int64)

    return Slabs(
        batch.num_tokens,
        join("q_start") + shift,
        join("q_end") + shift,
        join("kv_start") + shift,
        join("kv_end") + shift,
        join("start_slope").astype(np.uint8),
        join("end_slope").astype(np.uint8),
    )


def _bounds(lengths: Sequence[int], block: int) -> Ints:
    """Give the borders of the blocks of a packed batch."""
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    parts = [
        np.arange(start, start + length, block)
        for start, length in zip(starts.tolist(), lengths, strict=False)
    ]
    return np.concatenate([*parts, starts[-1:]]).astype(np.int64)


def _count(slabs: Slabs, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """Give (query block, key block, pairs) of the non-empty blocks, in CSR order."""
    piece_block, rows, first, last, low, high = _pieces(slabs, q_bounds)
    touched_from = np.searchsorted(kv_bounds, first, side="right") - 1
    touched_to = np.searchsorted(kv_bounds, last + high * (rows - 1), side="left")
    counts = touched_to - touched_from
    begin = np.cumsum(counts) - counts
    piece = np.repeat(np.arange(len(counts)), counts)
    col = np.arange(len(piece)) - np.repeat(begin - touched_from, counts)
    pairs = np.repeat(rows, counts) * np.diff(kv_bounds)[col]  # as if both ends lay outside
    # Few blocks are cut by an end: those left of where the start comes to rest, and those right
    # of where the end sets out.
    full_from = np.searchsorted(kv_bounds, first + low * (rows - 1), side="left")
    full_to = np.searchsorted(kv_bounds, last, side="right") - 1
    full_from = np.minimum(full_from, touched_to)
    full_to = np.maximum(full_to, full_from)
    cut = _entries(begin, full_from - touched_from)
    cut = np.concatenate([cut, _entries(begin + full_to - touched_from, touched_to - full_to)])
    at = piece[cut]
    pairs[cut] = sum(
        sign * (_pairs_below(border, last[at], high[at], rows[at])
                - _pairs_below(border, first[at], low[at], rows[at]))
        for sign, border in ((1, kv_bounds[col[cut] + 1]), (-1, kv_bounds[col[cut]]))
    )  # fmt: skip
    return _merge(np.repeat(piece_block, counts), col, pairs, len(kv_bounds))


def _entries(begin: Ints, counts: Ints) -> Ints:
    """Give ``begin[i], begin[i] + 1, ...``, ``counts[i]`` of them, for every i."""
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) + np.repeat(begin - ends + counts, counts)


def _pieces(slabs: Slabs, q_bounds: Ints) -> tuple[Ints, ...]:
    """Cut slabs at the query borders; (block, rows, first key, end key, slopes) of each piece."""
    low = np.searchsorted(q_bounds, slabs.q_start, side="right") - 1
    high = np.searchsorted(q_bounds, slabs.q_end, side="left")
    counts = high - low
    slab = np.repeat(np.arange(len(counts)), counts)
    block = np.arange(len(slab)) - np.repeat(np.cumsum(counts) - counts - low, counts)
    q_start = slabs.q_start[slab]
    begin = np.maximum(q_start, q_bounds[block])
    rows = np.minimum(slabs.q_end[slab], q_bounds[block + 1]) - begin
    start_slope = slabs.start_slope[slab].astype(np.int64)
    end_slope = slabs.end_slope[slab].astype(np.int64)
    first = slabs.kv_start[slab] + start_slope * (begin - q_start)
    last = slabs.kv_end[slab] + end_slope * (begin - q_start)
    return block, rows, first, last, start_slope, end_slope


def _pairs_below(border: Ints, end: Ints, slope: Ints, rows: Ints) -> Ints:
    """Give ``sum over r < rows of min(end + slope * r, border)``."""
    # Rows on which the end is still left of the border.
    moving = np.clip(border - end, 0, rows)
    still = np.where(end < border, rows, 0)
    inside = np.where(slope == 1, moving, still)
    below: Ints = inside * end + slope * (inside * (inside - 1) // 2) + (rows - inside) * border
    return below


def _merge(row: Ints, col: Ints, pairs: Ints, base: int) -> tuple[Ints, Ints, Ints]:
    """Add up the entries of the same block and sort by (row, col)."""
    key = row * base + col
    is_rising = key[1:] > key[:-1]
    if is_rising.all():
        return row, col, pairs
    if not (key[1:] >= key[:-1]).all():
        order = np.argsort(key, kind="stable")
        key, pairs = key[order], pairs[order]
    is_first = np.ones(len(key), np.bool_)
    is_first[1:] = key[1:] != key[:-1]
    begin = np.flatnonzero(is_first)
    if len(begin) < len(key):
        pairs = np.add.reduceat(pairs, begin)
        key = key[begin]
    return key // base, key % base, pairs
