"""placeholder"""

from dcp_planner.cluster import Cluster
from dcp_planner.config import PlanConfig
from dcp_planner.placement import Placement
from dcp_planner.workload import Workload


def repair(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Thin."""
    return found


def find_shortfalls(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[str, ...]:
    """Thin."""
    return ()
