"""The default partitioner: several candidates, the simulator decides.

Candidates are the static layouts, the native search, and what a search for time makes of both; each
is predicted with the schedule that it would get, and the fastest wins. A layout whose devices own
more tokens than the tolerance allows is out, unless nothing else is left. The compute tolerance
binds the native search, not the choice: what takes longer on one device shows in the predicted time
already. So among what fits in memory the result is never slower in simulation than the best static
layout.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dcp_planner.baselines.layouts import STATIC_KINDS, StaticKind, StaticLayout
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cost_model import workload_seconds
from dcp_planner.model.packing import loads_of
from dcp_planner.model.placement import Partitioner, Placement
from dcp_planner.model.workload import Workload
from dcp_planner.search.effort import EFFORTS, efforts_up_to
from dcp_planner.search.native import relieved, searched
from dcp_planner.search.repair import caps_of
from dcp_planner.simulation.schedules import predict_placement

STARTS: tuple[StaticKind, ...] = ("contiguous", "zigzag", "grid")
"""Layouts that a search for time starts from as well; a fast one from the first only."""


@dataclass(frozen=True, slots=True)
class Portfolio:
    """Takes the candidate of the shortest predicted time.

    Attributes:
        others: partitioners by name that ``PlanConfig.candidates`` may add.
    """

    others: tuple[Partitioner, ...] = ()

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "portfolio"

    @property
    def is_fixed(self) -> bool:
        """Its candidates hold the caps on their own, or are layouts taken as they are."""
        return True

    def unavailable(self) -> str | None:
        """Needs nothing that is optional."""
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Try all candidates; the same seed gives the same result."""
        return fastest(self._candidates(workload, cluster, config), workload, cluster, config)

    def _candidates(
        self, workload: Workload, cluster: Cluster, config: PlanConfig
    ) -> Iterator[Placement]:
        layouts = {k: StaticLayout(k).place(workload, cluster, config) for k in STATIC_KINDS}
        yield from layouts.values()
        for effort in efforts_up_to(config.budget):
            found = searched(workload, cluster, config, effort)
            yield from found
            kinds = STARTS if effort is not EFFORTS["fast"] else STARTS[:1]
            for start in (found[-1], *(layouts[kind] for kind in kinds)):
                yield relieved(start, workload, cluster, config, effort, is_uneven=True)
        for partitioner in self.others:
            if partitioner.name in config.candidates:
                yield partitioner.place(workload, cluster, config)


def fastest(
    candidates: Iterable[Placement], workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Give the placement of the shortest predicted time among those within the token cap, if any.

    The first of equals; placements may have head groups.
    """
    cap = caps_of(workload, cluster.num_devices, config).tokens
    best: Placement | None = None
    least = (True, np.inf)  # whether tokens are above the cap, predicted seconds
    for found in candidates:
        tokens = loads_of(found.device_of_data, workload.block_tokens, cluster.num_devices)
        is_over = bool(tokens.max(initial=0) > cap)
        if (is_over, _compute_seconds(workload, found, cluster)) >= least:
            continue  # its computing alone takes longer
        quality = is_over, predict_placement(workload, found, cluster, config).seconds
        if quality < least:
            best, least = found, quality
    assert best is not None, "every candidate takes a finite time"
    return best


def _compute_seconds(workload: Workload, found: Placement, cluster: Cluster) -> float:
    """Give what the busiest device computes in each direction, added up."""
    groups = found.head_groups
    return sum(
        float(
            np.bincount(
                found.device_of_compute,
                np.tile(workload_seconds(workload, cluster, is_backward=is_backward), groups),
                cluster.num_devices,
            ).max()
        )
        / groups
        for is_backward in (False, True)
    )
