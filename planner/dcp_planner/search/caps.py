"""Hold a split to its caps: move tiles off overloaded parts, then blocks to other owners; warn.

Once all tiles have a part, the cost of an owner depends on its block alone. So choosing owners is
an assignment problem with capacities, which moves and swaps of blocks improve.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import FloatTable, compiled, inner
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig, tolerances_of
from dcp_planner.model.problem import (
    Placement,
    PlanWarning,
    Workload,
    cap_of,
    loads_on,
    pack_largest_first,
)
from dcp_planner.search.state import Problem, State, assign_tile, fill, gather, pin, price_net

_PRICE = 3.0  # of a unit above a cap, relative to the mean bytes per unit
# 1.0 was 0.5 % faster on 8x8, but then one part could still take everything (LOG.md).
_MARGIN = 2.0  # the same, at least, relative to the bytes that tiles in squares send


def hold_caps(state: State, sweeps: int) -> None:
    """Move tiles and owners until no cap is exceeded, or nothing helps; then improve the owners.

    Where moves and swaps cannot bring the owners under the cap, the blocks of each group are packed
    anew, largest first; if that is not enough, all blocks.
    """
    level_work(state)
    cost, limit = _owner_costs(state), state.limits[1].copy()
    placed = cost, state.owner, state.tokens, state.loads[1], limit
    for group in (state.group, np.zeros_like(state.group)):
        if _shed_tokens(*placed):
            break
        _pack(state, group)
    # If the cap still does not hold, the load that was reached becomes the limit.
    np.maximum(limit, state.loads[1].max(initial=0), out=limit)
    _improve_owners(*placed, sweeps)
    fill(state)  # exchanges of owners do not update pins


def _pack(state: State, group: Ints) -> None:
    """Pack the blocks of every group of parts largest first, if that balances better."""
    packed, home = state.owner.copy(), group[state.owner]
    for number in range(int(group.max()) + 1):
        owned = np.flatnonzero((state.owner >= 0) & (home == number))
        parts = np.flatnonzero(group == number).astype(np.int32)
        packed[owned] = parts[pack_largest_first(state.tokens[owned], len(parts))]
    owned = np.flatnonzero(state.owner >= 0)
    loads = np.bincount(packed[owned], state.tokens[owned], len(group))
    if loads.max(initial=0) < state.loads[1].max(initial=0):
        state.owner[:], state.loads[1] = packed, loads


def exchange_owners(state: State, copies: int, cap: int) -> Indices:
    """Choose owners under a cap on tokens in a batch expanded by head groups (`copies` of a block).

    All copies of a block have one owner; its tokens count once. Returns int32 ``[D / copies]``.
    """
    blocks = len(state.owner) // copies
    cost = _owner_costs(state).reshape(copies, blocks, -1).sum(axis=0)
    owner, tokens = state.owner[:blocks].copy(), state.tokens[:blocks]
    parts = cost.shape[1]
    held = np.bincount(owner, tokens, parts).astype(np.float64)
    # Exchanges first: they leave owners in their nodes. One plan took 4.6 ms with exchanges, 7.2 ms
    # with all blocks packed anew (LOG.md).
    if not _shed_tokens(cost, owner, tokens, held, np.full(parts, float(cap))):
        return pack_largest_first(tokens, parts)
    return owner


@inner
def _find_fullest(load: Floats, limit: Floats) -> int:
    """Find the part that is farthest above its limit, or -1."""
    found, excess = -1, 0.0
    for part in range(len(load)):
        if load[part] - limit[part] > excess:
            found, excess = part, load[part] - limit[part]
    return found


@compiled
def level_work(state: State) -> None:
    """Move the tiles that are cheapest per unit of work off overloaded parts, fullest part first.

    A target must stay under its limit; if no part can, the target must stay below the source. Cost
    per overloaded part: O(D) to gather its tiles, and for each move O(its tiles), times K for tiles
    that may be the cheapest.
    """
    loads, limits, tiles = state.loads, state.limits, state.tiles
    # A tile may move more than once while parts only level each other; this bounds all moves.
    left = len(state.part) + 1
    while left > 0:
        source = _find_fullest(loads[0], limits[0])
        if source < 0:
            return
        count = 0
        for row in range(len(state.tokens)):
            count = gather(state, row, source, count)
        # A moved tile is swapped behind the first `count` tiles in scratch, which are still here.
        while loads[0, source] > limits[0, source] and left > 0:
            at, goal = _cheapest(state, source, count, loads[0, source] - limits[0, source])
            if at < 0:
                return
            tile = tiles[at]
            blocks, count = len(state.tokens), count - 1
            tiles[at], tiles[count] = tiles[count], tile
            pin(state, int(state.tile_q[tile]), 1, source, goal)
            pin(state, blocks + state.tile_kv[tile], 1, source, goal)
            assign_tile(state, tile, goal)
            left -= 1
            if loads[0, goal] > limits[0, goal]:
                break  # no target was under its limit: another part may be the fullest now


@inner
def _most_saved(state: State, net: int, part: int) -> float:
    """Compute the most that a net saves if a pin leaves a part: the target then has its others."""
    counts, weight = state.counts, state.weight
    if counts[net, part] > 1:
        return 0.0
    is_last = counts[net, len(state.group) + state.group[part]] == 1
    return float(weight[net]) * (1.0 + weight[len(weight) - 1] if is_last else 1.0)


@inner
def _cheapest(state: State, source: int, count: int, excess: float) -> tuple[int, int]:
    """Find the tile that is cheapest to move off a part: its place in scratch, and the target."""
    blocks, parts = len(state.tokens), len(state.group)
    work, group, change = state.work, state.group, state.change
    loads, limits = state.loads, state.limits
    best, goal, least, is_allowed = -1, -1, np.inf, False
    for at in range(count):
        tile = state.tiles[at]
        row, column = int(state.tile_q[tile]), blocks + state.tile_kv[tile]
        # A tile gets no credit for shedding more than the excess.
        shed = min(max(work[tile], 1.0), excess)
        if is_allowed:
            saved = _most_saved(state, row, source) + _most_saved(state, column, source)
            if -saved / shed >= least:
                continue  # no target can be cheaper
        change[:] = 0.0
        price_net(state, row, 1, source)
        price_net(state, column, 1, source)
        # A target under its limit beats every other; once there is one, no other counts.
        for target in range(parts):
            after = loads[0, target] + work[tile]
            fits = after <= limits[0, target]
            if target == source or (is_allowed and not fits) or after >= loads[0, source]:
                continue
            price = change[target] + change[parts]
            if group[target] != group[source]:
                price += change[parts + 1]
            if price / shed < least or (fits and not is_allowed):
                best, goal, least, is_allowed = at, target, price / shed, fits
    return best, goal


def _owner_costs(state: State) -> Floats:
    """Compute the bytes of each block's nets if each part owned it, less a constant of the block.

    Returns float64 ``[D, K]``.
    """
    blocks, parts = len(state.tokens), len(state.group)
    far, group = state.weight[-1], state.group
    owned = np.flatnonzero(state.owner >= 0)
    owner = state.owner[owned]
    cost = np.zeros((blocks, parts))
    for net in (owned, owned + blocks):
        # Indexing by rows copies, so the owner's own pin can be taken out below.
        counts = state.counts[net]
        # A net whose only pin is the owner's sends nothing, whoever owns the block.
        is_shared = counts[:, :parts].sum(axis=1) > 1
        row = np.arange(len(net))
        counts[row, owner] -= 1
        counts[row, parts + group[owner]] -= counts[row, owner] == 0
        weight = np.where(is_shared, state.weight[net], 0.0)[:, None]
        cost[owned] += weight * (counts[:, :parts] == 0)
        cost[owned] += far * weight * (counts[:, parts:] == 0)[:, group]
    return cost


@inner
def _find_exchange(
    cost: FloatTable,
    owner: Indices,
    tokens: Ints,
    held: Floats,
    limit: Floats,
    block: int,
    excess: float,
) -> tuple[int, int, float]:
    """Find the cheapest move of a block, or swap for another; both keep the target's limit.

    If the owner has an excess, prices are per token of the excess that leaves, and only swaps for
    smaller blocks count. Otherwise prices are total, and the owner keeps its limit as well. Returns
    the target, or -1; the block that comes back, or -1; the price.
    """
    here, size = owner[block], tokens[block]
    goal, back, least = -1, -1, np.inf
    for target in range(len(held)):
        if target != here and held[target] + size <= limit[target]:
            unit = min(float(size), excess) if excess > 0.0 else 1.0
            price = (cost[block, target] - cost[block, here]) / unit
            if price < least:
                goal, least = target, price
    for peer in range(len(owner)):
        target, shed = owner[peer], size - tokens[peer]
        if target < 0 or target == here or held[target] + shed > limit[target]:
            continue
        if shed <= 0 if excess > 0.0 else held[here] - shed > limit[here]:
            continue
        unit = min(float(shed), excess) if excess > 0.0 else 1.0
        price = cost[block, target] - cost[block, here]
        price = (price + cost[peer, here] - cost[peer, target]) / unit
        if price < least:
            goal, back, least = target, peer, price
    return goal, back, least


@inner
def _exchange(
    owner: Indices, tokens: Ints, held: Floats, block: int, target: int, back: int
) -> None:
    """Move a block to a part, and the block `back`, unless it is -1, to the former owner."""
    here, moved = owner[block], tokens[block]
    owner[block] = target
    if back >= 0:
        owner[back] = here
        moved -= tokens[back]
    held[here] -= moved
    held[target] += moved


@compiled
def _shed_tokens(
    cost: FloatTable, owner: Indices, tokens: Ints, held: Floats, limit: Floats
) -> bool:
    """Move and swap blocks off parts above their limit, cheapest per token first; true if held."""
    # Every exchange lowers the total excess; the bound on their number only limits the time.
    for _ in range(4 * len(owner) + 1):
        source = _find_fullest(held, limit)
        if source < 0:
            return True
        best, goal, other, least = -1, -1, -1, np.inf
        excess = held[source] - limit[source]
        for block in range(len(owner)):
            if owner[block] == source:
                target, back, price = _find_exchange(
                    cost, owner, tokens, held, limit, block, excess
                )
                if price < least:
                    best, goal, other, least = block, target, back, price
        if best < 0:
            return False
        _exchange(owner, tokens, held, best, goal, other)
    return False


@compiled
def _improve_owners(
    cost: FloatTable, owner: Indices, tokens: Ints, held: Floats, limit: Floats, sweeps: int
) -> None:
    """Move and swap blocks while that saves bytes, never above a limit."""
    for _ in range(sweeps):
        moves = 0
        for block in range(len(owner)):
            if owner[block] < 0:
                continue
            target, back, price = _find_exchange(cost, owner, tokens, held, limit, block, 0.0)
            if price < -0.5:  # bytes are whole numbers
                _exchange(owner, tokens, held, block, target, back)
                moves += 1
        if moves == 0:
            return


def prices_of(problem: Problem, parts: int) -> Floats:
    """Compute the prices of a pair and of a token above a cap, rounded to at least five bits.

    Even tiles in squares, which share blocks best, need each block on several parts (`copies`). If
    these bytes cost more than exceeding the cap, everything on one part would be the cheapest.
    Rounding to whole bytes would not do: a pair costs a fraction of a byte in long rows.
    """
    copies = float(np.sqrt(problem.num_tiles * parts)) / max(1, problem.num_blocks)
    total = max(_PRICE, _MARGIN * copies) * float(problem.weight.sum())
    prices = np.array([total / max(1, n.sum()) for n in (problem.work, problem.tokens)])
    _, exponent = np.frexp(prices)
    # Prices are multiples of a power of two, so sums of costs are exact in float64.
    grain = np.ldexp(1.0, np.minimum(0, exponent - 5))
    return np.asarray(np.rint(prices / grain) * grain)


def find_shortfalls(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[PlanWarning, ...]:
    """Warn of each tolerance that a placement misses; say if smaller tiles or blocks would help.

    Where tokens have a price, their tolerance is the largest that was tried.
    """
    pairs, tokens = loads_on(found, workload, cluster)
    sizes = np.tile(workload.compute_pairs, found.head_groups)
    warnings = []
    work = pairs / cluster.work_of_device
    if work.max(initial=0) > (1 + config.compute_cap) * float(pairs.mean()):
        text = _shortfall("tile", work, sizes, config.compute_cap)
        warnings.append(PlanWarning("compute_above_tolerance", f"compute: {text}"))
    tolerance = max(tried.token_tolerance for tried in tolerances_of(config))
    if tokens.max(initial=0) > (1 + tolerance) * float(tokens.mean()):
        text = _shortfall("block", tokens, workload.block_tokens, tolerance)
        warnings.append(PlanWarning("tokens_above_tolerance", f"tokens: {text}"))
    return tuple(warnings)


def _shortfall(
    unit: str, loads: NDArray[np.int64 | np.float64], sizes: NDArray[np.int64], tolerance: float
) -> str:
    mean = float(sizes.sum()) / len(loads)
    # With a tolerance of 0 this is what packing whole items, largest first, reaches.
    reached = cap_of(sizes, len(loads), 0.0) / mean
    text = f"the fullest device has {loads.max() / mean:.3f} x the mean, more than the "
    text += f"tolerated {1 + tolerance:.3f}"
    if reached > 1 + tolerance:
        text += f"; whole {unit}s allow about {reached:.3f}, smaller blocks allow less"
    return text
