"""Problems of the native search: restrict, coarsen; splits to start from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.model.workload import Workload

_SLACK = 0.03  # of a part's share, that whole documents may exceed it by


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Tiles and blocks to be split; a part of a workload, or a coarser picture of one.

    Attributes:
        tile_q, tile_kv: int32 ``[W]``, sorted by (q, kv).
        work: int64 ``[W]``.
        sequence: int32 ``[D]``.
        tokens: int64 ``[D]``; 0 for blocks that are owned elsewhere.
        is_owned: bool ``[D]``, whether the owner is to be chosen here.
        weight: float64 ``[2, D]``, bytes of row nets and of column nets, whole numbers.
    """

    tile_q: Indices
    tile_kv: Indices
    work: Ints
    sequence: Indices
    tokens: Ints
    is_owned: NDArray[np.bool_]
    weight: Floats

    @property
    def num_tiles(self) -> int:
        """Tiles W."""
        return len(self.tile_q)

    @property
    def num_blocks(self) -> int:
        """Blocks D."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """An answer: the part of every tile and the owner of every block (-1: owned elsewhere)."""

    part: Indices
    owner: Indices


def problem_of(workload: Workload) -> Problem:
    """Take a whole workload; nets weigh the bytes of a forward and a backward pass."""
    tokens, (row, column) = workload.block_tokens, workload.shape.round_trip_bytes
    return Problem(
        tile_q=workload.compute_q,
        tile_kv=workload.compute_kv,
        work=workload.compute_pairs,
        sequence=workload.block_sequence,
        tokens=tokens,
        is_owned=np.ones(workload.num_blocks, np.bool_),
        weight=np.stack([tokens * row, tokens * column]).astype(np.float64),
    )


def restrict(problem: Problem, split: Split, part: int) -> tuple[Problem, Ints, Ints]:
    """Keep what one part computes or owns; return it with its tiles and its blocks, ascending.

    Blocks that are owned elsewhere but used here stay, with no owner to choose.
    """
    tiles = np.flatnonzero(split.part == part)
    is_used = split.owner == part
    is_used[problem.tile_q[tiles]] = True
    is_used[problem.tile_kv[tiles]] = True
    blocks = np.flatnonzero(is_used)
    number = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    is_owned = (split.owner[blocks] == part) & problem.is_owned[blocks]
    inner = Problem(
        tile_q=number[problem.tile_q[tiles]],
        tile_kv=number[problem.tile_kv[tiles]],
        work=problem.work[tiles],
        sequence=problem.sequence[blocks],
        tokens=np.where(is_owned, problem.tokens[blocks], 0),
        is_owned=is_owned,
        weight=problem.weight[:, blocks],
    )
    return inner, tiles, blocks


def coarsen(problem: Problem) -> tuple[Problem, Ints, Ints]:
    """Merge neighbouring blocks of one sequence while they stay within twice the largest block.

    Returns:
        The coarser problem, and the coarse tile of each tile and coarse block of each block. O(W
        log W).
    """
    block = _merge_runs(problem, 2 * float(problem.weight[1].max(initial=0.0)))
    size = int(block[-1]) + 1 if len(block) else 0
    key = block[problem.tile_q] * size + block[problem.tile_kv]
    found, tile = np.unique(key, return_inverse=True)

    def total(values: NDArray[np.generic], at: Ints, length: int) -> Floats:
        return np.bincount(at, values.astype(np.float64), length).astype(np.float64)

    first = np.flatnonzero(np.diff(block, prepend=-1))
    coarse = replace(
        problem,
        tile_q=(found // max(size, 1)).astype(np.int32),
        tile_kv=(found % max(size, 1)).astype(np.int32),
        work=total(problem.work, tile, len(found)).astype(np.int64),
        sequence=problem.sequence[first],
        tokens=total(problem.tokens, block, size).astype(np.int64),
        is_owned=problem.is_owned[first],
        weight=np.stack([total(side, block, size) for side in problem.weight]),
    )
    return coarse, tile, block


def _merge_runs(problem: Problem, limit: float) -> Ints:
    """Number the runs of blocks that are merged; a net's bytes stand for its block's tokens."""
    block = np.zeros(problem.num_blocks, np.int64)
    sequence, is_owned = problem.sequence.tolist(), problem.is_owned.tolist()
    number, total = -1, 0.0
    for index, size in enumerate(problem.weight[1].tolist()):
        starts = (
            index == 0
            or sequence[index] != sequence[index - 1]
            or is_owned[index] != is_owned[index - 1]
            or total + size > limit
        )
        number, total = (number + 1, size) if starts else (number, total + size)
        block[index] = number
    return block


def seeds(problem: Problem, parts: int) -> Iterator[Split]:
    """Yield the starts, the most promising first: documents, token ranges, equal work, zigzag."""
    work, tokens = _shares(problem, parts)
    run = _cut_evenly(2 * tokens, 2 * parts)
    for row in (
        by_documents(problem, parts),
        _cut_evenly(tokens, parts),
        _cut_evenly(work, parts),
        np.minimum(run, 2 * parts - 1 - run),  # zigzag: part p has runs p and 2K-1-p
    ):
        yield Split(row[problem.tile_q], np.where(problem.is_owned, row, -1).astype(np.int32))


def _shares(problem: Problem, parts: int) -> tuple[Floats, Floats]:
    """Compute the work of each row and the tokens of each block, in shares of a part."""
    work = np.zeros(problem.num_blocks)
    np.add.at(work, problem.tile_q, problem.work)
    tokens = problem.tokens.astype(np.float64)
    return (
        work * (parts / max(1.0, float(work.sum()))),
        tokens * (parts / max(1.0, float(tokens.sum()))),
    )


def _cut_evenly(shares: Floats, parts: int) -> Indices:
    """Cut the blocks into runs of equal shares; a block goes where its middle lies."""
    middle = np.cumsum(shares) - shares / 2
    return np.minimum(middle.astype(np.int32), np.int32(parts - 1))


def by_documents(problem: Problem, parts: int) -> Indices:
    """Assign whole documents, largest first, to the emptiest part; cut those that fit nowhere.

    A document is as large as its work or its tokens, whichever is the larger share. One that fits
    nowhere fills the emptiest parts one after the other with runs of its rows.
    """
    work, tokens = _shares(problem, parts)
    first = np.flatnonzero(np.diff(problem.sequence, prepend=-1))
    end = np.append(first[1:], problem.num_blocks)
    sizes = np.stack([np.add.reduceat(s, first) for s in (work, tokens)])
    full = np.zeros((2, parts))
    row = np.zeros(problem.num_blocks, np.int32)
    for document in np.argsort(-sizes.max(axis=0), kind="stable").tolist():
        filled = (full + sizes[:, document : document + 1]).max(axis=0)
        best = int(np.argmin(filled))
        run = slice(int(first[document]), int(end[document]))
        if filled[best] <= 1 + _SLACK or run.stop - run.start == 1:
            row[run] = best
            full[:, best] += sizes[:, document]
        else:
            row[run] = _fill_in_turn(np.stack([work[run], tokens[run]], axis=1), full)
    return row


def _fill_in_turn(rows: Floats, full: Floats) -> Indices:
    """Fill the emptiest part, then the next; deal the remaining rows to the emptiest parts."""
    order = iter(np.argsort(full.max(axis=0), kind="stable").tolist())
    part: int | None = next(order)
    chosen = np.zeros(len(rows), np.int32)
    for index, size in enumerate(rows):
        while part is not None and (full[:, part] + size).max() > 1 + _SLACK:
            part = next(order, None)
        target = int(np.argmin(full.max(axis=0))) if part is None else part
        chosen[index] = target
        full[:, target] += size
    return chosen
