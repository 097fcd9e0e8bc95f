"""Slabs and block tables made by brute force from dense masks: nothing of the mask compiler."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import BlockSparsity, Slabs
from dcp_dsl.forms import BatchShape, BlockKind

Dense = NDArray[np.bool_]


def runs_of(dense: Dense) -> list[tuple[int, int, int]]:
    """Return every run of visible keys of every row: (row, first key, end)."""
    found = []
    for q, row in enumerate(dense):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        found += [(q, start, end) for start, end in edges.reshape(-1, 2).tolist()]
    return found


def slabs_of(dense: Dense) -> Slabs:
    """Make every run a slab of one row."""
    rows = [(q, q + 1, start, end, 0, 0) for q, start, end in runs_of(dense)]
    return Slabs(len(dense), *np.array(rows, np.int64).reshape(-1, 6).T)


def causal_of(tokens: int) -> Slabs:
    """Return a causal mask as one slab."""
    return Slabs(tokens, [0], [tokens], [0], [1], [0], [1])


def sparsity_of(masks: Sequence[Dense], block: int) -> BlockSparsity:
    """Pack square masks one behind the other and cut each into blocks."""
    batch = BatchShape.of([len(mask) for mask in masks])
    dense = np.zeros((batch.num_tokens, batch.num_tokens), bool)
    bounds = [0]
    for start, mask in zip(batch.cu_seqlens.tolist(), masks, strict=False):
        dense[start : start + len(mask), start : start + len(mask)] = mask
        bounds += [start + min(end, len(mask)) for end in range(block, len(mask) + block, block)]
    row_ptr, col, kind, pairs = [0], [], [], []
    for q0, q1 in pairwise(bounds):
        for j, (k0, k1) in enumerate(pairwise(bounds)):
            part = dense[q0:q1, k0:k1]
            if part.any():
                col.append(j)
                pairs.append(int(part.sum()))
                kind.append(BlockKind.FULL if part.all() else BlockKind.PARTIAL)
        row_ptr.append(len(col))
    slabs = slabs_of(dense)
    return BlockSparsity(batch, block, block, bounds, bounds, row_ptr, col, kind, pairs, slabs)
