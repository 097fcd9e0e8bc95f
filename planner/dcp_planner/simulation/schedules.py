"""Schedules: each direction is cut as finely as the simulator finds fastest within the memory.

More divisions hide more communication behind compute, but pay latencies and launches more often;
frugal ones need less memory and may stand still for it. What is best depends on the plan, so every
candidate is emitted and played.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.errors import BufferLimitError
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Budget, PlanConfig
from dcp_planner.model.launches import KernelWork
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import DIRECTIONS, Direction, Workload
from dcp_planner.schedule.divisions import Arrivals, Schedule, cut_divisions
from dcp_planner.schedule.emission import emit
from dcp_planner.schedule.routing import Needs, find_needs
from dcp_planner.simulation.simulator import DirectionModel, Prediction
from dcp_planner.tables.buffers import buffer_bytes
from dcp_planner.tables.head_groups import expand_placement
from dcp_planner.tables.plan import TransferKind, Transfers

FINEST = 8
"""Most divisions of what is not local that the simulator chooses."""
PARTS: Mapping[Budget, tuple[int, ...]] = MappingProxyType(
    {"fast": (4,), "balanced": (4, 8), "best": (2, 4, 8)}
)
"""Into how many it may be cut in the order of arrival, by budget: all three gain 1.2 % over one."""
MOST_PARTS = (2, 4, 8, 16, 32)
"""The same where memory is short."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """A way to cut a direction, and what playing it gave.

    Attributes:
        division: int32 ``[W]``.
        transfers: of the direction.
        arrived: int64 ``[X]``, when each transfer has arrived, ns.
        seconds: until the end.
    """

    division: Indices
    transfers: Transfers
    arrived: Ints
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Facts that all candidates of one placement share.

    Attributes:
        workload, placement, cluster: what is placed, where, on which machine.
        needs: which devices need which blocks: queries, then keys.
        work: what prices the tiles, forward and backward.
    """

    workload: Workload
    placement: Placement
    cluster: Cluster
    needs: tuple[Needs, Needs]
    work: Mapping[Direction, KernelWork]

    @classmethod
    def of(
        cls, workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
    ) -> "_Trial":
        """Route a placement, in head groups or not."""
        workload, placement = expand_placement(workload, placement)
        needs = find_needs(workload, placement, cluster, config.routing)
        tiles = workload.compute_q, workload.compute_kv, workload.compute_pairs
        work = {
            direction: KernelWork.of(
                tiles, workload.block_tokens, workload.shape, cluster,
                is_backward=direction == "backward",
            )
            for direction in DIRECTIONS
        }  # fmt: skip
        return cls(workload, placement, cluster, needs, work)

    def cut(
        self,
        direction: Direction,
        parts: int,
        *,
        is_frugal: bool = False,
        arrivals: Arrivals | None = None,
    ) -> _Cut:
        """Cut one direction, emit and play it."""
        division = cut_divisions(self.workload, self.placement, direction, parts, arrivals)
        emitted = emit(
            direction, self.workload, self.placement, division, self.needs,
            self.cluster.num_devices, is_frugal=is_frugal,
        )  # fmt: skip
        model = DirectionModel.of(emitted.programs, emitted.transfers, self.cluster)
        played = model.play(self.work[direction], self.cluster)
        return _Cut(division, emitted.transfers, played.arrived, played.end_ns / 1e9)

    def memory(self, direction: Direction, cut: _Cut) -> tuple[int, int]:
        """Return the most bytes that a device needs for what it receives, and which device."""
        work = self.workload
        needed = buffer_bytes(
            cut.transfers, work.block_tokens, work.shape, direction, self.cluster.num_devices
        )
        return int(needed.max()), int(needed.argmax())

    def chosen(self, direction: Direction, config: PlanConfig) -> _Cut:
        """Cut as the configuration says: as is fastest, or into a given number of divisions."""
        if config.divisions == "auto":
            return self.best(direction, PARTS[config.budget])
        return self.cut(direction, config.divisions - 1)

    def best(self, direction: Direction, choices: Sequence[int]) -> _Cut:
        """Find the fastest cut, the coarsest of equals.

        The finest cut by numbers of blocks shows when everything arrives. In that order divisions
        get equal bytes or equal work: nobody waits for a block while others lie there unused.
        """
        coarse, fine = (self.cut(direction, parts) for parts in (1, FINEST))
        cuts = [coarse, fine]
        if fine.division.max(initial=0) <= 1:
            return coarse  # no device receives more than one block
        at_ns = self._arrivals(fine)
        work = np.maximum(1, np.rint(self.work[direction].seconds * 1e9)).astype(np.int64)
        for arrivals in (Arrivals(at_ns), Arrivals(at_ns, work)):
            for parts in choices:
                cuts.append(self.cut(direction, parts, arrivals=arrivals))
                if cuts[-1].division.max(initial=0) < parts:
                    break  # finer cuts are the same
        return min(cuts, key=lambda cut: cut.seconds)

    def best_of(self, direction: Direction, parts: int) -> _Cut:
        """Find the fastest cut into so many parts: by numbers of blocks, or by arrival."""
        at_ns = self._arrivals(self.cut(direction, FINEST))
        work = np.maximum(1, np.rint(self.work[direction].seconds * 1e9)).astype(np.int64)
        orders = (None, Arrivals(at_ns), Arrivals(at_ns, work))
        cuts = (self.cut(direction, parts, arrivals=order) for order in orders)
        return min(cuts, key=lambda cut: cut.seconds)

    def _arrivals(self, cut: _Cut) -> Ints:
        """Find when the last remote input of each tile has arrived, int64 ``[W]``; 0: local."""
        transfers = cut.transfers
        found = np.zeros(self.workload.num_tiles, np.int64)
        for kind, needs in zip((TransferKind.Q, TransferKind.KV), self.needs, strict=True):
            chosen = np.flatnonzero(transfers.kind == kind)
            if chosen.size == 0:
                continue
            # One transfer for each need, which are sorted by block and device.
            place = transfers.block[chosen].astype(np.int64) * self.cluster.num_devices
            at_ns = cut.arrived[chosen[np.argsort(place + transfers.target[chosen])]]
            remote = needs.need_of_tile >= 0
            found[remote] = np.maximum(found[remote], at_ns[needs.need_of_tile[remote]])
        return found


@lru_cache(maxsize=4)  # what a search judged last is scheduled next
def _chosen(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> tuple[_Trial, list[_Cut]]:
    """Cut both directions as the configuration says."""
    trial = _Trial.of(workload, placement, cluster, config)
    return trial, [trial.chosen(d, config) for d in DIRECTIONS]


def make_schedule(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> Schedule:
    """Assign every tile to a division, forward and backward each in its own divisions.

    With a memory limit, buffers are given back earlier and divisions cut finer until the plan fits.

    Raises:
        BufferLimitError: if no schedule of this placement fits the limit.
    """
    if config.divisions != "auto" and config.memory_limit_bytes is None:
        expanded, placed = expand_placement(workload, placement)
        cuts = [cut_divisions(expanded, placed, d, config.divisions - 1) for d in DIRECTIONS]
        return Schedule(cuts[0], cuts[1], config.routing)
    trial, best = _chosen(workload, placement, cluster, config)
    limit = config.memory_limit_bytes
    is_frugal = False
    if limit is not None and _worst(trial, best)[0] > limit:
        best = [_smallest(trial, d, limit) for d in DIRECTIONS]
        needed, device, direction = _worst(trial, best)
        if needed > limit:
            raise BufferLimitError(
                f"memory_limit_bytes: device {device} needs {needed:,} bytes for what it receives "
                f"and for partial results in {direction}, more than the {limit:,} allowed; allow "
                "more, use smaller blocks, more devices, or another partitioner"
            )
        is_frugal = True
    return Schedule(best[0].division, best[1].division, config.routing, is_frugal)


def divide(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig, divisions: int
) -> Schedule:
    """Schedule in at most so many divisions a direction, in the order that is fastest with them."""
    trial = _Trial.of(workload, placement, cluster, config)
    cuts = [trial.best_of(direction, divisions - 1) for direction in DIRECTIONS]
    return Schedule(cuts[0].division, cuts[1].division, config.routing)


def _worst(trial: _Trial, cuts: Sequence[_Cut]) -> tuple[int, int, Direction]:
    """Return the most bytes that a device needs in a direction, which device, which direction."""
    needed = [(*trial.memory(d, cut), d) for d, cut in zip(DIRECTIONS, cuts, strict=True)]
    return max(needed, key=lambda entry: entry[0])


def predict_placement(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> Prediction:
    """Predict how long a placement takes with the schedule that it would get; no plan is made.

    Some milliseconds for 10,000 tiles: what a search over placements minimises.
    """
    _, (forward, backward) = _chosen(workload, placement, cluster, config)
    return Prediction(forward.seconds, backward.seconds)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Figures of a placement with the schedule that it would get.

    Attributes:
        seconds: predicted, forward and backward.
        inter_bytes: sent between nodes, forward and backward.
        memory_bytes: most that a device needs for what it receives and for partial results.
    """

    seconds: float
    inter_bytes: tuple[int, int]
    memory_bytes: int


def weigh_placement(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> Weighed:
    """Predict time, bytes between nodes and memory of a placement; no plan is made."""
    trial, cuts = _chosen(workload, placement, cluster, config)
    sent = []
    for moves in (cut.transfers for cut in cuts):
        crosses = cluster.link_class(moves.source, moves.target) > 0
        sent.append(int(moves.size_bytes[crosses].sum()))
    return Weighed(sum(cut.seconds for cut in cuts), (sent[0], sent[1]), _worst(trial, cuts)[0])


def _smallest(trial: _Trial, direction: Direction, limit: int) -> _Cut:
    """Find the coarsest frugal cut that fits the limit, or the one that needs least."""
    tried = []
    for parts in MOST_PARTS:
        cut = trial.cut(direction, parts, is_frugal=True)
        tried.append((trial.memory(direction, cut)[0], cut))
        if tried[-1][0] <= limit:
            break
    return min(tried, key=lambda entry: entry[0])[1]
