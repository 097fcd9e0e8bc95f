"""Compiled descent on predicted time: whatever is busiest is relieved, one move after the other.

Bytes add up, time does not: a plan takes as long as its busiest device or port. The field holds,
for every device and either direction, the seconds of its computing, of what it receives and sends
over the network, inputs and results apart, and inside its node. A device is as slow as a high power
of these, and of the sums that follow one another: inputs must arrive before results can leave. The
objective is the root of the sum over all devices, nearly the longest, for forward plus backward.

Of a block that several devices of a foreign node need, the network carries one copy; which of them
receives it is the router's choice, so each is charged an equal share.

Moves: the tiles of one row, or of one column, of one device together, with or without the owner;
single tiles; an owner; two owners swapped. No move crosses a cap. Every candidate is done, valued
and undone. No noise: the same bits everywhere.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from dcp_planner.jit import (
    FLOAT,
    FLOAT_TABLE,
    FLOATS,
    INDEX_TABLE,
    INDICES,
    INT,
    INT_TABLE,
    INTS,
    NOTHING,
    compiled,
    inner,
)

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Floats = NDArray[np.float64]

_LEAST_GAIN = 1e-6
_RAISES = 12  # times that what is above a cap weighs twice as much
_SEEN = 0.25  # of the time on the network is not hidden behind computing
LOADS = 7  # compute, inputs in, inputs out, results in, results out, inside in, inside out


class Field(NamedTuple):
    """A placement and what it keeps busy, changed in place.

    Attributes:
        tile_q, tile_kv: int32 ``[W]``.
        pointer: int64 ``[2, D+1]``, CSR of the tiles of each row (0) and column (1).
        members: int64 ``[2, W]``.
        part, owner: int32 ``[W]`` and ``[D]``, device of each tile, owner of each block.
        users: int32 ``[2D, R]``, tiles of each net (rows, then columns) on each device.
        in_node: int32 ``[2D, N]``, devices of each node that use a net without owning its block.
        node: int64 ``[R]``.
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
        tiles: int64 ``[W+1]``, scratch.
        fixed: int64 ``[1]``, whether owners stay.
    """

    tile_q: Indices
    tile_kv: Indices
    pointer: Ints
    members: Ints
    part: Indices
    owner: Indices
    users: Indices
    in_node: Indices
    node: Ints
    cost: Floats
    seconds: Floats
    work: Floats
    held: Floats
    limits: Floats
    load: Floats
    saved: Floats
    term: Floats
    total: Floats
    heavy: Floats
    dirty: Ints
    mark: Ints
    tiles: Ints
    fixed: Ints


FIELD = types.NamedTuple(  # type: ignore[no-untyped-call]
    (
        INDICES,  # tile_q
        INDICES,  # tile_kv
        INT_TABLE,  # pointer
        INT_TABLE,  # members
        INDICES,  # part
        INDICES,  # owner
        INDEX_TABLE,  # users
        INDEX_TABLE,  # in_node
        INTS,  # node
        FLOAT_TABLE,  # cost
        FLOAT_TABLE,  # seconds
        FLOAT_TABLE,  # work
        FLOAT_TABLE,  # held
        FLOAT_TABLE,  # limits
        FLOAT_TABLE,  # load
        FLOAT_TABLE,  # saved
        FLOAT_TABLE,  # term
        FLOATS,  # total
        FLOATS,  # heavy
        INTS,  # dirty
        INT_TABLE,  # mark
        INTS,  # tiles
        INTS,  # fixed
    ),
    Field,
)


@inner(NOTHING(FIELD, INT))
def _touch(field: Field, device: int) -> None:
    """Remember the loads of a device before its first change."""
    if field.mark[0, device] == 0:
        field.mark[0, device] = 1
        end = len(field.dirty) - 1
        field.dirty[field.dirty[end]] = device
        field.dirty[end] += 1
        for i in range(2 * LOADS):
            field.saved[device, i] = field.load[device, i]


@inner(NOTHING(FIELD, INT, INT, FLOAT))
def _charge(field: Field, net: int, node: int, sign: float) -> None:
    """Add (or take away) what the devices of one node do to have a net and to send its results."""
    count = field.in_node[net, node]
    if count == 0:
        return
    devices = len(field.node) // field.in_node.shape[1]
    owner = int(field.owner[net % len(field.owner)])
    is_home = field.node[owner] == node
    share, passed = sign / count, sign * (count - 1) / count
    load, users, cost = field.load, field.users, field.cost
    _touch(field, owner)
    for way in range(2):
        at, price = LOADS * way, 4 * way
        if is_home:
            load[owner, at + 6] += sign * count * cost[price + 2, net]
            load[owner, at + 5] += sign * count * cost[price + 3, net]
        else:
            load[owner, at + 2] += sign * cost[price, net]
            load[owner, at + 3] += sign * cost[price + 1, net]
    for user in range(node * devices, (node + 1) * devices):
        if count == 0:
            break  # those are all
        if users[net, user] == 0 or user == owner:
            continue
        count -= 1
        _touch(field, user)
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


@inner(NOTHING(FIELD, INT, INT, INT))
def _use(field: Field, net: int, device: int, by: int) -> None:
    """Let one tile more or less use a net on a device."""
    before = field.users[net, device]
    changes = before == 0 or before + by == 0
    if not changes or field.owner[net % len(field.owner)] == device:
        field.users[net, device] += by
        return
    node = field.node[device]
    _charge(field, net, node, -1.0)
    field.users[net, device] += by
    field.in_node[net, node] += 1 if by > 0 else -1
    _charge(field, net, node, 1.0)


@inner(NOTHING(FIELD, INT, INT))
def _move_tile(field: Field, tile: int, target: int) -> None:
    here = int(field.part[tile])
    row, column = int(field.tile_q[tile]), len(field.owner) + field.tile_kv[tile]
    _use(field, row, here, -1)
    _use(field, row, target, 1)
    _use(field, column, here, -1)
    _use(field, column, target, 1)
    _touch(field, here)
    _touch(field, target)
    for way in range(2):
        field.load[here, LOADS * way] -= field.seconds[way, tile]
        field.load[target, LOADS * way] += field.seconds[way, tile]
    field.held[0, here] -= field.work[0, tile]
    field.held[0, target] += field.work[0, tile]
    field.part[tile] = target


@inner(NOTHING(FIELD, INT, INT))
def _move_owner(field: Field, block: int, target: int) -> None:
    here, blocks, nodes = int(field.owner[block]), len(field.owner), field.in_node.shape[1]
    for net in (block, blocks + block):
        for node in range(nodes):
            _charge(field, net, node, -1.0)
    field.owner[block] = target
    for net in (block, blocks + block):
        if field.users[net, here] > 0:
            field.in_node[net, field.node[here]] += 1
        if field.users[net, target] > 0:
            field.in_node[net, field.node[target]] -= 1
        for node in range(nodes):
            _charge(field, net, node, 1.0)
    field.held[1, here] -= field.work[1, block]
    field.held[1, target] += field.work[1, block]


@inner(FLOAT(FLOAT))
def _power(x: float) -> float:
    x *= x
    x *= x
    return x * x


@inner(FLOAT(FLOAT))
def _root(x: float) -> float:
    return float(np.sqrt(np.sqrt(np.sqrt(max(x, 0.0)))))


@inner(FLOAT(FIELD, INT, INT))
def _term_of(field: Field, way: int, device: int) -> float:
    """Give the eighth powers of what may keep everybody waiting for a device."""
    at, load = LOADS * way, field.load
    compute, into, out = load[device, at], load[device, at + 1], load[device, at + 2]
    home, back = load[device, at + 3], load[device, at + 4]
    over = 0.0
    for kind in range(2):
        if field.held[kind, device] > field.limits[kind, device]:
            over += _power(field.heavy[0] * field.held[kind, device] / field.limits[kind, device])
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


@inner(FLOAT(FIELD))
def _value(field: Field) -> float:
    """Give the objective after a move that is not yet kept."""
    value, end = 0.0, len(field.dirty) - 1
    for way in range(2):
        change = 0.0
        for i in range(field.dirty[end]):
            device = field.dirty[i]
            change += _term_of(field, way, device) - field.term[way, device]
        value += _root(field.total[way] + change)
    return value


@inner(NOTHING(FIELD))
def _add_up(field: Field) -> None:
    for way in range(2):
        total = 0.0
        for device in range(len(field.node)):
            total += field.term[way, device]
        field.total[way] = total


@inner(NOTHING(FIELD))
def _keep(field: Field) -> None:
    """Make the move final; who was touched may try again."""
    end = len(field.dirty) - 1
    for i in range(field.dirty[end]):
        device = field.dirty[i]
        field.mark[0, device] = 0
        field.mark[2, device] = 0
        for way in range(2):
            field.term[way, device] = _term_of(field, way, device)
    field.dirty[end] = 0
    _add_up(field)


@inner(NOTHING(FIELD))
def _forget(field: Field) -> None:
    """Restore the loads, to the bit, after a move was undone."""
    end = len(field.dirty) - 1
    for i in range(field.dirty[end]):
        device = field.dirty[i]
        field.mark[0, device] = 0
        for j in range(2 * LOADS):
            field.load[device, j] = field.saved[device, j]
    field.dirty[end] = 0


@inner(NOTHING(FIELD, INT, INT, INT))
def _move_set(field: Field, count: int, block: int, target: int) -> None:
    """Move the tiles in scratch, and the owner of a block unless it is -1."""
    for i in range(count):
        _move_tile(field, field.tiles[i], target)
    if block >= 0:
        _move_owner(field, block, target)


@inner(INT(FIELD, INT, INT))
def _gather(field: Field, net: int, device: int) -> int:
    """Put the tiles of a net on a device into scratch; gives their number."""
    blocks = len(field.owner)
    side, block, count = net // blocks, net % blocks, 0
    for x in range(field.pointer[side, block], field.pointer[side, block + 1]):
        tile = field.members[side, x]
        if field.part[tile] == device:
            field.tiles[count] = tile
            count += 1
    return count


@inner(NOTHING(FIELD, INT, INT, INT))
def _aim(field: Field, net: int, device: int, count: int) -> None:
    """Mark the targets of a set: the own node, users and owner of the net, owners of the others."""
    blocks, devices = len(field.owner), len(field.node)
    is_over = field.held[0, device] > field.limits[0, device]
    for other in range(devices):
        is_near = is_over or field.node[other] == field.node[device]
        field.mark[1, other] = 1 if is_near or field.users[net, other] > 0 else 0
    field.mark[1, field.owner[net % blocks]] = 1
    for i in range(count):
        tile = field.tiles[i]
        other = field.tile_kv[tile] if net < blocks else field.tile_q[tile]
        field.mark[1, field.owner[other]] = 1
    field.mark[1, device] = 0


@inner(INT(FIELD, INT, INT, FLOATS, INTS))
def _try_sets(field: Field, device: int, net: int, least: Floats, best: Ints) -> int:
    """Value all moves of the tiles of one net off a device; gives how many tiles were looked at."""
    blocks, count, seen = len(field.owner), _gather(field, net, device), 0
    if count == 0:
        return 0
    work = 0.0
    for i in range(count):
        work += field.work[0, field.tiles[i]]
    _aim(field, net, device, count)
    is_owner = field.owner[net % blocks] == device and field.fixed[0] == 0
    owned = net % blocks if is_owner else -1
    for target in range(len(field.node)):
        if field.mark[1, target] == 0 or field.held[0, target] + work > field.limits[0, target]:
            continue
        for turn in range(2 if owned >= 0 else 1):
            block = owned if turn else -1
            if turn and field.held[1, target] + field.work[1, block] > field.limits[1, target]:
                continue
            _move_set(field, count, block, target)
            value = _value(field)
            _move_set(field, count, block, device)
            _forget(field)
            seen += count + 1
            if value < least[0]:
                least[0] = value
                best[0], best[1], best[2], best[3] = 0, net, target, block
    return seen


@inner(INT(FIELD, INT, INT, FLOATS, INTS))
def _try_tiles(field: Field, device: int, net: int, least: Floats, best: Ints) -> int:
    """Value moves of single tiles of a row to devices that have its keys, or own a side."""
    blocks, seen = len(field.owner), 0
    is_over = field.held[0, device] > field.limits[0, device]
    for x in range(field.pointer[0, net], field.pointer[0, net + 1]):
        tile = field.members[0, x]
        if field.part[tile] != device:
            continue
        column = blocks + field.tile_kv[tile]
        for target in range(len(field.node)):
            has_row = field.users[net, target] > 0 or field.owner[net] == target
            has_column = field.users[column, target] > 0 or field.owner[column - blocks] == target
            if target == device or not (has_row or has_column):
                continue
            is_near = is_over or field.node[target] == field.node[device]
            if not is_near and not (has_row and has_column):
                continue
            if field.held[0, target] + field.work[0, tile] > field.limits[0, target]:
                continue
            _move_tile(field, tile, target)
            value = _value(field)
            _move_tile(field, tile, device)
            _forget(field)
            seen += 2
            if value < least[0]:
                least[0] = value
                best[0], best[1], best[2], best[3] = 1, tile, target, -1
    return seen


@inner(INT(FIELD, INT, INT, FLOATS, INTS))
def _try_owners(field: Field, device: int, block: int, least: Floats, best: Ints) -> int:
    """Value all moves of an owner, and swaps with others' blocks where it does not fit."""
    seen, blocks = 0, len(field.owner)
    size = field.work[1, block]
    is_over = field.held[1, device] > field.limits[1, device]
    for target in range(len(field.node)):
        is_near = is_over or field.node[target] == field.node[device]
        is_user = field.users[block, target] > 0 or field.users[blocks + block, target] > 0
        if target == device or not (is_near or is_user):
            continue
        if field.held[1, target] + size <= field.limits[1, target]:
            _move_owner(field, block, target)
            value = _value(field)
            _move_owner(field, block, device)
            _forget(field)
            seen += 4
            if value < least[0]:
                least[0] = value
                best[0], best[1], best[2], best[3] = 2, block, target, -1
    for other in range(blocks):
        target = int(field.owner[other])
        more = size - field.work[1, other]
        if target == device or not (is_over or field.node[target] == field.node[device]):
            continue
        if (
            field.held[1, target] + more > field.limits[1, target]
            or field.held[1, device] - more > field.limits[1, device]
        ):
            continue
        _move_owner(field, block, target)
        _move_owner(field, other, device)
        value = _value(field)
        _move_owner(field, other, target)
        _move_owner(field, block, device)
        _forget(field)
        seen += 8
        if value < least[0]:
            least[0] = value
            best[0], best[1], best[2], best[3] = 2, block, target, other
    return seen


@inner(INT(FIELD))
def _busiest(field: Field) -> int:
    """Give the device that costs most and is not at rest, or -1."""
    total = field.total
    first = _root(total[0]) / total[0] if total[0] > 0.0 else 0.0
    second = _root(total[1]) / total[1] if total[1] > 0.0 else 0.0
    found, most = -1, 0.0
    for device in range(len(field.node)):
        now = first * field.term[0, device] + second * field.term[1, device]
        if field.mark[2, device] == 0 and now > most:
            found, most = device, now
    return found


@inner(INT(FIELD))
def _is_any_over(field: Field) -> int:
    for kind in range(2):
        for device in range(len(field.node)):
            if field.held[kind, device] > field.limits[kind, device]:
                return 1
    return 0


@inner(NOTHING(FIELD))
def _value_all(field: Field) -> None:
    for device in range(len(field.node)):
        for way in range(2):
            field.term[way, device] = _term_of(field, way, device)
    _add_up(field)


@inner(INT(FIELD, INT, FLOATS, INTS))
def _find_best(field: Field, device: int, least: Floats, best: Ints) -> int:
    """Find the best move that relieves a device; gives how much was looked at."""
    blocks, seen = len(field.owner), 0
    least[0], best[0] = _value(field) * (1.0 - _LEAST_GAIN), -1
    for net in range(2 * blocks):
        if field.users[net, device] > 0:
            seen += _try_sets(field, device, net, least, best)
            if net < blocks:
                seen += _try_tiles(field, device, net, least, best)
        if net < blocks and field.owner[net] == device and field.fixed[0] == 0:
            seen += _try_owners(field, device, net, least, best)
    return seen


@compiled
def relieve(field: Field, least: Floats, best: Ints, budget: int) -> int:
    """Relieve the busiest device by its best move until no device has one; gives what was done.

    Args:
        field: filled, but for the terms.
        least: float64 ``[1]``, scratch.
        best: int64 ``[4]``, scratch.
        budget: most moved tiles and owners that are valued, but for the last device.
    """
    seen, raised = 0, 0
    _value_all(field)
    # One device above its cap is as bad as all that the others wait for; worse if it stays there.
    field.heavy[0] = max(_root(field.total[0]), _root(field.total[1]))
    _value_all(field)
    while seen < budget:
        device = _busiest(field)
        if device < 0:
            if raised == _RAISES or not _is_any_over(field):
                break
            raised += 1
            field.heavy[0] *= 2.0
            field.mark[2] = 0
            _value_all(field)
            continue
        seen += _find_best(field, device, least, best)
        if best[0] < 0:
            field.mark[2, device] = 1
            continue
        if best[0] == 0:
            _move_set(field, _gather(field, best[1], device), best[3], best[2])
        elif best[0] == 1:
            _move_tile(field, best[1], best[2])
        else:
            _move_owner(field, best[1], best[2])
            if best[3] >= 0:
                _move_owner(field, best[3], device)
        _keep(field)
    return seen
