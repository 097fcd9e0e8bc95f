"""The partitioners by name, and `place`, which runs one and holds its result to the caps."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dcp_planner.baselines.heads import HEAD_KINDS, StaticHeads
from dcp_planner.baselines.layouts import STATIC_KINDS, StaticLayout
from dcp_planner.baselines.teams import (
    groups_worth_trying,
    largest_team,
    largest_team_inside,
    level_owners,
    spread,
    teams_of,
)
from dcp_planner.errors import PlanError, nearest
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.placement import Partitioner, Placement
from dcp_planner.model.workload import Workload
from dcp_planner.search.kahypar import KaHyPar
from dcp_planner.search.kahypar_process import MT_KAHYPAR
from dcp_planner.search.native import Native, refine
from dcp_planner.search.portfolio import Portfolio, fastest
from dcp_planner.search.repair import find_shortfalls
from dcp_planner.simulation.schedules import predict_placement
from dcp_planner.tables.head_groups import group_shape, is_cuttable

_EXTERNAL: tuple[Partitioner, ...] = (KaHyPar(), KaHyPar(MT_KAHYPAR))
_HOPELESS = 1.1  # times the fastest so far: with more head groups it would be slower still
_HEADS = tuple(StaticHeads(kind) for kind in HEAD_KINDS)
_ADAPTERS: tuple[Partitioner, ...] = (
    Portfolio(_EXTERNAL),
    Native(),
    *_EXTERNAL,
    *(StaticLayout(kind) for kind in STATIC_KINDS),
    *_HEADS,
)
PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType({a.name: a for a in _ADAPTERS})
"""Every partitioner by the name that `PlanConfig.partitioner` takes."""


def static_layouts(shape: ModelShape, cluster: Cluster) -> tuple[str, ...]:
    """Give the names of all static layouts that can be made for a shape and a cluster."""
    names = [f"static:{kind}" for kind in STATIC_KINDS]
    config = PlanConfig()
    return (*names, *(heads.name for heads in _HEADS if heads.is_possible(shape, cluster, config)))


def find_partitioner(name: str) -> Partitioner:
    """Give the partitioner of a name.

    Raises:
        PlanError: if there is none.
    """
    if name not in PARTITIONERS:
        known = ", ".join(PARTITIONERS)
        raise PlanError(
            f"unknown partitioner {name!r}; expected one of {known}{nearest(name, PARTITIONERS)}"
        )
    return PARTITIONERS[name]


def check_installed(partitioner: Partitioner) -> None:
    """Refuse a partitioner that cannot run here.

    Raises:
        PlanError: with the reason and the way out.
    """
    reason = partitioner.unavailable()
    if reason:
        raise PlanError(f"partitioner {partitioner.name!r} cannot run: {reason}")


def place(workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Place a workload with the chosen partitioner and hold the result to the caps.

    What an external partitioner found is held to the caps and searched once more with the moves of
    `native`. A static layout is a baseline and stays as it is. Whatever cap is still missed is said
    in ``Placement.warnings``.

    Raises:
        PlanError: if the partitioner is unknown, not installed, fails or takes too long.
    """
    partitioner = find_partitioner(config.partitioner)
    is_trivial = workload.num_tiles == 0 or cluster.num_devices == 1
    if is_trivial and not isinstance(partitioner, StaticHeads):
        # Nothing to search for; KaHyPar refuses one part and empty hypergraphs.
        partitioner = PARTITIONERS["static:contiguous"]
    check_installed(partitioner)
    found = _place(partitioner, workload, cluster, config)
    return replace(
        found, warnings=found.warnings + find_shortfalls(found, workload, cluster, config)
    )


def _place(
    partitioner: Partitioner, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Place with the head groups of the configuration; with the fastest if it leaves them open."""
    groups = config.head_groups
    if isinstance(partitioner, StaticHeads) or groups == 1:
        return _place_whole(partitioner, workload, cluster, config)
    if groups != "auto":
        return _place_in_groups(partitioner, workload, cluster, config, groups)
    whole = replace(config, head_groups=1)
    best = _place_whole(partitioner, workload, cluster, whole)
    if isinstance(partitioner, StaticLayout):
        return best  # a baseline stays as it is
    least = predict_placement(workload, best, cluster, config).seconds
    for groups in groups_worth_trying(workload.shape, cluster):
        if not is_cuttable(workload, groups):
            break  # more groups make it longer still
        more = _place_in_groups(partitioner, workload, cluster, whole, groups)
        seconds = predict_placement(workload, more, cluster, config).seconds
        best, least = fastest([best, more], workload, cluster, config), min(least, seconds)
        if seconds > _HOPELESS * least:
            break  # finer groups exchange more still
    layouts = [
        layout.place(workload, cluster, whole)
        for layout in _HEADS
        if layout.is_possible(workload.shape, cluster, whole)
    ]
    layouts = [found for found in layouts if is_cuttable(workload, found.head_groups)]
    return fastest([best, *layouts], workload, cluster, config)


def _place_whole(
    partitioner: Partitioner, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    found = partitioner.place(workload, cluster, config)
    return found if partitioner.is_fixed else refine(found, workload, cluster, config)


def _place_in_groups(
    partitioner: Partitioner, workload: Workload, cluster: Cluster, config: PlanConfig, groups: int
) -> Placement:
    """Place on teams that split the heads, inside nodes or wider, whichever is faster."""
    group_shape(workload.shape, groups)  # refuses what the heads do not allow
    whole = replace(config, head_groups=1)
    candidates = []
    for size in sorted({find(cluster, groups) for find in (largest_team_inside, largest_team)}):
        teams = teams_of(cluster, size)
        inner = partitioner if teams.num_devices > 1 else StaticLayout("contiguous")
        found = _place_whole(inner, workload, teams, whole)
        found = spread(found, workload, groups, size, teams.num_devices)
        candidates.append(level_owners(found, workload, cluster, config))
    return fastest(candidates, workload, cluster, config)
