"""Crossings between nodes: a block goes to each node that needs it once; who sends, who receives.

By election only owners send, and only devices that need a block receive it. Striped, any device of
the owner's node may send what it got from the owner, and any device of the other node may receive
it for those that need it. Results come back the same way. Striping lowers the sum of the squares of
what ports send and receive; devices that only pass a block on pay for the messages more.
"""

# mypy: disable-error-code="untyped-decorator"

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.jit import FloatTable, IntTable, compiled
from dcp_planner.model.cluster import Cluster

_TURNS = 2  # of electing
_STRIPE_TURNS = 4
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
