"""Block sparsity made by brute force from dense masks: shares nothing with the mask compiler."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dcp_dsl import BatchShape, BlockKind, BlockSparsity, Slabs

Dense = NDArray[np.bool_]


def dense_to_slabs(dense: Dense) -> Slabs:
    rows = []
    for q, row in enumerate(dense):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        rows += [(q, q + 1, start, end, 0, 0) for start, end in edges.reshape(-1, 2)]
    table = np.array(rows, np.int64).reshape(-1, 6)
    return Slabs(len(dense), *table.T)


def dense_to_sparsity(masks: Sequence[Dense], block: int) -> BlockSparsity:
    """Pack square dense masks one behind the other and cut each into blocks."""
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
    return BlockSparsity(
        batch=batch, block_q=block, block_kv=block,
        q_bounds=np.array(bounds), kv_bounds=np.array(bounds), row_ptr=np.array(row_ptr),
        col_idx=np.array(col, np.int32), kind=np.array(kind, np.uint8),
        pairs=np.array(pairs, np.int64), slabs=dense_to_slabs(dense),
    )  # fmt: skip


def causal(n: int) -> Dense:
    return np.tri(n, dtype=bool)


def sliding_window(n: int, window: int) -> Dense:
    return np.tri(n, dtype=bool) & ~np.tri(n, k=-window, dtype=bool)


def shared_question(question: int, answers: Sequence[int]) -> Dense:
    n = question + sum(answers)
    mask = np.tri(n, dtype=bool)
    part = np.repeat(np.arange(len(answers) + 1), [question, *answers])
    return mask & ((part[:, None] == part[None]) | (part[None] == 0))


def unseen_row(n: int) -> Dense:
    """Causal, but two rows see nothing and one key is seen by nobody."""
    mask = np.tri(n, dtype=bool)
    mask[[0, n // 2]] = False
    mask[:, n // 3] = False
    return mask


MASKS: dict[str, list[Dense]] = {
    "causal": [causal(64)],
    "window": [sliding_window(64, 13)],
    "question": [shared_question(12, [16, 20, 16])],
    "packed": [causal(24), causal(8), causal(32)],
    "ragged": [causal(17), sliding_window(31, 5), causal(1), shared_question(3, [5, 6])],
    "unseen": [unseen_row(40), causal(9)],
    "nothing": [np.zeros((20, 20), bool)],
    "single": [causal(1)],
}


@pytest.fixture
def sparsity_of() -> Callable[[Sequence[Dense], int], BlockSparsity]:
    return dense_to_sparsity


@pytest.fixture(params=sorted(MASKS))
def sparsity(request: pytest.FixtureRequest) -> BlockSparsity:
    return dense_to_sparsity(MASKS[request.param], 8)
