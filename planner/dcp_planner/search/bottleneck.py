"""Search on from a placement with predicted time as the objective; see `bottleneck_kernel`."""

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cost_model import link_seconds, workload_seconds
from dcp_planner.model.packing import Caps
from dcp_planner.model.workload import Workload
from dcp_planner.search.bottleneck_kernel import relieve
from dcp_planner.search.load_state import LOADS, Field
from dcp_planner.search.problem import Split

Floats = NDArray[np.float64]
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
    field = field_of(split, workload, cluster, caps)
    field.fixed[0] = keeps_owners
    relieve(field, np.zeros(1), np.zeros(4, np.int64), budget)
    return Split(field.part, field.owner)


def field_of(split: Split, workload: Workload, cluster: Cluster, caps: Caps) -> Field:
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
    field = Field(
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
    return field


def _message_seconds(workload: Workload, cluster: Cluster) -> Floats:
    """Give the seconds that a message of each net occupies its ports, float64 ``[8, 2D]``."""
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
