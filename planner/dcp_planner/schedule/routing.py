"""Routes of blocks: straight from and to the owner, or once per node and on from there.

A need is a pair of a token block and a device that computes with it without owning it: every need
is one input to bring and one partial result to take home. Routed by node, the devices of a foreign
node that need the same block elect a gateway among themselves: the block crosses the network once,
to the gateway, which passes it on; partial results meet at the gateway, which sends one sum home.
So every way is at most two hops, nothing is stored where it is not needed, and the total of bytes
stays what it is without routing.
"""

# mypy: disable-error-code="untyped-decorator"

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Floats, Indices, Ints
from dcp_planner.jit import compiled
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Routing
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload

_TURNS = 2  # of electing gateways


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Needs of devices for blocks that they do not own, for one side of the tiles.

    Attributes:
        block, device: int64 ``[N]``, sorted by (block, device), no pair twice unless blocks are
            fetched again: then by (block, visit, device).
        need_of_tile: int64 ``[W]``, the need of each tile, -1 if the block is local.
        is_routed: bool ``[N]``, reached through a gateway.
        is_gateway: bool ``[N]``, others are reached through it.
        peer: int64 ``[N]``, whom the device gets the block from and gives its results to: the
            owner, or its gateway.
        head: int64 ``[N]``, first need of the same block and node if it crosses the network once
            for all of them, else the need itself: runs of equal heads travel together.
    """

    block: Ints
    device: Ints
    need_of_tile: Ints
    is_routed: Bools
    is_gateway: Bools
    peer: Ints
    head: Ints


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
) -> tuple[Needs, Needs]:
    """Find the needs of query blocks and of key blocks, with their routes; O(W log W).

    Gateways are elected so that the ports to the network carry equal loads, those of owners
    included: in the order of blocks, queries first, then once more with all others known.
    """
    weights = workload.shape.round_trip_bytes
    sides = workload.compute_q, workload.compute_kv
    pairs = [_pairs_of(block, placement, cluster, routing, stays) for block in sides]
    if routing != "node":
        q, kv = (_direct(*side[:3], placement) for side in pairs)
        return q, kv
    block, at, _, visit = (np.concatenate([side[n] for side in pairs]) for n in range(4))
    first = len(pairs[0][0])
    is_column = np.arange(len(block)) >= first
    node = cluster.node_of_device
    away = node[at] != node[placement.device_of_data[block]]
    visits = int(visit.max(initial=0)) + 1
    group = ((is_column * workload.num_blocks + block) * visits + visit) * cluster.nodes
    group += node[at]
    starts = np.flatnonzero(np.diff(group, prepend=-1) != 0)
    head = np.repeat(starts, np.diff(np.append(starts, len(group))))
    head = np.where(away, head, np.arange(len(group)))
    size = workload.block_tokens[block] * np.where(is_column, weights[1], weights[0])
    gateway = _elected(head, at, away, size.astype(np.float64), placement, block, cluster)
    q, kv = (
        _routed(pairs[n][:3], head[span] - offset, away[span], gateway[span], placement)
        for n, (span, offset) in enumerate(((slice(None, first), 0), (slice(first, None), first)))
    )
    return q, kv


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


def _direct(block: Ints, at: Ints, need_of_tile: Ints, placement: Placement) -> Needs:
    nobody = np.zeros(len(block), np.bool_)
    peer = placement.device_of_data.astype(np.int64)[block]
    return Needs(block, at, need_of_tile, nobody, nobody, peer, np.arange(len(block)))


def _routed(
    pairs: tuple[Ints, Ints, Ints], head: Ints, is_away: Bools, gateway: Ints, placement: Placement
) -> Needs:
    block, at, need_of_tile = pairs
    is_routed = is_away & (gateway != at)
    peer = np.where(is_routed, gateway, placement.device_of_data[block])
    is_shared = np.zeros(len(block), np.bool_)
    is_shared[head[is_routed]] = True
    return Needs(block, at, need_of_tile, is_routed, is_shared[head] & ~is_routed, peer, head)


def _elected(
    head: Ints,
    at: Ints,
    is_away: Bools,
    size: Floats,
    placement: Placement,
    block: Ints,
    cluster: Cluster,
) -> Ints:
    """Find the gateway of every need, itself where there is none to elect, int64 ``[N]``."""
    owner = placement.device_of_data[block]
    crosses = is_away & (head == np.arange(len(head)))
    load = np.bincount(owner[crosses], size[crosses], cluster.num_devices).astype(np.float64)
    nic, gateway = cluster.nic_of_device, at.copy()
    nic_load = np.bincount(nic, load, int(nic[-1]) + 1).astype(np.float64)
    _elect(head, at, is_away, size, nic, load, nic_load, gateway)
    return gateway


@compiled
def _elect(  # noqa: PLR0913 - a compiled kernel
    head: Ints,
    device: Ints,
    is_away: Bools,
    size: Floats,
    nic: Ints,
    load: Floats,
    nic_load: Floats,
    gateway: Ints,
) -> None:
    """Assign each need to the least-loaded device of its run, port load first."""
    for turn in range(_TURNS):
        at = 0
        while at < len(head):
            end = at + 1
            while end < len(head) and head[end] == head[at]:
                end += 1
            if is_away[at]:
                if turn > 0:
                    load[gateway[at]] -= size[at]
                    nic_load[nic[gateway[at]]] -= size[at]
                best = at
                for i in range(at + 1, end):
                    a, b = device[i], device[best]
                    mine, other = nic_load[nic[a]], nic_load[nic[b]]
                    if mine < other or (mine == other and load[a] < load[b]):
                        best = i
                chosen = device[best]
                load[chosen] += size[at]
                nic_load[nic[chosen]] += size[at]
                for i in range(at, end):
                    gateway[i] = chosen
            at = end
