"""Where blocks begin and end: on a grid, or where the mask changes."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.forms.strided import Strided
from dcp_dsl.forms.transposed import Columns

Cuts: TypeAlias = Literal["grid", "mask"]


def find_borders(
    sequences: Sequence[Form], block_q: int, block_kv: int, cuts: Cuts, min_block: int | None
) -> tuple[Ints, Ints]:
    """Give the borders of the query blocks and of the key blocks of a packed batch.

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
    """Give where a mask changes: rows and keys, each int64 ``[N, 2]`` of (position, weight).

    A row is a breakpoint where slabs begin or end, weighted by the keys they hold there; a key
    where an end of a slab stands still, weighted by its rows. Transposed and strided masks have
    those of their slabs; where every row or key has ranges of its own, there are none.
    """
    none = np.empty((0, 2), np.int64)
    match form:
        case Columns(Slabs() as keys):
            row_cuts, key_cuts = breakpoints(keys)
            return key_cuts, row_cuts
        case Strided(parts=parts):
            found = [(none, none), *(breakpoints(part.slabs) for part in parts)]
            rows, keys_ = zip(*found, strict=True)
            return np.concatenate(rows), np.concatenate(keys_)
        case Slabs():
            return _breakpoints(form)
    return none, none


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
    """Give the borders of blocks of one size."""
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    parts = [
        np.arange(start, start + length, block)
        for start, length in zip(starts.tolist(), lengths, strict=False)
    ]
    return np.concatenate([*parts, starts[-1:]]).astype(np.int64)
