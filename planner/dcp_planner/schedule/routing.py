"""Routes of blocks: directly from and to the owner, or once per node and forwarded from there.

A need is a pair of a token block and a device that computes with it without owning it. Every need
is one input to bring and one partial result to take home.

Routed by node, the devices of a foreign node that need the same block have one gateway among them.
The block crosses the network once, to the gateway, which passes it on; partial results meet at the
gateway, which sends one sum home. So every route has at most two hops, nothing is stored where it
is not needed, and the total of bytes is that of direct routes. Gateways are elected so that ports
carry equal loads.

Striped, a block may leave the owner's node by the port of any device there, and enter the other
node by the port of any device. Results return by the same route. Routes then have up to three hops,
and devices that only pass a block on have a need without tiles. Striping lowers the sum of the
squares of the bytes that ports send and receive, at the price of more messages inside nodes.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Floats, Indices, Ints, order_by
from dcp_planner.jit import FloatTable, IntTable, compiled
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Routing
from dcp_planner.model.problem import Direction, Placement, Workload
from dcp_planner.tables.metrics import bytes_per_token

# The second turn gained 0.2 % (native) to 1.8 % (contiguous, zigzag) of the predicted time.
_TURNS = 2  # of electing
_STRIPE_TURNS = 4
# Without a fare blocks cross in more messages, each of which costs time of the host and of a port.
_FARE = 0.25  # of one more message, relative to sending it through a port with the mean load


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """Crossings of the network: one row for each block and foreign node where it is needed."""

    place: Ints  # `[N]`, place (a block's queries or keys) of every need, ascending
    device: Ints  # `[N]`, device of every need, ascending for equal places
    # start, end: int64 `[C]`, range of the needs that each crossing serves
    start: Ints
    end: Ints
    owner: Ints  # `[C]`, owner of the block

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
        """Choose the target of each crossing so that ports carry equal loads.

        Candidates are the devices that need the block. The bytes that owners send count as load.
        """
        target, nic, weight = self.device[self.start], cluster.nic_of_device, size.astype(float)
        load = np.bincount(self.owner, weight, cluster.num_devices).astype(float)
        nic_load = np.bincount(nic, load, int(nic[-1]) + 1).astype(float)
        _elect(self.start, self.end, self.device, weight, nic, load, nic_load, target)
        return target

    def stripe(self, size: Ints, target: Ints, cluster: Cluster) -> tuple[Ints, Ints]:
        """Choose sources and targets among all devices of both nodes, from elected targets.

        `size` are bytes ``[2, C]`` of inputs and of results.
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
        # Needs sort by place, then device, so those of a node stand together. Those in the owner's
        # node count as well: these devices get the block anyway.
        bounds = np.stack([
            ptr[home], ptr[home + 1], np.searchsorted(group, near),
            np.searchsorted(group, near, side="right"), ptr[away], ptr[away + 1],
            self.start, self.end,
        ])  # fmt: skip
        # Large crossings first: small ones even out what is left.
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
    """Choose for each crossing the device with the least load of its port, then of its own."""
    for turn in range(_TURNS):
        for x in range(len(start)):
            # The first turn chose knowing only the crossings before; the second knows all others.
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

    `bounds` is int64 ``[8, C]``: for either end the range of devices of its node, and the range of
    needs of these devices. `ends` is int64 ``[2, C]``: source and target. Inputs go from end 0 to
    end 1, results back: ``size[end]`` is sent by the end, ``size[1 - end]`` received.
    """
    mean = load.sum() / (2 * load.shape[1])
    for _turn in range(_STRIPE_TURNS):
        moved = 0
        for n in range(2 * len(order)):
            x, end = order[n >> 1], n & 1  # both ends of a crossing, one after the other
            out, back, here = size[end, x], size[1 - end, x], ends[end, x]
            load[0, nic[here]] -= out
            load[1, nic[here]] -= back
            fare = _FARE * (out + back) * max(mean, out, back)
            best, least = here, np.inf
            need, last = bounds[4 * end + 2, x], bounds[4 * end + 3, x]
            for other in range(bounds[4 * end, x], bounds[4 * end + 1, x]):
                # Bytes times the load they find: the sum of squares, so that loads even out.
                cost = out * (load[0, nic[other]] + out) + back * (load[1, nic[other]] + back)
                while need < last and device[need] < other:
                    need += 1
                # A device that does not compute with the block would handle it for others only.
                if need == last or device[need] != other:
                    cost += 2 * fare if other != owner[x] else 0.0
                elif end == 0:
                    cost += fare  # its own results and those it relays wait for each other
                if cost < least:
                    best, least = other, cost
            load[0, nic[best]] += out
            load[1, nic[best]] += back
            ends[end, x] = best
            moved += best != here
        if moved == 0:
            break


MOST_HOPS = 2
"""Largest number of a hop, counted from 0: routes have at most three hops (striped)."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Needs of devices for blocks that they do not own: for the queries, then for the keys."""

    is_keys: Bools  # `[N]`
    # block, device: int64 `[N]`, sorted by (is_keys, block, device), each combination once. If
    # blocks are fetched again, once per visit, sorted by (is_keys, block, visit, device).
    block: Ints
    device: Ints
    # `[2, W]`, needs of each tile for its queries and for its keys; -1 if the block is local
    need_of_tile: Ints
    # `[N]`, the need whose device sends the block on and takes the results; -1 if that is the owner
    feeder: Ints
    peer: Ints  # `[N]`, the device that sends the block and takes the results
    hop: Ints  # `[N]`, 0 if the owner sends, else one more than the feeder's
    height: Ints  # `[N]`, most hops that follow; 0 where nothing is passed on

    @classmethod
    def of(
        cls, place: Ints, device: Ints, need_of_tile: Ints, feeder: Ints, owner: Ints
    ) -> "Needs":
        """Find peers, hops and heights.

        `owner` is int64 ``[D]``, the device of every block. Queries of block b are at place b, keys
        at D + b.
        """
        is_keys = place >= len(owner)
        block = place - is_keys * len(owner)
        hop, height, peer = np.zeros_like(feeder), np.zeros_like(feeder), owner[block]
        fed = np.flatnonzero(feeder >= 0)
        peer[fed] = device[feeder[fed]]
        # A feeder may come later in the order: each pass settles the hops of one more level.
        for _ in range(MOST_HOPS):
            hop[fed] = hop[feeder[fed]] + 1
            np.maximum.at(height, feeder[fed], height[fed] + 1)
        return cls(is_keys, block, device, need_of_tile, feeder, peer, hop, height)


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """Stays of blocks where they are received, counted in divisions."""

    division: Indices  # `[W]`, of every tile
    idle: int  # most divisions without a use that a block stays; after more it is fetched again

    @classmethod
    def of(cls, division: Indices, idle: int | None) -> "Stays | None":
        """Return the stays of blocks that leave when idle; ``None`` if they stay to the end."""
        return None if idle is None else cls(division, idle)

    def visits(self, group: Ints, division: Indices) -> Ints:
        """Number the visits within each group, from 0; `division` is that of each use.

        A new visit begins where more than `idle` divisions lie between two uses.
        """
        order = order_by(group, division)
        rest = np.diff(group[order], prepend=-1) != 0
        gap = np.diff(division[order].astype(np.int64), prepend=0) > self.idle + 1
        count = np.cumsum(gap & ~rest)
        visit = np.empty(len(order), np.int64)
        # Counted over all groups, less the count at the start of the group.
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

    `stays` is given if blocks leave when they are idle. `striped` is the direction that the needs
    are for, if devices may pass on blocks that they do not need; then `stays` must be ``None``.
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
        # Devices of a foreign node share one visit if a gateway brings them the block.
        far = (node[at] != node[home[place]]) & (routing == "node")
        group = place * 2 * devices + np.where(far, devices + node[at], at)
        visit = stays.visits(group, np.tile(stays.division, 2)[remote])
        visits = int(visit.max(initial=0)) + 1
        # From here on each visit counts as a block of its own.
        place = place * visits + visit
    # A need is one number here, place times devices plus device; several tiles may share it.
    known, need = np.unique(place * devices + at, return_inverse=True)
    # Striped, devices may get blocks that they do not need themselves: `every` has these, too.
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
    """Choose source and target of each crossing; `place` is int64 ``[C]``, without visits."""
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
    """Add needs of devices that only pass blocks on; find the feeder of each need, or -1.

    A need is one number: its place times the number of `devices`, plus its device.
    """
    start, is_relayed = crossings.start, source != crossings.owner
    place = crossings.place[start] * devices
    gate, origin = place + target, (place + source)[is_relayed]
    every = np.unique(np.concatenate([known, gate, origin]))
    feeder, at = np.full(len(every), -1), np.arange(len(known))
    crossing = np.searchsorted(start, at, side="right") - 1
    # Needs before the first crossing have crossing -1, whose end is the 0 at the end of the array.
    served = np.flatnonzero(at < np.append(crossings.end, 0)[crossing])
    gates = np.searchsorted(every, gate)
    feeder[np.searchsorted(every, known[served])] = gates[crossing[served]]
    # A gateway is among the needs that it serves, and must not feed itself.
    feeder[gates] = -1
    feeder[gates[is_relayed]] = np.searchsorted(every, origin)
    return every, feeder
