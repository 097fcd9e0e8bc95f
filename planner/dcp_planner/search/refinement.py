"""Noisy local search over tiles, ranges of them and owners (compiled), and its initial splits.

Moves: one tile; one owner; the tiles of a range of neighbouring rows (or columns) on one part, with
or without the blocks of the range that the part owns. Every move is priced for all parts at once,
O(K) per net; each tile lies in exactly two nets. The target with the least change of cost, less a
random amount below ``noise``, is taken; the part where the tiles are takes part in this as well.
The noise falls to zero. Random numbers come from an xorshift and all sums are of integers in
float64, so results are the same bits everywhere.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import compiled, inlined, inner
from dcp_planner.search.state import (
    Problem,
    Split,
    State,
    assign_owner,
    assign_tile,
    cost_of,
    gather,
    pin,
    price_net,
)

_SLACK = 0.03  # whole documents may exceed a part's share by this much of it
_LENGTHS = (2, 4, 8, 0)  # of the ranges of rows or columns, sweep after sweep; 0: whole sequences


@inner
def _draw(random: NDArray[np.uint64]) -> float:
    """Return a number in [0, 1) of 24 bits."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.float64(x >> np.uint64(40)) / 16777216.0


@inner
def _shuffle(order: Ints, random: NDArray[np.uint64]) -> None:
    for i in range(len(order) - 1, 0, -1):
        j = int(_draw(random) * (i + 1))
        order[i], order[j] = order[j], order[i]


@inner
def _rise(load: float, change: float, limit: float) -> float:
    """Compute how much more of a load is above its limit after a change."""
    after = load + change
    return (after - limit if after > limit else 0.0) - (load - limit if load > limit else 0.0)


@inlined
def _choose(state: State, part: int, work: float, size: float, noise: float) -> int:
    """Return the target of the least change less noise; the part itself if staying is least.

    ``state.change`` has the changes of bytes; `work` and `size` are the work and tokens that move.
    """
    group, change, loads, limits = state.group, state.change, state.loads, state.limits
    prices, random, parts = state.prices, state.random, len(state.group)
    best = part
    # Without noise a move must save bytes: sweeps end only when nothing moves.
    least = -noise * _draw(random) if noise > 0.0 else -0.5
    # What leaving saves, to a target in the same group and to one in another.
    near = change[parts]
    near += prices[0] * _rise(loads[0, part], -work, limits[0, part])
    near += prices[1] * _rise(loads[1, part], -size, limits[1, part])
    away = near + change[parts + 1]
    for target in range(parts):
        if target == part:
            continue
        found = change[target] + (near if group[target] == group[part] else away)
        # Prices above a cap only add to it, and the noise takes off less than `noise`.
        if found >= least + noise:
            continue
        found += prices[0] * _rise(loads[0, target], work, limits[0, target])
        found += prices[1] * _rise(loads[1, target], size, limits[1, target])
        if noise > 0.0:
            found -= noise * _draw(random)
        if found < least:
            least = found
            best = target
    return best


@inner
def _sweep_tiles(state: State, order: Ints, noise: float) -> int:
    moves, blocks = 0, len(state.tokens)
    part, tile_q, tile_kv, work = state.part, state.tile_q, state.tile_kv, state.work
    count, loads = state.counts, state.loads
    for tile in order:
        here = int(part[tile])
        row, column = int(tile_q[tile]), blocks + tile_kv[tile]
        if (
            noise == 0.0
            and count[row, here] > 1
            and count[column, here] > 1
            and loads[0, here] <= state.limits[0, here]
        ):
            continue  # others keep both nets here, and no cap is exceeded: leaving saves nothing
        state.change[:] = 0.0
        price_net(state, row, 1, here)
        price_net(state, column, 1, here)
        target = _choose(state, here, work[tile], 0.0, noise)
        if target != here:
            pin(state, row, 1, here, target)
            pin(state, column, 1, here, target)
            assign_tile(state, tile, target)
            moves += 1
    return moves


@inner
def _sweep_owners(state: State, order: Ints, noise: float) -> int:
    moves, blocks = 0, len(state.tokens)
    for block in order:
        here = int(state.owner[block])
        if here < 0:
            continue
        state.change[:] = 0.0
        price_net(state, block, 1, here)
        price_net(state, blocks + block, 1, here)
        size = float(state.tokens[block])
        target = _choose(state, here, 0.0, size, noise)
        if target != here:
            pin(state, block, 1, here, target)
            pin(state, blocks + block, 1, here, target)
            assign_owner(state, block, target)
            moves += 1
    return moves


@inner
def _touch(pins: Ints, nets: Ints, net: int, known: int) -> int:
    """Count one more pin of a net that would move; return the number of nets so far."""
    if pins[net] == 0:
        nets[known] = net
        known += 1
    pins[net] += 1
    return known


@inner
def _try_set(state: State, here: int, num_tiles: int, num_owned: int, noise: float) -> int:
    """Offer the tiles and owned blocks in scratch a common move; return 1 if they moved."""
    blocks = len(state.tokens)
    tile_q, tile_kv, work = state.tile_q, state.tile_kv, state.work
    pins, nets, tiles, owned = state.pins, state.nets, state.tiles, state.blocks
    total, size, known = 0.0, 0.0, 0
    for x in range(num_tiles):
        tile = tiles[x]
        total += work[tile]
        known = _touch(pins, nets, int(tile_q[tile]), known)
        known = _touch(pins, nets, blocks + tile_kv[tile], known)
    for x in range(num_owned):
        block = owned[x]
        size += state.tokens[block]
        known = _touch(pins, nets, block, known)
        known = _touch(pins, nets, blocks + block, known)
    # A net is priced once, with all of its pins that move: what it saves may need all of them.
    state.change[:] = 0.0
    for x in range(known):
        price_net(state, nets[x], pins[nets[x]], here)
    target = _choose(state, here, total, size, noise)
    for x in range(known):
        if target != here:
            pin(state, nets[x], pins[nets[x]], here, target)
        pins[nets[x]] = 0
    if target == here:
        return 0
    for x in range(num_tiles):
        assign_tile(state, tiles[x], target)
    for x in range(num_owned):
        assign_owner(state, owned[x], target)
    return 1


@inner
def _sweep_ranges(state: State, side: int, length: int, offset: int, noise: float) -> int:
    """Offer the tiles of each range of rows (0) or columns (1) on each part a common move.

    Ranges are `length` neighbouring blocks of one sequence, or whole sequences if it is 0. `offset`
    shifts where they begin.
    """
    moves, blocks, parts = 0, len(state.tokens), len(state.group)
    sequence, owner, owned = state.sequence, state.owner, state.blocks
    first = 0
    while first < blocks:
        end = first + 1
        while (
            end < blocks
            and sequence[end] == sequence[first]
            and (length == 0 or (end + offset) % length != 0)
        ):
            end += 1
        for here in range(parts):
            num_tiles, num_owned = 0, 0
            for block in range(first, end):
                if owner[block] == here:
                    owned[num_owned] = block
                    num_owned += 1
                num_tiles = gather(state, side * blocks + block, here, num_tiles)
            if num_tiles == 0:
                continue
            # With the owned blocks, then without; `else` means that the set moved. A single call,
            # since each call in the source is compiled separately.
            while _try_set(state, here, num_tiles, num_owned, noise) == 0:
                if num_owned == 0:
                    break
                num_owned = 0
            else:
                moves += 1
        first = end
    return moves


def descend(state: State, sweeps: int, noise: float) -> tuple[float, float]:
    """Run sweeps of all moves while the noise falls to zero over the first four fifths.

    It ends earlier if three sweeps without noise move nothing. Returns the cost before and after.
    """
    tiles, blocks = np.arange(len(state.part)), np.arange(len(state.tokens))
    return _descend(state, tiles, blocks, sweeps, float(noise))


@compiled
def _descend(
    state: State, tiles: Ints, blocks: Ints, sweeps: int, noise: float
) -> tuple[float, float]:
    offset, still, before = 0, 0, cost_of(state)
    for sweep in range(sweeps):
        left = 1.0 - (sweep + 1.0) / (0.8 * sweeps)
        # The square beats a straight line by 13 to 24 % of the bytes between nodes (LOG.md).
        now = noise * left * left if left > 0.0 else 0.0
        moves, length = 0, _LENGTHS[sweep % len(_LENGTHS)]
        # Single rows, single columns, ranges of rows, ranges of columns. A single call, since each
        # call in the source is compiled separately.
        for turn in range(4):
            if turn == 2:
                offset = int(_draw(state.random) * length)
            moves += _sweep_ranges(
                state, turn & 1, length if turn > 1 else 1, offset if turn > 1 else 0, now
            )
        _shuffle(blocks, state.random)
        moves += _sweep_owners(state, blocks, now)
        _shuffle(tiles, state.random)
        moves += _sweep_tiles(state, tiles, now)
        still = still + 1 if now == 0.0 and moves == 0 else 0
        if still == 3:
            break
    return before, cost_of(state)


def seeds(problem: Problem, parts: int) -> Iterator[Split]:
    """Yield splits to start from, the most promising first.

    They are whole documents, ranges of equal tokens, ranges of equal work, and a zigzag.
    """
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
    """Compute the work of each row and the tokens of each block; 1 is the mean of a part."""
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
    """Fill the emptiest part, then the next; when all are full, each row goes to the emptiest."""
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
