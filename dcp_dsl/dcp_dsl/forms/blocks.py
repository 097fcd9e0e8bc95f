"""Count exactly how many visible pairs every block of the attention matrix holds.

Blocks begin on a grid, or where the mask changes. Every sequence is counted in its own form; only
blocks that hold pairs are ever looked at.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints, sealed
from dcp_dsl.forms.form import BlockCounts, Form
from dcp_dsl.forms.parts import regions_of
from dcp_dsl.forms.slabs import Slabs, count_slab_blocks
from dcp_dsl.forms.sparsity import BatchShape, BlockKind, BlockSparsity, place_forms

Cuts: TypeAlias = Literal["grid", "mask"]


def find_borders(
    sequences: Sequence[Form], block_q: int, block_kv: int, cuts: Cuts, min_block: int | None
) -> tuple[Ints, Ints]:
    """Return the borders of the query blocks and of the key blocks of a packed batch.

    With equal block sizes both are the same, so that queries and keys are cut at the same places.
    """
    lengths = [s.num_tokens for s in sequences]
    if cuts == "grid":
        q_bounds = _grid(lengths, block_q)
        return q_bounds, q_bounds if block_q == block_kv else _grid(lengths, block_kv)
    rows, keys = [], []
    for form in sequences:
        row_cuts, key_cuts = breakpoints(form)
        if block_q == block_kv:
            row_cuts = key_cuts = _joined(row_cuts, key_cuts)
        rows.append(_choose(row_cuts, form.num_tokens, min_block or max(1, block_q // 32)))
        keys.append(_choose(key_cuts, form.num_tokens, min_block or max(1, block_kv // 32)))
    return _fill(rows, lengths, block_q), _fill(keys, lengths, block_kv)


def breakpoints(form: Form) -> tuple[Ints, Ints]:
    """Return where a mask changes: rows and keys, each int64 ``[N, 2]`` of (position, weight).

    A row is a breakpoint where slabs begin or end, weighted by the keys they hold there; a key
    where an end of a slab stands still, weighted by its rows. Transposed and strided masks have
    those of their slabs; where every row or key has ranges of its own, there are none.
    """
    none = np.empty((0, 2), np.int64)
    found = [(none, none)]
    for part in regions_of(form):
        if isinstance(part.region, Slabs):
            cuts = _breakpoints(part.region)
            found.append(cuts[::-1] if part.is_transposed else cuts)
    rows, keys = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(keys)


def _breakpoints(form: Slabs) -> tuple[Ints, Ints]:
    rows = form.q_end - form.q_start
    first = form.kv_end - form.kv_start
    last = first + (form.end_slope.astype(np.int64) - form.start_slope) * (rows - 1)
    row_cuts = np.concatenate([_pairs(form.q_start, first), _pairs(form.q_end, last)])
    low, high = form.start_slope == 0, form.end_slope == 0
    key_cuts = np.concatenate(
        [_pairs(form.kv_start[low], rows[low]), _pairs(form.kv_end[high], rows[high])]
    )
    return row_cuts, key_cuts


def _pairs(position: Ints, weight: Ints) -> Ints:
    return np.column_stack([position, weight])


def _joined(left: Ints, right: Ints) -> Ints:
    return np.concatenate([left, right])


def _choose(cuts: Ints, num_tokens: int, min_block: int) -> Ints:
    """Keep the heaviest breakpoints that are at least `min_block` apart; rising."""
    position, index = np.unique(cuts[:, 0], return_inverse=True)
    weight = np.bincount(index, cuts[:, 1], len(position))
    inside = (position >= min_block) & (position <= num_tokens - min_block)
    position, weight = position[inside], weight[inside]
    if len(position) < 2 or np.diff(position).min() >= min_block:
        return position
    taken = np.zeros(num_tokens // min_block + 2, np.int64) - min_block  # one cut per stretch
    kept = []
    for at in position[np.argsort(-weight, kind="stable")].tolist():
        near = taken[max(at // min_block - 1, 0) : at // min_block + 2]
        if (np.abs(near - at) >= min_block).all():
            taken[at // min_block] = at
            kept.append(at)
    return np.array(sorted(kept), np.int64)


def _fill(cuts: Sequence[Ints], lengths: Sequence[int], block: int) -> Ints:
    """Fill the stretches between cuts with blocks of a size; the last of each may be short."""
    parts = []
    at = 0
    for own, length in zip(cuts, lengths, strict=True):
        borders = np.concatenate([[0], own, [length]])
        sizes = np.diff(borders)
        counts = -(-sizes // block)
        stretch = np.repeat(np.arange(len(sizes)), counts)
        inner = np.arange(len(stretch)) - np.repeat(np.cumsum(counts) - counts, counts)
        parts.append(at + borders[stretch] + inner * block)
        at += length
    return np.concatenate([*parts, [at]]).astype(np.int64)


def _grid(lengths: Sequence[int], block: int) -> Ints:
    """Return the borders of blocks of one size."""
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    parts = [
        np.arange(start, start + length, block)
        for start, length in zip(starts.tolist(), lengths, strict=False)
    ]
    return np.concatenate([*parts, starts[-1:]]).astype(np.int64)


def block_sparsity(
    sequences: Sequence[Form],
    block_q: int,
    block_kv: int,
    *,
    cuts: Cuts = "grid",
    min_block: int | None = None,
) -> BlockSparsity:
    """Pack sequences one behind the other and count the visible pairs of every block.

    Blocks never cross a sequence border; the last block of a sequence may be short. The answer is
    exact for every mask. Cost for slabs: O(slabs + non-empty blocks), no token is visited.

    Args:
        sequences: the mask of each sequence, in its own coordinates; empty sequences are allowed.
        block_q: tokens per query block.
        block_kv: tokens per key block.
        cuts: "grid" cuts every `block_q` (`block_kv`) tokens; "mask" cuts where the mask does, so
            that a sink or a document is a block of its own, and fills what is between with blocks
            of at most that size.
        min_block: with ``cuts="mask"``, fewest tokens between two cuts of the mask; by default a
            32nd of the block.

    Returns:
        Non-empty blocks in CSR order with kinds and pair counts.

    Raises:
        ValueError: if a block size is not positive or the batch exceeds 2**31 - 1 tokens.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> blocks = block_sparsity([causal, causal], 2, 2)
    >>> blocks.col_idx.tolist(), blocks.pairs.tolist(), blocks.kind.tolist()
    ([0, 0, 1, 2, 2, 3], [3, 4, 3, 3, 4, 3], [1, 2, 1, 1, 2, 1])
    """
    for name, size in (("block_q", block_q), ("block_kv", block_kv), ("min_block", min_block)):
        if size is not None and size < 1:
            raise ValueError(f"{name}: expected at least 1 token, got {size}")
    lengths = [s.num_tokens for s in sequences]
    if sum(lengths) >= 2**31:
        raise ValueError(f"a batch holds at most {2**31 - 1} tokens, got {sum(lengths)}")
    batch = BatchShape.of(lengths)
    slabs = _pack(sequences, batch)
    q_bounds, kv_bounds = find_borders(sequences, block_q, block_kv, cuts, min_block)
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
        slab_ptr=sealed(counts.piece_ptr),
        slab_idx=sealed(counts.piece_slab),
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
    parts = [(found.row, found.col, found.pairs)]
    for placed in others:
        counted = placed.count_blocks(*bounds)
        parts.append((counted.row, counted.col, counted.pairs))
    row, col, pairs = (np.concatenate(c) for c in zip(*parts, strict=True))
    key = row * len(bounds[1]) + col
    if (key[1:] > key[:-1]).all() and not len(found.row):
        return BlockCounts.without_slabs(row, col, pairs)
    order = np.argsort(key, kind="stable")
    sizes = np.diff(found.piece_ptr)
    # Blocks of slabs keep their order among themselves, so their slabs do too.
    counts = np.concatenate([sizes, np.zeros(len(row) - len(sizes), np.int64)])[order]
    ptr = np.concatenate([[0], np.cumsum(counts)])
    return BlockCounts(row[order], col[order], pairs[order], ptr, found.piece_slab)
