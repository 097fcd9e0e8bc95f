"""Repair a placement that exceeds caps: choose owners anew, move tiles off overloaded parts.

KaHyPar's results need it, on nodes first and then on devices, and head groups need the exchange of
owners. A byte between nodes counts more, by the ratio of the two bandwidths up to a limit.
"""

import heapq
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import cap_of, loads_of, pack_largest_first
from dcp_planner.model.placement import Placement, PlanWarning, caps_of
from dcp_planner.model.workload import Workload
from dcp_planner.tables.head_groups import expand_placement

_SWEEPS = 3
_MOST_PRICE = 8.0  # both links work at once, so their seconds do not add up; see LOG.md

Parts = NDArray[np.int32]


def choose_owners(
    cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int, found: Parts
) -> Parts:
    """Choose for every block an owner that is cheap and keeps every part's tokens under the cap.

    Blocks that lose most by their second choice choose first. If that strands a block, blocks
    choose largest first; if that fails too, the owners found so far or, at last, an LPT packing are
    taken.

    Args:
        cost: float64 ``[D, P]``, cost of each block at each part.
        tokens: int64 ``[D]``.
        cap: most tokens of a part; at least what LPT needs.
        found: int32 ``[D]``, owners as the partitioner left them.

    Returns:
        int32 ``[D]``. O(D P log D).
    """
    parts = cost.shape[1]
    for owner in (_by_regret(cost, tokens, cap), _by_size(cost, tokens, cap), found):
        if owner is not None and loads_of(owner, tokens, parts).max(initial=0) <= cap:
            return owner
    return pack_largest_first(tokens, parts)


def _by_regret(cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int) -> Parts | None:
    blocks, parts = cost.shape
    order = np.argsort(cost, axis=1, kind="stable")
    room = np.full(parts, cap, np.int64)
    owner = np.full(blocks, -1, np.int32)

    def choice(block: int) -> tuple[float, int, int] | None:
        """Return (minus the regret, block, best part) among the parts with room."""
        fitting = order[block][room[order[block]] >= tokens[block]]
        if fitting.size == 0:
            return None
        regret = cost[block, fitting[1]] - cost[block, fitting[0]] if fitting.size > 1 else np.inf
        return -float(regret), block, int(fitting[0])

    heap = [choice(block) for block in range(blocks)]
    if None in heap:
        return None
    queue = [entry for entry in heap if entry is not None]
    heapq.heapify(queue)
    while queue:
        entry = heapq.heappop(queue)
        block = entry[1]
        now = choice(block)
        if now is None:
            return None
        if now != entry:  # its best part has filled up meanwhile
            heapq.heappush(queue, now)
            continue
        owner[block] = now[2]
        room[now[2]] -= tokens[block]
    return owner


def _by_size(cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int) -> Parts | None:
    room = np.full(cost.shape[1], cap, np.int64)
    owner = np.full(len(cost), -1, np.int32)
    for block in np.argsort(-tokens, kind="stable").tolist():
        fits = room >= tokens[block]
        if not fits.any():
            return None
        owner[block] = int(np.argmin(np.where(fits, cost[block], np.inf)))
        room[owner[block]] -= tokens[block]
    return owner


def repair(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Choose owners under the token cap and level compute; deterministic.

    Afterwards no device computes more than the tolerance allows if every tile is at most that
    tolerance of the mean; otherwise none more than the mean and one tile.
    """
    caps = caps_of(workload, cluster.num_devices, config)
    state = PlacementState(workload, cluster, found)
    state.choose_owners(caps.tokens)
    state.level(caps.pairs)
    for _ in range(_SWEEPS):
        moved = state.sweep(caps.pairs)
        state.choose_owners(caps.tokens)
        if not moved:
            break
    return Placement(state.owner, state.device, found.warnings)


def price_between_nodes(cluster: Cluster) -> float:
    """Compute what a byte between nodes counts, in bytes inside a node."""
    ratio = cluster.intra_bytes_per_s / cluster.inter_bytes_per_s
    return min(max(1.0, ratio), _MOST_PRICE)


def find_shortfalls(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[PlanWarning, ...]:
    """Warn of each tolerance that a placement misses, and say if tiles or blocks could meet it."""
    workload, found = expand_placement(workload, found)
    devices = cluster.num_devices
    pairs = loads_of(found.device_of_compute, workload.compute_pairs, devices)
    tokens = loads_of(found.device_of_data, workload.block_tokens, devices)
    warnings = []
    work = pairs / cluster.work_of_device
    if work.max(initial=0) > (1 + config.compute_tolerance) * float(pairs.mean()):
        text = _shortfall("tile", work, workload.compute_pairs, config.compute_tolerance)
        warnings.append(PlanWarning("compute_above_tolerance", f"compute: {text}"))
    most = (1 + config.token_tolerance) * float(tokens.mean())
    if not config.token_seconds and tokens.max(initial=0) > most:
        text = _shortfall("block", tokens, workload.block_tokens, config.token_tolerance)
        warnings.append(PlanWarning("tokens_above_tolerance", f"tokens: {text}"))
    return tuple(warnings)


def _shortfall(
    unit: str, loads: NDArray[np.int64 | np.float64], sizes: NDArray[np.int64], tolerance: float
) -> str:
    mean = float(sizes.sum()) / len(loads)
    reached = cap_of(sizes, len(loads), 0.0) / mean
    text = f"the fullest device has {loads.max() / mean:.3f} x the mean, more than the "
    text += f"tolerated {1 + tolerance:.3f}"
    if reached > 1 + tolerance:
        text += f"; whole {unit}s allow about {reached:.3f}, smaller blocks allow less"
    return text


class PlacementState:
    """A placement under change, with what every move would cost."""

    def __init__(self, workload: Workload, cluster: Cluster, found: Placement) -> None:
        tokens = workload.block_tokens
        self.workload, self.parts = workload, cluster.num_devices
        self.node = cluster.node_of_device
        self.ratio = price_between_nodes(cluster)
        self.owner = found.device_of_data.copy()
        self.device = found.device_of_compute.copy()
        self.pairs, self.tokens = workload.compute_pairs, tokens
        # [0] rows, [1] columns: block of each tile, bytes of each block, tiles of it on each part.
        self.block = (workload.compute_q, workload.compute_kv)
        self.size = tuple((tokens * n).astype(float) for n in workload.shape.round_trip_bytes)
        self.count = tuple(np.zeros((len(tokens), self.parts), np.int32) for _ in range(2))
        for count, block in zip(self.count, self.block, strict=True):
            np.add.at(count, (block, self.device), 1)
        self.load = loads_of(self.device, self.pairs, self.parts)

    def cost(self) -> float:
        """Compute the bytes of a forward and a backward pass, those between nodes priced higher."""
        at_owner = self.costs_of_owners()[np.arange(len(self.owner)), self.owner]
        return float(at_owner.sum())

    def choose_owners(self, cap: int) -> None:
        """Choose the owners of all blocks anew, if that is cheaper or the cap demands it."""
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
        """Compute the price of a byte from each owner to each part, ``[n, P]``."""
        price = np.where(self.node[owner][:, None] == self.node[None], 1.0, self.ratio)
        price[np.arange(len(owner)), owner] = 0.0
        return price

    def costs_of_owners(self) -> NDArray[np.float64]:
        """Compute what each block would move if each part owned it, ``[D, P]``."""
        read = np.zeros((len(self.owner), self.parts))
        for size, count in zip(self.size, self.count, strict=True):
            read += size[:, None] * (count > 0)
        in_node = np.add.reduceat(read, np.flatnonzero(np.diff(self.node, prepend=-1)), axis=1)
        total = read.sum(axis=1, keepdims=True)
        return np.asarray(self.ratio * total - (self.ratio - 1) * in_node[:, self.node] - read)

    def _cost_of_moves(self, tiles: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute what moving each tile to each part adds, ``[n, P]``; infinite where it is now."""
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
    expanded, placed = expand_placement(workload, found)
    costs = PlacementState(expanded, cluster, placed).costs_of_owners()
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
