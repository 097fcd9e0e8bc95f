"""Hold any placement to the caps: owners chosen anew, tiles moved off overloaded parts.

Works on parts, which are devices in the end and nodes on the way there. What crosses nodes is
priced higher, at the ratio of the two bandwidths up to a limit.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import Caps, cap_of, loads_of
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.search.ownership import choose_owners
from dcp_planner.tables.head_groups import in_groups

_SWEEPS = 3
_MOST_PRICE = 8.0  # both links work at once, so their seconds do not add up; see LOG.md


def repair(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Choose owners under the token cap and level compute; deterministic.

    Afterwards no device computes more than the tolerance allows if every tile is at most that
    tolerance of the mean; otherwise none more than the mean and one tile.
    """
    caps = caps_of(workload, cluster.num_devices, config)
    board = Board(workload, cluster, found)
    board.choose_owners(caps.tokens)
    board.level(caps.pairs)
    for _ in range(_SWEEPS):
        moved = board.sweep(caps.pairs)
        board.choose_owners(caps.tokens)
        if not moved:
            break
    return board.placement(found.warnings)


def price_between_nodes(cluster: Cluster) -> float:
    """Give what a byte between nodes counts, in bytes inside a node."""
    ratio = cluster.intra_bytes_per_s / cluster.inter_bytes_per_s
    return min(max(1.0, ratio), _MOST_PRICE)


def caps_of(workload: Workload, parts: int, config: PlanConfig) -> Caps:
    """Give the caps of a configuration, widened to what whole tiles and blocks allow."""
    return Caps(
        pairs=cap_of(workload.compute_pairs, parts, config.compute_tolerance),
        tokens=cap_of(workload.block_tokens, parts, config.token_tolerance),
    )


def find_shortfalls(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[str, ...]:
    """Say which tolerance a placement misses, and whether tiles or blocks could meet it at all."""
    workload, found = in_groups(workload, found)
    return tuple(
        text
        for what, unit, part, sizes, tolerance in (
            ("compute", "tile", found.device_of_compute, workload.compute_pairs,
             config.compute_tolerance),
            ("tokens", "block", found.device_of_data, workload.block_tokens,
             config.token_tolerance),
        )
        if (text := _shortfall(what, unit, loads_of(part, sizes, cluster.num_devices), sizes,
                               tolerance))
    )  # fmt: skip


def _shortfall(
    what: str, unit: str, loads: NDArray[np.int64], sizes: NDArray[np.int64], tolerance: float
) -> str:
    mean = float(loads.mean())
    if loads.max(initial=0) <= (1 + tolerance) * mean:
        return ""
    reached = cap_of(sizes, len(loads), 0.0) / mean
    text = f"{what}: the fullest device has {loads.max() / mean:.3f} x the mean, more than the "
    text += f"tolerated {1 + tolerance:.3f}"
    if reached > 1 + tolerance:
        text += f"; whole {unit}s allow about {reached:.3f}, smaller blocks allow less"
    return text


class Board:
    """A placement under change, with what every move would cost."""

    def __init__(self, workload: Workload, cluster: Cluster, found: Placement) -> None:
        shape, tokens = workload.shape, workload.block_tokens
        self.workload, self.parts = workload, cluster.num_devices
        self.node = np.arange(self.parts) // cluster.devices_per_node
        self.ratio = price_between_nodes(cluster)
        self.owner = found.device_of_data.copy()
        self.device = found.device_of_compute.copy()
        self.pairs, self.tokens = workload.compute_pairs, tokens
        both_ways = shape.q_bytes * 2 + shape.out_bytes + shape.q_backward_bytes
        # [0] rows, [1] columns: block of each tile, bytes of each block, tiles of it on each part.
        self.block = (workload.compute_q, workload.compute_kv)
        self.size = (
            (tokens * both_ways).astype(float),
            (tokens * shape.kv_bytes * 3).astype(float),
        )
        self.count = tuple(np.zeros((len(tokens), self.parts), np.int32) for _ in range(2))
        for count, block in zip(self.count, self.block, strict=True):
            np.add.at(count, (block, self.device), 1)
        self.load = loads_of(self.device, self.pairs, self.parts)

    def placement(self, warnings: tuple[str, ...] = ()) -> Placement:
        """Give the present state."""
        return Placement(self.owner, self.device, warnings)

    def cost(self) -> float:
        """Give the bytes of a forward and a backward pass, those between nodes priced higher."""
        at_owner = self.costs_of_owners()[np.arange(len(self.owner)), self.owner]
        return float(at_owner.sum())

    def choose_owners(self, cap: int) -> None:
        """Let every block choose its owner anew, if that is cheaper or the cap demands it."""
        cost = self.costs_of_owners()
        chosen = choose_owners(cost, self.tokens, cap, self.owner)
        rows = np.arange(len(chosen))
        fits = loads_of(self.owner, self.tokens, self.parts).max(initial=0) <= cap
        if not fits or cost[rows, chosen].sum() < cost[rows, self.owner].sum():
            self.owner = chosen

    def level(self, cap: int) -> None:
        """Move the tiles cheapest per pair off overloaded parts until none is left or helps."""
        while True:
            source = int(np.argmax(self.load))
            excess = int(self.load[source]) - cap
            if excess <= 0:
                return
            tiles = np.flatnonzero(self.device == source)
            work = self.pairs[tiles][:, None]
            after = self.load[None] + work
            allowed = after <= cap
            if not allowed.any():
                allowed = after < self.load[source]
            if not allowed.any():
                return
            price = self._cost_of_moves(tiles) / np.minimum(work, excess)
            best = int(np.argmin(np.where(allowed, price, np.inf)))
            self._move(int(tiles[best // self.parts]), best % self.parts)

    def sweep(self, cap: int) -> int:
        """Move each tile once to where it saves most under the cap; gives the number of moves."""
        cap = max(cap, int(self.load.max(initial=0)))
        moved = 0
        for tile in np.flatnonzero(
            self._cost_of_moves(np.arange(len(self.device))).min(axis=1) < 0
        ):
            cost = self._cost_of_moves(np.array([tile]))[0]
            cost[self.load + self.pairs[tile] > cap] = np.inf
            target = int(np.argmin(cost))
            if cost[target] < 0:
                self._move(int(tile), target)
                moved += 1
        return moved

    def _move(self, tile: int, target: int) -> None:
        source = self.device[tile]
        for count, block in zip(self.count, self.block, strict=True):
            count[block[tile], source] -= 1
            count[block[tile], target] += 1
        self.load[source] -= self.pairs[tile]
        self.load[target] += self.pairs[tile]
        self.device[tile] = target

    def _price(self, owner: NDArray[np.int32]) -> NDArray[np.float64]:
        """Give the price of a byte from each owner to each part, ``[n, P]``."""
        price = np.where(self.node[owner][:, None] == self.node[None], 1.0, self.ratio)
        price[np.arange(len(owner)), owner] = 0.0
        return price

    def costs_of_owners(self) -> NDArray[np.float64]:
        """Give what each block would move if each part owned it, ``[D, P]``."""
        read = np.zeros((len(self.owner), self.parts))
        for size, count in zip(self.size, self.count, strict=True):
            read += size[:, None] * (count > 0)
        in_node = np.add.reduceat(read, np.flatnonzero(np.diff(self.node, prepend=-1)), axis=1)
        total = read.sum(axis=1, keepdims=True)
        return np.asarray(self.ratio * total - (self.ratio - 1) * in_node[:, self.node] - read)

    def _cost_of_moves(self, tiles: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give what moving each tile to each part adds, ``[n, P]``; infinite where it is now."""
        rows = np.arange(len(tiles))
        source = self.device[tiles]
        change = np.zeros((len(tiles), self.parts))
        for count, block, size in zip(self.count, self.block, self.size, strict=True):
            blocks = block[tiles]
            price = self._price(self.owner[blocks]) * size[blocks][:, None]
            saved = np.where(count[blocks, source] == 1, price[rows, source], 0.0)
            change += np.where(count[blocks] == 0, price, 0.0) - saved[:, None]
        change[rows, source] = np.inf
        return change
