"""State of the search for time: how busy every device and port is, updated move by move.

Each device has seven loads in either direction: seconds of computing; seconds that its network port
receives and sends, inputs and results apart; seconds that its port inside the node receives and
sends. Its term is the sum of the eighth powers of seven seconds: compute with a share of the
network, what its network port receives, what it sends, two chains of loads that cannot overlap
(inputs must arrive before results can leave), and both directions of the port inside the node. The
eighth root of the sum of all terms is nearly the longest of these seconds. The objective is this
root for forward plus that for backward; `objective` adds a price for busy ports.

If several devices of another node need a block, the network carries one copy. The router chooses
later which device receives it, so each of them is charged an equal share.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.jit import FloatTable, IntTable, inlined
from dcp_planner.search.state import State, assign_owner, assign_tile, pin

LOADS = 7  # compute, inputs in, inputs out, results in, results out, inside in, inside out
# 0.1 to 0.6 are within 5 % of each other, in no order that holds for all batches (LOG.md).
_SEEN = 0.25  # share of the network's time that is assumed not to be hidden by computing


class LoadState(NamedTuple):
    """A split of all devices and the loads that follow from it, changed in place."""

    split: State  # the state with the tiles, the owners, their pins and the caps
    first: Ints  # `[N+1]`, first device of each node
    slowness: Floats  # float64 `[R]`, factor by which each device takes longer for its tiles
    port: Floats  # float64 `[R]`, factor by which its network port takes longer
    # float64 `[8, 2D]`, scaled seconds of a message of each net: forward, then backward; between
    # nodes, then inside; input, then result
    cost: FloatTable
    seconds: FloatTable  # float64 `[2, W]`, of each tile, scaled
    # float64 `[R, 2 * LOADS]`, scaled seconds: seven in forward, seven in backward
    load: FloatTable
    saved: FloatTable  # float64 `[R, 2 * LOADS]`, loads of dirty devices before the move
    term: FloatTable  # float64 `[2, R]`, term of each device in either direction, without the move
    total: Floats  # float64 `[2]`, sum of the terms
    dirty: Ints  # `[R+1]`, devices whose loads the move has changed; their number at the end
    mark: IntTable  # int64 `[3, R]`, whether a device is dirty; at rest; a target
    rate: Floats  # float64 `[1]`, price of a second of one busy port, in the objective
    least: Floats  # float64 `[1]`, objective after the best move so far
    best: Ints  # `[5]`, that move: target or -1, two blocks, net and tile, as `_try` has them


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
    """Add to loads, or take from them, the messages of one net between its owner and one node."""
    counts, load, cost = state.split.counts, state.load, state.cost
    owner = int(state.split.owner[net % len(state.split.owner)])
    is_home = state.split.group[owner] == node
    # Devices of the node that need the net, other than the owner; in `counts` the owner is a pin.
    count = counts[net, len(state.split.group) + node] - (1 if is_home else 0)
    if count == 0:
        return
    # Each of `count` devices may be the gateway, which receives one copy and passes on count - 1.
    # So in the mean each one receives, and sends, (count - 1) / count messages inside its node.
    share, passed = sign / count, sign * (count - 1) / count
    _touch(state, owner)
    for way in range(2):
        at, price = LOADS * way, 4 * way
        if is_home:
            load[owner, at + 6] += sign * count * cost[price + 2, net]
            load[owner, at + 5] += sign * count * cost[price + 3, net]
        else:
            load[owner, at + 2] += sign * cost[price, net] * state.port[owner]
            load[owner, at + 3] += sign * cost[price + 1, net] * state.port[owner]
    for user in range(state.first[node], state.first[node + 1]):
        if counts[net, user] == 0 or user == owner:
            continue
        _touch(state, user)
        for way in range(2):
            at, price = LOADS * way, 4 * way
            if is_home:
                load[user, at + 5] += sign * cost[price + 2, net]
                load[user, at + 6] += sign * cost[price + 3, net]
            else:
                load[user, at + 1] += share * cost[price, net] * state.port[user]
                load[user, at + 4] += share * cost[price + 1, net] * state.port[user]
                inside = passed * (cost[price + 2, net] + cost[price + 3, net])
                load[user, at + 5] += inside
                load[user, at + 6] += inside


@inlined
def move_tile(state: LoadState, tile: int, target: int) -> None:
    """Move a tile to another device; not final before `keep`."""
    split, group = state.split, state.split.group
    here, blocks = int(split.part[tile]), len(split.owner)
    for side in range(2):
        net = blocks + split.tile_kv[tile] if side else int(split.tile_q[tile])
        # Otherwise the same devices have the net after the move, and no message changes.
        changes = split.counts[net, here] == 1 or split.counts[net, target] == 0
        # Steps 0 and 1 take off what the nodes of both devices are charged for the net, 2 and 3
        # charge them anew. A single call, since each call in the source is compiled separately.
        for step in range(4):
            if step == 2:
                pin(split, net, 1, here, target)
            node = group[target] if step & 1 else group[here]
            if changes and (step & 1 == 0 or group[here] != group[target]):
                _charge(state, net, node, -1.0 if step < 2 else 1.0)
    _touch(state, here)
    _touch(state, target)
    for way in range(2):
        seconds = state.seconds[way, tile]
        state.load[here, LOADS * way] -= seconds * state.slowness[here]
        state.load[target, LOADS * way] += seconds * state.slowness[target]
    assign_tile(split, tile, target)


@inlined
def move_owner(state: LoadState, block: int, target: int) -> None:
    """Change the owner of a block; not final before `keep`."""
    split, here, blocks = state.split, int(state.split.owner[block]), len(state.split.owner)
    # Step 0 takes off what all nodes are charged for both nets, step 1 charges them anew.
    for step in range(2):
        for net in (block, blocks + block):
            for node in range(len(state.first) - 1):
                _charge(state, net, node, 1.0 if step else -1.0)
            if step == 0:
                pin(split, net, 1, here, target)
        if step == 0:
            assign_owner(split, block, target)


@inlined
def _power(x: float) -> float:
    x *= x
    x *= x
    return x * x


@inlined
def root(x: float) -> float:
    """Compute the eighth root; negative numbers, from rounding, count as 0."""
    return float(np.sqrt(np.sqrt(np.sqrt(max(x, 0.0)))))


@inlined
def _term_of(state: LoadState, way: int, device: int) -> float:
    """Sum the eighth powers of all times for which others may have to wait for a device."""
    at, load = LOADS * way, state.load
    compute, into, out = load[device, at], load[device, at + 1], load[device, at + 2]
    home, back = load[device, at + 3], load[device, at + 4]
    return (
        _power(compute + _SEEN * (into + out + home + back))
        + _power(into + home)  # all that its port receives
        + _power(out + back)  # all that it sends
        + _power(into + back)  # its inputs come before its results leave
        + _power(out + home)  # so do those that it sends, of others
        + _power(load[device, at + 5])
        + _power(load[device, at + 6])
    )


@inlined
def objective(state: LoadState) -> float:
    """Compute the objective after a move that is not yet kept, plus the price of busier ports."""
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
def keep(state: LoadState) -> None:
    """Make the move final; touched devices are no longer at rest."""
    end = len(state.dirty) - 1
    for i in range(state.dirty[end]):
        device = state.dirty[i]
        state.mark[0, device] = 0
        state.mark[1, device] = 0
        for way in range(2):
            state.term[way, device] = _term_of(state, way, device)
    state.dirty[end] = 0
    # Summed anew instead of updated: rounding errors do not grow with the number of moves.
    for way in range(2):
        state.total[way] = 0.0
        for device in range(len(state.split.group)):
            state.total[way] += state.term[way, device]


@inlined
def forget(state: LoadState) -> None:
    """Restore the loads, to the bit, after a move was undone: adding and subtracting rounds."""
    end = len(state.dirty) - 1
    for i in range(state.dirty[end]):
        device = state.dirty[i]
        state.mark[0, device] = 0
        for j in range(2 * LOADS):
            state.load[device, j] = state.saved[device, j]
    state.dirty[end] = 0


@inlined
def load_all(state: LoadState) -> None:
    """Add up the loads of all devices: their tiles, and the messages of all nets."""
    state.load[:, :] = 0.0
    for device in range(len(state.split.group)):
        _touch(state, device)
    for tile in range(len(state.split.part)):
        for way in range(2):
            device = state.split.part[tile]
            state.load[device, LOADS * way] += state.seconds[way, tile] * state.slowness[device]
    for net in range(len(state.split.counts)):
        for node in range(len(state.first) - 1):
            _charge(state, net, node, 1.0)
    keep(state)
