"""State of the native search: one level of the problem as arrays, and the bytes that it costs.

A state has K parts in G groups (nodes). Every token block b has two nets: its row net, index b,
whose pins are the tiles that have it as queries, and its column net, index D + b, for keys; the
owner of the block is one more pin in both. A net costs ``weight * (parts touched - 1)`` and, times
``far``, ``weight * (groups touched - 1)``: what the routed plan sends. What exceeds a cap costs
``price`` per unit, so caps may be crossed on the way but not in the end.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import FloatTable, IndexTable, IntTable, inlined


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
