"""What the native partitioner splits: tiles, blocks, the weight of their nets, fine or coarse."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.workload import Workload
from dcp_planner.search.partition_state import Board, fill

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Floats = NDArray[np.float64]


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
    shape, tokens = workload.shape, workload.block_tokens
    row = 2 * shape.q_bytes + shape.out_bytes + shape.q_backward_bytes
    return Problem(
        tile_q=workload.compute_q,
        tile_kv=workload.compute_kv,
        work=workload.compute_pairs,
        sequence=workload.block_sequence,
        tokens=tokens,
        is_owned=np.ones(workload.num_blocks, np.bool_),
        weight=np.stack([tokens * row, tokens * (3 * shape.kv_bytes)]).astype(np.float64),
    )


def restrict(problem: Problem, split: Split, part: int) -> tuple[Problem, Ints, Ints]:
    """Keep what one part computes or owns; gives it with its tiles and its blocks, ascending.

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


def make_board(
    problem: Problem,
    split: Split,
    limits: Floats,
    prices: Floats,
    topology: Ints,
    far: float,
    seed: int,
) -> Board:
    """Lay a split out as the compiled loops want it, filled; the split itself is not changed."""
    tiles, blocks = problem.num_tiles, problem.num_blocks
    parts, groups = topology.shape[1], int(topology[0].max()) + 1
    pointer = np.zeros((2, blocks + 1), np.int64)
    members = np.zeros((2, tiles), np.int64)
    for side, of in enumerate((problem.tile_q, problem.tile_kv)):
        pointer[side, 1:] = np.cumsum(np.bincount(of, minlength=blocks))
        members[side] = np.argsort(of, kind="stable") if side else np.arange(tiles)
    board = Board(
        tile_q=problem.tile_q.copy(),
        tile_kv=problem.tile_kv.copy(),
        work=problem.work.astype(np.float64),
        part=split.part.astype(np.int32),
        owner=split.owner.astype(np.int32),
        tokens=problem.tokens.copy(),
        sequence=problem.sequence.copy(),
        pointer=pointer,
        members=members,
        weight=np.append(problem.weight.ravel(), far),
        counts=np.zeros((2 * blocks, parts + groups), np.int32),
        topology=np.ascontiguousarray(topology, np.int64),
        loads=np.zeros((2, parts)),
        limits=np.ascontiguousarray(limits, np.float64),
        prices=np.ascontiguousarray(prices, np.float64),
        change=np.zeros(parts + 2),
        tiles=np.zeros(tiles + 1, np.int64),
        blocks=np.zeros(blocks + 1, np.int64),
        pins=np.zeros(2 * blocks, np.int64),
        nets=np.zeros(2 * blocks, np.int64),
        random=np.array([(2 * seed + 1) * 0x9E3779B97F4A7C15 % 2**64], np.uint64),
    )
    fill(board)
    return board
