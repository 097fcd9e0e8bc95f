"""Search for a short time: relieve the busiest device or port, move by move.

A plan takes as long as its busiest device or port; `load_state` models how busy each one is.

A move takes off a device: all its tiles of one row or column, with or without the owner; a single
tile; an owner; or an owner in exchange for another. No move crosses a cap. The search makes every
candidate, values it and undoes it. There is no randomness: every machine finds the same plan.
"""

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner.jit import compiled, inner
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cost_model import link_seconds, workload_seconds
from dcp_planner.model.placement import Caps
from dcp_planner.model.workload import Workload
from dcp_planner.search.load_state import (
    LOADS,
    LoadState,
    forget,
    gather,
    gather_one,
    keep,
    load_all,
    move_owner,
    move_tile,
    objective,
    root,
    value_all,
)
from dcp_planner.search.problem import Split, tiles_of_nets

RATE = 1.0
"""Seconds of attention that may be paid for a second in which the mean device's ports are idle."""
_LEAST_GAIN = 1e-6
_RAISES = 12  # how often the penalty above a cap doubles
_MOST_CELLS = 1 << 25  # of the table of users


@inner
def _make(state: LoadState, here: int, target: int, given: int, back: int) -> None:
    """Move the gathered tiles and the block `given` to a target, the block `back` from there.

    Blocks are -1 if there are none. Exchanging the devices undoes it.
    """
    for i in range(state.tiles[len(state.tiles) - 1]):
        move_tile(state, state.tiles[i], target)
    if given >= 0:
        move_owner(state, given, target)
    if back >= 0:
        move_owner(state, back, here)


@inner
def _try(state: LoadState, here: int, target: int, given: int, back: int, net: int) -> None:
    """Value a move: make it, undo it, remember it if it is the best so far.

    `net` is the one whose tiles are gathered, -1 if there is only one tile or none.
    """
    _make(state, here, target, given, back)
    value, best = objective(state), state.best
    _make(state, target, here, given, back)
    forget(state)
    if value < state.least[0]:
        state.least[0] = value
        best[0], best[1], best[2], best[3] = target, given, back, net
        best[4] = state.tiles[0] if state.tiles[len(state.tiles) - 1] > 0 else -1


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
def _try_sets(state: LoadState, device: int, net: int) -> int:
    """Value all moves of the tiles of one net off a device; return how much moved in all."""
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
            _try(state, device, target, block, -1, net)
            seen += count + 1
    return seen


@inner
def _try_tiles(state: LoadState, device: int, net: int) -> int:
    """Value moves of single tiles of a row to devices that have its keys, or own a side."""
    blocks, seen = len(state.owner), 0
    is_over = state.held[0, device] > state.limits[0, device]
    for x in range(state.pointer[0, net], state.pointer[0, net + 1]):
        tile = state.members[0, x]
        if state.part[tile] != device:
            continue
        gather_one(state, tile)
        column = blocks + state.tile_kv[tile]
        for target in range(len(state.node)):
            has_row = state.users[net, target] > 0 or state.owner[net] == target
            has_column = state.users[column, target] > 0 or state.owner[column - blocks] == target
            if target == device or not (has_row or has_column):
                continue
            is_near = is_over or state.node[target] == state.node[device]
            if not is_near and not (has_row and has_column):
                continue
            if state.held[0, target] + state.work[0, tile] <= state.limits[0, target]:
                _try(state, device, target, -1, -1, -1)
                seen += 2
    return seen


@inner
def _try_owners(state: LoadState, device: int, block: int) -> int:
    """Value all moves of an owner, and swaps with others' blocks where it does not fit."""
    seen, blocks = 0, len(state.owner)
    gather_one(state, -1)
    size, held, limits = state.work[1, block], state.held, state.limits
    is_over = held[1, device] > limits[1, device]
    for target in range(len(state.node)):
        is_near = is_over or state.node[target] == state.node[device]
        is_user = state.users[block, target] > 0 or state.users[blocks + block, target] > 0
        if target == device or not (is_near or is_user):
            continue
        if held[1, target] + size <= limits[1, target]:
            _try(state, device, target, block, -1, -1)
            seen += 4
    for other in range(blocks):
        target = int(state.owner[other])
        more = size - state.work[1, other]
        if target == device or not (is_over or state.node[target] == state.node[device]):
            continue
        if (
            held[1, target] + more <= limits[1, target]
            and held[1, device] - more <= limits[1, device]
        ):
            _try(state, device, target, block, other, -1)
            seen += 8
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
def _find_best(state: LoadState, device: int) -> int:
    """Find the best move that relieves a device; return how much moved in all."""
    blocks, seen = len(state.owner), 0
    state.least[0], state.best[0] = objective(state) * (1.0 - _LEAST_GAIN), -1
    for net in range(2 * blocks):
        if state.users[net, device] > 0:
            seen += _try_sets(state, device, net)
            if net < blocks:
                seen += _try_tiles(state, device, net)
        if net < blocks and state.owner[net] == device and state.fixed[0] == 0:
            seen += _try_owners(state, device, net)
    return seen


@compiled
def relieve(state: LoadState, budget: int) -> int:
    """Relieve the busiest device by its best move until no device has one.

    Returns how many tiles and owners moved in all, tried or kept.
    """
    seen, raised = 0, 0
    load_all(state)
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
        seen += _find_best(state, device)
        best = state.best
        target, net = best[0], best[3]
        if target < 0:
            state.mark[2, device] = 1
            continue
        if net >= 0:
            gather(state, net, device)
        else:
            gather_one(state, best[4])
        _make(state, device, target, best[1], best[2])
        keep(state)
    return seen


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
    relieve(state, budget)
    return Split(state.part, state.owner)


def load_state_of(split: Split, workload: Workload, cluster: Cluster, caps: Caps) -> LoadState:
    """Lay a placement out as the compiled loops want it; the split itself is not changed."""
    blocks, tiles, devices = workload.num_blocks, workload.num_tiles, cluster.num_devices
    pointer, members = tiles_of_nets(workload.compute_q, workload.compute_kv, blocks)
    nets = np.concatenate([workload.compute_q, workload.compute_kv + np.int32(blocks)])
    cell = nets.astype(np.int64) * devices + np.tile(split.part, 2)
    users = np.bincount(cell, minlength=2 * blocks * devices).reshape(2 * blocks, devices)
    is_user = users > 0
    is_user[np.arange(2 * blocks), np.tile(split.owner, 2)] = False
    first = cluster.node_ptr
    in_node = np.add.reduceat(is_user, first[:-1], axis=1, dtype=np.int32)
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
    limits = np.stack([caps.pairs * cluster.work_of_device, np.full(devices, float(caps.tokens))])
    return LoadState(
        tile_q=workload.compute_q.copy(),
        tile_kv=workload.compute_kv.copy(),
        pointer=pointer,
        members=members,
        part=split.part.astype(np.int32),
        owner=split.owner.astype(np.int32),
        users=users.astype(np.int32),
        in_node=in_node,
        node=cluster.node_of_device,
        first=first,
        slowness=1.0 / cluster.speed_of_device,
        cost=cost,
        seconds=seconds,
        work=work,
        held=held.astype(np.float64),
        limits=limits,
        load=np.zeros((devices, 2 * LOADS)),
        saved=np.zeros((devices, 2 * LOADS)),
        term=np.zeros((2, devices)),
        total=np.zeros(2),
        heavy=np.zeros(1),
        dirty=np.zeros(devices + 1, np.int64),
        mark=np.zeros((3, devices), np.int64),
        tiles=np.zeros(tiles + 1, np.int64),
        fixed=np.zeros(1, np.int64),
        rate=np.full(1, RATE / devices),
        least=np.zeros(1),
        best=np.zeros(5, np.int64),
    )


def _message_seconds(workload: Workload, cluster: Cluster) -> Floats:
    """Compute the seconds that a message of each net occupies its ports, float64 ``[8, 2D]``."""
    shape, tokens = workload.shape, workload.block_tokens
    sizes = (
        ((shape.q_bytes, shape.out_bytes), (shape.kv_bytes, 0)),
        ((shape.q_backward_bytes, shape.dq_bytes), (shape.kv_bytes, shape.dkv_bytes)),
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
