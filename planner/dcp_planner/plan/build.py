"""Build validated plans: place, schedule, emit and check; for one mask or for a stack of masks.

In a stack, layers with local and with global attention alternate, but tokens cannot move between
layers: every mask gets tiles, divisions and programs of its own over one and the same ownership.
Ownerships are searched for all masks together and for each alone; for each of them every mask's
tiles are placed anew, and the ownership that takes least time summed over all layers is kept. The
portfolio looks at the static layouts as well, so that a stack is never slower than they are.
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
from dcp_planner.model.problem import (
    Placement,
    PlanWarning,
    Workload,
    build_workload,
    caps_of,
    loads_on,
)
from dcp_planner.plan.assembly import Arranged, emit_plans, shape_of
from dcp_planner.search.caps import find_shortfalls
from dcp_planner.search.native import Native, ladder, tiles_placed
from dcp_planner.search.partitioners import FrontPoint, Portfolio, layer_seconds, place, place_front
from dcp_planner.simulation.schedules import predict_placement, schedules_kept
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.metrics import own_bytes_per_token
from dcp_planner.tables.plan import Plan, Provenance

MOST_TILES = 1 << 22
"""Tiles that still take minutes, not hours."""


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

    The same arguments give the same plan, byte for byte; `digest` shows it. What the caps of
    `config` could not be held to is said in ``Plan.warnings``.

    If the plan does not fit ``config.memory_limit_bytes``, its blocks are streamed: they come late,
    leave early and may be fetched twice. If that is not enough, or the portfolio finds it faster, a
    static layout takes the place of what the partitioner found, which ``Plan.warnings`` says; if
    nothing else fits, one that exceeds the tolerances, its tokens above the cap counted as memory.

    Raises:
        BufferLimitError: if nothing fits the memory limit; it says the smallest one that works.
        PlanError: if the cluster or the number of tiles is too large, or the partitioner is
            unknown, missing, fails or takes too long.
        ValueError: if queries and keys are cut at different places.
    """
    workload = build_workload(sparsity, shape_of(shape, config))
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
    """Find placements of one batch of which none is beaten in every figure; fastest first.

    All come from one search of the portfolio, which tightens the caps of `config` rung by rung; all
    hold these caps. With ``PlanConfig.objective``, `build_plan` makes the plan of one of them.

    Raises:
        PlanError: as `build_plan`; if heads are to be in groups.
    """
    if config.head_groups != 1:
        raise PlanError(
            f"a front has one head group, got {config.head_groups}; leave head_groups out"
        )
    workload = build_workload(sparsity, shape_of(shape, config))
    check_size(workload, config)
    return place_front(workload, cluster, config)


def _arrange(workload: Workload, cluster: Cluster, config: PlanConfig) -> Arranged:
    """Place and schedule; where memory is short, another placement may fit or be faster."""
    found = place(workload, cluster, config)
    fitting: list[tuple[tuple[int, float], Arranged]] = []
    refused = []
    try:
        first = Arranged.of(workload, found, cluster, config)
    except BufferLimitError as error:
        refused.append(error)
        reason = f"with {config.partitioner} {error}"
    else:
        if config.partitioner != PORTFOLIO or not first.schedule.is_streamed:
            return first
        fitting.append(((0, first.seconds(cluster)), first))
        reason = "it is faster within memory_limit_bytes"
    for chosen, other in _others(workload, cluster, config, has_found=bool(fitting)):
        spent = _spent(other, workload, cluster, config)
        unlimited = predict_placement(workload, other, cluster, config).seconds
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
    """Yield static layouts that hold all caps; if nothing was found, all of them, and all rungs."""
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

    They count within the memory limit: what a layout saves must not go to one device's tokens.
    """
    devices = cluster.num_devices
    cap = max(caps_of(workload, devices, tried).tokens for tried in tolerances_of(config))
    above = np.maximum(loads_on(found, workload, cluster)[1] - cap, 0)
    return np.asarray(above * sum(own_bytes_per_token(workload.shape)))


def check_size(workload: Workload, config: PlanConfig) -> None:
    """Refuse what would take hours.

    Raises:
        PlanError: if the number of tiles is too large.
    """
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
        plans: validated.
        layers: how many layers of the model run each plan.
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
    config, shape = replace(config, head_groups=1), shape_of(shape, config)
    workloads = [build_workload(sparsity, shape) for sparsity, _ in masks]
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
    """Schedule the fastest placement of every mask that fits the memory limit.

    Raises:
        BufferLimitError: if none of a mask fits, with what all masks fit.
    """
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
    """Yield placements of all masks, each time over one ownership; the first of equals is kept."""
    for owner in _ownerships(workloads, layers, cluster, config):
        yield [_place_tiles(workload, owner, cluster, config) for workload in workloads]
    if config.partitioner == PORTFOLIO:
        for found in _shared_layouts(workloads, cluster, config):
            if not any(tried[0].warnings for tried in found):
                yield found


def _frugal(
    workloads: Sequence[Workload], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> Iterator[_Ranked]:
    """Yield what is tried where no other candidate fits the memory limit.

    All that the search finds for all masks together, if it was asked; then all static layouts.
    """
    if config.partitioner in _SEARCHED:
        for found in ladder(_union(workloads, layers), cluster, config):
            owner = found.device_of_data
            yield [_place_tiles(workload, owner, cluster, config) for workload in workloads]
    yield from _shared_layouts(workloads, cluster, config)


def _shared_layouts(
    workloads: Sequence[Workload], cluster: Cluster, config: PlanConfig
) -> Iterator[_Ranked]:
    """Yield the static layouts whose owners are the same under all masks, with their warnings."""
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
    together = replace(config, token_seconds=sum(layers) * config.token_seconds)
    alone = [(workload, config) for workload in workloads if len(workloads) > 1]
    for workload, chosen in [(_union(workloads, layers), together), *alone]:
        owner = place(workload, cluster, chosen).device_of_data
        if not any(np.array_equal(owner, other) for other in found):
            found.append(owner)
    return found


def _union(workloads: Sequence[Workload], layers: Sequence[int]) -> Workload:
    """Build a workload of all masks' tiles, each with its pairs in all layers together.

    It is only placed: its tiles are no blocks of its slabs.
    """
    first, blocks = workloads[0], workloads[0].num_blocks
    place_of_tile = np.concatenate(
        [w.compute_q.astype(np.int64) * blocks + w.compute_kv for w in workloads]
    )
    pairs = np.concatenate(
        [w.compute_pairs * count for w, count in zip(workloads, layers, strict=True)]
    )
    found, inverse = np.unique(place_of_tile, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, inverse, pairs)
    q, kv = np.divmod(found, max(1, blocks))
    return replace(
        first,
        compute_q=q.astype(np.int32),
        compute_kv=kv.astype(np.int32),
        compute_kind=np.full(len(found), BlockKind.PARTIAL, np.uint8),
        compute_pairs=total,
    )


def _place_tiles(
    workload: Workload, owner: Indices, cluster: Cluster, config: PlanConfig
) -> list[Placement]:
    """Place the tiles of one mask, the tokens being where they are; the fastest way first.

    Where the queries are is a way as well, if that holds the caps.
    """
    start = Placement(owner, owner[workload.compute_q])
    candidates = list(tiles_placed(owner, workload, cluster, config))
    if not find_shortfalls(start, workload, cluster, config):
        candidates.append(start)
    candidates.sort(key=lambda p: predict_placement(workload, p, cluster, config).seconds)
    return [
        replace(one, warnings=find_shortfalls(one, workload, cluster, config)) for one in candidates
    ]
