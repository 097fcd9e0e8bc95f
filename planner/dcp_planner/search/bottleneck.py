"""Search for a short time: relieve the busiest device or port, move by move.

A plan takes as long as its busiest device or port; `load_state` models how busy each one is.

A move takes one of these off a device: all its tiles of one row or column, with or without the
ownership of that block; a single tile; the ownership of a block, or that in exchange for another
block. No move crosses a cap. The search makes every candidate move, values it and undoes it. There
is no randomness: every machine finds the same plan.
"""

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner.jit import compiled, inner
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cost_model import link_seconds, workload_seconds
from dcp_planner.model.problem import Workload
from dcp_planner.search.load_state import (
    LOADS,
    LoadState,
    forget,
    keep,
    load_all,
    move_owner,
    move_tile,
    objective,
    root,
)
from dcp_planner.search.state import State, gather

# Rates of 0.1 to 2 gave 0.88 to 0.93 of the time of the search for bytes; only 2 sent fewer bytes.
RATE = 1.0
"""Seconds of attention that are worth as much as a second in which the mean device's ports work."""
_LEAST_GAIN = 1e-6  # least relative gain of a move: smaller ones may be rounding


@inner
def _make(state: LoadState, here: int, target: int, count: int, given: int, back: int) -> None:
    """Move the gathered tiles and the block `given` to a target, and the block `back` from there.

    A block of -1 is none. The same call with `here` and `target` exchanged undoes the move.
    """
    for i in range(count):
        move_tile(state, state.split.tiles[i], target)
    if given >= 0:
        move_owner(state, given, target)
    if back >= 0:
        move_owner(state, back, here)


@inner
def _try(
    state: LoadState, here: int, target: int, count: int, given: int, back: int, net: int
) -> None:
    """Value a move: make it, undo it, remember it if it is the best so far.

    `net` is the net whose tiles are gathered, -1 if a single tile or none is.
    """
    _make(state, here, target, count, given, back)
    value, best = objective(state), state.best
    _make(state, target, here, count, given, back)
    forget(state)
    if value < state.least[0]:
        state.least[0] = value
        best[0], best[1], best[2], best[3] = target, given, back, net
        best[4] = state.split.tiles[0] if count > 0 else -1


@inner
def _try_sets(state: LoadState, device: int, net: int) -> int:
    """Value all moves of the tiles of one net off a device; return how much was moved in all.

    Targets: devices of the same node, users of the net, owners of the tiles' other blocks.
    """
    split, target_of = state.split, state.mark[2]
    blocks, count, seen, work = len(split.owner), gather(split, net, device, 0), 0, 0.0
    if count == 0:
        return 0
    for other in range(len(split.group)):
        is_near = split.group[other] == split.group[device]
        target_of[other] = 1 if is_near or split.counts[net, other] > 0 else 0
    for i in range(count):
        tile = split.tiles[i]
        target_of[split.owner[split.tile_kv[tile] if net < blocks else split.tile_q[tile]]] = 1
        work += split.work[tile]
    target_of[device] = 0
    block = net % blocks
    is_owner = split.owner[block] == device
    for target in range(len(split.group)):
        if target_of[target] == 0 or split.loads[0, target] + work > split.limits[0, target]:
            continue
        # The tiles alone, then with the ownership of the net's block.
        for turn in range(2 if is_owner else 1):
            if turn == 0 or split.loads[1, target] + split.tokens[block] <= split.limits[1, target]:
                _try(state, device, target, count, block if turn else -1, -1, net)
                seen += count + 1
    return seen


@inner
def _try_tiles(state: LoadState, device: int, net: int) -> int:
    """Value moves of single tiles of a row to devices that have its queries or its keys."""
    split, seen = state.split, 0
    for x in range(split.pointer[0, net], split.pointer[0, net + 1]):
        tile = split.members[0, x]
        if split.part[tile] != device:
            continue
        split.tiles[0] = tile
        column = len(split.owner) + split.tile_kv[tile]
        for target in range(len(split.group)):
            has_q, has_kv = split.counts[net, target] > 0, split.counts[column, target] > 0
            # A block that a device of another node lacks would cross the network once more.
            is_far = split.group[target] != split.group[device]
            if target == device or not ((has_q and has_kv) if is_far else (has_q or has_kv)):
                continue
            if split.loads[0, target] + split.work[tile] <= split.limits[0, target]:
                _try(state, device, target, 1, -1, -1, -1)
                seen += 2
    return seen


@inner
def _try_owners(state: LoadState, device: int, block: int) -> int:
    """Value all moves of a block's ownership, and swaps with blocks of its node's devices."""
    split, blocks, seen = state.split, len(state.split.owner), 0
    counts, loads, limits = split.counts, split.loads[1], split.limits[1]
    for target in range(len(split.group)):
        is_near = split.group[target] == split.group[device]
        is_user = counts[block, target] > 0 or counts[blocks + block, target] > 0
        if target == device or not (is_near or is_user):
            continue
        if loads[target] + split.tokens[block] <= limits[target]:
            _try(state, device, target, 0, block, -1, -1)
            seen += 4
    for other in range(blocks):
        target, more = int(split.owner[other]), split.tokens[block] - split.tokens[other]
        if target == device or split.group[target] != split.group[device]:
            continue
        if loads[target] + more <= limits[target] and loads[device] - more <= limits[device]:
            _try(state, device, target, 0, block, other, -1)
            seen += 8
    return seen


@inner
def _busiest(state: LoadState) -> int:
    """Find the device that contributes most to the objective and is not at rest, or -1."""
    total = state.total
    # The derivative of the eighth root of a sum S by a term is root(S) / (8 S); 8 is left out.
    first = root(total[0]) / total[0] if total[0] > 0.0 else 0.0
    second = root(total[1]) / total[1] if total[1] > 0.0 else 0.0
    found, most = -1, 0.0
    for device in range(len(state.split.group)):
        now = first * state.term[0, device] + second * state.term[1, device]
        if state.mark[1, device] == 0 and now > most:
            found, most = device, now
    return found


@inner
def _find_best(state: LoadState, device: int) -> int:
    """Find the best move that relieves a device; return how much was moved in all."""
    split, blocks, seen = state.split, len(state.split.owner), 0
    state.least[0], state.best[0] = objective(state) * (1.0 - _LEAST_GAIN), -1
    for net in range(2 * blocks):
        seen += _try_sets(state, device, net)
        if net < blocks:
            seen += _try_tiles(state, device, net)
            if split.owner[net] == device:
                seen += _try_owners(state, device, net)
    return seen


@compiled
def relieve(state: LoadState, budget: int) -> int:
    """Relieve the busiest device by its best move until no device has a move that helps.

    `budget` limits how many tiles and owners are moved to try moves. Returns how many were.
    """
    seen, best = 0, state.best
    load_all(state)
    while seen < budget:
        device = _busiest(state)
        if device < 0:
            break
        seen += _find_best(state, device)
        if best[0] < 0:
            state.mark[1, device] = 1  # at rest until a kept move changes its loads
            continue
        # Scratch has the tiles of the move that was valued last: gather those of the best again.
        count = 0
        if best[3] >= 0:
            count = gather(state.split, best[3], device, 0)
        elif best[4] >= 0:
            state.split.tiles[0], count = best[4], 1
        _make(state, device, best[0], count, best[1], best[2])
        keep(state)
    return seen


def load_state_of(split: State, workload: Workload, cluster: Cluster) -> LoadState:
    """Build the state of a search for time from a split of all devices, whose state it changes.

    Loads above a cap may stay there, but may not grow.
    """
    devices = cluster.num_devices
    seconds = np.stack([workload_seconds(workload, cluster, is_backward=b) for b in (False, True)])
    cost = _message_seconds(workload, cluster)
    # Loads are scaled to about 1, so that their eighth powers neither vanish nor overflow.
    scale = max(float(seconds[0].sum()) / devices, float(cost.max(initial=0.0)), 1e-12)
    np.maximum(split.limits, split.loads, out=split.limits)
    return LoadState(
        split=split,
        first=cluster.node_ptr,
        slowness=1.0 / cluster.speed_of_device,
        port=cluster.port_slowness,
        cost=cost / scale,
        seconds=seconds / scale,
        load=np.zeros((devices, 2 * LOADS)),
        saved=np.zeros((devices, 2 * LOADS)),
        term=np.zeros((2, devices)),
        total=np.zeros(2),
        dirty=np.zeros(devices + 1, np.int64),
        mark=np.zeros((3, devices), np.int64),
        rate=np.full(1, RATE / devices),  # the seconds of all ports count as a mean over devices
        least=np.zeros(1),
        best=np.zeros(5, np.int64),
    )


def _message_seconds(workload: Workload, cluster: Cluster) -> Floats:
    """Compute the seconds that a message of each net occupies its ports, float64 ``[8, 2D]``.

    The rows are those of `LoadState.cost`.
    """
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
                    if side[kind]  # else no message is sent, and no launch is paid
                    else np.zeros(len(tokens))
                    for side in (row, column)
                ]
                rows.append(np.concatenate(sides))
    return np.stack(rows)
