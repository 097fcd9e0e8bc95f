"""The partitioner `native`, and the entry points of its searches.

numba and the compiled loops are imported on first use, because importing them takes half a second.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import loads_of
from dcp_planner.model.placement import Partitioner, Placement, caps_of
from dcp_planner.model.workload import Workload
from dcp_planner.search.effort import EFFORTS, Effort, efforts_of
from dcp_planner.simulation.schedules import predict_placement
from dcp_planner.tables.head_groups import expand_placement

RUNGS = (1.0, 0.5, 0.25)
"""Shares of the tolerances that a ladder goes down, one after the other."""


@dataclass(frozen=True, slots=True)
class Native(Partitioner):
    """Search written for this problem; see `multilevel` and `bottleneck`."""

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "native"

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Search with the effort that ``config.budget`` names; the same seed, the same result."""
        found = [
            searched(workload, cluster, config, effort) for effort in efforts_of(config.budget)
        ]
        return _fastest(found, workload, cluster, config)


def _fastest(
    found: Sequence[Placement], workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Predict the time of each placement with the schedule that it would get; take the shortest."""
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda one: predict_placement(workload, one, cluster, config).seconds)


def searched(workload: Workload, cluster: Cluster, config: PlanConfig, effort: Effort) -> Placement:
    """Search for few bytes, then from there for a short time; both under the caps."""
    _, timed = itertools.islice(ladder(workload, cluster, config, effort), 2)
    return timed


def ladder(
    workload: Workload, cluster: Cluster, config: PlanConfig, effort: Effort
) -> Iterator[Placement]:
    """Search under the caps, then under tighter and tighter ones, each time from the last result.

    Yields for every rung of `RUNGS` the placement of few bytes, then that of a short time.
    """
    from dcp_planner.search.multilevel import polish, search, setting_of
    from dcp_planner.search.problem import problem_of

    problem, split = problem_of(workload), None
    for rung in RUNGS:
        caps = replace(
            config,
            compute_tolerance=rung * config.compute_tolerance,
            token_tolerance=rung * config.token_tolerance,
        )
        setting = setting_of(workload, cluster, caps, effort)
        if split is None:
            split = search(problem, cluster, setting)
        else:
            split = polish(problem, split, cluster, setting)
        found = Placement(split.owner, split.part)
        yield found
        yield relieved(found, workload, cluster, caps, effort)


def refine(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Improve any placement: enforce the caps, then relieve the busiest device.

    Returns the placement before or after relief, whichever the simulator predicts to be faster.
    """
    from dcp_planner.search.multilevel import polish, setting_of
    from dcp_planner.search.problem import Split, problem_of

    effort = EFFORTS[config.budget]
    setting = setting_of(workload, cluster, config, effort)
    start = Split(found.device_of_compute, found.device_of_data)
    split = polish(problem_of(workload), start, cluster, setting)
    held = Placement(split.owner, split.part, found.warnings)
    after = relieved(held, workload, cluster, config, effort)
    return _fastest((held, after), workload, cluster, config)


def hold(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Bring any placement under the caps: tiles, then owners, move where that costs least bytes."""
    from dcp_planner.search.multilevel import hold_split, setting_of
    from dcp_planner.search.problem import Split, problem_of

    setting = setting_of(workload, cluster, config, EFFORTS[config.budget])
    start = Split(found.device_of_compute, found.device_of_data)
    split = hold_split(problem_of(workload), start, cluster, setting)
    return Placement(split.owner, split.part, found.warnings)


def hold_tokens(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Bring the owners of a placement in head groups under the token cap, at the least bytes."""
    from dcp_planner.search.caps import exchange_owners
    from dcp_planner.search.multilevel import setting_of, whole_state
    from dcp_planner.search.problem import Split, problem_of

    cap = caps_of(workload, cluster.num_devices, config).tokens
    loads = loads_of(found.device_of_data, workload.block_tokens, cluster.num_devices)
    if loads.max(initial=0) <= cap:
        return found
    expanded, placed = expand_placement(workload, found)
    setting = setting_of(expanded, cluster, config, EFFORTS[config.budget])
    start = Split(placed.device_of_compute, placed.device_of_data)
    state = whole_state(problem_of(expanded), start, cluster, setting)
    return replace(found, device_of_data=exchange_owners(state, found.head_groups, cap))


def relieved(
    found: Placement,
    workload: Workload,
    cluster: Cluster,
    config: PlanConfig,
    effort: Effort,
) -> Placement:
    """Relieve the busiest device, starting from any placement; caps that hold go on to hold."""
    from dcp_planner.search.bottleneck import relieve_split
    from dcp_planner.search.multilevel import setting_of
    from dcp_planner.search.problem import Split

    caps = setting_of(workload, cluster, config, effort).caps
    start = Split(found.device_of_compute, found.device_of_data)
    split = relieve_split(start, workload, cluster, caps, effort.relief)
    return Placement(split.owner, split.part, found.warnings)


def tiles_placed(
    owner: NDArray[np.int32], workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[Placement, Placement]:
    """Place tiles for fixed owners, levelled: where their queries are, and searched for time."""
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
