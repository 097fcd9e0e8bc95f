"""The Pareto front of a batch: placements that no other one equals or beats in every figure.

Time, bytes between nodes, balance and memory pull apart: tighter caps send more bytes. The search
keeps what it finds under every cap (`native.ladder`), and `pareto` leaves out what is dominated.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Objective, PlanConfig
from dcp_planner.model.packing import loads_of
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.simulation.schedules import weigh_placement


@dataclass(frozen=True, slots=True, eq=False)
class FrontPoint:
    """A placement with its figures; less is better in each.

    Attributes:
        placement: where everything is.
        seconds: predicted, forward and backward.
        compute, tokens: most over mean; 1 is level.
        forward_inter, backward_inter: bytes between nodes.
        memory_bytes: most that a device needs for what it receives and for partial results.
    """

    placement: Placement
    seconds: float
    compute: float
    tokens: float
    forward_inter: int
    backward_inter: int
    memory_bytes: int

    def figures(self) -> dict[str, float]:
        """List all figures by name."""
        return {name: getattr(self, name) for name in FIGURES}


FIGURES = ("seconds", "compute", "tokens", "forward_inter", "backward_inter", "memory_bytes")
_GOALS: Mapping[Objective, Callable[[FrontPoint], float]] = MappingProxyType({
    "time": lambda point: point.seconds,
    "bytes": lambda point: point.forward_inter + point.backward_inter,
    "balance": lambda point: max(point.compute, point.tokens),
    "memory": lambda point: point.memory_bytes,
})  # fmt: skip
"""Figure that each objective minimises."""


def pareto(points: Iterable[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Leave out points that another one equals or beats in every figure; fastest first.

    Of equal points the first stays. O(n^2).
    """
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda p: tuple(p.figures().values())):
        # Nothing behind a point in this order dominates it: it is larger in the first difference.
        if not any(_dominates(other, point) for other in kept):
            kept.append(point)
    return tuple(kept)


def _dominates(one: FrontPoint, other: FrontPoint) -> bool:
    return all(one.figures()[name] <= value for name, value in other.figures().items())


def pick(front: Iterable[FrontPoint], objective: Objective) -> FrontPoint:
    """Take the best point of a front for an objective, the fastest of equals."""
    return min(front, key=lambda point: (_GOALS[objective](point), point.seconds))


def weigh(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> FrontPoint:
    """Compute the figures of a placement with the schedule that it would get."""
    weighed = weigh_placement(workload, found, cluster, config)
    pairs = loads_of(
        found.device_of_compute,
        np.tile(workload.compute_pairs, found.head_groups),
        cluster.num_devices,
    )
    tokens = loads_of(found.device_of_data, workload.block_tokens, cluster.num_devices)
    work = pairs / cluster.work_of_device
    return FrontPoint(
        found,
        weighed.seconds,
        float(work.max() / max(work.mean(), 1e-300)),
        float(tokens.max() / max(tokens.mean(), 1e-300)),
        *weighed.inter_bytes,
        weighed.memory_bytes,
    )
