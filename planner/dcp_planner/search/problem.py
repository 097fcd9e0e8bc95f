"""Problems of the native search: restrict, coarsen, lay out; splits to start from.

A state has K parts in G groups (nodes). Every token block b has two nets: its row net, index b,
whose pins are the tiles that have it as queries, and its column net, index D + b, for keys; the
owner of the block is one more pin in both. A net costs ``weight * (parts touched - 1)`` and, times
``far``, ``weight * (groups touched - 1)``: what the routed plan sends. What exceeds a cap costs
``price`` per unit, so caps may be crossed on the way but not in the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import FloatTable, IndexTable, IntTable, inlined
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


class PartitionState(NamedTuple):
    """One level of the problem, changed in place.

    Attributes:
        tile_q, tile_kv: int32 ``[W]``, block of each tile's queries and keys.
        work: float64 ``[W]``, whole numbers.
        part: int32 ``[W]``, part of each tile.
        owner: int32 ``[D]``, part that owns each block; -1: owned elsewhere.
        tokens: int64 ``[D]``; 0 where the owner is elsewhere.
        sequence: int32 ``[D]``.
        pointer: int64 ``[2, D+1]``, CSR of the tiles of each row (0) and column (1).
        members: int64 ``[2, W]``, tiles of the rows, of the columns.
        weight: float64 ``[2D+1]``, bytes of each net; the last entry is ``far``.
        counts: int32 ``[2D, K+G]``, pins of each net on each part, then in each group.
        group: int64 ``[K]``, group of each part.
        loads: float64 ``[2, K]``, work and tokens of each part.
        limits: float64 ``[2, K]``, most work and most tokens of each part.
        prices: float64 ``[2]``, cost of a unit of work, and of a token, above the limit.
        change, tiles, blocks, pins, nets: scratch.
        random: uint64 ``[1]``.
    """

    tile_q: Indices
    tile_kv: Indices
    work: Floats
    part: Indices
    owner: Indices
    tokens: Ints
    sequence: Indices
    pointer: IntTable
    members: IntTable
    weight: Floats
    counts: IndexTable
    group: Ints
    loads: FloatTable
    limits: FloatTable
    prices: Floats
    change: Floats
    tiles: Ints
    blocks: Ints
    pins: Ints
    nets: Ints
    random: NDArray[np.uint64]


@inlined
def price_net(state: PartitionState, net: int, moved: int, part: int) -> None:
    """Add what moving some pins of a net off a part changes, per target.

    ``change[K]`` takes what leaving the part saves, ``change[K+1]`` what leaving its group saves.
    """
    counts, group, change, cost = state.counts, state.group, state.change, state.weight[net]
    parts = len(group)
    if counts[net, part] == moved:
        change[parts] -= cost
    for target in range(parts):
        if counts[net, target] == 0:
            change[target] += cost
    cost *= state.weight[len(state.weight) - 1]
    if cost == 0.0:
        return
    here = group[part]
    if counts[net, parts + here] == moved:
        change[parts + 1] -= cost
    for target in range(parts):
        if group[target] != here and counts[net, parts + group[target]] == 0:
            change[target] += cost


@inlined
def pin(state: PartitionState, net: int, moved: int, part: int, target: int) -> None:
    """Move some pins of a net from a part to another."""
    counts, group = state.counts, state.group
    counts[net, part] -= moved
    counts[net, target] += moved
    counts[net, len(group) + group[part]] -= moved
    counts[net, len(group) + group[target]] += moved


def fill(state: PartitionState) -> None:
    """Count pins and loads of the placement on the state; O(W + D (K + G))."""
    blocks, parts = len(state.tokens), len(state.group)
    width = state.counts.shape[1]
    owned = np.flatnonzero(state.owner >= 0)
    owner = state.owner[owned]
    tiles = (state.tile_q, state.part), (state.tile_kv, state.part)
    for side, (net, part) in enumerate(tiles):
        cell = np.concatenate([net, owned]).astype(np.int64) * width
        cell += np.concatenate([part, owner])
        pins = np.bincount(cell, minlength=blocks * width).reshape(blocks, width)
        for group in range(width - parts):
            pins[:, parts + group] = pins[:, :parts][:, state.group == group].sum(axis=1)
        state.counts[side * blocks : (side + 1) * blocks] = pins
    state.loads[0] = np.bincount(state.part, state.work, parts)
    state.loads[1] = np.bincount(owner, state.tokens[owned], parts)


def bytes_of(state: PartitionState) -> float:
    """Compute the cost of all nets, without what exceeds caps."""
    parts = len(state.group)
    touched = np.count_nonzero(state.counts[:, :parts], axis=1)
    groups = np.count_nonzero(state.counts[:, parts:], axis=1)
    cost = state.weight[:-1] * (touched - 1 + state.weight[-1] * (groups - 1))
    return float(cost[touched > 0].sum())


def excess_of(state: PartitionState) -> float:
    """Compute the cost of what exceeds the caps."""
    over = state.prices[:, None] * np.maximum(state.loads - state.limits, 0.0)
    return float(np.cumsum(over)[-1])  # one by one: the same bits however wide the machine


def tiles_of_nets(tile_q: Indices, tile_kv: Indices, blocks: int) -> tuple[IntTable, IntTable]:
    """List the tiles of rows (0) and columns (1): CSR pointers ``[2, D+1]``, tiles ``[2, W]``."""
    pointer = np.zeros((2, blocks + 1), np.int64)
    for side, block in enumerate((tile_q, tile_kv)):
        pointer[side, 1:] = np.cumsum(np.bincount(block, minlength=blocks))
    return pointer, np.stack([np.arange(len(tile_q)), np.argsort(tile_kv, kind="stable")])


def state_of_split(
    problem: Problem,
    split: Split,
    limits: Floats,
    prices: Floats,
    group: Ints,
    far: float,
    seed: int,
) -> PartitionState:
    """Lay a split out as the compiled loops want it, filled; the split itself is not changed."""
    tiles, blocks = problem.num_tiles, problem.num_blocks
    parts, groups = len(group), int(group.max()) + 1
    pointer, members = tiles_of_nets(problem.tile_q, problem.tile_kv, blocks)
    state = PartitionState(
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
        group=np.ascontiguousarray(group, np.int64),
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
    fill(state)
    return state


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
