"""Hold a split to its caps: tiles leave overloaded parts, owners are chosen anew under the limit.

Once tiles are placed, the cost of an owner is known for each block and part, independent of all
other blocks. So choosing owners is an assignment under a capacity: moves and swaps of blocks.
"""

import numpy as np
from numba import types

from dcp_planner.arrays import Floats, Indices, Ints
from dcp_planner.jit import FLOAT, FLOATS, INDEX_TABLE, INT, INT_TABLE, compiled, inner
from dcp_planner.model.packing import pack_largest_first
from dcp_planner.search.partition_state import (
    PARTITION_STATE,
    PartitionState,
    fill,
    pin,
    price_net,
    reset,
)

PLACES = types.UniTuple(INT, 2)  # type: ignore[no-untyped-call] # numba has no types


def hold_caps(state: PartitionState, sweeps: int) -> None:
    """Move tiles and owners until no cap is exceeded, or nothing helps; then improve the owners.

    Where owners cannot be mended by moves and swaps, the blocks are packed anew, largest first.
    """
    level_work(state)
    cost = owner_costs(state)
    owner, limit = state.owner.copy(), state.limits[1].copy()
    if not shed_tokens(cost, owner, state.tokens, limit, state.topology):
        owner = _pack(state, owner, limit)
    improve_owners(cost, owner, state.tokens, limit, state.topology, sweeps)
    set_owners(state, owner)


def _pack(state: PartitionState, owner: Indices, limit: Floats) -> Indices:
    """Pack the blocks largest first if that is more level; limits rise to what is reached."""
    parts = len(limit)
    owned = np.flatnonzero(owner >= 0)
    packed = owner.copy()
    packed[owned] = pack_largest_first(state.tokens[owned], parts)
    loads = [
        np.bincount(found[owned], weights=state.tokens[owned], minlength=parts)
        for found in (owner, packed)
    ]
    better = int(loads[1].max(initial=0) < loads[0].max(initial=0))
    np.maximum(limit, loads[better].max(initial=0), out=limit)
    return (owner, packed)[better]


@compiled
def level_work(state: PartitionState) -> None:
    """Move the tiles that are cheapest per unit of work off overloaded parts, fullest part first.

    A target must stay under its limit; if there is none, it must stay below the source. For each
    overloaded part O(K), its rows, and its tiles for each move, times K for those that may be best.
    """
    parts, tiles = state.topology.shape[1], state.tiles
    part, work, loads, limits = state.part, state.work, state.loads, state.limits
    left = len(part) + 1
    while left > 0:
        source, excess = -1, 0.0
        for here in range(parts):
            if loads[0, here] - limits[0, here] > excess:
                source, excess = here, loads[0, here] - limits[0, here]
        if source < 0:
            return
        count = _gather(state, source)
        while loads[0, source] > limits[0, source] and left > 0:
            at, goal = _cheapest(state, source, count, loads[0, source] - limits[0, source])
            if at < 0:
                return
            tile = tiles[at]
            blocks, count = len(state.tokens), count - 1
            tiles[at], tiles[count] = tiles[count], tile
            pin(int(state.tile_q[tile]), 1, source, goal, state.counts, state.topology)
            pin(blocks + state.tile_kv[tile], 1, source, goal, state.counts, state.topology)
            loads[0, source] -= work[tile]
            loads[0, goal] += work[tile]
            part[tile] = goal
            left -= 1
            if loads[0, goal] > limits[0, goal]:
                break  # it only levels now: whichever is fullest goes on


@inner(INT(PARTITION_STATE, INT))
def _gather(state: PartitionState, source: int) -> int:
    """Put the tiles of a part into scratch, ascending; gives their number."""
    pointer, members, counts = state.pointer, state.members, state.counts
    part, tiles, found = state.part, state.tiles, 0
    for row in range(len(state.tokens)):
        if counts[row, source] > 0:
            for x in range(pointer[0, row], pointer[0, row + 1]):
                tile = members[0, x]
                if part[tile] == source:
                    tiles[found] = tile
                    found += 1
    return found


@inner(FLOAT(INT, INT, FLOATS, INDEX_TABLE, INT_TABLE))
def _most_saved(net: int, part: int, weight: Floats, count: Indices, topology: Ints) -> float:
    """Compute what a net saves at most if one pin leaves a part: the target has the others."""
    saved = weight[net] if count[net, part] == 1 else 0.0
    if count[net, topology.shape[1] + topology[0, part]] == 1:
        saved += weight[net] * weight[len(weight) - 1]
    return saved


@inner(PLACES(PARTITION_STATE, INT, INT, FLOAT))
def _cheapest(state: PartitionState, source: int, count: int, excess: float) -> tuple[int, int]:
    """Find the place in scratch of the tile that is cheapest to move off a part, and where to."""
    blocks, parts = len(state.tokens), state.topology.shape[1]
    work, counts, weight = state.work, state.counts, state.weight
    topology, change, loads, limits = state.topology, state.change, state.loads, state.limits
    best, goal, least, is_allowed = -1, -1, np.inf, False
    for at in range(count):
        tile = state.tiles[at]
        row, column = int(state.tile_q[tile]), blocks + state.tile_kv[tile]
        shed = min(max(work[tile], 1.0), excess)
        if is_allowed:
            saved = _most_saved(row, source, weight, counts, topology)
            saved += _most_saved(column, source, weight, counts, topology)
            if -saved / shed >= least:
                continue  # no target can be cheaper
        reset(source, topology, change)
        price_net(row, 1, source, weight, counts, topology, change)
        price_net(column, 1, source, weight, counts, topology, change)
        for target in range(topology[1, source], topology[2, source]):
            after = loads[0, target] + work[tile]
            fits = after <= limits[0, target]
            if target == source or (is_allowed and not fits) or after >= loads[0, source]:
                continue
            price = change[target] + change[parts]
            if topology[0, target] != topology[0, source]:
                price += change[parts + 1]
            if price / shed < least or (fits and not is_allowed):
                best, goal, least, is_allowed = at, target, price / shed, fits
    return best, goal


def owner_costs(state: PartitionState) -> Floats:
    """Compute what each block would send if each part owned it, float64 ``[D, K]``."""
    blocks, parts = len(state.tokens), state.topology.shape[1]
    far, group = state.weight[-1], state.topology[0]
    owned = np.flatnonzero(state.owner >= 0)
    owner = state.owner[owned]
    cost = np.zeros((blocks, parts))
    for net in (owned, owned + blocks):
        counts = state.counts[net]
        is_shared = counts[:, :parts].sum(axis=1) > 1
        row = np.arange(len(net))
        counts[row, owner] -= 1
        counts[row, parts + group[owner]] -= 1
        weight = np.where(is_shared, state.weight[net], 0.0)[:, None]
        cost[owned] += weight * (counts[:, :parts] == 0)
        cost[owned] += far * weight * (counts[:, parts:] == 0)[:, group]
    return cost


def _held(owner: Indices, tokens: Ints, parts: int) -> Floats:
    owned = owner >= 0
    return np.bincount(owner[owned], tokens[owned], parts).astype(np.float64)


def shed_tokens(cost: Floats, owner: Indices, tokens: Ints, limit: Floats, topology: Ints) -> bool:
    """Move and swap blocks off parts above their limit, cheapest per token first; says if it did.

    A swap gives a block away for a shorter one of a part that stays under its limit.
    """
    held = _held(owner, tokens, len(limit))
    return bool(_shed_tokens(cost, owner, tokens, held, limit, topology))


def improve_owners(
    cost: Floats, owner: Indices, tokens: Ints, limit: Floats, topology: Ints, sweeps: int
) -> None:
    """Move and swap blocks while that saves bytes, never above a limit."""
    held = _held(owner, tokens, len(limit))
    _improve_owners(cost, owner, tokens, held, limit, topology, sweeps)


def set_owners(state: PartitionState, owner: Indices) -> None:
    """Put owners on the state."""
    np.copyto(state.owner, owner)
    fill(state)


@compiled
def _shed_tokens(  # noqa: C901 - one loop nest
    cost: Floats, owner: Indices, tokens: Ints, held: Floats, limit: Floats, topology: Ints
) -> bool:
    blocks, parts = cost.shape
    for _ in range(4 * blocks + 1):
        source, excess = -1, 0.0
        for here in range(parts):
            if held[here] - limit[here] > excess:
                source, excess = here, held[here] - limit[here]
        if source < 0:
            return True
        best, goal, other, least = -1, -1, -1, np.inf
        for block in range(blocks):
            if owner[block] != source:
                continue
            size = tokens[block]
            for target in range(topology[1, source], topology[2, source]):
                if target != source and held[target] + size <= limit[target]:
                    price = (cost[block, target] - cost[block, source]) / min(size, excess)
                    if price < least:
                        best, goal, other, least = block, target, -1, price
            for peer in range(blocks):
                target = owner[peer]
                if target < topology[1, source] or target >= topology[2, source]:
                    continue
                shed = size - tokens[peer]
                if target == source or shed <= 0 or held[target] + shed > limit[target]:
                    continue
                price = cost[block, target] - cost[block, source]
                price += cost[peer, source] - cost[peer, target]
                price /= min(shed, excess)
                if price < least:
                    best, goal, other, least = block, target, peer, price
        if best < 0:
            return False
        moved = tokens[best]
        owner[best] = goal
        if other >= 0:
            owner[other] = source
            moved -= tokens[other]
        held[source] -= moved
        held[goal] += moved
    return False


@compiled
def _improve_owners(  # noqa: C901 - one loop nest
    cost: Floats,
    owner: Indices,
    tokens: Ints,
    held: Floats,
    limit: Floats,
    topology: Ints,
    sweeps: int,
) -> None:
    blocks = len(owner)
    for _ in range(sweeps):
        moves = 0
        for block in range(blocks):
            here = owner[block]
            if here < 0:
                continue
            size = tokens[block]
            goal, other, least = -1, -1, -0.5
            for target in range(topology[1, here], topology[2, here]):
                price = cost[block, target] - cost[block, here]
                if price < least and target != here and held[target] + size <= limit[target]:
                    goal, least = target, price
            for peer in range(blocks):
                target = owner[peer]
                if target < topology[1, here] or target >= topology[2, here] or target == here:
                    continue
                price = cost[block, target] - cost[block, here]
                price += cost[peer, here] - cost[peer, target]
                more = size - tokens[peer]
                if (
                    price < least
                    and held[target] + more <= limit[target]
                    and held[here] - more <= limit[here]
                ):
                    goal, other, least = target, peer, price
            if goal < 0:
                continue
            moved = size
            owner[block] = goal
            if other >= 0:
                owner[other] = here
                moved -= tokens[other]
            held[here] -= moved
            held[goal] += moved
            moves += 1
        if moves == 0:
            return
