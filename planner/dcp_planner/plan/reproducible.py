"""Build reproducible plans: every result is computed by its owner, in an order fixed by positions.

Only inputs travel. Keys go to the owners of the queries that see them, forward and backward; in
backward queries, with dout, lse and delta, go to the owners of the keys that they see. No sum has
parts on two devices, so bits do not depend on who owns what (`tables.halves`).

An owner also computes, so tokens must be dealt out so that work is level. The static layouts and
the ownerships of the search are tried, and the fastest in simulation is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from dcp_dsl import BlockSparsity
from dcp_dsl.arrays import Indices
from dcp_planner.baselines import STATIC_KINDS, StaticLayout
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cost_model import KernelWork
from dcp_planner.model.cuts import cut_on_grid
from dcp_planner.model.problem import (
    Direction,
    Placement,
    Workload,
    build_workload,
    caps_of,
    check_size,
    loads_of,
)
from dcp_planner.plan.validation import validate
from dcp_planner.schedule.divisions import Arrivals, cut_divisions
from dcp_planner.schedule.emission import Emission, emit, joined_plan
from dcp_planner.schedule.routing import find_needs
from dcp_planner.search.caps import find_shortfalls
from dcp_planner.search.native import ladder
from dcp_planner.search.partitioners import Portfolio, place
from dcp_planner.simulation.simulator import DirectionModel
from dcp_planner.tables.halves import HalvesWork, halved, in_order
from dcp_planner.tables.plan import Plan

PARTS = (2, 4, 8)
"""Numbers of parts, beside 1, that the tiles with remote inputs are cut into."""


@dataclass(frozen=True, slots=True, eq=False)
class _Played:
    """One direction, emitted and played.

    Attributes:
        division: int32 ``[W]``, of the tiles of forward, or ``[2W]``, of the halves of backward.
        emitted: its transfers and programs.
        seconds: until its end.
    """

    division: Indices
    emitted: Emission
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """An ownership with the schedules of all masks.

    Attributes:
        rank: tokens of the fullest device over the cap, at least 1, and predicted seconds.
        owner: int32 ``[D]``, of every block.
        halves: forward and backward of each mask.
    """

    rank: tuple[float, float]
    owner: Indices
    halves: list[tuple[_Played, _Played]]


def build_reproducible(
    masks: Sequence[BlockSparsity],
    layers: Sequence[int],
    shape: ModelShape,
    cluster: Cluster,
    config: PlanConfig,
) -> tuple[Plan, ...]:
    """Plan a batch under all masks of a stack over one ownership of tokens, and validate the plans.

    Args:
        masks: block sparsity of the batch under each mask, all cut at the same places; cuts are
            moved to the grid.
        layers: number of layers that use each mask.
        shape: heads and element size.
        cluster: the machine.
        config: its `partitioner` places the tokens; the default tries all of `_owners`.

    Raises:
        PlanError: if a mask has too many tiles, or the partitioner cannot place the tokens.
    """
    workloads = [build_workload(cut_on_grid(one), shape) for one in masks]
    for workload in workloads:
        check_size(workload, config)
    best = _choose(workloads, layers, cluster, config)
    plans = zip(workloads, best.halves, strict=True)
    return tuple(_plan_of(one, best.owner, halves, cluster, config) for one, halves in plans)


def build_over(
    workload: Workload, owner: Indices, cluster: Cluster, config: PlanConfig, partitioner: str
) -> Plan:
    """Plan a workload that is cut on the grid over a given ownership, and validate the plan."""
    halves = _played(workload, owner, cluster, config)
    return replace(_plan_of(workload, owner, halves, cluster, config), partitioner=partitioner)


def _choose(
    workloads: list[Workload], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> _Choice:
    """Find the ownership that exceeds the cap of tokens least and, of equals, is fastest."""
    cap = min(caps_of(workload, cluster.num_devices, config).tokens for workload in workloads)
    best: _Choice | None = None
    seen = set[bytes]()
    for owner in chain.from_iterable(_owners(one, cluster, config) for one in workloads):
        if owner.tobytes() in seen:
            continue
        seen.add(owner.tobytes())
        tokens = loads_of(owner, workloads[0].block_tokens, cluster.num_devices)
        excess = max(float(tokens.max(initial=0)) / max(1, cap), 1.0)
        if best is not None and excess > best.rank[0]:
            continue
        halves = [_played(workload, owner, cluster, config) for workload in workloads]
        seconds = sum(
            count * (forward.seconds + backward.seconds)
            for count, (forward, backward) in zip(layers, halves, strict=True)
        )
        if best is None or (excess, seconds) < best.rank:
            best = _Choice((excess, seconds), owner, halves)
    assert best is not None, "every partitioner places the tokens"
    return best


def _owners(workload: Workload, cluster: Cluster, config: PlanConfig) -> Iterator[Indices]:
    """Yield the ownerships to try."""
    if config.partitioner != Portfolio().name:
        yield place(workload, cluster, replace(config, head_groups=1)).device_of_data
        return
    for kind in STATIC_KINDS:
        yield StaticLayout(kind).place(workload, cluster, config).device_of_data
    if cluster.num_devices > 1 and workload.num_tiles:
        for found in ladder(workload, cluster, config):
            yield found.device_of_data


def _played(
    workload: Workload, owner: Indices, cluster: Cluster, config: PlanConfig
) -> tuple[_Played, _Played]:
    """Schedule both directions in the fastest way that is known."""
    whole = workload, Placement(owner, owner[workload.compute_q])
    forward = _fastest("forward", *whole, cluster, config)
    backward = _fastest("backward", *halved(workload, owner), cluster, config)
    return forward, backward


def _fastest(
    direction: Direction,
    workload: Workload,
    placement: Placement,
    cluster: Cluster,
    config: PlanConfig,
) -> _Played:
    needs = find_needs(workload, placement, cluster, config.routing)
    tiles = workload.compute_q, workload.compute_kv, workload.compute_pairs
    is_backward = direction == "backward"
    work = KernelWork.of(
        tiles, workload.block_tokens, workload.shape, cluster, is_backward=is_backward
    )
    work = HalvesWork.of_halves(work) if is_backward else work

    def half(parts: int, arrivals: Arrivals | None = None) -> _Played:
        cut = cut_divisions(workload, placement, direction, parts, arrivals)
        division = in_order(cut, workload, direction)
        emitted = emit(
            direction, workload, placement, division, needs, cluster.num_devices,
            is_frugal=False, has_results=False,
        )  # fmt: skip
        model = DirectionModel.of(
            emitted.programs, emitted.transfers, cluster, feeder=emitted.feeder
        )
        played = model.play(work, cluster)
        arrived.append(np.append(played.arrived[emitted.input_of_need], 0))
        return _Played(division, emitted, played.end_ns / 1e9)

    arrived: list[np.ndarray] = []
    if config.divisions != "auto":
        return half(config.divisions - 1)
    coarse = half(1)
    found = [coarse]
    if coarse.division.any():
        at_ns = np.asarray(arrived[0][needs.need_of_tile].max(axis=0))
        found += [half(parts) for parts in PARTS]
        found += [half(parts, Arrivals(at_ns)) for parts in PARTS]
    return min(found, key=lambda one: one.seconds)


def _plan_of(
    workload: Workload,
    owner: Indices,
    halves: tuple[_Played, _Played],
    cluster: Cluster,
    config: PlanConfig,
) -> Plan:
    (forward, backward), tiles = halves, workload.num_tiles
    placement = Placement(owner, owner[workload.compute_q])
    missed = find_shortfalls(placement, workload, cluster, config)
    divisions = forward.division, backward.division[:tiles], backward.division[tiles:]
    plan = joined_plan(
        workload, cluster, replace(placement, warnings=missed), divisions,
        (forward.emitted, backward.emitted), config.partitioner,
    )  # fmt: skip
    validate(plan)
    return plan
