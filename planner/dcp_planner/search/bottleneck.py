"""Search for time: relieve the busiest device or port, one move after the other.

Bytes add up, time does not: a plan takes as long as its busiest device or port; see `load_state`.

Moves: the tiles of one row, or of one column, of one device together, with or without the owner;
single tiles; an owner; two owners swapped. No move crosses a cap. Every candidate is done, valued
and undone. No noise: the same bits everywhere.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_planner.arrays import Floats, Ints
from dcp_planner.jit import compiled, inner
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cost_model import link_seconds, workload_seconds
from dcp_planner.model.packing import Caps
from dcp_planner.model.workload import Workload
from dcp_planner.search.load_state import (
    LOADS,
    LoadState,
    forget,
    gather,
    keep,
    move_owner,
    move_set,
    move_tile,
    objective,
    root,
    value_all,
)
from dcp_planner.search.problem import Split

_LEAST_GAIN = 1e-6
_RAISES = 12  # times that what is above a cap weighs twice as much


@inner
def _aim(state: LoadState, net: int, device: int, count: int) -> None:
    """Mark the targets of a set: the own node, users and owner of the net, owners of the others."""
    blocks, devices = len(state.owner), len(state.node)
    is_over = state.held[0, device] > state.limits[0, device]
    for other in range(devices):
        is_near = is_over or state.node[other] == state.node[device]
        state.mark[1, other] = 1 if is_near or state.users[net, other] > 0 else 0
    state.mark[1, state.owner[net % blocks]] = 1
    for i in range(count):
        tile = state.tiles[i]
        other = state.tile_kv[tile] if net < blocks else state.tile_q[tile]
        state.mark[1, state.owner[other]] = 1
    state.mark[1, device] = 0


@inner
def _try_sets(state: LoadState, device: int, net: int, least: Floats, best: Ints) -> int:
    """Value all moves of the tiles of one net off a device; gives how many tiles were looked at."""
    blocks, count, seen = len(state.owner), gather(state, net, device), 0
    if count == 0:
        return 0
    work = 0.0
    for i in range(count):
        work += state.work[0, state.tiles[i]]
    _aim(state, net, device, count)
    is_owner = state.owner[net % blocks] == device and state.fixed[0] == 0
    owned = net % blocks if is_owner else -1
    for target in range(len(state.node)):
        if state.mark[1, target] == 0 or state.held[0, target] + work > state.limits[0, target]:
            continue
        for turn in range(2 if owned >= 0 else 1):
            block = owned if turn else -1
            if turn and state.held[1, target] + state.work[1, block] > state.limits[1, target]:
                continue
            move_set(state, count, block, target)
            value = objective(state)
            move_set(state, count, block, device)
            forget(state)
            seen += count + 1
            if value < least[0]:
                least[0] = value
                best[0], best[1], best[2], best[3] = 0, net, target, block
    return seen


@inner
def _try_tiles(state: LoadState, device: int, net: int, least: Floats, best: Ints) -> int:
    """Value moves of single tiles of a row to devices that have its keys, or own a side."""
    blocks, seen = len(state.owner), 0
    is_over = state.held[0, device] > state.limits[0, device]
    for x in range(state.pointer[0, net], state.pointer[0, net + 1]):
        tile = state.members[0, x]
        if state.part[tile] != device:
            continue
        column = blocks + state.tile_kv[tile]
        for target in range(len(state.node)):
            has_row = state.users[net, target] > 0 or state.owner[net] == target
            has_column = state.users[column, target] > 0 or state.owner[column - blocks] == target
            if target == device or not (has_row or has_column):
                continue
            is_near = is_over or state.node[target] == state.node[device]
            if not is_near and not (has_row and has_column):
                continue
            if state.held[0, target] + state.work[0, tile] > state.limits[0, target]:
                continue
            move_tile(state, tile, target)
            value = objective(state)
            move_tile(state, tile, device)
            forget(state)
            seen += 2
            if value < least[0]:
                least[0] = value
                best[0], best[1], best[2], best[3] = 1, tile, target, -1
    return seen


@inner
def _try_owners(state: LoadState, device: int, block: int, least: Floats, best: Ints) -> int:
    """Value all moves of an owner, and swaps with others' blocks where it does not fit."""
    seen, blocks = 0, len(state.owner)
    size = state.work[1, block]
    is_over = state.held[1, device] > state.limits[1, device]
    for target in range(len(state.node)):
        is_near = is_over or state.node[target] == state.node[device]
        is_user = state.users[block, target] > 0 or state.users[blocks + block, target] > 0
        if target == device or not (is_near or is_user):
            continue
        if state.held[1, target] + size <= state.limits[1, target]:
            move_owner(state, block, target)
            value = objective(state)
            move_owner(state, block, device)
            forget(state)
            seen += 4
            if value < least[0]:
                least[0] = value
                best[0], best[1], best[2], best[3] = 2, block, target, -1
    for other in range(blocks):
        target = int(state.owner[other])
        more = size - state.work[1, other]
        if target == device or not (is_over or state.node[target] == state.node[device]):
            continue
        if (
            state.held[1, target] + more > state.limits[1, target]
            or state.held[1, device] - more > state.limits[1, device]
        ):
            continue
        move_owner(state, block, target)
        move_owner(state, other, device)
        value = objective(state)
        move_owner(state, other, target)
        move_owner(state, block, device)
        forget(state)
        seen += 8
        if value < least[0]:
            least[0] = value
            best[0], best[1], best[2], best[3] = 2, block, target, other
    return seen


@inner
def _busiest(state: LoadState) -> int:
    """Find the device that costs most and is not at rest, or -1."""
    total = state.total
    first = root(total[0]) / total[0] if total[0] > 0.0 else 0.0
    second = root(total[1]) / total[1] if total[1] > 0.0 else 0.0
    found, most = -1, 0.0
    for device in range(len(state.node)):
        now = first * state.term[0, device] + second * state.term[1, device]
        if state.mark[2, device] == 0 and now > most:
            found, most = device, now
    return found


@inner
def _is_any_over(state: LoadState) -> int:
    for kind in range(2):
        for device in range(len(state.node)):
            if state.held[kind, device] > state.limits[kind, device]:
                return 1
    return 0


@inner
def _find_best(state: LoadState, device: int, least: Floats, best: Ints) -> int:
    """Find the best move that relieves a device; gives how much was looked at."""
    blocks, seen = len(state.owner), 0
    least[0], best[0] = objective(state) * (1.0 - _LEAST_GAIN), -1
    for net in range(2 * blocks):
        if state.users[net, device] > 0:
            seen += _try_sets(state, device, net, least, best)
            if net < blocks:
                seen += _try_tiles(state, device, net, least, best)
        if net < blocks and state.owner[net] == device and state.fixed[0] == 0:
            seen += _try_owners(state, device, net, least, best)
    return seen


@compiled
def relieve(state: LoadState, least: Floats, best: Ints, budget: int) -> int:
    """Relieve the busiest device by its best move until no device has one; gives what was done.

    Args:
        state: filled, but for the terms.
        least: float64 ``[1]``, scratch.
        best: int64 ``[4]``, scratch.
        budget: most moved tiles and owners that are valued, but for the last device.
    """
    seen, raised = 0, 0
    value_all(state)
    # One device above its cap is as bad as all that the others wait for; worse if it stays there.
    state.heavy[0] = max(root(state.total[0]), root(state.total[1]))
    value_all(state)
    while seen < budget:
        device = _busiest(state)
        if device < 0:
            if raised == _RAISES or not _is_any_over(state):
                break
            raised += 1
            state.heavy[0] *= 2.0
            state.mark[2] = 0
            value_all(state)
            continue
        seen += _find_best(state, device, least, best)
        if best[0] < 0:
            state.mark[2, device] = 1
            continue
        if best[0] == 0:
            move_set(state, gather(state, best[1], device), best[3], best[2])
        elif best[0] == 1:
            move_tile(state, best[1], best[2])
        else:
            move_owner(state, best[1], best[2])
            if best[3] >= 0:
                move_owner(state, best[3], device)
        keep(state)
    return seen


_MOST_CELLS = 1 << 25  # of the table of users


def relieve_split(
    split: Split,
    workload: Workload,
    cluster: Cluster,
    caps: Caps,
    budget: int,
    *,
    keeps_owners: bool = False,
) -> Split:
    """Relieve the busiest devices and ports; no device ends above a cap that it kept.

    Args:
        split: a device for every tile, an owner for every block.
        workload: what is placed.
        cluster: the machine.
        caps: most work and tokens of one device.
        budget: moves of a tile or an owner that may be valued; some 0.6 us each.
        keeps_owners: whether only tiles move.
    """
    if 2 * workload.num_blocks * cluster.num_devices > _MOST_CELLS:
        return split
    state = load_state_of(split, workload, cluster, caps)
    state.fixed[0] = keeps_owners
    relieve(state, np.zeros(1), np.zeros(4, np.int64), budget)
    return Split(state.part, state.owner)


def load_state_of(split: Split, workload: Workload, cluster: Cluster, caps: Caps) -> LoadState:
    """Lay a placement out as the compiled loops want it; the split itself is not changed."""
    blocks, tiles, devices = workload.num_blocks, workload.num_tiles, cluster.num_devices
    pointer, members = np.zeros((2, blocks + 1), np.int64), np.zeros((2, tiles), np.int64)
    users = np.zeros((2 * blocks, devices), np.int32)
    for side, of in enumerate((workload.compute_q, workload.compute_kv)):
        pointer[side, 1:] = np.cumsum(np.bincount(of, minlength=blocks))
        members[side] = np.argsort(of, kind="stable")
        cell = of.astype(np.int64) * devices + split.part
        counts = np.bincount(cell, minlength=blocks * devices)
        users[side * blocks : (side + 1) * blocks] = counts.reshape(blocks, devices)
    owner = np.tile(split.owner, 2)
    is_user = users > 0
    is_user[np.arange(2 * blocks), owner] = False
    in_node = is_user.reshape(2 * blocks, cluster.nodes, -1).sum(axis=2).astype(np.int32)
    seconds = np.stack([workload_seconds(workload, cluster, is_backward=b) for b in (False, True)])
    cost = _message_seconds(workload, cluster)
    scale = max(float(seconds[0].sum()) / devices, float(cost.max(initial=0.0)), 1e-12)
    seconds, cost = seconds / scale, cost / scale
    work = np.zeros((2, max(tiles, blocks)))
    work[0, :tiles], work[1, :blocks] = workload.compute_pairs, workload.block_tokens
    held = np.stack([
        np.bincount(split.part, workload.compute_pairs, devices),
        np.bincount(split.owner, workload.block_tokens, devices),
    ])  # fmt: skip
    limits = np.tile([[float(caps.pairs)], [float(caps.tokens)]], (1, devices))
    state = LoadState(
        tile_q=workload.compute_q.copy(),
        tile_kv=workload.compute_kv.copy(),
        pointer=pointer,
        members=members,
        part=split.part.astype(np.int32),
        owner=split.owner.astype(np.int32),
        users=users,
        in_node=in_node,
        node=np.arange(devices) // cluster.devices_per_node,
        cost=cost,
        seconds=seconds,
        work=work,
        held=held.astype(np.float64),
        limits=limits,
        load=_loads_of(split, users, in_node, owner, cost, seconds, cluster),
        saved=np.zeros((devices, 2 * LOADS)),
        term=np.zeros((2, devices)),
        total=np.zeros(2),
        heavy=np.zeros(1),
        dirty=np.zeros(devices + 1, np.int64),
        mark=np.zeros((3, devices), np.int64),
        tiles=np.zeros(tiles + 1, np.int64),
        fixed=np.zeros(1, np.int64),
    )
    return state


def _message_seconds(workload: Workload, cluster: Cluster) -> Floats:
    """Compute the seconds that a message of each net occupies its ports, float64 ``[8, 2D]``."""
    shape, tokens = workload.shape, workload.block_tokens
    sizes = (
        ((shape.q_bytes, shape.out_bytes), (shape.kv_bytes, 0)),
        ((shape.q_backward_bytes, shape.q_bytes), (shape.kv_bytes, shape.kv_bytes)),
    )
    rows = []
    for row, column in sizes:
        for is_inter in (True, False):
            for kind in range(2):
                sides = [
                    link_seconds(tokens * side[kind], cluster, is_inter=is_inter)
                    if side[kind]
                    else np.zeros(len(tokens))
                    for side in (row, column)
                ]
                rows.append(np.concatenate(sides))
    return np.stack(rows)


def _loads_of(
    split: Split,
    users: NDArray[np.int32],
    in_node: NDArray[np.int32],
    owner: NDArray[np.int32],
    cost: Floats,
    seconds: Floats,
    cluster: Cluster,
) -> Floats:
    """Add up what every device is busy with, float64 ``[R, 2 * LOADS]``; as `_charge` does."""
    devices, inside = cluster.num_devices, cluster.devices_per_node
    load = np.zeros((devices, 2 * LOADS))
    net, device = np.nonzero(users)
    other = device != owner[net]
    net, device = net[other], device[other]
    home = owner[net] // inside == device // inside
    count = in_node[net, device // inside].astype(np.float64)
    first = np.flatnonzero(~home)
    _, chosen = np.unique(net[first] * cluster.nodes + device[first] // inside, return_index=True)
    first = first[chosen]
    for way in range(2):
        inter_in, inter_out, near_in, near_out = cost[4 * way : 4 * way + 4, net]
        passed = (count - 1) / count * (near_in + near_out)
        columns = (
            (device, np.where(home, 0.0, inter_in / count), 1),
            (device, np.where(home, 0.0, inter_out / count), 4),
            (device, np.where(home, near_in, passed), 5),
            (device, np.where(home, near_out, passed), 6),
            (owner[net], np.where(home, near_in, 0.0), 6),
            (owner[net], np.where(home, near_out, 0.0), 5),
            (owner[net[first]], inter_in[first], 2),
            (owner[net[first]], inter_out[first], 3),
        )
        for at, value, column in columns:
            load[:, LOADS * way + column] += np.bincount(at, value, devices)
        load[:, LOADS * way] = np.bincount(split.part, seconds[way], devices)
    return load
