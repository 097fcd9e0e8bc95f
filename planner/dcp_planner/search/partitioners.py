"""Choose a device for every block and tile: `place`, the partitioners by name, and the portfolio.

The portfolio is the default. It predicts the time of several candidates, each with the schedule
that it would get, and takes the fastest of those that hold the caps. Candidates are the static
layouts and all placements of the native search (`native.ladder`): for few bytes, then for a short
time under the caps and under tighter caps. So its result is never slower in simulation than a
static layout that holds the caps as well. Of a batch with many tiles only the candidates of the
best estimates are predicted; a huge one takes the result of a quick search.

The front of a batch (a Pareto front) is the set of candidates that no other candidate equals or
beats in every figure. Time, bytes between nodes, balance and memory conflict: tighter caps send
more bytes. An objective takes the candidate that is best in its figure; the default, time, needs no
other figures.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from dcp_planner.baselines import (
    HEAD_KINDS,
    STATIC_KINDS,
    StaticHeads,
    StaticLayout,
    groups_worth_trying,
    largest_team,
    spread,
    teams_of,
)
from dcp_planner.errors import PlanError, nearest
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import Objective, PlanConfig, tolerances_of
from dcp_planner.model.cost_model import workload_seconds
from dcp_planner.model.problem import (
    Caps,
    Partitioner,
    Placement,
    Workload,
    at_home,
    caps_of,
    loads_on,
    pack_largest_first,
)
from dcp_planner.search.caps import find_shortfalls
from dcp_planner.search.kahypar import KaHyPar
from dcp_planner.search.native import WIDE, Native, hold_tokens, ladder, refine
from dcp_planner.simulation.schedules import estimate_placement, predict_placement, weigh_placement
from dcp_planner.tables.head_groups import group_shape, is_cuttable


@dataclass(frozen=True, slots=True, eq=False)
class FrontPoint:
    """A placement with its figures; less is better in each."""

    placement: Placement  # devices of blocks and tiles
    seconds: float  # predicted time, forward and backward
    # compute, tokens: most over mean; 1 is level
    compute: float
    tokens: float
    # forward_inter, backward_inter: bytes between nodes
    forward_inter: int
    backward_inter: int
    memory_bytes: int  # most bytes of receive buffers and partial sums on a device

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
    """Keep the points that no other point equals or beats in every figure; fastest first.

    Of equal points the first stays. O(n^2).
    """
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda p: tuple(p.figures().values())):
        own = point.figures()
        # A later point cannot beat an earlier one: it is larger in the first figure that differs.
        if not any(all(one.figures()[name] <= own[name] for name in own) for one in kept):
            kept.append(point)
    return tuple(kept)


def pick(front: Iterable[FrontPoint], objective: Objective) -> FrontPoint:
    """Take the best point of a front for an objective, the fastest of equals."""
    return min(front, key=lambda point: (_GOALS[objective](point), point.seconds))


def weigh(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> FrontPoint:
    """Compute the figures of a placement with the schedule that it would get."""
    weighed = weigh_placement(workload, found, cluster, config)
    pairs, tokens = loads_on(found, workload, cluster)
    work = pairs / cluster.work_of_device
    return FrontPoint(
        found,
        weighed.seconds,
        float(work.max() / max(work.mean(), 1e-300)),  # no work: 0
        float(tokens.max() / max(tokens.mean(), 1e-300)),
        *weighed.inter_bytes,
        weighed.memory_bytes,
    )


@dataclass(frozen=True, slots=True)
class Portfolio(Partitioner):
    """Takes the fastest candidate, or the candidate that is best for another objective."""

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "portfolio"

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Try all candidates; the same seed gives the same result."""
        if config.objective != "time":
            return pick(place_front(workload, cluster, config), config.objective).placement
        if workload.num_tiles * cluster.num_devices > MOST_JUDGED:
            return Native().place(workload, cluster, replace(config, budget="fast"))
        return fastest(_candidates(workload, cluster, config), workload, cluster, config)


def place_front(workload: Workload, cluster: Cluster, config: PlanConfig) -> tuple[FrontPoint, ...]:
    """Find the front of the placements under the caps; of all, if none holds the caps.

    Without a compute tolerance few bytes would mean one busy device: then placements hold that of
    the wider search, but for the fastest of all.
    """
    caps = caps_of(workload, cluster.num_devices, config)
    found = list(_candidates(workload, cluster, config))
    held = [one for one in found if _excess(one, workload, cluster, caps) == 0] or found
    points = [weigh(one, workload, cluster, config) for one in held]
    bounded = replace(config, compute_tolerance=config.compute_tolerance or WIDE)
    level = caps_of(workload, cluster.num_devices, bounded)
    kept = [p for p in points if _excess(p.placement, workload, cluster, level) == 0]
    return pareto([*kept, min(points, key=lambda p: p.seconds)] if kept else points)


def _candidates(workload: Workload, cluster: Cluster, config: PlanConfig) -> Iterator[Placement]:
    """Yield the placements that the portfolio chooses from.

    Layouts come last. Computing alone takes most of them longer than the search's results take in
    all, so `fastest` need not predict them.
    """
    yield from ladder(workload, cluster, config)
    yield from _layouts_held(workload, cluster, config)


def _layouts_held(workload: Workload, cluster: Cluster, config: PlanConfig) -> Iterator[Placement]:
    """Yield the static layouts, brought under the token cap."""
    for layout in _LAYOUTS:
        found = layout.place(workload, cluster, config)
        yield at_home(hold_tokens(found, workload, cluster, config), workload)


def fastest(
    candidates: Iterable[Placement], workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Find the placement of the shortest predicted time among those that exceed the caps least.

    Of a batch with many tiles all are estimated, and those near the best estimate are predicted. Of
    equals the first is taken. Placements may have head groups.
    """
    estimated = list(_estimated(candidates, workload, cluster, config))
    least = min(quality for quality, _ in estimated)
    most = _NEAR * least[1] if workload.num_tiles > _FEW_TILES else np.inf
    near = [one for (excess, s), one in estimated if excess == least[0] and s <= most]
    assert near, "every candidate takes a finite time"
    if len(near) == 1:
        return near[0]
    return min(near, key=lambda one: layer_seconds(one, workload, cluster, config))


def _estimated(
    candidates: Iterable[Placement], workload: Workload, cluster: Cluster, config: PlanConfig
) -> Iterator[tuple[tuple[float, float], Placement]]:
    """Yield candidates with their excess over the caps and their estimated seconds.

    Those whose compute alone takes longer than the best so far in all are left out. Where whole
    blocks seem too coarse for the token tolerance, a candidate that holds it comes first.
    """
    caps = caps_of(workload, cluster.num_devices, config)
    level = (1 + config.token_tolerance) * int(workload.block_tokens.sum()) / cluster.num_devices
    least = (np.inf, np.inf)
    for found in candidates:
        excess = _excess(found, workload, cluster, caps)
        if excess == 0 and loads_on(found, workload, cluster)[1].max(initial=0) > level:
            excess = _TOLERATED
        if (excess, _compute_seconds(workload, found, cluster)) < least:
            quality = excess, _estimated_seconds(found, workload, cluster, config)
            least = min(least, quality)
            yield quality, found


def _estimated_seconds(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> float:
    _, tokens = loads_on(found, workload, cluster)
    seconds = estimate_placement(workload, found, cluster, config)
    return seconds + config.token_seconds * float(tokens.max(initial=0))


def quick_seconds(workload: Workload, cluster: Cluster, config: PlanConfig) -> float:
    """Estimate the seconds of a layer from a first search: for few bytes, then for a short time."""
    tried = itertools.islice(ladder(workload, cluster, config), 2)
    return _least_seconds(tried, workload, cluster, config)


def layouts_seconds(workload: Workload, cluster: Cluster, config: PlanConfig) -> float:
    """Estimate the seconds of a layer in the best static layout, brought under the token cap."""
    return _least_seconds(_layouts_held(workload, cluster, config), workload, cluster, config)


def _least_seconds(
    tried: Iterable[Placement], workload: Workload, cluster: Cluster, config: PlanConfig
) -> float:
    excess, seconds = min(quality for quality, _ in _estimated(tried, workload, cluster, config))
    return (1 + excess) * seconds


def _excess(found: Placement, workload: Workload, cluster: Cluster, caps: Caps) -> float:
    """Compute the largest excess of a device over a cap, as a share of the cap; 0 if caps hold."""
    pairs, tokens = loads_on(found, workload, cluster)
    # `loads_on` counts all pairs in every head group; the caps count them once.
    work = pairs / cluster.work_of_device / found.head_groups
    shares = float(work.max()) / max(1, caps.pairs), float(tokens.max()) / max(1, caps.tokens)
    if workload.shape.exact_sums:  # compute follows the tokens: its cap is seldom met
        shares = shares[1], shares[1]
    return max(*shares, 1.0) - 1.0


def _compute_seconds(workload: Workload, found: Placement, cluster: Cluster) -> float:
    """Add up the seconds that the busiest device computes in each direction."""
    groups, total = found.head_groups, 0.0
    for is_backward in (False, True):
        seconds = np.tile(workload_seconds(workload, cluster, is_backward=is_backward), groups)
        busy = np.bincount(found.device_of_compute, seconds, cluster.num_devices)
        # A tile of one group has a Gth of the heads, and takes a Gth of the seconds.
        total += float((busy / cluster.speed_of_device).max()) / groups
    return total


MOST_JUDGED = 100_000_000
"""Most tiles times devices of a batch whose candidates are judged; else a quick search decides.

Predicting one layout would take longer than the search: it sends a message for nearly every tile.
"""
SETTLED = 1.02
"""Times the mean that the busiest device may compute where nothing travels: nothing is sought."""
_TOLERATED = 1e-9
"""Excess over caps that were widened to what whole blocks allow."""
_NEAR = 1.05
"""Times the best estimate: candidates beyond it are not predicted if tiles are many."""
_FEW_TILES = 2_000  # 500 spares a twelfth of the work and costs 0.1 % of the time (LOG.md)
_HOPELESS = 1.1  # times the fastest so far: beyond it, more head groups are not tried
_LAYOUTS = tuple(StaticLayout(kind) for kind in STATIC_KINDS)
_HEADS = tuple(StaticHeads(kind) for kind in HEAD_KINDS)
_ADAPTERS: tuple[Partitioner, ...] = (
    Portfolio(),
    Native(),
    KaHyPar(),
    *_LAYOUTS,
    *_HEADS,
)
PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType({a.name: a for a in _ADAPTERS})
"""Every partitioner by the name that `PlanConfig.partitioner` takes."""


def static_layouts(shape: ModelShape, cluster: Cluster) -> tuple[str, ...]:
    """List the names of all static layouts that can be made for a shape and a cluster."""
    names = [layout.name for layout in _LAYOUTS]
    config = PlanConfig()
    return (*names, *(heads.name for heads in _HEADS if heads.is_possible(shape, cluster, config)))


def find_partitioner(name: str) -> Partitioner:
    """Find the partitioner of a name."""
    if name not in PARTITIONERS:
        known = ", ".join(PARTITIONERS)
        raise PlanError(
            f"unknown partitioner {name!r}; expected one of {known}{nearest(name, PARTITIONERS)}"
        )
    return PARTITIONERS[name]


def check_installed(partitioner: Partitioner) -> None:
    """Refuse a partitioner that cannot run here."""
    reason = partitioner.unavailable()
    if reason:
        raise PlanError(f"partitioner {partitioner.name!r} cannot run: {reason}")


def place(workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Place a workload with the chosen partitioner and hold the result to the caps.

    The result of an external partitioner is held to the caps and searched again with the moves of
    `native`. A static layout is a baseline and stays as it is. ``Placement.warnings`` names the
    caps that are still missed.

    Where tokens have a price, the placement with the shortest layer wins, whatever its tolerance.
    """
    partitioner = find_partitioner(config.partitioner)
    is_trivial = workload.num_tiles == 0 or cluster.num_devices == 1
    if is_trivial and not isinstance(partitioner, StaticHeads):
        # Nothing to search; KaHyPar refuses one part and empty hypergraphs.
        partitioner = PARTITIONERS["static:contiguous"]
    check_installed(partitioner)
    if workload.shape.exact_sums and isinstance(partitioner, StaticHeads):
        raise PlanError(
            f"{partitioner.name} splits heads, and the owner of a query computes all of them in a "
            "reproducible plan; use static:zigzag"
        )
    placed = [_place(partitioner, workload, cluster, tried) for tried in tolerances_of(config)]
    found = placed[0]
    if len(placed) > 1:
        found = min(placed, key=lambda one: layer_seconds(one, workload, cluster, config))
    return replace(found, warnings=find_shortfalls(found, workload, cluster, config))


def layer_seconds(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> float:
    """Predict the seconds of a layer: its attention, plus the fullest device's priced tokens."""
    _, tokens = loads_on(found, workload, cluster)
    seconds = predict_placement(workload, found, cluster, config).seconds
    return seconds + config.token_seconds * float(tokens.max(initial=0))


def _place(
    partitioner: Partitioner, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Place with the head groups of the configuration, or with the fastest number if ``"auto"``."""
    groups = 1 if workload.shape.exact_sums else config.head_groups
    if isinstance(partitioner, Portfolio) and config.objective == "time" and groups in (1, "auto"):
        found = place_apart(workload, cluster, config)
        if found is not None:
            return at_home(found, workload)
    if isinstance(partitioner, StaticHeads) or groups == 1:
        return _place_whole(partitioner, workload, cluster, config)
    if groups != "auto":
        return _place_in_groups(partitioner, workload, cluster, config, groups)
    best = _place_whole(partitioner, workload, cluster, config)
    if isinstance(partitioner, StaticLayout):
        return best  # a baseline stays as it is
    least = predict_placement(workload, best, cluster, config).seconds
    for groups in groups_worth_trying(workload.shape, cluster):
        if not is_cuttable(workload, groups):
            break  # more groups make the expanded batch longer still
        more = _place_in_groups(partitioner, workload, cluster, config, groups)
        seconds = predict_placement(workload, more, cluster, config).seconds
        best, least = fastest([best, more], workload, cluster, config), min(least, seconds)
        if seconds > _HOPELESS * least:
            break  # finer groups exchange even more
    layouts = [
        layout.place(workload, cluster, config)
        for layout in _HEADS
        if layout.is_possible(workload.shape, cluster, config)
    ]
    layouts = [found for found in layouts if is_cuttable(workload, found.head_groups)]
    return fastest([best, *layouts], workload, cluster, config)


def place_apart(workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement | None:
    """Deal whole documents out, longest compute first, if that leaves next to nothing to gain.

    That is: the caps hold, and the busiest device computes at most `SETTLED` times the mean. A
    batch of thousands of short documents would take the search seconds.
    """
    forward, backward = (workload_seconds(workload, cluster, is_backward=b) for b in (False, True))
    seconds = forward + backward
    of_tile = workload.block_sequence[workload.compute_q]
    spent = np.bincount(of_tile, seconds, len(workload.cu_seqlens) - 1)
    part = pack_largest_first(np.rint(1e12 * spent).astype(np.int64), cluster.num_devices)
    found = Placement(part[workload.block_sequence], part[of_tile])
    busy = np.bincount(found.device_of_compute, seconds, cluster.num_devices)
    speed = cluster.speed_of_device
    if (busy / speed).max() > SETTLED * busy.sum() / speed.sum():
        return None
    if _excess(found, workload, cluster, caps_of(workload, cluster.num_devices, config)) > 0:
        return None
    layouts = (layout.place(workload, cluster, config) for layout in _LAYOUTS)
    return fastest((found, *layouts), workload, cluster, config)


def _place_whole(
    partitioner: Partitioner, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Place all heads of a tile on one device; repair results of external partitioners."""
    found = partitioner.place(workload, cluster, config)
    found = found if partitioner.is_fixed else refine(found, workload, cluster, config)
    return at_home(found, workload)


def _place_in_groups(
    partitioner: Partitioner, workload: Workload, cluster: Cluster, config: PlanConfig, groups: int
) -> Placement:
    """Place on teams that split the heads, inside nodes or wider, whichever is faster."""
    group_shape(workload.shape, groups)  # raises if the heads cannot be cut into these groups
    candidates = []
    for size in sorted({largest_team(cluster, groups, is_inside=b) for b in (True, False)}):
        teams = teams_of(cluster, size)
        inner = partitioner if teams.num_devices > 1 else StaticLayout("contiguous")
        found = spread(_place_whole(inner, workload, teams, config), workload, groups, size)
        candidates.append(hold_tokens(found, workload, cluster, config))
    return fastest(candidates, workload, cluster, config)
