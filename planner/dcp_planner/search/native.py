"""The partitioner `native`, the entry points of its searches, and warnings of what they miss."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig, tolerances_of
from dcp_planner.model.placement import (
    Partitioner,
    Placement,
    PlanWarning,
    cap_of,
    caps_of,
    loads_on,
)
from dcp_planner.model.workload import Workload
from dcp_planner.search.caps import exchange_owners
from dcp_planner.search.multilevel import Search
from dcp_planner.search.problem import Split
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
        """Search for few bytes, then from there for a short time; both under the caps."""
        _, timed = itertools.islice(ladder(workload, cluster, config), 2)
        return timed


def ladder(workload: Workload, cluster: Cluster, config: PlanConfig) -> Iterator[Placement]:
    """Search for few bytes, then for a short time under the caps, then under tighter ones.

    Yields the placement of few bytes, then for every rung of `RUNGS` that of a short time: the one
    before, brought under the caps of the rung and relieved. A lower rung has less room and gets
    less work. The same seed gives the same result.
    """
    split = None
    for rung in RUNGS:
        compute, tokens = config.compute_tolerance, config.token_tolerance
        caps = replace(config, compute_tolerance=rung * compute, token_tolerance=rung * tokens)
        search = Search.of(workload, cluster, caps)
        if split is None:
            split = search.few_bytes()
            yield Placement(split.owner, split.part)
        else:
            split = search.hold(split)
        split = search.relieve(split, int(rung * search.effort.relief))
        yield Placement(split.owner, split.part)


def refine(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Improve any placement: enforce the caps, then relieve the busiest device.

    Returns the placement before or after relief, whichever the simulator predicts to be faster.
    """
    search = Search.of(workload, cluster, config)
    held = search.polish(_split_of(found))
    after = search.relieve(held, search.effort.relief)
    tried = (Placement(split.owner, split.part, found.warnings) for split in (held, after))
    return min(tried, key=lambda one: predict_placement(workload, one, cluster, config).seconds)


def hold(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Bring any placement under the caps: tiles, then owners, move where that costs least bytes."""
    split = Search.of(workload, cluster, config).hold(_split_of(found))
    return Placement(split.owner, split.part, found.warnings)


def hold_tokens(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Bring the owners of a placement in head groups under the token cap, at the least bytes."""
    cap = caps_of(workload, cluster.num_devices, config).tokens
    if loads_on(found, workload, cluster)[1].max(initial=0) <= cap:
        return found
    expanded, placed = expand_placement(workload, found)
    state = Search.of(expanded, cluster, config).state_of(_split_of(placed))
    return replace(found, device_of_data=exchange_owners(state, found.head_groups, cap))


def tiles_placed(
    owner: NDArray[np.int32], workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[Placement, Placement]:
    """Place tiles for fixed owners, levelled: where their queries are, and searched for time."""
    search = Search.of(workload, cluster, config)
    start = search.level(Split(owner[workload.compute_q], owner))
    timed = search.relieve(start, search.effort.relief, keeps_owners=True)
    return Placement(owner, start.part), Placement(owner, timed.part)


def _split_of(found: Placement) -> Split:
    return Split(found.device_of_compute, found.device_of_data)


def find_shortfalls(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[PlanWarning, ...]:
    """Warn of each tolerance that a placement misses, and say if tiles or blocks could meet it.

    Where tokens have a price, that is the largest tolerance which is tried.
    """
    pairs, tokens = loads_on(found, workload, cluster)
    sizes = np.tile(workload.compute_pairs, found.head_groups)
    warnings = []
    work = pairs / cluster.work_of_device
    if work.max(initial=0) > (1 + config.compute_tolerance) * float(pairs.mean()):
        text = _shortfall("tile", work, sizes, config.compute_tolerance)
        warnings.append(PlanWarning("compute_above_tolerance", f"compute: {text}"))
    tolerance = max(tried.token_tolerance for tried in tolerances_of(config))
    if tokens.max(initial=0) > (1 + tolerance) * float(tokens.mean()):
        text = _shortfall("block", tokens, workload.block_tokens, tolerance)
        warnings.append(PlanWarning("tokens_above_tolerance", f"tokens: {text}"))
    return tuple(warnings)


def _shortfall(
    unit: str, loads: NDArray[np.int64 | np.float64], sizes: NDArray[np.int64], tolerance: float
) -> str:
    mean = float(sizes.sum()) / len(loads)
    reached = cap_of(sizes, len(loads), 0.0) / mean
    text = f"the fullest device has {loads.max() / mean:.3f} x the mean, more than the "
    text += f"tolerated {1 + tolerance:.3f}"
    if reached > 1 + tolerance:
        text += f"; whole {unit}s allow about {reached:.3f}, smaller blocks allow less"
    return text
