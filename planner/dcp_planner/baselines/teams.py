"""Placements in head groups: heads over neighbouring devices, tokens over what that leaves.

Neighbouring devices make up a *team* whose members compute different heads of the same tiles; the
batch is placed on teams as if each were one device. So what is searched is smaller than without
head groups, members are level with each other, and inside a team tokens meet heads by an exchange
as DeepSpeed-Ulysses does it, each way once. Teams lie inside nodes, or are whole nodes: then what
crosses the network is what the placement on teams sends.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import MOST_RATE, Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import loads_of, pack_largest_first
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.search.ownership import choose_owners
from dcp_planner.search.repair import Board, caps_of
from dcp_planner.tables.head_groups import in_groups, possible_groups, why_not


def team_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Give the sizes that teams may have, ascending: they part a node, or the nodes, evenly.

    >>> team_sizes(Cluster(nodes=3, devices_per_node=4))
    (1, 2, 4, 12)
    """
    inside, nodes = cluster.devices_per_node, cluster.nodes
    sizes = {n for n in range(1, inside + 1) if inside % n == 0}
    return tuple(sorted(sizes | {inside * n for n in range(1, nodes + 1) if nodes % n == 0}))


def largest_team(cluster: Cluster, groups: int) -> int:
    """Give the size of the largest team over which so many head groups are spread evenly."""
    return max(size for size in team_sizes(cluster) if groups % size == 0)


def largest_team_inside(cluster: Cluster, groups: int) -> int:
    """Give the same for teams that lie inside a node."""
    sizes = (size for size in team_sizes(cluster) if size <= cluster.devices_per_node)
    return max(size for size in sizes if groups % size == 0)


def groups_worth_trying(shape: ModelShape, cluster: Cluster) -> tuple[int, ...]:
    """Give the head groups that part a node between them, two at least.

    A group more than a team has members would not be placed on its own; teams of several nodes send
    all of their tokens through the network.

    >>> groups_worth_trying(ModelShape(8, 2, 128), Cluster(nodes=4, devices_per_node=8))
    (2, 4, 8)
    """
    sizes = [size for size in team_sizes(cluster) if 1 < size <= cluster.devices_per_node]
    return tuple(size for size in sizes if size in possible_groups(shape))


def groups_of_heads(shape: ModelShape, cluster: Cluster, chosen: int | None) -> int:
    """Give the head groups of the layout in which all devices split the heads.

    Raises:
        PlanError: if the heads do not go round.
    """
    devices = cluster.num_devices
    groups = devices if chosen is None else chosen
    reason = why_not(shape, groups)
    if groups % devices:
        reason = f"all {devices} devices split the heads, so {groups} head groups do not go round"
    if reason:
        raise PlanError(
            f"static:heads: {reason}; use static:heads_context, fewer devices, or another shape"
        )
    return groups


def groups_of_heads_context(shape: ModelShape, cluster: Cluster, chosen: int | None) -> int:
    """Give the head groups of the layout in which the devices of a node, or a part, split them.

    Raises:
        PlanError: if heads and devices of a node have no divisor in common.
    """
    if chosen is not None:
        reason = why_not(shape, chosen)
        if reason:
            raise PlanError(f"static:heads_context: {reason}")
        return chosen
    possible = groups_worth_trying(shape, cluster)
    if not possible:
        raise PlanError(
            f"static:heads_context: the {cluster.devices_per_node} devices of a node cannot split "
            f"{shape.q_heads} query and {shape.kv_heads} key/value heads; use static:zigzag"
        )
    return possible[-1]


def teams_of(cluster: Cluster, size: int) -> Cluster:
    """Give the cluster whose devices are teams of so many devices, with their rates together."""
    inside = cluster.devices_per_node
    nodes, per_node = cluster.nodes, inside // size
    if size > inside:
        nodes, per_node = cluster.nodes * inside // size, 1

    def together(rate: float) -> float:
        return min(rate * size, MOST_RATE)

    backward, copy = cluster.backward_flops_per_s, cluster.copy_bytes_per_s
    return replace(
        cluster,
        nodes=nodes,
        devices_per_node=per_node,
        intra_bytes_per_s=together(cluster.intra_bytes_per_s),
        inter_bytes_per_s=together(cluster.inter_bytes_per_s),
        flops_per_s=together(cluster.flops_per_s),
        backward_flops_per_s=None if backward is None else together(backward),
        copy_bytes_per_s=None if copy is None else together(copy),
        devices_per_nic=max(1, cluster.devices_per_nic // size),
    )


def spread(found: Placement, workload: Workload, groups: int, size: int, teams: int) -> Placement:
    """Spread a placement on teams over their members: heads by group, tokens evenly.

    Args:
        found: without head groups, on `teams` devices.
        workload: what is placed.
        groups: head groups, a multiple of `size`.
        size: members of a team.
        teams: how many there are.
    """
    owner = found.device_of_data * np.int32(size)
    for team in range(teams):
        blocks = np.flatnonzero(found.device_of_data == team)
        owner[blocks] += pack_largest_first(workload.block_tokens[blocks], size)
    member = np.arange(groups) * size // groups
    device: NDArray[np.int64] = found.device_of_compute * np.int64(size) + member[:, None]
    return Placement(owner, device.ravel().astype(np.int32), found.warnings, groups)


def level_owners(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Exchange blocks if the members of a team cannot share what it owns under the token cap.

    A block may go to another team then, at the least price for the tokens that it takes along.
    """
    devices, tokens = cluster.num_devices, workload.block_tokens
    cap = caps_of(workload, devices, config).tokens
    if loads_of(found.device_of_data, tokens, devices).max(initial=0) <= cap:
        return found
    tall, placed = in_groups(workload, found)
    costs = Board(tall, cluster, placed).costs_of_owners()
    cost = costs.reshape(found.head_groups, workload.num_blocks, devices).sum(axis=0)
    owner = _exchanged(found.device_of_data.copy(), cost, tokens, cap)
    if owner is None:
        owner = choose_owners(cost, tokens, cap, found.device_of_data)
    return replace(found, device_of_data=owner)


def _exchanged(
    owner: NDArray[np.int32], cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int
) -> NDArray[np.int32] | None:
    """Hand blocks of overloaded devices on, or swap them for smaller ones; ``None`` if stuck.

    Args:
        owner: int32 ``[D]``; changed.
        cost: float64 ``[D, R]``, of each block at each device.
        tokens: int64 ``[D]``.
        cap: most tokens of a device.
    """
    devices, blocks = cost.shape[1], np.arange(len(owner))
    load = loads_of(owner, tokens, devices)
    while load.max(initial=0) > cap:
        source = int(np.argmax(load))
        given = np.flatnonzero(owner == source)[:, None]
        # What comes back: a block, or nothing, written as one more block of each device.
        target = np.append(owner, np.arange(devices))
        back = np.append(tokens, np.zeros(devices, np.int64))
        price = cost[given, target] - cost[given, source]
        price[:, : len(owner)] += cost[blocks, source] - cost[blocks, owner]
        less = tokens[given] - back
        is_open = (less > 0) & (load[target] + less <= cap) & (target != source)
        if not is_open.any():
            return None
        excess = int(load[source]) - cap
        price = np.where(is_open, (price + 1.0) / np.clip(less, 1, excess), np.inf)
        row, other = divmod(int(np.argmin(price)), len(target))
        block, peer, moved = int(given[row, 0]), int(target[other]), int(less[row, other])
        owner[block] = peer
        if other < len(owner):
            owner[other] = source
        load[source] -= moved
        load[peer] += moved
    return owner
