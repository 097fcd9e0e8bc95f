"""Static layouts that split heads, and teams of devices, which any placement in head groups uses.

Neighbouring devices make up a *team* whose members compute different heads of the same tiles; the
batch is placed on teams as if each were one device. So the problem is smaller than without head
groups, members are level with each other, and inside a team tokens meet heads by an exchange as
DeepSpeed-Ulysses does it, each way once. Teams lie inside nodes, or are whole nodes: then only what
the placement on teams sends crosses the network.

The layouts choose their head groups themselves, unless ``PlanConfig.head_groups`` is more than 1.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcp_planner.baselines.layouts import StaticLayout
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import MOST_RATE, Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import pack_largest_first
from dcp_planner.model.placement import Partitioner, Placement
from dcp_planner.model.workload import Workload
from dcp_planner.tables.head_groups import possible_groups, why_not


def team_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Compute the sizes that teams may have, ascending: they part a node, or the nodes, evenly.

    >>> team_sizes(Cluster(nodes=3, devices_per_node=4))
    (1, 2, 4, 12)
    """
    inside, nodes = cluster.devices_per_node, cluster.nodes
    sizes = {n for n in range(1, inside + 1) if inside % n == 0}
    return tuple(sorted(sizes | {inside * n for n in range(1, nodes + 1) if nodes % n == 0}))


def largest_team(cluster: Cluster, groups: int) -> int:
    """Compute the size of the largest team over which so many head groups are spread evenly."""
    return max(size for size in team_sizes(cluster) if groups % size == 0)


def largest_team_inside(cluster: Cluster, groups: int) -> int:
    """Return the same for teams that lie inside a node."""
    sizes = (size for size in team_sizes(cluster) if size <= cluster.devices_per_node)
    return max(size for size in sizes if groups % size == 0)


def groups_worth_trying(shape: ModelShape, cluster: Cluster) -> tuple[int, ...]:
    """Compute the head groups that part a node between them, two at least.

    A group more than a team has members would not be placed on its own; teams of several nodes send
    all of their tokens through the network.

    >>> groups_worth_trying(ModelShape(8, 2, 128), Cluster(nodes=4, devices_per_node=8))
    (2, 4, 8)
    """
    sizes = [size for size in team_sizes(cluster) if 1 < size <= cluster.devices_per_node]
    return tuple(size for size in sizes if size in possible_groups(shape))


def groups_of_heads(shape: ModelShape, cluster: Cluster, chosen: int | None) -> int:
    """Compute the head groups of the layout in which all devices split the heads.

    Raises:
        PlanError: if the heads do not go round.
    """
    devices = cluster.num_devices
    groups = devices if chosen is None else chosen
    reason = why_not(shape, groups)
    if groups % devices:
        reason = f"all {devices} devices split the heads, so {groups} head groups do not go round"
    if reason:
        raise PlanError(
            f"static:heads: {reason}; use static:heads_context, fewer devices, or another shape"
        )
    return groups


def groups_of_heads_context(shape: ModelShape, cluster: Cluster, chosen: int | None) -> int:
    """Compute the head groups of the layout in which the devices of a node, or a part, split them.

    Raises:
        PlanError: if heads and devices of a node have no divisor in common.
    """
    if chosen is not None:
        reason = why_not(shape, chosen)
        if reason:
            raise PlanError(f"static:heads_context: {reason}")
        return chosen
    possible = groups_worth_trying(shape, cluster)
    if not possible:
        raise PlanError(
            f"static:heads_context: the {cluster.devices_per_node} devices of a node cannot split "
            f"{shape.q_heads} query and {shape.kv_heads} key/value heads; use static:zigzag"
        )
    return possible[-1]


def teams_of(cluster: Cluster, size: int) -> Cluster:
    """Build the cluster whose devices are teams of so many devices, with their rates together."""
    inside = cluster.devices_per_node
    nodes, per_node = cluster.nodes, inside // size
    if size > inside:
        nodes, per_node = cluster.nodes * inside // size, 1

    def together(rate: float) -> float:
        return min(rate * size, MOST_RATE)

    backward, copy = cluster.backward_flops_per_s, cluster.copy_bytes_per_s
    return replace(
        cluster,
        nodes=nodes,
        devices_per_node=per_node,
        intra_bytes_per_s=together(cluster.intra_bytes_per_s),
        inter_bytes_per_s=together(cluster.inter_bytes_per_s),
        flops_per_s=together(cluster.flops_per_s),
        backward_flops_per_s=None if backward is None else together(backward),
        copy_bytes_per_s=None if copy is None else together(copy),
        devices_per_nic=max(1, cluster.devices_per_nic // size),
    )


def spread(found: Placement, workload: Workload, groups: int, size: int, teams: int) -> Placement:
    """Spread a placement on teams over their members: heads by group, tokens evenly.

    Args:
        found: without head groups, on `teams` devices.
        workload: what is placed.
        groups: head groups, a multiple of `size`.
        size: members of a team.
        teams: how many there are.
    """
    owner = found.device_of_data * np.int32(size)
    for team in range(teams):
        blocks = np.flatnonzero(found.device_of_data == team)
        owner[blocks] += pack_largest_first(workload.block_tokens[blocks], size)
    member = np.arange(groups) * size // groups
    device: NDArray[np.int64] = found.device_of_compute * np.int64(size) + member[:, None]
    return Placement(owner, device.ravel().astype(np.int32), found.warnings, groups)


HeadKind = Literal["heads", "heads_context"]
HEAD_KINDS: tuple[HeadKind, ...] = ("heads", "heads_context")
"""Every kind of static layout that splits heads."""


@dataclass(frozen=True, slots=True)
class StaticHeads(Partitioner):
    """A static layout that splits heads.

    Attributes:
        kind: ``heads``: every device computes all tokens for its share of the heads, as
            DeepSpeed-Ulysses does. ``heads_context``: the devices of a node split the heads, and
            the nodes the tokens in a zigzag, as LoongTrain and USP do in two dimensions.
    """

    kind: HeadKind

    @property
    def name(self) -> str:
        """Key in the registry."""
        return f"static:{self.kind}"

    def groups(self, shape: ModelShape, cluster: Cluster, config: PlanConfig) -> int:
        """Compute the head groups of the layout.

        Raises:
            PlanError: if the heads of the shape do not go round.
        """
        given = config.head_groups
        chosen = None if given in ("auto", 1) else int(given)
        find = groups_of_heads if self.kind == "heads" else groups_of_heads_context
        return find(shape, cluster, chosen)

    def is_possible(self, shape: ModelShape, cluster: Cluster, config: PlanConfig) -> bool:
        """Check whether the heads can be split evenly."""
        try:
            self.groups(shape, cluster, config)
        except PlanError:
            return False
        return True

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Build the layout; O(D log D + G W).

        Raises:
            PlanError: if the heads of the shape do not go round.
        """
        groups = self.groups(workload.shape, cluster, config)
        if self.kind == "heads":
            none = np.zeros(workload.num_blocks, np.int32)
            found = Placement(none, np.zeros(workload.num_tiles, np.int32))
            return spread(found, workload, groups, cluster.num_devices, 1)
        size = largest_team_inside(cluster, groups)
        teams = teams_of(cluster, size)
        found = StaticLayout("zigzag").place(workload, teams, replace(config, head_groups=1))
        return spread(found, workload, groups, size, teams.num_devices)
