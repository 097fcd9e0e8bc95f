"""Static layouts that split heads: over all devices, or over a node with tokens over the nodes.

They choose their head groups themselves, unless ``PlanConfig.head_groups`` says more than 1.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dcp_planner.baselines.layouts import StaticLayout
from dcp_planner.baselines.teams import (
    groups_of_heads,
    groups_of_heads_context,
    largest_team_inside,
    spread,
    teams_of,
)
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload

HeadKind = Literal["heads", "heads_context"]
HEAD_KINDS: tuple[HeadKind, ...] = ("heads", "heads_context")
"""Every kind of static layout that splits heads."""


@dataclass(frozen=True, slots=True)
class StaticHeads:
    """One of the static layouts that split heads.

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

    @property
    def is_fixed(self) -> bool:
        """A baseline stays as it is."""
        return True

    def unavailable(self) -> str | None:
        """Needs nothing."""
        return None

    def groups(self, shape: ModelShape, cluster: Cluster, config: PlanConfig) -> int:
        """Give the head groups of the layout.

        Raises:
            PlanError: if the heads of the shape do not go round.
        """
        given = config.head_groups
        chosen = None if given in ("auto", 1) else int(given)
        find = groups_of_heads if self.kind == "heads" else groups_of_heads_context
        return find(shape, cluster, chosen)

    def is_possible(self, shape: ModelShape, cluster: Cluster, config: PlanConfig) -> bool:
        """Tell whether the heads go round."""
        try:
            self.groups(shape, cluster, config)
        except PlanError:
            return False
        return True

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Give the layout; O(D log D + G W).

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
