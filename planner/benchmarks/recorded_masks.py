"""The four masks of the recorded workloads as slabs, straight from their definition."""

from typing import Any

import numpy as np

from dcp_dsl import BatchShape, BlockKind, BlockSparsity, Slabs
from dcp_planner.pair_count import count_pairs

Row = tuple[int, int, int, int, int, int]


def sparsity_of(workload: dict[str, Any], block: int) -> BlockSparsity:
    """Give the block sparsity of a recorded workload (`Any`: its JSON object)."""
    lengths = workload["seqlens"]
    batch = BatchShape.of(lengths)
    slab_rows = {
        "causal": _causal,
        "lambda": _streaming,
        "causal_blockwise": _blockwise,
        "shared_question": _shared_question,
    }[workload["mask"]]
    rows = [
        (q0 + at, q1 + at, k0 + at, k1 + at, a, b)
        for at, length in zip(batch.cu_seqlens.tolist(), lengths, strict=False)
        for q0, q1, k0, k1, a, b in slab_rows(length, **workload["mask_params"])
        if q0 < q1 and k0 < k1
    ]
    table = np.array(sorted(rows), np.int64)
    slabs = Slabs(batch.num_tokens, *table.T)
    bounds = np.concatenate(
        [
            np.arange(a, b, block)
            for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
        ]
        + [[batch.num_tokens]]
    )
    q, kv, pairs = count_pairs(slabs, bounds)
    sizes = np.diff(bounds)
    kind = np.where(pairs == sizes[q] * sizes[kv], BlockKind.FULL, BlockKind.PARTIAL)
    return BlockSparsity(
        batch=batch,
        block_q=block,
        block_kv=block,
        q_bounds=bounds,
        kv_bounds=bounds,
        row_ptr=np.append(0, np.cumsum(np.bincount(q, minlength=len(sizes)))),
        col_idx=kv.astype(np.int32),
        kind=kind.astype(np.uint8),
        pairs=pairs,
        slabs=slabs,
    )


def _causal(length: int) -> list[Row]:
    return [(0, length, 0, 1, 0, 1)]


def _streaming(length: int, n_starting: int, l_pretrain: int) -> list[Row]:
    """Everything until sinks and window part, then both on their own."""
    split = min(length, n_starting + l_pretrain)
    return [
        (0, split, 0, 1, 0, 1),
        (split, length, 0, n_starting, 0, 0),
        (split, length, split - l_pretrain + 1, split + 1, 1, 1),
    ]


def _blockwise(length: int, block_size: int, k_local: int) -> list[Row]:
    """First block, a window behind each row, and a last block that sees everything."""
    last = max(0, (length - 1) // block_size * block_size)
    window = k_local * block_size
    split = min(last, block_size + window)
    return [
        (0, split, 0, 1, 0, 1),
        (split, last, 0, block_size, 0, 0),
        (split, last, split - window, split + 1, 1, 1),
        (last, length, 0, last + 1, 0, 1),
    ]


def _shared_question(length: int, question_proportion: float, n_answers: int) -> list[Row]:
    question = int(length * question_proportion)
    answer = (length - question) // n_answers
    rows: list[Row] = [(0, question, 0, 1, 0, 1), (question, length, 0, question, 0, 0)]
    for index in range(n_answers):
        start = question + index * answer
        end = length if index == n_answers - 1 else start + answer
        rows.append((start, end, start, start + 1, 0, 1))
    return rows
