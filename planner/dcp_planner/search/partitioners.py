"""Choose a device for every block and tile: `place`, the partitioners by name, and the portfolio.

The portfolio is the default. It predicts the time of several candidates, each with the schedule
that it would get, and takes the fastest. Candidates are the static layouts, the native search, and
the search for time from both. The portfolio drops a layout whose devices own more tokens than the
tolerance allows, unless nothing else is left. It lets a candidate exceed the compute tolerance,
because the predicted time shows that already. So among the placements that fit in memory, its
result is never slower in simulation than the best static layout.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from dcp_planner.baselines.heads import (
    HEAD_KINDS,
    StaticHeads,
    groups_worth_trying,
    largest_team,
    spread,
    teams_of,
)
from dcp_planner.baselines.layouts import STATIC_KINDS, StaticKind, StaticLayout
from dcp_planner.errors import PlanError, nearest
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig, tolerances_of
from dcp_planner.model.cost_model import workload_seconds
from dcp_planner.model.packing import loads_of
from dcp_planner.model.placement import Partitioner, Placement, caps_of
from dcp_planner.model.workload import Workload
from dcp_planner.search.effort import EFFORTS, efforts_up_to
from dcp_planner.search.kahypar import MT_KAHYPAR, KaHyPar
from dcp_planner.search.native import Native, refine, relieved, searched
from dcp_planner.search.repair import find_shortfalls, level_owners
from dcp_planner.simulation.schedules import predict_placement
from dcp_planner.tables.head_groups import group_shape, is_cuttable

STARTS: tuple[StaticKind, ...] = ("contiguous", "zigzag", "grid")
"""Layouts that a search for time starts from as well; a fast one from the first only."""


@dataclass(frozen=True, slots=True)
class Portfolio(Partitioner):
    """Takes the candidate of the shortest predicted time.

    Attributes:
        others: partitioners by name that ``PlanConfig.candidates`` may add.
    """

    others: tuple[Partitioner, ...] = ()

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "portfolio"

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
    """Find the placement of the shortest predicted time among those within the token cap, if any.

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
        quality = is_over, layer_seconds(found, workload, cluster, config)
        if quality < least:
            best, least = found, quality
    assert best is not None, "every candidate takes a finite time"
    return best


def _compute_seconds(workload: Workload, found: Placement, cluster: Cluster) -> float:
    """Add up the seconds that the busiest device computes in each direction."""
    groups, speed = found.head_groups, cluster.speed_of_device
    return sum(
        float(
            (
                np.bincount(
                    found.device_of_compute,
                    np.tile(workload_seconds(workload, cluster, is_backward=is_backward), groups),
                    cluster.num_devices,
                )
                / speed
            ).max()
        )
        / groups
        for is_backward in (False, True)
    )


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
    """List the names of all static layouts that can be made for a shape and a cluster."""
    names = [f"static:{kind}" for kind in STATIC_KINDS]
    config = PlanConfig()
    return (*names, *(heads.name for heads in _HEADS if heads.is_possible(shape, cluster, config)))


def find_partitioner(name: str) -> Partitioner:
    """Find the partitioner of a name.

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

    Where tokens have a price, the placement of the shortest step wins, whichever tolerance it had.

    Raises:
        PlanError: if the partitioner is unknown, not installed, fails or takes too long.
    """
    partitioner = find_partitioner(config.partitioner)
    is_trivial = workload.num_tiles == 0 or cluster.num_devices == 1
    if is_trivial and not isinstance(partitioner, StaticHeads):
        # Nothing to search for; KaHyPar refuses one part and empty hypergraphs.
        partitioner = PARTITIONERS["static:contiguous"]
    check_installed(partitioner)
    placed = [_place(partitioner, workload, cluster, tried) for tried in tolerances_of(config)]
    found = placed[0]
    if len(placed) > 1:
        found = min(placed, key=lambda one: layer_seconds(one, workload, cluster, config))
    return replace(
        found, warnings=found.warnings + find_shortfalls(found, workload, cluster, config)
    )


def layer_seconds(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> float:
    """Predict a layer: its attention, and the fullest device's tokens at their price."""
    tokens = np.bincount(found.device_of_data, weights=workload.block_tokens)
    seconds = predict_placement(workload, found, cluster, config).seconds
    return seconds + config.token_seconds * float(tokens.max(initial=0))


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
    for size in sorted({largest_team(cluster, groups, is_inside=b) for b in (True, False)}):
        teams = teams_of(cluster, size)
        inner = partitioner if teams.num_devices > 1 else StaticLayout("contiguous")
        found = _place_whole(inner, workload, teams, whole)
        found = spread(found, workload, groups, size)
        candidates.append(level_owners(found, workload, cluster, config))
    return fastest(candidates, workload, cluster, config)
