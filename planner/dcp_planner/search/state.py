"""Problems of the native search, fine or coarse, and its state: a split, its pins, its loads.

A state has K parts in G groups (nodes). Every token block b has two nets: its row net, index b,
whose pins are the tiles that have it as queries, and its column net, index D + b, for keys; the
owner of the block is one more pin in both. Two objectives price moves. Bytes: a net costs
``weight * (parts touched - 1)`` and, times ``far``, ``weight * (groups touched - 1)``: the bytes of
the routed plan. Work or tokens above a cap cost ``price`` per unit, so caps may be crossed on the
way but not in the end. Time: see `load_state`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import FloatTable, IndexTable, IntTable, compiled, inlined
from dcp_planner.model.problem import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Tiles and blocks to be split: a part of a workload, or a coarser version of one."""

    # tile_q, tile_kv: int32 `[W]`, sorted by (q, kv)
    tile_q: Indices
    tile_kv: Indices
    work: Ints  # `[W]`
    sequence: Indices  # `[D]`
    tokens: Ints  # `[D]`; 0 for blocks that are owned elsewhere
    is_owned: NDArray[np.bool_]  # bool `[D]`, whether the owner is to be chosen here
    weight: Floats  # float64 `[2, D]`, bytes of row nets and of column nets, whole numbers

    @property
    def num_tiles(self) -> int:
        """Tiles W."""
        return len(self.tile_q)

    @property
    def num_blocks(self) -> int:
        """Blocks D."""
        return len(self.tokens)

    @property
    def row_bytes(self) -> float:
        """Bytes of a median row: the unit of noise."""
        return float(np.median(self.weight[0])) if self.num_blocks else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A solution: the part of every tile and the owner of every block (-1: owned elsewhere)."""

    part: Indices
    owner: Indices


def problem_of(workload: Workload) -> Problem:
    """Build the problem of a workload; nets weigh the bytes of a forward and a backward pass."""
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
    """Restrict a problem to the tiles and blocks of one part; return their old numbers as well.

    Blocks that are owned elsewhere but used here stay, with no owner to choose. Tiles and blocks
    are ascending.
    """
    tiles = np.flatnonzero(split.part == part)
    is_used = split.owner == part
    is_used[problem.tile_q[tiles]] = True
    is_used[problem.tile_kv[tiles]] = True
    blocks = np.flatnonzero(is_used)
    number = np.cumsum(is_used, dtype=np.int32) - np.int32(1)  # new number of each used block
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
    """Merge neighbouring blocks of one sequence up to twice the size of the largest; O(W log W).

    Returns also the coarse tile of each tile and the coarse block of each block.
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
    """Number the runs of blocks that are merged; column weights stand for tokens.

    Tokens themselves are 0 in a restricted problem where the owner is elsewhere.
    """
    block = np.zeros(problem.num_blocks, np.int64)
    sequence, is_owned = problem.sequence.tolist(), problem.is_owned.tolist()
    number, total = -1, 0.0
    for index, size in enumerate(problem.weight[1].tolist()):
        starts = (
            index == 0
            or sequence[index] != sequence[index - 1]
            or is_owned[index] != is_owned[index - 1]  # a merged block has one owner
            or total + size > limit
        )
        number, total = (number + 1, size) if starts else (number, total + size)
        block[index] = number
    return block


class State(NamedTuple):
    """One level of the problem, changed in place."""

    # tile_q, tile_kv: int32 `[W]`, block of each tile's queries and keys
    tile_q: Indices
    tile_kv: Indices
    work: Floats  # float64 `[W]`, whole numbers
    part: Indices  # `[W]`, part of each tile
    owner: Indices  # `[D]`, part that owns each block; -1: owned elsewhere
    tokens: Ints  # `[D]`; 0 where the owner is elsewhere
    sequence: Indices  # `[D]`
    pointer: IntTable  # int64 `[2, D+1]`, CSR of the tiles of each row (0) and column (1)
    members: IntTable  # int64 `[2, W]`, tiles of the rows, of the columns
    weight: Floats  # float64 `[2D+1]`, bytes of each net; the last entry is `far`
    # int32 `[2D, K+G]`, pins of each net on each part, then parts it touches in each group
    counts: IndexTable
    group: Ints  # `[K]`, group of each part, rising
    loads: FloatTable  # float64 `[2, K]`, work and tokens of each part
    limits: FloatTable  # float64 `[2, K]`, most work and most tokens of each part
    prices: Floats  # float64 `[2]`, cost of a unit of work, and of a token, above the limit
    # change, tiles, blocks, pins, nets: scratch
    change: Floats
    tiles: Ints
    blocks: Ints
    pins: Ints
    nets: Ints
    random: NDArray[np.uint64]  # uint64 `[1]`


@inlined
def price_net(state: State, net: int, moved: int, part: int) -> None:
    """Add to ``change[target]`` the cost of moving some pins of a net from a part to each target.

    The saving of leaving the part goes to ``change[K]``, of leaving its group to ``change[K+1]``.
    """
    counts, group, change, cost = state.counts, state.group, state.change, state.weight[net]
    parts = len(group)
    if counts[net, part] == moved:  # no pin stays
        change[parts] -= cost
    for target in range(parts):
        if counts[net, target] == 0:
            change[target] += cost
    # From here on the same for groups, at the additional price ``far``.
    cost *= state.weight[len(state.weight) - 1]
    if cost == 0.0:
        return
    here = group[part]
    if counts[net, part] == moved and counts[net, parts + here] == 1:
        change[parts + 1] -= cost
    for target in range(parts):
        if group[target] != here and counts[net, parts + group[target]] == 0:
            change[target] += cost


@inlined
def pin(state: State, net: int, moved: int, part: int, target: int) -> None:
    """Move some pins of a net from a part to another."""
    # Columns from K on count the parts touched in each group, so they change where a part's pins
    # become 0 or begin.
    counts, group = state.counts, state.group
    counts[net, part] -= moved
    if counts[net, part] == 0:
        counts[net, len(group) + group[part]] -= 1
    if counts[net, target] == 0:
        counts[net, len(group) + group[target]] += 1
    counts[net, target] += moved


@inlined
def assign_tile(state: State, tile: int, target: int) -> None:
    """Assign a tile to another part; `pin` moves its pins."""
    here, work = int(state.part[tile]), state.work[tile]
    state.loads[0, here] -= work
    state.loads[0, target] += work
    state.part[tile] = target


@inlined
def assign_owner(state: State, block: int, target: int) -> None:
    """Assign a block to another owner; `pin` moves its pins."""
    here, size = int(state.owner[block]), float(state.tokens[block])
    state.loads[1, here] -= size
    state.loads[1, target] += size
    state.owner[block] = target


@inlined
def gather(state: State, net: int, part: int, count: int) -> int:
    """Append the tiles of a net on a part to the `count` tiles in scratch; return the new count."""
    blocks = len(state.tokens)
    if state.counts[net, part] == 0:
        return count
    side, block = net // blocks, net % blocks
    for x in range(state.pointer[side, block], state.pointer[side, block + 1]):
        tile = state.members[side, x]
        if state.part[tile] == part:
            state.tiles[count] = tile
            count += 1
    return count


def fill(state: State) -> None:
    """Count the pins and loads of the state's split; O(W + D (K + G))."""
    blocks, parts = len(state.tokens), len(state.group)
    owned = np.flatnonzero(state.owner >= 0)
    owner = state.owner[owned]
    for side, net in enumerate((state.tile_q, state.tile_kv)):
        cell = np.concatenate([net, owned]).astype(np.int64) * parts
        cell += np.concatenate([state.part, owner])
        pins = np.bincount(cell, minlength=blocks * parts).reshape(blocks, parts)
        rows = state.counts[side * blocks : (side + 1) * blocks]
        rows[:, :parts] = pins
        # The parts of a group stand together: a sum over each run is the parts that it touches.
        first = np.flatnonzero(np.diff(state.group, prepend=-1))
        np.add.reduceat(pins > 0, first, axis=1, dtype=np.int32, out=rows[:, parts:])
    state.loads[0] = np.bincount(state.part, state.work, parts)
    state.loads[1] = np.bincount(owner, state.tokens[owned], parts)


@compiled
def bytes_of(state: State) -> float:
    """Compute the cost of all nets, without that of loads above caps."""
    counts, weight, parts = state.counts, state.weight, len(state.group)
    far, total = weight[len(weight) - 1], 0.0
    for net in range(len(counts)):
        touched, groups = 0, 0
        for part in range(parts):
            touched += counts[net, part] > 0
        for group in range(parts, counts.shape[1]):
            groups += counts[net, group] > 0
        if touched > 0:
            total += weight[net] * (touched - 1 + far * (groups - 1))
    return total


@compiled
def excess_of(state: State) -> float:
    """Compute the cost of loads above the caps."""
    total = 0.0
    for kind in range(2):
        for part in range(len(state.group)):
            over = state.loads[kind, part] - state.limits[kind, part]
            if over > 0.0:
                total += state.prices[kind] * over
    return total


@compiled
def cost_of(state: State) -> float:
    """Compute the cost of all nets and of loads above the caps."""
    return bytes_of(state) + excess_of(state)


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
) -> State:
    """Build the state of a split, filled; the split itself is not changed."""
    # Arrays of a workload are read-only, which is another type to numba: they are copied.
    tiles, blocks = problem.num_tiles, problem.num_blocks
    parts, groups = len(group), int(group.max()) + 1
    pointer, members = tiles_of_nets(problem.tile_q, problem.tile_kv, blocks)
    state = State(
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
        random=_seeded(seed),
    )
    fill(state)
    return state


def restarted(state: State, split: Split) -> State:
    """Build the state of another split of the same problem; it shares arrays that moves keep."""
    fresh = state._replace(
        part=split.part.astype(np.int32),
        owner=split.owner.astype(np.int32),
        counts=np.zeros_like(state.counts),
        loads=np.zeros_like(state.loads),
    )
    fill(fresh)
    return fresh


def repeated(state: State, seed: int) -> State:
    """Copy the arrays that moves change, to search again from here with other random numbers."""
    return state._replace(
        part=state.part.copy(),
        owner=state.owner.copy(),
        counts=state.counts.copy(),
        loads=state.loads.copy(),
        random=_seeded(seed),
    )


def _seeded(seed: int) -> NDArray[np.uint64]:
    # Odd, hence never 0, at which an xorshift would stay; the multiplier spreads small seeds.
    return np.array([(2 * seed + 1) * 0x9E3779B97F4A7C15 % 2**64], np.uint64)
