"""Static layouts, as systems without a planner use them: baselines, and candidates of a search.

Except in ``grid``, the owner of the queries computes a tile, so only keys and values travel. Plans
send only what the mask needs: an all-gather of keys becomes ``contiguous`` or ``zigzag`` without
unread keys.

Two layouts split heads over a *team*: a few neighbouring devices that compute different heads of
the same tiles. Partitioners place the batch on teams as if each team were one device. This makes
the problem smaller, and all members of a team compute equally much. Inside a team tokens and heads
are exchanged once each way, as in DeepSpeed-Ulysses. A team lies inside one node or consists of
whole nodes, so the network carries only what one team sends another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import gcd
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Indices, expand
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import MOST_RATE, RATES, Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.problem import (
    Partitioner,
    Placement,
    Workload,
    at_home,
    loads_of,
    pack_largest_first,
)
from dcp_planner.tables.head_groups import possible_groups, why_not


@dataclass(frozen=True, slots=True)
class StaticLayout(Partitioner):
    """A static layout."""

    kind: str  # one of `STATIC_KINDS`

    @property
    def name(self) -> str:
        """Key in the registry."""
        return f"static:{self.kind}"

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Build the layout; O((D + W) log D)."""
        return at_home(_LAYOUTS[self.kind](workload, cluster), workload)


def _contiguous(workload: Workload, cluster: Cluster) -> Placement:
    """Assign chunk r of R of the packed batch to device r."""
    return _by_owner(chunk_of_blocks(workload, cluster.num_devices), workload)


def _zigzag(workload: Workload, cluster: Cluster) -> Placement:
    """Assign chunks r and 2R-1-r of 2R to device r, which levels one long causal document.

    Source: Llama 3 report, Sec. 3.3.2.
    """
    devices = cluster.num_devices
    return _by_owner(_fold(chunk_of_blocks(workload, 2 * devices), devices), workload)


def _ring(workload: Workload, cluster: Cluster) -> Placement:
    """Cut every sequence in a zigzag of its own, as ring attention on packed sequences does."""
    devices = cluster.num_devices
    return _by_owner(_fold(chunk_within_sequence(workload, 2 * devices), devices), workload)


def _documents(workload: Workload, cluster: Cluster) -> Placement:
    """Assign whole sequences, largest first, to the device with the fewest pairs, plus one each."""
    of_tile = workload.block_sequence[workload.compute_q]
    pairs = 1 + loads_of(of_tile, workload.compute_pairs, len(workload.cu_seqlens) - 1)
    owner = pack_largest_first(pairs, cluster.num_devices)[workload.block_sequence]
    return _by_owner(owner, workload)


def _grid(workload: Workload, cluster: Cluster) -> Placement:
    """Cut in a zigzag over nodes; inside a node the key block decides which device computes a tile.

    This spreads the work as splitting heads would.
    """
    first, inside = cluster.node_ptr[:-1], np.diff(cluster.node_ptr)
    node = _fold(chunk_of_blocks(workload, 2 * cluster.nodes), cluster.nodes)
    # Owners: the blocks of a node are dealt out to its devices in turn.
    rank = np.empty(len(node), np.int64)
    rank[np.argsort(node, kind="stable")] = expand(0, np.bincount(node))[1]
    owner = (first[node] + rank % inside[node]).astype(np.int32)
    # Tiles stay in the node of their queries, where the number of the key block chooses a device.
    at = node[workload.compute_q]
    device = first[at] + workload.compute_kv % inside[at]
    return Placement(owner, device.astype(np.int32))


_LAYOUTS: Mapping[str, Callable[[Workload, Cluster], Placement]] = MappingProxyType({
    "contiguous": _contiguous, "zigzag": _zigzag, "ring": _ring, "documents": _documents,
    "grid": _grid,
})  # fmt: skip
STATIC_KINDS = tuple(_LAYOUTS)
"""Every kind of static layout."""


def _by_owner(owner: Indices, workload: Workload) -> Placement:
    """Have the owner of its queries compute each tile."""
    return Placement(owner, owner[workload.compute_q])


def _fold(chunk: Indices, parts: int) -> Indices:
    """Assign chunk c and chunk 2P-1-c to the same part."""
    return np.minimum(chunk, 2 * parts - 1 - chunk).astype(np.int32)


def chunk_of_blocks(workload: Workload, num_chunks: int) -> Indices:
    """Cut the batch into chunks of blocks, each border at the nearest block border; int32 ``[D]``.

    A chunk without a block is possible.
    """
    if workload.num_blocks == 0:
        return np.zeros(0, np.int32)
    bounds = np.append(workload.block_start, workload.block_end[-1])
    ideal = np.arange(1, num_chunks) * (float(bounds[-1]) / num_chunks)
    above = np.clip(np.searchsorted(bounds, ideal), 1, len(bounds) - 1)
    # One less where the border on the left is nearer; of two equally near, the right one.
    nearest = above - (ideal - bounds[above - 1] < bounds[above] - ideal)
    # A border before block b raises the chunk of b and of every later block by one.
    steps = np.bincount(nearest, minlength=len(bounds))[: workload.num_blocks]
    return np.cumsum(steps).astype(np.int32)


def chunk_within_sequence(workload: Workload, num_chunks: int) -> Indices:
    """Cut every sequence into chunks of equal tokens; a block goes where its middle lies."""
    starts = workload.cu_seqlens.astype(np.int64)
    lengths, sequence = np.diff(starts), workload.block_sequence
    middle = workload.block_start + workload.block_end - 2 * starts[sequence]
    return np.asarray(middle * num_chunks // (2 * lengths[sequence]), np.int32)


def team_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Compute the sizes that teams may have, ascending: they divide a node, or the nodes, evenly.

    Unequal devices or nodes form no teams: each is alone.
    """
    if cluster.devices:
        return (1,)  # members of a team have equal work
    inside, nodes = cluster.devices_per_node, cluster.nodes
    sizes = {n for n in range(1, inside + 1) if inside % n == 0}
    return tuple(sorted(sizes | {inside * n for n in range(1, nodes + 1) if nodes % n == 0}))


def largest_team(cluster: Cluster, groups: int, *, is_inside: bool) -> int:
    """Find the largest team over which the head groups spread evenly; inside one node if asked."""
    most = cluster.devices_per_node if is_inside else cluster.num_devices
    return max(size for size in team_sizes(cluster) if size <= most and groups % size == 0)


def groups_worth_trying(shape: ModelShape, cluster: Cluster) -> tuple[int, ...]:
    """List numbers of head groups, from two, with one team member for each group inside a node.

    More groups than members would not be placed apart; teams of several nodes would send all of
    their tokens through the network.
    """
    sizes = [size for size in team_sizes(cluster) if 1 < size <= cluster.devices_per_node]
    return tuple(size for size in sizes if size in possible_groups(shape))


def teams_of(cluster: Cluster, size: int) -> Cluster:
    """Build a cluster in which each team of devices acts as one device with the summed rates.

    A team that spans several network ports has one port with the sum of their rates, on the rails
    of all of them. A team of whole nodes is one node.
    """
    inside = min(size, cluster.devices_per_node)  # devices of a team in one node
    nodes = size // inside
    ports = max(1, inside // cluster.devices_per_nic)
    leaf = cluster.nodes_per_leaf
    rates = {name: getattr(cluster, name) for name in RATES}
    together = {name: min(r * size, MOST_RATE) for name, r in rates.items() if r is not None}
    return replace(
        cluster,
        nodes=cluster.nodes // nodes,
        devices_per_node=cluster.devices_per_node // inside,
        devices_per_nic=max(1, cluster.devices_per_nic // size),
        rails=cluster.rails // gcd(cluster.rails, ports),
        nodes_per_leaf=None if leaf is None else max(1, leaf // nodes),
        slow_ports=(),  # whoever judges the placement knows them
        **together,
    )


def spread(found: Placement, workload: Workload, groups: int, size: int) -> Placement:
    """Spread a placement on teams over their members: heads by group, tokens evenly."""
    owner = found.device_of_data * np.int32(size)
    for team in np.unique(found.device_of_data):
        blocks = np.flatnonzero(found.device_of_data == team)
        owner[blocks] += pack_largest_first(workload.block_tokens[blocks], size)
    member = np.arange(groups) * size // groups  # groups with the same keys are neighbours
    device: NDArray[np.int64] = found.device_of_compute * np.int64(size) + member[:, None]
    return Placement(owner, device.ravel().astype(np.int32), head_groups=groups)


HeadKind = Literal["heads", "heads_context"]
HEAD_KINDS: tuple[HeadKind, ...] = ("heads", "heads_context")
"""Every kind of static layout that splits heads."""


@dataclass(frozen=True, slots=True)
class StaticHeads(Partitioner):
    """A static layout that splits heads."""

    # `heads`: every device computes all tokens for its share of the heads, as DeepSpeed-Ulysses
    # does. `heads_context`: the devices of a node split the heads, and the nodes the tokens in a
    # zigzag, as LoongTrain and USP do in two dimensions.
    kind: HeadKind

    @property
    def name(self) -> str:
        """Key in the registry."""
        return f"static:{self.kind}"

    def groups(self, shape: ModelShape, cluster: Cluster, config: PlanConfig) -> int:
        """Compute the head groups of the layout."""
        given, devices = config.head_groups, cluster.num_devices
        # One group, the default of all partitioners, is no choice for a layout that splits heads.
        chosen = None if given in ("auto", 1) else int(given)
        if self.kind == "heads":
            groups, reason = chosen or devices, why_not(shape, chosen or devices)
            if groups % devices:
                reason = f"all {devices} devices split the heads, so {groups} head groups do not "
                reason += "divide evenly among them"
            reason = (
                reason and f"{reason}; use static:heads_context, fewer devices, or another shape"
            )
        elif chosen is not None:
            groups, reason = chosen, why_not(shape, chosen)
        else:
            groups = max(groups_worth_trying(shape, cluster), default=1)
            reason = "" if groups > 1 else (
                f"the {cluster.devices_per_node} devices of a node cannot split {shape.q_heads} "
                f"query and {shape.kv_heads} key/value heads; use static:zigzag"
            )  # fmt: skip
        if cluster.devices:
            reason = "devices or nodes are not equal, so heads cannot be split evenly; use native"
        if reason:
            raise PlanError(f"{self.name}: {reason}")
        return groups

    def is_possible(self, shape: ModelShape, cluster: Cluster, config: PlanConfig) -> bool:
        """Check whether the heads can be split evenly."""
        try:
            self.groups(shape, cluster, config)
        except PlanError:
            return False
        return True

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Build the layout; O(D log D + G W)."""
        groups = self.groups(workload.shape, cluster, config)
        size = largest_team(cluster, groups, is_inside=self.kind == "heads_context")
        on_teams = StaticLayout("zigzag").place(workload, teams_of(cluster, size), config)
        return spread(on_teams, workload, groups, size)
