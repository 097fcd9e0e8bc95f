"""State of the search for time: how busy every device and port is, updated move by move.

Each device has seven loads in either direction: seconds of computing; seconds that its network port
receives and sends, inputs and results apart; seconds that its port inside the node receives and
sends. Its term is the sum of the eighth powers of these loads and of the sums that follow one
another (inputs must arrive before results can leave). The objective, for forward plus backward, is
the eighth root of the sum of all terms: nearly the longest of them.

If several devices of another node need a block, the network carries one copy. The router chooses
later which device receives it, so each of them is charged an equal share.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import FloatTable, IndexTable, IntTable, inlined

LOADS = 7  # compute, inputs in, inputs out, results in, results out, inside in, inside out
_SEEN = 0.25  # share of the network's time that computing does not hide


class LoadState(NamedTuple):
    """A placement and what it keeps busy, changed in place.

    Attributes:
        tile_q, tile_kv: int32 ``[W]``.
        pointer: int64 ``[2, D+1]``, CSR of the tiles of each row (0) and column (1).
        members: int64 ``[2, W]``.
        part, owner: int32 ``[W]`` and ``[D]``, device of each tile, owner of each block.
        users: int32 ``[2D, R]``, tiles of each net (rows, then columns) on each device.
        in_node: int32 ``[2D, N]``, devices of each node that use a net without owning its block.
        node: int64 ``[R]``.
        first: int64 ``[N+1]``, first device of each node.
        slowness: float64 ``[R]``, times that each device takes longer for its tiles.
        cost: float64 ``[8, 2D]``, scaled seconds of a message of each net: forward, then backward;
            between nodes, then inside; input, then result.
        seconds: float64 ``[2, W]``, of each tile, scaled.
        work: float64 ``[2, W]``; row 0 the pairs of each tile, row 1 the tokens of each block.
        held, limits: float64 ``[2, R]``, pairs and tokens.
        load, saved: float64 ``[R, 2 * LOADS]``, scaled seconds; as they were before the move.
        term: float64 ``[2, R]``, of each device in either direction.
        total: float64 ``[2]``, sum of the terms.
        heavy: float64 ``[1]``, scaled seconds that a device at its cap counts for if it is above.
        dirty: int64 ``[R+1]``, devices whose loads the move has changed; their number at the end.
        mark: int64 ``[3, R]``, whether a device is dirty; a target; at rest.
        tiles: int64 ``[W+1]``, the tiles that move together; their number at the end.
        fixed: int64 ``[1]``, whether owners stay.
        rate: float64 ``[1]``, objective that a second of one busy port is worth.
        least: float64 ``[1]``, objective after the best move so far.
        best: int64 ``[5]``, that move: target or -1, two blocks, net and tile, as `_try` has them.
    """

    tile_q: Indices
    tile_kv: Indices
    pointer: IntTable
    members: IntTable
    part: Indices
    owner: Indices
    users: IndexTable
    in_node: IndexTable
    node: Ints
    first: Ints
    slowness: Floats
    cost: FloatTable
    seconds: FloatTable
    work: FloatTable
    held: FloatTable
    limits: FloatTable
    load: FloatTable
    saved: FloatTable
    term: FloatTable
    total: Floats
    heavy: Floats
    dirty: Ints
    mark: IntTable
    tiles: Ints
    fixed: Ints
    rate: Floats
    least: Floats
    best: Ints


@inlined
def _touch(state: LoadState, device: int) -> None:
    """Remember the loads of a device before its first change."""
    if state.mark[0, device] == 0:
        state.mark[0, device] = 1
        end = len(state.dirty) - 1
        state.dirty[state.dirty[end]] = device
        state.dirty[end] += 1
        for i in range(2 * LOADS):
            state.saved[device, i] = state.load[device, i]


@inlined
def _charge(state: LoadState, net: int, node: int, sign: float) -> None:
    """Add (or take away) what the devices of one node do to have a net and to send its results."""
    count = state.in_node[net, node]
    if count == 0:
        return
    owner = int(state.owner[net % len(state.owner)])
    is_home = state.node[owner] == node
    share, passed = sign / count, sign * (count - 1) / count
    load, users, cost = state.load, state.users, state.cost
    _touch(state, owner)
    for way in range(2):
        at, price = LOADS * way, 4 * way
        if is_home:
            load[owner, at + 6] += sign * count * cost[price + 2, net]
            load[owner, at + 5] += sign * count * cost[price + 3, net]
        else:
            load[owner, at + 2] += sign * cost[price, net]
            load[owner, at + 3] += sign * cost[price + 1, net]
    for user in range(state.first[node], state.first[node + 1]):
        if count == 0:
            break  # those are all
        if users[net, user] == 0 or user == owner:
            continue
        count -= 1
        _touch(state, user)
        for way in range(2):
            at, price = LOADS * way, 4 * way
            if is_home:
                load[user, at + 5] += sign * cost[price + 2, net]
                load[user, at + 6] += sign * cost[price + 3, net]
            else:
                load[user, at + 1] += share * cost[price, net]
                load[user, at + 4] += share * cost[price + 1, net]
                inside = passed * (cost[price + 2, net] + cost[price + 3, net])
                load[user, at + 5] += inside
                load[user, at + 6] += inside


@inlined
def _use(state: LoadState, net: int, device: int, by: int) -> None:
    """Add or remove one tile that uses a net on a device."""
    before = state.users[net, device]
    changes = before == 0 or before + by == 0
    if not changes or state.owner[net % len(state.owner)] == device:
        state.users[net, device] += by
        return
    node = state.node[device]
    _charge(state, net, node, -1.0)
    state.users[net, device] += by
    state.in_node[net, node] += 1 if by > 0 else -1
    _charge(state, net, node, 1.0)


@inlined
def move_tile(state: LoadState, tile: int, target: int) -> None:
    """Compute a tile elsewhere; not final before `keep`."""
    here = int(state.part[tile])
    row, column = int(state.tile_q[tile]), len(state.owner) + state.tile_kv[tile]
    for step in range(4):  # one call: it is compiled into this place
        net = row if step < 2 else column
        _use(state, net, target if step & 1 else here, 1 if step & 1 else -1)
    _touch(state, here)
    _touch(state, target)
    for way in range(2):
        seconds = state.seconds[way, tile]
        state.load[here, LOADS * way] -= seconds * state.slowness[here]
        state.load[target, LOADS * way] += seconds * state.slowness[target]
    state.held[0, here] -= state.work[0, tile]
    state.held[0, target] += state.work[0, tile]
    state.part[tile] = target


@inlined
def move_owner(state: LoadState, block: int, target: int) -> None:
    """Change the owner of a block; not final before `keep`."""
    here, blocks, nodes = int(state.owner[block]), len(state.owner), state.in_node.shape[1]
    for net in (block, blocks + block):
        for node in range(nodes):
            _charge(state, net, node, -1.0)
    state.owner[block] = target
    for net in (block, blocks + block):
        if state.users[net, here] > 0:
            state.in_node[net, state.node[here]] += 1
        if state.users[net, target] > 0:
            state.in_node[net, state.node[target]] -= 1
        for node in range(nodes):
            _charge(state, net, node, 1.0)
    state.held[1, here] -= state.work[1, block]
    state.held[1, target] += state.work[1, block]


@inlined
def _power(x: float) -> float:
    x *= x
    x *= x
    return x * x


@inlined
def root(x: float) -> float:
    """Compute the eighth root, that of 0 for less."""
    return float(np.sqrt(np.sqrt(np.sqrt(max(x, 0.0)))))


@inlined
def _term_of(state: LoadState, way: int, device: int) -> float:
    """Compute the eighth powers of what may keep everybody waiting for a device."""
    at, load = LOADS * way, state.load
    compute, into, out = load[device, at], load[device, at + 1], load[device, at + 2]
    home, back = load[device, at + 3], load[device, at + 4]
    over = 0.0
    for kind in range(2):
        if state.held[kind, device] > state.limits[kind, device]:
            over += _power(state.heavy[0] * state.held[kind, device] / state.limits[kind, device])
    return (
        over
        + _power(compute + _SEEN * (into + out + home + back))
        + _power(into + home)
        + _power(out + back)
        + _power(into + back)
        + _power(out + home)
        + _power(load[device, at + 5])
        + _power(load[device, at + 6])
    )


@inlined
def objective(state: LoadState) -> float:
    """Compute the objective after a move that is not yet kept, plus what more busy ports cost."""
    value, end = 0.0, len(state.dirty) - 1
    for way in range(2):
        change = 0.0
        for i in range(state.dirty[end]):
            device = state.dirty[i]
            change += _term_of(state, way, device) - state.term[way, device]
            for port in range(LOADS * way + 1, LOADS * (way + 1)):
                value += state.rate[0] * (state.load[device, port] - state.saved[device, port])
        value += root(state.total[way] + change)
    return value


@inlined
def _add_up(state: LoadState) -> None:
    for way in range(2):
        total = 0.0
        for device in range(len(state.node)):
            total += state.term[way, device]
        state.total[way] = total


@inlined
def keep(state: LoadState) -> None:
    """Make the move final; let the touched units move again."""
    end = len(state.dirty) - 1
    for i in range(state.dirty[end]):
        device = state.dirty[i]
        state.mark[0, device] = 0
        state.mark[2, device] = 0
        for way in range(2):
            state.term[way, device] = _term_of(state, way, device)
    state.dirty[end] = 0
    _add_up(state)


@inlined
def forget(state: LoadState) -> None:
    """Restore the loads, to the bit, after a move was undone."""
    end = len(state.dirty) - 1
    for i in range(state.dirty[end]):
        device = state.dirty[i]
        state.mark[0, device] = 0
        for j in range(2 * LOADS):
            state.load[device, j] = state.saved[device, j]
    state.dirty[end] = 0


@inlined
def gather(state: LoadState, net: int, device: int) -> int:
    """Gather the tiles of a net on a device; return their number."""
    blocks = len(state.owner)
    side, block, count = net // blocks, net % blocks, 0
    for x in range(state.pointer[side, block], state.pointer[side, block + 1]):
        tile = state.members[side, x]
        if state.part[tile] == device:
            state.tiles[count] = tile
            count += 1
    state.tiles[len(state.tiles) - 1] = count
    return count


@inlined
def gather_one(state: LoadState, tile: int) -> None:
    """Gather one tile; none if it is -1."""
    state.tiles[0] = tile
    state.tiles[len(state.tiles) - 1] = 1 if tile >= 0 else 0


@inlined
def load_all(state: LoadState) -> None:
    """Add up the loads of all devices: their tiles, and the messages of all nets."""
    state.load[:, :] = 0.0
    for tile in range(len(state.part)):
        for way in range(2):
            device = state.part[tile]
            state.load[device, LOADS * way] += state.seconds[way, tile] * state.slowness[device]
    for net in range(len(state.users)):
        for node in range(state.in_node.shape[1]):
            _charge(state, net, node, 1.0)
    keep(state)


@inlined
def value_all(state: LoadState) -> None:
    """Take the terms of all devices anew."""
    for device in range(len(state.node)):
        for way in range(2):
            state.term[way, device] = _term_of(state, way, device)
    _add_up(state)
