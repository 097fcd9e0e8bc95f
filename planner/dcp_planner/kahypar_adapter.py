"""placeholder"""

from dataclasses import dataclass
from dcp_planner.cluster import Cluster
from dcp_planner.config import PlanConfig
from dcp_planner.placement import Placement
from dcp_planner.static_layout import StaticLayout
from dcp_planner.workload import Workload


@dataclass(frozen=True, slots=True)
class KaHyPar:
    """Thin."""

    name: str = "kahypar"
    is_fixed: bool = False

    def unavailable(self) -> str | None:
        """Thin."""
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Thin."""
        return StaticLayout("zigzag").place(workload, cluster, config)
