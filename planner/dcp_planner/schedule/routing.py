"""Routes of blocks: straight from and to the owner, or once per node and on from there.

A need is a pair of a token block and a device that computes with it without owning it: every need
is one input to bring and one partial result to take home. Routed by node, the devices of a foreign
node that need the same block elect a gateway among themselves: the block crosses the network once,
to the gateway, which passes it on; partial results meet at the gateway, which sends one sum home.
So every way is at most two hops, nothing is stored where it is not needed, and the total of bytes
stays what it is without routing. Striped (`crossings`), a block may leave the owner's node by the
port of any device there and enter the other by any: ways have up to three hops, and devices that
only pass a block on have a need without tiles.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Indices, Ints
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Routing
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Direction, Workload
from dcp_planner.schedule.crossings import Crossings
from dcp_planner.tables.memory import bytes_per_token

_MOST_HOPS = 2  # behind the first


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Needs of devices for blocks that they do not own, for one side of the tiles.

    Attributes:
        block, device: int64 ``[N]``, sorted by (block, device), no pair twice unless blocks are
            fetched again: then by (block, visit, device).
        need_of_tile: int64 ``[W]``, the need of each tile, -1 if the block is local.
        feeder: int64 ``[N]``, need of the device that brings the block and takes its results; -1:
            the owner does.
        peer: int64 ``[N]``, that device.
        hop: int64 ``[N]``, 0 behind the owner, else one more than the feeder's.
        height: int64 ``[N]``, hops that follow; 0 where nothing is passed on.
    """

    block: Ints
    device: Ints
    need_of_tile: Ints
    feeder: Ints
    peer: Ints
    hop: Ints
    height: Ints

    @classmethod
    def of(
        cls, block: Ints, device: Ints, need_of_tile: Ints, feeder: Ints, owner: Ints
    ) -> "Needs":
        """Number the hops; `owner` is int64 ``[D]``, the device of every block."""
        hop, height, peer = np.zeros_like(feeder), np.zeros_like(feeder), owner[block]
        fed = np.flatnonzero(feeder >= 0)
        peer[fed] = device[feeder[fed]]
        for _ in range(_MOST_HOPS):
            hop[fed] = hop[feeder[fed]] + 1
            np.maximum.at(height, feeder[fed], height[fed] + 1)
        return cls(block, device, need_of_tile, feeder, peer, hop, height)


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """How long blocks stay where they are received.

    Attributes:
        division: int32 ``[W]``, of every tile.
        idle: most divisions without a use that a block stays; after more it is fetched again.
    """

    division: Indices
    idle: int

    @classmethod
    def of(cls, division: Indices, idle: int | None) -> "Stays | None":
        """Return the stays of blocks that leave when idle; ``None`` if they stay to the end."""
        return None if idle is None else cls(division, idle)

    def visits(self, group: Ints, division: Indices) -> Ints:
        """Number the visits of each group's block, from 0, by the divisions that use it."""
        order = np.lexsort((division, group))
        rest = np.diff(group[order], prepend=-1) != 0
        gap = np.diff(division[order].astype(np.int64), prepend=0) > self.idle + 1
        count = np.cumsum(gap & ~rest)
        visit = np.empty(len(order), np.int64)
        visit[order] = count - np.maximum.accumulate(np.where(rest, count, 0))
        return visit


def find_needs(
    workload: Workload,
    placement: Placement,
    cluster: Cluster,
    routing: Routing,
    stays: Stays | None = None,
    striped: Direction | None = None,
) -> tuple[Needs, Needs]:
    """Find the needs of query blocks and of key blocks, with their routes; O(W log W).

    Gateways are elected so that the ports to the network carry equal loads, those of owners
    included: in the order of blocks, queries first, then once more with all others known. `striped`
    names the direction that the needs are for, if devices may pass on what they do not need; blocks
    are not fetched again then.
    """
    assert striped is None or stays is None, "only blocks that stay are striped"
    sides = workload.compute_q, workload.compute_kv
    pairs = [_pairs_of(block, placement, cluster, routing, stays) for block in sides]
    block, at, _, visit = (np.concatenate([side[n] for side in pairs]) for n in range(4))
    first, owner = len(pairs[0][0]), placement.device_of_data.astype(np.int64)
    is_column = np.arange(len(block)) >= first
    visits = int(visit.max(initial=0)) + 1
    place = (is_column * workload.num_blocks + block) * visits + visit
    known, devices = place * cluster.num_devices + at, cluster.num_devices
    every, feeder = known, np.full(len(known), -1)
    if routing == "node":
        found = Crossings.of(place, at, owner[block], cluster)
        at = found.start
        ends = _ends_of(found, block[at], is_column[at], workload, cluster, striped)
        every, feeder = _fed(found, known, *ends, devices)
    rows, needs = np.searchsorted(every, known), list[Needs]()
    keys = int(np.searchsorted(every, workload.num_blocks * visits * devices))
    for side, start, span in ((0, 0, slice(None, keys)), (1, first, slice(keys, None))):
        place, device = np.divmod(every[span], devices)
        tile, fed = pairs[side][2], feeder[span]
        need = np.full(len(tile), -1, np.int64)
        remote = np.flatnonzero(tile >= 0)
        need[remote] = rows[start + tile[remote]] - side * keys
        fed = np.where(fed >= 0, fed - side * keys, -1)
        block = place // visits - side * workload.num_blocks
        needs.append(Needs.of(block, device, need, fed, owner))
    return needs[0], needs[1]


def _ends_of(
    crossings: Crossings, block: Ints, is_column: Bools, workload: Workload, cluster: Cluster,
    striped: Direction | None,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Choose source and target of each crossing of a block."""
    tokens, weights = workload.block_tokens[block], workload.shape.round_trip_bytes
    size = tokens * np.where(is_column, weights[1], weights[0])
    target = crossings.elect(size, cluster)
    if striped is None:
        return crossings.owner, target
    kv, q, out, dq, dkv = bytes_per_token(workload.shape, striped)
    row, column = (out, 0) if striped == "forward" else (dq, dkv)
    sizes = np.where(is_column, np.array([[kv], [column]]), np.array([[q], [row]]))
    return crossings.stripe(tokens * sizes, target, cluster)


def _fed(
    crossings: Crossings, known: Ints, source: Ints, target: Ints, devices: int
) -> tuple[Ints, Ints]:
    """Add needs of devices that only pass on; find the feeder of each, -1 where the owner is it.

    Needs are places times the number of `devices`, plus the device.
    """
    start, is_relayed = crossings.start, source != crossings.owner
    place = crossings.place[start] * devices
    gate, origin = place + target, (place + source)[is_relayed]
    every = np.unique(np.concatenate([known, gate, origin]))
    feeder, at = np.full(len(every), -1), np.arange(len(known))
    crossing = np.searchsorted(start, at, side="right") - 1
    served = np.flatnonzero(at < np.append(crossings.end, 0)[crossing])
    gates = np.searchsorted(every, gate)
    feeder[np.searchsorted(every, known[served])] = gates[crossing[served]]
    feeder[gates] = -1
    feeder[gates[is_relayed]] = np.searchsorted(every, origin)
    return every, feeder


def _pairs_of(
    block_of_tile: Indices,
    placement: Placement,
    cluster: Cluster,
    routing: Routing,
    stays: Stays | None,
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return block and device of each need, the need of each tile, -1 if local, and visits.

    Needs are sorted by block, visit and device.
    """
    owner, device = placement.device_of_data, placement.device_of_compute
    devices = cluster.num_devices
    remote = np.flatnonzero(owner[block_of_tile] != device)
    block, at = block_of_tile[remote].astype(np.int64), device[remote].astype(np.int64)
    visit = np.zeros(len(remote), np.int64)
    if stays is not None:
        node = cluster.node_of_device
        far = (node[at] != node[owner[block]]) & (routing == "node")
        group = block * 2 * devices + np.where(far, devices + node[at], at)
        visit = stays.visits(group, stays.division[remote])
    visits = int(visit.max(initial=0)) + 1
    found, inverse = np.unique((block * visits + visit) * devices + at, return_inverse=True)
    need_of_tile = np.full(len(block_of_tile), -1, np.int64)
    need_of_tile[remote] = inverse
    place, at = np.divmod(found, devices)
    return place // visits, at, need_of_tile, place % visits
