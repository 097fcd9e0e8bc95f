"""The recorded workloads, and their four masks as slabs, straight from their definition."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl import BlockSparsity, Slabs
from dcp_planner import Cluster, cut_blocks
from dcp_planner.model.cuts import choose_block_size

DATA = Path(__file__).parent / "data"
Row = tuple[int, int, int, int, int, int]


def workloads(step: int = 1) -> list[dict[str, Any]]:
    """Return every n-th recorded workload (`Any`: JSON)."""
    found = json.loads((DATA / "workloads.json").read_text())["workloads"]
    return list(found[::step])


def usual_cut(workload: Mapping[str, Any], cluster: Cluster) -> BlockSparsity:
    """Cut a workload into blocks of the usual length (`Any`: its JSON object)."""
    sequences = sequences_of(workload)
    return cut_blocks(sequences, choose_block_size(sequences, cluster))


def sequences_of(workload: Mapping[str, Any]) -> list[Slabs]:
    """Return the mask of each sequence of a recorded workload (`Any`: its JSON object).

    Raises:
        ValueError: if the mask is not one of the four.
    """
    rows_of = MASKS.get(workload["mask"])
    if rows_of is None:
        raise ValueError(
            f"workload {workload['id']}: unknown mask {workload['mask']!r}; expected one of "
            f"{', '.join(MASKS)}"
        )
    found = []
    for length in workload["seqlens"]:
        rows = [r for r in rows_of(length, **workload["mask_params"]) if r[0] < r[1]]
        table = np.array(sorted(r for r in rows if r[2] < r[3]), np.int64).reshape(-1, 6)
        found.append(Slabs(length, *table.T))
    return found


def _causal(length: int) -> list[Row]:
    return [(0, length, 0, 1, 0, 1)]


def _streaming(length: int, n_starting: int, l_pretrain: int) -> list[Row]:
    """Return one key range until sinks and window part, then two."""
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


MASKS: Mapping[str, Callable[..., list[Row]]] = {
    "causal": _causal,
    "lambda": _streaming,
    "causal_blockwise": _blockwise,
    "shared_question": _shared_question,
}
"""Slab rows of a mask by its name in the workloads, given the length and its parameters."""
