"""Routes of blocks: straight from and to the owner, or once per node and on from there.

A need is a pair of a token block and a device that computes with it without owning it: every need
is one input to bring and one partial result to take home. Routed by node, the devices of a foreign
node that need the same block elect a gateway among themselves: the block crosses the network once,
to the gateway, which passes it on; partial results meet at the gateway, which sends one sum home.
So every way is at most two hops, nothing is stored where it is not needed, and the total of bytes
stays what it is without routing. Striped, a block may leave the owner's node by the
port of any device there and enter the other by any: ways have up to three hops, and devices that
only pass a block on have a need without tiles.

Who sends and who receives at a crossing between nodes: by election only owners send, and only
devices that need a block receive it. Striped, any device of the owner's node may send what it got
from the owner, and any device of the other node may receive it for those that need it. Results come
back the same way. Striping lowers the sum of the squares of what ports send and receive; devices
that only pass a block on pay for the messages more.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Floats, Indices, Ints, order_by
from dcp_planner.jit import FloatTable, IntTable, compiled
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Routing
from dcp_planner.model.problem import Direction, Placement, Workload
from dcp_planner.tables.metrics import bytes_per_token

# mypy: disable-error-code="untyped-decorator"


# The second turn gained 0.2 % (native) to 1.8 % (contiguous, zigzag) of the predicted time.
_TURNS = 2  # of electing
_STRIPE_TURNS = 4
# Without a fare blocks cross in more messages, each of which costs the host and a port time.
_FARE = 0.25  # of one more message, in what it costs to send it through a port as busy as the mean


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """Blocks that devices of another node than the owner's need, one row for each such node.

    Attributes:
        place: int64 ``[N]``, what every need of a device is for, ascending.
        device: int64 ``[N]``, ascending for equal places.
        start, end: int64 ``[C]``, the needs that each crossing serves.
        owner: int64 ``[C]``, of the block.
    """

    place: Ints
    device: Ints
    start: Ints
    end: Ints
    owner: Ints

    @classmethod
    def of(cls, place: Ints, device: Ints, owner: Ints, cluster: Cluster) -> "Crossings":
        """Find the crossings of needs; `owner` is int64 ``[N]``."""
        node = cluster.node_of_device
        group = place * cluster.nodes + node[device]
        start = np.flatnonzero(np.diff(group, prepend=-1) != 0)
        start = start[node[device[start]] != node[owner[start]]]
        end = np.searchsorted(group, group[start], side="right")
        return cls(place, device, start, end, owner[start])

    def elect(self, size: Ints, cluster: Cluster) -> Ints:
        """Choose the target of each crossing of so many bytes so that ports carry equal loads.

        Candidates are the devices that need it; the loads of owners, who send, count.
        """
        target, nic, weight = self.device[self.start], cluster.nic_of_device, size.astype(float)
        load = np.bincount(self.owner, weight, cluster.num_devices).astype(float)
        nic_load = np.bincount(nic, load, int(nic[-1]) + 1).astype(float)
        _elect(self.start, self.end, self.device, weight, nic, load, nic_load, target)
        return target

    def stripe(self, size: Ints, target: Ints, cluster: Cluster) -> tuple[Ints, Ints]:
        """Choose sources and targets among all devices of both nodes, from elected targets.

        Args:
            size: int64 ``[2, C]``, bytes of inputs and of results.
            target: int64 ``[C]``.
            cluster: the machine.
        """
        nic, ptr, node = cluster.nic_of_device, cluster.node_ptr, cluster.node_of_device
        ends, weight = np.stack([self.owner, target]), size.astype(float)
        load = np.zeros((2, int(nic[-1]) + 1))  # sent, received
        for end in (0, 1):
            np.add.at(load, (0, nic[ends[end]]), weight[end])
            np.add.at(load, (1, nic[ends[end]]), weight[1 - end])
        home, away = node[self.owner], node[target]
        group = self.place * cluster.nodes + node[self.device]
        near = self.place[self.start] * cluster.nodes + home
        bounds = np.stack([
            ptr[home], ptr[home + 1], np.searchsorted(group, near),
            np.searchsorted(group, near, side="right"), ptr[away], ptr[away + 1],
            self.start, self.end,
        ])  # fmt: skip
        # Large ones first: small ones even out what they leave.
        order = np.argsort(-size.sum(axis=0), kind="stable")
        _stripe(order, bounds, self.device, self.owner, weight, nic, load, ends)
        return ends[0], ends[1]


@compiled
def _elect(  # noqa: PLR0913 - a compiled kernel
    start: Ints,
    stop: Ints,
    device: Ints,
    size: Floats,
    nic: Ints,
    load: Floats,
    nic_load: Floats,
    target: Ints,
) -> None:
    """Choose for each crossing the least-loaded device that needs it, port load first."""
    for turn in range(_TURNS):
        for x in range(len(start)):
            # The first turn knew only the crossings before this one; now it chooses beside all.
            if turn > 0:
                load[target[x]] -= size[x]
                nic_load[nic[target[x]]] -= size[x]
            best = start[x]
            for i in range(start[x] + 1, stop[x]):
                a, b = device[i], device[best]
                mine, other = nic_load[nic[a]], nic_load[nic[b]]
                if mine < other or (mine == other and load[a] < load[b]):
                    best = i
            target[x] = device[best]
            load[target[x]] += size[x]
            nic_load[nic[target[x]]] += size[x]


@compiled
def _stripe(  # noqa: PLR0913 - a compiled kernel
    order: Ints,
    bounds: IntTable,
    device: Ints,
    owner: Ints,
    size: FloatTable,
    nic: Ints,
    load: FloatTable,
    ends: IntTable,
) -> None:
    """Move each end of each crossing to the device of its node that is cheapest, in turns.

    `bounds` are, of either end, the devices of its node and the needs of these devices.
    """
    mean = load.sum() / (2 * load.shape[1])
    for _turn in range(_STRIPE_TURNS):
        moved = 0
        for n in range(2 * len(order)):
            x, end = order[n >> 1], n & 1
            out, back, here = size[end, x], size[1 - end, x], ends[end, x]
            load[0, nic[here]] -= out
            load[1, nic[here]] -= back
            fare = _FARE * (out + back) * max(mean, out, back)
            best, least = here, np.inf
            need, last = bounds[4 * end + 2, x], bounds[4 * end + 3, x]
            for other in range(bounds[4 * end, x], bounds[4 * end + 1, x]):
                # Bytes times the load that they meet: one full port costs more than two half full.
                cost = out * (load[0, nic[other]] + out) + back * (load[1, nic[other]] + back)
                while need < last and device[need] < other:
                    need += 1
                if need == last or device[need] != other:  # it does not compute with the block
                    cost += 2 * fare if other != owner[x] else 0.0
                elif end == 0:
                    cost += fare  # the results of both wait for each other
                if cost < least:
                    best, least = other, cost
            load[0, nic[best]] += out
            load[1, nic[best]] += back
            ends[end, x] = best
            moved += best != here
        if moved == 0:
            break


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
        # A feeder may stand behind what it feeds: each pass settles the hops of one more level.
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
    # int64: places are multiplied by visits and devices below, beyond int32.
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
    # Needs before the first crossing have crossing -1: the 0 at the end says that none serves them.
    served = np.flatnonzero(at < np.append(crossings.end, 0)[crossing])
    gates = np.searchsorted(every, gate)
    feeder[np.searchsorted(every, known[served])] = gates[crossing[served]]
    # A gateway is among the needs that it serves, and must not feed itself.
    feeder[gates] = -1
    feeder[gates[is_relayed]] = np.searchsorted(every, origin)
    return every, feeder
