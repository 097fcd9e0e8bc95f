"""Build validated plans: place, schedule, emit and check; for one mask or for a stack of masks.

In a stack, layers with local and with global attention alternate, but tokens cannot move between
layers. So all masks share one ownership of tokens, and each has tiles, divisions and programs of
its own. The search looks for an ownership under all masks together and under each mask alone. Over
each of these ownerships every mask's tiles are placed anew; the ownership with the least time,
summed over all layers, is kept. The portfolio also tries the static layouts, so a stack is never
slower than they are.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dcp_dsl import BlockSparsity
from dcp_dsl.arrays import Indices, Ints
from dcp_dsl.forms import BlockKind
from dcp_planner.baselines import STATIC_KINDS, StaticLayout
from dcp_planner.errors import BufferLimitError, PlanError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig, tolerances_of
from dcp_planner.model.problem import Placement, PlanWarning, Workload, at_home, caps_of, loads_on
from dcp_planner.plan.assembly import Arranged, emit_plans, workload_of
from dcp_planner.search.caps import find_shortfalls
from dcp_planner.search.native import Native, ladder, tiles_placed
from dcp_planner.search.partitioners import FrontPoint, Portfolio, layer_seconds, place, place_front
from dcp_planner.simulation.schedules import predict_placement, schedules_kept
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.metrics import own_bytes_per_token
from dcp_planner.tables.plan import Plan, Provenance

MOST_TILES = 1 << 22
"""Most tiles of a plan: planning them takes minutes, not hours."""


@schedules_kept()
def build_plan(
    sparsity: BlockSparsity,
    shape: ModelShape,
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
    *,
    provenance: Provenance | None = None,
) -> Plan:
    """Place, schedule and emit one batch, and validate the result.

    The same arguments give the same plan, byte for byte; `digest` shows it. ``Plan.warnings`` lists
    the caps of `config` that could not be held.

    If the plan does not fit ``config.memory_limit_bytes``, its blocks are streamed: they come late,
    leave early and may be fetched twice. If that is not enough, or the default search finds it
    faster, a static layout replaces the partitioner's placement, and ``Plan.warnings`` says so. If
    nothing else fits, that layout may exceed the tolerances; its tokens above the cap then count as
    memory.

    Raises:
        BufferLimitError: if nothing fits the memory limit; it says the smallest one that works.
        PlanError: if the cluster or the number of tiles is too large, or the partitioner is
            unknown, missing, fails or takes too long.
        ValueError: if queries and keys are cut at different places.
    """
    workload = workload_of(sparsity, shape, config)
    check_size(workload, config)
    (plan,) = emit_plans([_arrange(workload, cluster, config)], [1], cluster, config)
    return replace(plan, provenance=provenance)


@schedules_kept()
def build_front(
    sparsity: BlockSparsity,
    shape: ModelShape,
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
) -> tuple[FrontPoint, ...]:
    """Find the Pareto front of one batch's placements: none is beaten in every figure.

    The fastest comes first. One run of the default search finds all of them: it tightens the caps
    of `config` rung by rung, so all hold these caps. `build_plan` plans the one that
    ``PlanConfig.objective`` names.

    Raises:
        PlanError: as `build_plan`; if heads are to be in groups.
    """
    if config.head_groups != 1:
        raise PlanError(
            f"a front has one head group, got {config.head_groups}; leave head_groups out"
        )
    workload = workload_of(sparsity, shape, config)
    check_size(workload, config)
    return place_front(workload, cluster, config)


def _arrange(workload: Workload, cluster: Cluster, config: PlanConfig) -> Arranged:
    """Place and schedule; where memory is short, another placement may fit or be faster."""
    found = place(workload, cluster, config)
    # Ranked by bytes of tokens above the cap on the fullest device, then by seconds.
    fitting: list[tuple[tuple[int, float], Arranged]] = []
    refused = []
    try:
        first = Arranged.of(workload, found, cluster, config)
    except BufferLimitError as error:
        refused.append(error)
        reason = f"with {config.partitioner} {error}"
    else:
        # Streaming costs time. Only the portfolio may then take a layout that needs none.
        if config.partitioner != PORTFOLIO or not first.schedule.is_streamed:
            return first
        fitting.append(((0, first.seconds(cluster)), first))
        reason = "it is faster within memory_limit_bytes"
    for chosen, other in _others(workload, cluster, config, has_found=bool(fitting)):
        spent = _spent(other, workload, cluster, config)
        unlimited = predict_placement(workload, other, cluster, config).seconds
        # Streaming takes long to find: skip a layout that loses even before the limit slows it.
        if any(rank <= (int(spent.max()), unlimited) for rank, _ in fitting):
            continue
        try:
            arranged = Arranged.of(workload, other, cluster, chosen, spent)
            fitting.append(((int(spent.max()), arranged.seconds(cluster)), arranged))
        except BufferLimitError as error:
            refused.append(error)
    if not fitting:
        raise min(refused, key=lambda error: error.least)
    _, best = min(fitting, key=lambda entry: entry[0])
    if best.partitioner == config.partitioner:
        return best
    warning = PlanWarning("placed_by_layout", f"placed by {best.partitioner}, because {reason}")
    warnings = (*best.placement.warnings, warning)
    return replace(best, placement=replace(best.placement, warnings=warnings))


def _others(
    workload: Workload, cluster: Cluster, config: PlanConfig, *, has_found: bool
) -> Iterator[tuple[PlanConfig, Placement]]:
    """Yield static layouts that hold all caps; if nothing fits yet, all of them and all rungs.

    The rungs come from `ladder`, which searches one head group: under tighter caps the fullest
    device holds less.
    """
    if not has_found and config.partitioner in _SEARCHED and config.head_groups in (1, "auto"):
        for found in ladder(workload, cluster, config):
            missed = find_shortfalls(found, workload, cluster, config)
            yield config, replace(found, warnings=missed)
    for kind in sorted(STATIC_KINDS):
        chosen = replace(config, partitioner=f"static:{kind}")
        found = place(workload, cluster, chosen)
        if not (has_found and found.warnings):
            yield chosen, found


def _spent(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Ints:
    """Compute the bytes of each device's tokens above the cap, int64 ``[R]``.

    They count within the memory limit, so a layout cannot save buffers by giving one device more
    tokens of its own.
    """
    devices = cluster.num_devices
    # The widest cap that the configuration allows: it may try several token tolerances.
    cap = max(caps_of(workload, devices, tried).tokens for tried in tolerances_of(config))
    above = np.maximum(loads_on(found, workload, cluster)[1] - cap, 0)
    return np.asarray(above * sum(own_bytes_per_token(workload.shape)))


def check_size(workload: Workload, config: PlanConfig) -> None:
    """Refuse a batch whose planning would take hours."""
    groups = 1 if config.head_groups == "auto" else config.head_groups
    if workload.num_tiles * groups > MOST_TILES:
        times = f" in each of {groups} head groups" if groups > 1 else ""
        raise PlanError(
            f"expected at most {MOST_TILES:,} tiles, got {workload.num_tiles:,} from "
            f"{workload.num_blocks:,} blocks{times}; use larger blocks"
        )


PORTFOLIO = Portfolio().name
_SEARCHED = (PORTFOLIO, Native().name)


@dataclass(frozen=True, slots=True, eq=False)
class PlanStack:
    """Plans of all distinct masks, with the same blocks and owners.

    Attributes:
        plans: validated plans, one for each mask.
        layers: number of layers of the model that run each plan.
    """

    plans: tuple[Plan, ...]
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.plans) == len(self.layers), "one number of layers per plan"
        first = self.plans[0].blocks
        for plan in self.plans[1:]:
            for name in ("start", "end", "owner"):
                if not np.array_equal(getattr(plan.blocks, name), getattr(first, name)):
                    raise PlanError(
                        f"the plans of a stack share their blocks and owners: {name} differs"
                    )

    def seconds(self) -> float:
        """Predict forward and backward of all layers."""
        return sum(
            count * predict(plan).seconds
            for plan, count in zip(self.plans, self.layers, strict=True)
        )


@schedules_kept()
def build_stack(
    masks: Sequence[tuple[BlockSparsity, int]],
    shape: ModelShape,
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
) -> PlanStack:
    """Plan a batch for layers with different masks over one ownership of tokens.

    Args:
        masks: block sparsity and number of layers of each distinct mask; all of the same sequences,
            cut at the same places (`cut_stack` cuts them so).
        shape: heads and element size.
        cluster: the machine.
        config: as for `build_plan`; every mask is held to the caps as its plan would be there.
            Heads are in one group.

    Raises:
        BufferLimitError: if a mask does not fit the memory limit; it says the smallest one that
            works for all of them.
        PlanError: if there is no mask, the masks are cut differently, a mask has too many tiles, or
            no placement can be made.
    """
    _check(masks)
    if config.head_groups not in (1, "auto"):
        raise PlanError(
            f"a stack of masks has one head group, got {config.head_groups}; leave head_groups "
            "away, or plan each mask on its own"
        )
    # "auto" leaves the number open, so a stack may take one group.
    config = replace(config, head_groups=1)
    workloads = [workload_of(sparsity, shape, config) for sparsity, _ in masks]
    for workload in workloads:
        check_size(workload, config)
    layers = [count for _, count in masks]

    def seconds(ranked: _Ranked) -> float:
        return sum(
            count * layer_seconds(tried[0], w, cluster, config)
            for w, tried, count in zip(workloads, ranked, layers, strict=True)
        )

    candidates = sorted(_candidates(workloads, layers, cluster, config), key=seconds)
    refused = []
    # The frugal ones are made only if no candidate fits: a limit of memory is rare.
    for ranked in itertools.chain(candidates, _frugal(workloads, layers, cluster, config)):
        try:
            arranged = _arrange_all(workloads, ranked, cluster, config)
        except BufferLimitError as error:
            refused.append(error)
        else:
            return PlanStack(emit_plans(arranged, layers, cluster, config), tuple(layers))
    raise min(refused, key=lambda error: error.least)


_Ranked: TypeAlias = "list[list[Placement]]"
"""Placements of every mask over one ownership, those of a mask from the fastest to the slowest."""


def _arrange_all(
    workloads: Sequence[Workload], ranked: _Ranked, cluster: Cluster, config: PlanConfig
) -> list[Arranged]:
    """Schedule the fastest placement of every mask that fits the memory limit."""
    arranged, refused = [], []
    for workload, tried in zip(workloads, ranked, strict=True):
        errors = []
        for found in tried:
            try:
                spent = _spent(found, workload, cluster, config)
                arranged.append(Arranged.of(workload, found, cluster, config, spent))
                break
            except BufferLimitError as error:
                errors.append(error)
        else:
            refused.append(min(errors, key=lambda error: error.least))
    if refused:
        # The smallest limit of each mask is known; all of them together need the largest.
        raise max(refused, key=lambda error: error.least)
    return arranged


def _check(masks: Sequence[tuple[BlockSparsity, int]]) -> None:
    if not masks:
        raise PlanError("a stack needs at least one mask, got none")
    first = masks[0][0]
    for number, (sparsity, layers) in enumerate(masks):
        if layers < 1:
            raise PlanError(f"mask {number} of the stack: expected at least 1 layer, got {layers}")
        if not np.array_equal(sparsity.q_bounds, first.q_bounds):
            raise PlanError(
                f"mask {number} of the stack is cut at other places than mask 0; cut them "
                "together: cut_stack(masks, block)"
            )


def _candidates(
    workloads: Sequence[Workload], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> Iterator[_Ranked]:
    """Yield placements of all masks, each time over one ownership; of equals the first is kept."""
    for owner in _ownerships(workloads, layers, cluster, config):
        yield [_place_tiles(workload, owner, cluster, config) for workload in workloads]
    if config.partitioner == PORTFOLIO:
        for found in _shared_layouts(workloads, cluster, config):
            if not any(tried[0].warnings for tried in found):
                yield found


def _frugal(
    workloads: Sequence[Workload], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> Iterator[_Ranked]:
    """Yield the last resorts: placements to try where no candidate fits the memory limit.

    First the whole ladder of the search over all masks together, if a search was asked for; then
    every static layout, also those that miss a cap.
    """
    if config.partitioner in _SEARCHED:
        for found in ladder(_union(workloads, layers), cluster, config):
            owner = found.device_of_data
            yield [_place_tiles(workload, owner, cluster, config) for workload in workloads]
    yield from _shared_layouts(workloads, cluster, config)


def _shared_layouts(
    workloads: Sequence[Workload], cluster: Cluster, config: PlanConfig
) -> Iterator[_Ranked]:
    """Yield the static layouts whose owners are the same under all masks, with their warnings.

    A layout that balances pairs, for example by documents, may choose other owners for each mask.
    """
    for kind in STATIC_KINDS:
        found = [StaticLayout(kind).place(workload, cluster, config) for workload in workloads]
        owner = found[0].device_of_data
        if all(np.array_equal(owner, other.device_of_data) for other in found[1:]):
            yield [
                [replace(one, warnings=find_shortfalls(one, workload, cluster, config))]
                for one, workload in zip(found, workloads, strict=True)
            ]


def _ownerships(
    workloads: Sequence[Workload], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> list[Indices]:
    """List owners found for all masks together, then for each alone; no ownership twice."""
    found: list[Indices] = []
    # The union stands for all layers at once, so a token costs the linear part of all of them.
    together = replace(config, token_seconds=sum(layers) * config.token_seconds)
    alone = [(workload, config) for workload in workloads if len(workloads) > 1]
    for workload, chosen in [(_union(workloads, layers), together), *alone]:
        owner = place(workload, cluster, chosen).device_of_data
        if not any(np.array_equal(owner, other) for other in found):
            found.append(owner)
    return found


def _union(workloads: Sequence[Workload], layers: Sequence[int]) -> Workload:
    """Build a workload of the tiles of all masks, each with its pairs summed over all layers.

    It is good for placing only: its slabs and forms are those of the first mask.
    """
    first, blocks = workloads[0], workloads[0].num_blocks
    place_of_tile = np.concatenate(
        [w.compute_q.astype(np.int64) * blocks + w.compute_kv for w in workloads]
    )
    pairs = np.concatenate(
        [w.compute_pairs * count for w, count in zip(workloads, layers, strict=True)]
    )
    # Tiles at the same blocks merge: one device computes them in every layer.
    found, inverse = np.unique(place_of_tile, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, inverse, pairs)
    q, kv = np.divmod(found, blocks)
    return replace(
        first,
        compute_q=q.astype(np.int32),
        compute_kv=kv.astype(np.int32),
        # Pairs of several layers may exceed the tile's area, so none of them is called full.
        compute_kind=np.full(len(found), BlockKind.PARTIAL, np.uint8),
        compute_pairs=total,
    )


def _place_tiles(
    workload: Workload, owner: Indices, cluster: Cluster, config: PlanConfig
) -> list[Placement]:
    """Place the tiles of one mask for fixed owners; the fastest placement comes first.

    Every tile on the owner of its queries is a candidate too, if that holds the caps.
    """
    start = Placement(owner, owner[workload.compute_q])
    tried = tiles_placed(owner, workload, cluster, config)
    candidates = [at_home(one, workload) for one in tried]
    if not find_shortfalls(start, workload, cluster, config):
        candidates.append(start)
    candidates.sort(key=lambda p: predict_placement(workload, p, cluster, config).seconds)
    return [
        replace(one, warnings=find_shortfalls(one, workload, cluster, config)) for one in candidates
    ]
