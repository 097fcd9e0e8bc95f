"""Static layouts that split heads, and teams of devices, which every placement in head groups uses.

A *team* is a few neighbouring devices that compute different heads of the same tiles. Partitioners
place the batch on teams as if each team were one device. The problem is smaller then, all members
of a team compute equally much, and tokens and heads are exchanged inside a team, each way once, as
in DeepSpeed-Ulysses. A team lies inside one node or consists of whole nodes, so the network carries
only what one team sends another.

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

    Where devices or nodes are not equal there are no teams.

    >>> team_sizes(Cluster(nodes=3, devices_per_node=4))
    (1, 2, 4, 12)
    """
    if cluster.devices:
        return (1,)  # members of a team have equal work
    inside, nodes = cluster.devices_per_node, cluster.nodes
    sizes = {n for n in range(1, inside + 1) if inside % n == 0}
    return tuple(sorted(sizes | {inside * n for n in range(1, nodes + 1) if nodes % n == 0}))


def largest_team(cluster: Cluster, groups: int, *, is_inside: bool) -> int:
    """Find the largest team over which the head groups spread evenly; inside a node if asked."""
    most = cluster.devices_per_node if is_inside else cluster.num_devices
    return max(size for size in team_sizes(cluster) if size <= most and groups % size == 0)


def groups_worth_trying(shape: ModelShape, cluster: Cluster) -> tuple[int, ...]:
    """Compute the head groups that part a node between them, two at least.

    A group more than a team has members would not be placed on its own; teams of several nodes send
    all of their tokens through the network.

    >>> groups_worth_trying(ModelShape(8, 2, 128), Cluster(nodes=4, devices_per_node=8))
    (2, 4, 8)
    """
    sizes = [size for size in team_sizes(cluster) if 1 < size <= cluster.devices_per_node]
    return tuple(size for size in sizes if size in possible_groups(shape))


def teams_of(cluster: Cluster, size: int) -> Cluster:
    """Build a cluster in which teams of devices act as single devices with summed rates."""
    inside = cluster.devices_per_node
    nodes, per_node = cluster.nodes, inside // size
    if size > inside:
        nodes, per_node = cluster.nodes * inside // size, 1

    rates = {name: getattr(cluster, name) for name in _RATES}
    together = {name: min(r * size, MOST_RATE) for name, r in rates.items() if r is not None}
    return replace(
        cluster,
        nodes=nodes,
        devices_per_node=per_node,
        devices_per_nic=max(1, cluster.devices_per_nic // size),
        **together,
    )


def spread(found: Placement, workload: Workload, groups: int, size: int) -> Placement:
    """Spread a placement on teams over their members: heads by group, tokens evenly.

    Args:
        found: without head groups, on teams as devices.
        workload: blocks and tiles of the batch.
        groups: head groups, a multiple of `size`.
        size: members of a team.
    """
    owner = found.device_of_data * np.int32(size)
    for team in np.unique(found.device_of_data):
        blocks = np.flatnonzero(found.device_of_data == team)
        owner[blocks] += pack_largest_first(workload.block_tokens[blocks], size)
    member = np.arange(groups) * size // groups
    device: NDArray[np.int64] = found.device_of_compute * np.int64(size) + member[:, None]
    return Placement(owner, device.ravel().astype(np.int32), found.warnings, groups)


_RATES = (
    "intra_bytes_per_s", "inter_bytes_per_s", "flops_per_s", "backward_flops_per_s",
    "copy_bytes_per_s",
)  # fmt: skip

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
        given, devices = config.head_groups, cluster.num_devices
        chosen = None if given in ("auto", 1) else int(given)
        if self.kind == "heads":
            groups, reason = chosen or devices, why_not(shape, chosen or devices)
            if groups % devices:
                reason = f"all {devices} devices split the heads, so {groups} head groups do not "
                reason += "go round"
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
        """Build the layout; O(D log D + G W).

        Raises:
            PlanError: if the heads of the shape do not go round.
        """
        groups = self.groups(workload.shape, cluster, config)
        is_inside = self.kind == "heads_context"
        size = largest_team(cluster, groups, is_inside=is_inside)
        teams, whole = teams_of(cluster, size), replace(config, head_groups=1)
        return spread(StaticLayout("zigzag").place(workload, teams, whole), workload, groups, size)
