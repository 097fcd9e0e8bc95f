"""The partitioner `native`: how much it searches, counted in work, and its entry points.

numba and the compiled loops are imported on first use, because importing them takes half a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.simulation.schedules import predict_placement


@dataclass(frozen=True, slots=True)
class Effort:
    """Work that one search may do.

    Attributes:
        starts: seeds to start from, the cheapest ones.
        runs: searches per level on the coarsest picture, dealt over the starts.
        sweeps: of all moves, in each run.
        noise: at the beginning of a run, in bytes of a middling row.
        coarse_tiles: tiles per part of the coarsest picture.
        fine_sweeps, fine_noise: after each refinement of the picture.
        polish_sweeps: most sweeps on all devices together.
        polish_work: most tiles times parts looked at there.
        longest: longest range of rows that moves together, in blocks.
        relief: moves of a tile or an owner that are valued with time as the objective.
    """

    starts: int
    runs: int
    sweeps: int
    noise: float
    coarse_tiles: int
    fine_sweeps: int
    fine_noise: float
    polish_sweeps: int
    polish_work: int
    longest: int
    relief: int


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "fast": Effort(2, 2, 8, 1.0, 48, 3, 0.25, 2, 1_000_000, 8, 30_000),
        "balanced": Effort(4, 8, 40, 1.0, 64, 10, 0.25, 12, 20_000_000, 8, 300_000),
        "best": Effort(4, 24, 120, 1.0, 64, 30, 0.25, 40, 100_000_000, 16, 2_000_000),
    }
)
"""Presets by the name that ``PlanConfig.budget`` takes."""


def efforts_up_to(budget: str) -> list[Effort]:
    """List the efforts of all budgets up to one, least first: more budget is never worse."""
    names = list(EFFORTS)
    return [EFFORTS[name] for name in names[: names.index(budget) + 1]]


@dataclass(frozen=True, slots=True)
class Native:
    """Search written for this problem; see `multilevel` and `bottleneck`."""

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "native"

    @property
    def is_fixed(self) -> bool:
        """The search holds the caps on its own."""
        return True

    def unavailable(self) -> str | None:
        """Needs nothing that is optional."""
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Search with the effort that ``config.budget`` names; the same seed, the same result."""
        found = [
            placement
            for effort in efforts_up_to(config.budget)
            for placement in searched(workload, cluster, config, effort)
        ]
        if len(found) == 1:
            return found[0]
        return min(found, key=_Seconds(workload, cluster, config))


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Predicts the time of a placement with the schedule that it would get."""

    workload: Workload
    cluster: Cluster
    config: PlanConfig

    def __call__(self, found: Placement) -> float:
        return predict_placement(self.workload, found, self.cluster, self.config).seconds


def searched(
    workload: Workload, cluster: Cluster, config: PlanConfig, effort: Effort
) -> tuple[Placement, ...]:
    """Search for few bytes, then for little time from there; both under the caps.

    Gives the last only if time is short: it is seldom the worse one, and judging takes as long.
    """
    # numba takes half a second to import: only who searches pays for it.
    from dcp_planner.search.multilevel import search, setting_of
    from dcp_planner.search.problem import problem_of

    split = search(problem_of(workload), cluster, setting_of(workload, cluster, config, effort))
    found = Placement(split.owner, split.part)
    after = relieved(found, workload, cluster, config, effort)
    return (after,) if effort is EFFORTS["fast"] else (found, after)


def refine(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Search on from any placement: hold it to the caps, then relieve what is busiest.

    The simulator judges what that makes of it.
    """
    from dcp_planner.search.multilevel import polish, setting_of
    from dcp_planner.search.problem import Split, problem_of

    effort = EFFORTS[config.budget]
    setting = setting_of(workload, cluster, config, effort)
    start = Split(found.device_of_compute, found.device_of_data)
    split = polish(problem_of(workload), start, cluster, setting)
    held = Placement(split.owner, split.part, found.warnings)
    after = relieved(held, workload, cluster, config, effort)
    return min((held, after), key=_Seconds(workload, cluster, config))


def relieved(
    found: Placement,
    workload: Workload,
    cluster: Cluster,
    config: PlanConfig,
    effort: Effort,
    *,
    is_uneven: bool = False,
) -> Placement:
    """Relieve what is busiest, starting from any placement; tokens stay under their cap.

    Compute as well, unless it may be uneven: then what one device computes for longer than others
    counts as time only. Where the network decides, that costs nothing.
    """
    from dcp_planner.search.bottleneck import relieve_split
    from dcp_planner.search.multilevel import setting_of
    from dcp_planner.search.problem import Split

    caps = setting_of(workload, cluster, config, effort).caps
    if is_uneven:
        caps = replace(caps, pairs=int(workload.compute_pairs.sum()))
    start = Split(found.device_of_compute, found.device_of_data)
    split = relieve_split(start, workload, cluster, caps, effort.relief)
    return Placement(split.owner, split.part, found.warnings)


def tiles_placed(
    owner: NDArray[np.int32], workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[Placement, Placement]:
    """Place tiles where the tokens are: level and cheap to send; searched for time, then level."""
    from dcp_planner.search.bottleneck import relieve_split
    from dcp_planner.search.multilevel import level_tiles, setting_of
    from dcp_planner.search.problem import Split, problem_of

    effort, problem = EFFORTS[config.budget], problem_of(workload)
    setting = setting_of(workload, cluster, config, effort)
    start = Split(owner[workload.compute_q], owner)
    searched_first = relieve_split(
        start, workload, cluster, setting.caps, effort.relief, keeps_owners=True
    )
    level, timed = (level_tiles(problem, s, cluster, setting) for s in (start, searched_first))
    return Placement(owner, level.part), Placement(owner, timed.part)
