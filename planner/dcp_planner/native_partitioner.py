"""The adapter that offers the native search under its name; compiled on first use, then cached."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcp_planner.cluster import Cluster
from dcp_planner.config import PlanConfig
from dcp_planner.divisions import predict_placement
from dcp_planner.native_effort import EFFORTS, efforts_up_to
from dcp_planner.placement import Placement
from dcp_planner.workload import Workload

if TYPE_CHECKING:
    from dcp_planner.native_problem import Split


@dataclass(frozen=True, slots=True)
class Native:
    """Search written for this problem; see `native`."""

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "native"

    @property
    def is_fixed(self) -> bool:
        """It holds the caps on its own."""
        return True

    def unavailable(self) -> str | None:
        """Needs nothing that is optional."""
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Search with the effort that ``config.budget`` names; the same seed, the same result."""
        # numba takes half a second to import: only who searches pays for it.
        from dcp_planner.native import ground_of, search
        from dcp_planner.native_problem import problem_of

        judge = _Seconds(workload, cluster, config)
        problem = problem_of(workload)
        grounds = [ground_of(workload, cluster, config, e) for e in efforts_up_to(config.budget)]
        found = [search(problem, cluster, ground, judge) for ground in grounds]
        best = min(found, key=judge) if len(found) > 1 else found[0]
        return Placement(best.owner, best.part)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Predicts the time of a split with the schedule that it would get."""

    workload: Workload
    cluster: Cluster
    config: PlanConfig

    def __call__(self, split: "Split") -> float:
        placement = Placement(split.owner, split.part)
        return predict_placement(self.workload, placement, self.cluster, self.config).seconds


def refine(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Search on from any placement: hold it to the caps, then spread its traffic over the ports.

    The simulator judges what the spreading makes of it.
    """
    from dcp_planner.native import ground_of, polish
    from dcp_planner.native_problem import Split, problem_of

    ground = ground_of(workload, cluster, config, EFFORTS[config.budget])
    start = Split(found.device_of_compute, found.device_of_data)
    judge = _Seconds(workload, cluster, config)
    split = polish(problem_of(workload), start, cluster, ground, judge)
    return Placement(split.owner, split.part, found.warnings)
