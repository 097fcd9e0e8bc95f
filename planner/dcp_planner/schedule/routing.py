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
from dcp_planner.sorting import order_by
from dcp_planner.tables.memory import bytes_per_token

MOST_HOPS = 2
"""Hops of a transfer behind the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Needs of devices for blocks that they do not own: for their queries, then for their keys.

    Attributes:
        is_keys: bool ``[N]``.
        block, device: int64 ``[N]``, sorted by (is_keys, block, device), no three twice unless
            blocks are fetched again: then by (is_keys, block, visit, device).
        need_of_tile: int64 ``[2, W]``, of each tile for its queries and for its keys; -1 if the
            block is local.
        feeder: int64 ``[N]``, need of the device that brings the block and takes its results; -1:
            the owner does.
        peer: int64 ``[N]``, that device.
        hop: int64 ``[N]``, 0 behind the owner, else one more than the feeder's.
        height: int64 ``[N]``, hops that follow; 0 where nothing is passed on.
    """

    is_keys: Bools
    block: Ints
    device: Ints
    need_of_tile: Ints
    feeder: Ints
    peer: Ints
    hop: Ints
    height: Ints

    @classmethod
    def of(
        cls, place: Ints, device: Ints, need_of_tile: Ints, feeder: Ints, owner: Ints
    ) -> "Needs":
        """Number the hops.

        `owner` is int64 ``[D]``, the device of every block. Queries of block b are at place b, keys
        at D + b.
        """
        is_keys = place >= len(owner)
        block = place - is_keys * len(owner)
        hop, height, peer = np.zeros_like(feeder), np.zeros_like(feeder), owner[block]
        fed = np.flatnonzero(feeder >= 0)
        peer[fed] = device[feeder[fed]]
        for _ in range(MOST_HOPS):
            hop[fed] = hop[feeder[fed]] + 1
            np.maximum.at(height, feeder[fed], height[fed] + 1)
        return cls(is_keys, block, device, need_of_tile, feeder, peer, hop, height)


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """Stays of blocks where they are received, counted in divisions.

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
        order = order_by(group, division)
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
) -> Needs:
    """Find the needs of query blocks and of key blocks, with their routes; O(W log W).

    Gateways are elected so that the ports to the network carry equal loads, those of owners
    included: in the order of blocks, queries first, then once more with all others known. `striped`
    names the direction that the needs are for, if devices may pass on what they do not need; blocks
    are not fetched again then.
    """
    assert striped is None or stays is None, "only blocks that stay are striped"
    blocks, devices = workload.num_blocks, cluster.num_devices
    home = np.tile(placement.device_of_data.astype(np.int64), 2)
    every_place = np.append(workload.compute_q, workload.compute_kv + np.int64(blocks))
    every_device = np.tile(placement.device_of_compute.astype(np.int64), 2)
    remote = np.flatnonzero(home[every_place] != every_device)
    place, at, visits = every_place[remote], every_device[remote], 1
    if stays is not None:
        node = cluster.node_of_device
        far = (node[at] != node[home[place]]) & (routing == "node")
        group = place * 2 * devices + np.where(far, devices + node[at], at)
        visit = stays.visits(group, np.tile(stays.division, 2)[remote])
        visits = int(visit.max(initial=0)) + 1
        # A block that leaves and comes back is, from here on, a block for every visit.
        place = place * visits + visit
    order = order_by(place, at)
    sorted_places = (place * devices + at)[order]
    is_first = np.diff(sorted_places, prepend=-1) != 0
    known, need = sorted_places[is_first], np.empty_like(order)
    need[order] = np.cumsum(is_first) - 1
    # By node, a gateway may get blocks that it does not need itself: `every` has these, too.
    every, feeder = known, np.full(len(known), -1)
    if routing == "node":
        place, at = np.divmod(known, devices)
        found = Crossings.of(place, at, home[place // visits], cluster)
        crossing = place[found.start] // visits
        every, feeder = _fed(found, known, *_ends_of(found, crossing, workload, cluster, striped),
                             devices)  # fmt: skip
    need_of_tile = np.full(len(every_place), -1)
    need_of_tile[remote] = np.searchsorted(every, known)[need]
    place, device = np.divmod(every, devices)
    return Needs.of(
        place // visits, device, need_of_tile.reshape(2, -1), feeder, home[:blocks]
    )  # fmt: skip


def _ends_of(
    crossings: Crossings, place: Ints, workload: Workload, cluster: Cluster,
    striped: Direction | None,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Choose source and target of each crossing of a block's queries, or keys."""
    is_column = place >= workload.num_blocks
    tokens = workload.block_tokens[place - is_column * workload.num_blocks]
    weights = workload.shape.round_trip_bytes
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
