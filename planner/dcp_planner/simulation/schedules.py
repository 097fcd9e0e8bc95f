"""Choose the schedule of a placement: in each direction the divisions that simulate fastest.

More divisions hide more communication behind compute, but pay latencies and launches more often;
frugal ones need less memory, and devices may wait for it. The best cut depends on the plan, so
every candidate is emitted and played.

Streaming meets a limit of memory. Each direction that needs more is cut in orders in which blocks
are needed for a short time, and gives buffers back as early as it can. If that is not enough, idle
blocks are dropped and fetched again, or blocks travel without a gateway that holds them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.errors import BufferLimitError
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import Budget, PlanConfig, Routing
from dcp_planner.model.cost_model import KernelWork
from dcp_planner.model.problem import DIRECTIONS, Direction, Placement, Workload
from dcp_planner.schedule.divisions import (
    Arrivals,
    Manner,
    Schedule,
    Streaming,
    cut_divisions,
    cut_streamed,
)
from dcp_planner.schedule.emission import Emission, emit
from dcp_planner.schedule.routing import Needs, Stays, find_needs
from dcp_planner.simulation.simulator import DirectionModel, Prediction, rest_seconds
from dcp_planner.tables.head_groups import expand_placement
from dcp_planner.tables.metrics import buffer_bytes
from dcp_planner.tables.plan import Transfers

# 2, 3, 4, 6, 8 gained 0.2 % more of the time for 5 % more cuts (LOG.md).
PARTS = (2, 4, 8)
"""Numbers of parts that remote tiles are cut into in the order of arrival, while that gains."""
EVEN: Mapping[Budget, tuple[bool, ...]] = MappingProxyType(
    {"fast": (True,), "balanced": (False, True)}
)
"""Measures of parts by budget: equal bytes (False), equal work (True)."""
STREAMED_PARTS = tuple(2**n for n in range(1, 10))
"""Numbers of parts that are tried where memory is short."""
STREAMINGS = tuple(
    Streaming(by, in_ring, even)
    for by in ("awaited", "keys") for in_ring in (False, True) for even in ("bytes", "pairs")
)  # fmt: skip
"""Orders of tiles that are tried where memory is short."""
_UNKNOWN = 1 << 62
IDLE = (2, 0)
"""Most divisions that a block may lie idle; after more it is dropped and fetched again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """One way to cut a direction, with the result of playing it."""

    division: Indices  # `[W]`
    manner: Manner  # how its blocks travel
    emitted: Emission  # its transfers and programs
    arrived: Ints  # `[X]`, when each transfer has arrived, ns
    seconds: float  # until the end


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Facts that all candidates of one placement share."""

    # workload, placement, cluster: what is placed, where, on which machine
    workload: Workload
    placement: Placement
    cluster: Cluster
    routing: Routing  # routes of blocks
    needs: Needs  # blocks that each device needs
    work: Mapping[Direction, KernelWork]  # prices of the tiles, forward and backward
    rest: Mapping[Direction, float]  # seconds of the rest of a layer, in which hosts may run ahead
    limit: int | None  # of the memory of a direction, bytes, or `None`
    spent: Ints | int = 0  # int64 `[R]`, bytes of it that are spent on something else

    @classmethod
    def of(
        cls, workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
    ) -> "_Trial":
        """Route a placement, expanded if it is in head groups."""
        rest = rest_seconds(
            placement.device_of_data, workload.block_tokens, cluster.num_devices,
            config.token_seconds,
        )  # fmt: skip
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
        limit = config.memory_limit_bytes
        return cls(workload, placement, cluster, config.routing, needs, work, rest, limit)

    def cut(self, direction: Direction, parts: int, arrivals: Arrivals | None = None) -> _Cut:
        """Cut one direction, emit and play it."""
        division = cut_divisions(self.workload, self.placement, direction, parts, arrivals)
        manner = Manner(self.routing)
        return self._played(direction, division, manner, self._emitted(direction, division, manner))

    def _emitted(self, direction: Direction, division: Indices, manner: Manner) -> Emission:
        """Emit one direction; blocks that are fetched again or rerouted have needs of their own."""
        needs = self.needs
        if manner != Manner(self.routing, manner.is_frugal):
            needs = find_needs(
                self.workload, self.placement, self.cluster, manner.routing,
                Stays.of(division, manner.idle), direction if manner.is_striped else None,
            )  # fmt: skip
        return emit(
            direction, self.workload, self.placement, division, needs, self.cluster.num_devices,
            is_frugal=manner.is_frugal,
        )  # fmt: skip

    def _played(
        self, direction: Direction, division: Indices, manner: Manner, emitted: Emission
    ) -> _Cut:
        model = DirectionModel.of(
            emitted.programs, emitted.transfers, self.cluster, feeder=emitted.feeder
        )
        played = model.play(self.work[direction], self.cluster, rest_s=self.rest[direction])
        return _Cut(division, manner, emitted, played.arrived, played.end_ns / 1e9)

    def memory(self, direction: Direction, transfers: Transfers) -> int:
        """Return the most bytes that a device needs: received blocks, sums, and bytes `spent`."""
        work = self.workload
        needed = buffer_bytes(
            transfers, work.block_tokens, work.shape, direction, self.cluster.num_devices
        )
        return int((needed + self.spent).max())

    def streamed(self, direction: Direction, limit: int) -> _Cut:
        """Find the fastest cut within a limit of memory."""
        divisions = self._streamed_divisions(direction)
        least = _UNKNOWN
        # Emitting tells the memory; only the cuts that fit are played, which takes longer. Later
        # manners send more bytes, so they are tried only if no earlier one fits.
        for manners in self._manners():
            cuts = []
            for manner in manners:
                for division in divisions:
                    emitted = self._emitted(direction, division, manner)
                    needed = self.memory(direction, emitted.transfers)
                    least = min(least, needed)
                    if needed <= limit:
                        cuts.append(self._played(direction, division, manner, emitted))
            if cuts:
                return min(cuts, key=lambda cut: cut.seconds)
        raise BufferLimitError(direction, limit, least)

    def _manners(self) -> Iterator[list[Manner]]:
        """Yield manners of streaming: first the one that sends every block once, as routed."""
        yield [Manner(self.routing, is_frugal=True)]
        ways: tuple[Routing, ...] = (self.routing,)
        if self.routing == "node" and self.cluster.nodes > 1:
            ways = ("node", "direct")
        idle = [Manner(way, is_frugal=True, idle=idle) for way in ways for idle in (None, *IDLE)]
        yield idle[1:]  # without the first one, which was yielded above

    def _streamed_divisions(self, direction: Direction) -> list[Indices]:
        """Cut a direction in every order, coarse to fine, and leave out equal cuts."""
        found: dict[bytes, Indices] = {}
        for way in STREAMINGS:
            for parts in STREAMED_PARTS:
                division = cut_streamed(self.workload, self.placement, direction, parts, way)
                found.setdefault(division.tobytes(), division)
                if not (division >= parts).any():
                    break  # finer cuts are the same
        return list(found.values())

    def chosen(self, direction: Direction, config: PlanConfig) -> _Cut:
        """Cut as the configuration says: the fastest way, or into a given number of divisions."""
        if config.divisions == "auto":
            return self.best(direction, EVEN[config.budget])
        return self.cut(direction, config.divisions - 1)  # division 0 holds the local tiles

    def best(self, direction: Direction, even: Sequence[bool]) -> _Cut:
        """Find the fastest cut, the coarsest of equals.

        Playing the coarsest cut tells when each block arrives. In that order parts get equal bytes
        or equal work (`even`), and become finer while that gains: no device waits for a block while
        others lie there unused.
        """
        best = coarse = self.cut(direction, 1)
        for arrivals in self._arrivals(direction, coarse, even):
            last = coarse
            for parts in PARTS:
                cut = self.cut(direction, parts, arrivals)
                if cut.seconds >= last.seconds:
                    break
                last = cut
            best = min(best, last, key=lambda cut: cut.seconds)
        return self._striped(direction, best)

    def best_of(self, direction: Direction, parts: int) -> _Cut:
        """Find the fastest cut into a number of parts: in the order of blocks, or of arrival."""
        coarse = self.cut(direction, 1)
        orders = (None, *self._arrivals(direction, coarse, (False, True)))
        cuts = (self.cut(direction, parts, order) for order in orders)
        return self._striped(direction, min(cuts, key=lambda cut: cut.seconds))

    def _striped(self, direction: Direction, cut: _Cut) -> _Cut:
        """Cross between nodes through the ports of all devices, if that is faster and fits."""
        if self.routing != "node" or self.cluster.nodes == 1:
            return cut
        manner = replace(cut.manner, is_striped=True)
        emitted = self._emitted(direction, cut.division, manner)
        if self.limit is not None and self.memory(direction, emitted.transfers) > self.limit:
            return cut
        return min(
            cut, self._played(direction, cut.division, manner, emitted), key=lambda c: c.seconds
        )

    def _arrivals(
        self, direction: Direction, cut: _Cut, even: Sequence[bool]
    ) -> Iterator[Arrivals]:
        """Yield the arrivals of a cut with each measure of parts: equal work, or equal bytes."""
        if not cut.division.any():
            return  # nothing is remote
        # Arrival of the last remote input of each tile. A local input has need -1, which reads the
        # appended 0.
        arrived = np.append(cut.arrived[cut.emitted.input_of_need], 0)
        at_ns = np.asarray(arrived[self.needs.need_of_tile].max(axis=0))
        work = np.maximum(1, np.rint(self.work[direction].seconds * 1e9)).astype(np.int64)
        for is_work in even:
            yield Arrivals(at_ns, work if is_work else None)


@contextmanager
def schedules_kept() -> Iterator[None]:
    """Keep the last schedules while a plan is made: the placement judged last is emitted next."""
    try:
        yield
    finally:
        _chosen.cache_clear()  # it holds whole workloads


# Workloads and placements compare by identity (`eq=False`), so the key costs nothing.
@lru_cache(maxsize=4)
def _chosen(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> tuple[_Trial, list[_Cut]]:
    """Cut both directions as the configuration says."""
    trial = _Trial.of(workload, placement, cluster, config)
    return trial, [trial.chosen(d, config) for d in DIRECTIONS]


def make_schedule(
    workload: Workload,
    placement: Placement,
    cluster: Cluster,
    config: PlanConfig,
    spent: Ints | int = 0,
) -> Schedule:
    """Assign every tile to a division, forward and backward each in its own divisions.

    A direction that needs more than the memory limit is streamed. `spent`, int64 ``[R]`` bytes of
    each device, is subtracted from the limit.
    """
    # There is nothing to choose, so nothing is emitted and played.
    if config.divisions != "auto" and config.memory_limit_bytes is None:
        expanded, placed = expand_placement(workload, placement)
        cuts = [cut_divisions(expanded, placed, d, config.divisions - 1) for d in DIRECTIONS]
        return Schedule(cuts[0], cuts[1], 2 * (Manner(config.routing),))
    trial, best = _chosen(workload, placement, cluster, config)
    limit = config.memory_limit_bytes
    if limit is not None:
        best = _within(replace(trial, spent=spent), best, limit)
    return _schedule_of(best)


def _schedule_of(cuts: Sequence[_Cut]) -> Schedule:
    forward, backward = cuts
    return Schedule(forward.division, backward.division, (forward.manner, backward.manner))


def _within(trial: _Trial, cuts: Sequence[_Cut], limit: int) -> list[_Cut]:
    """Stream the directions that need more than a limit; the error names the larger need."""
    found, refused = [], []
    for direction, cut in zip(DIRECTIONS, cuts, strict=True):
        if trial.memory(direction, cut.emitted.transfers) > limit:
            try:
                cut = trial.streamed(direction, limit)
            except BufferLimitError as error:
                refused.append(error)
        found.append(cut)
    if refused:
        raise max(refused, key=lambda error: error.least)
    return found


def divide(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig, divisions: int
) -> Schedule:
    """Schedule each direction in at most so many divisions, in the fastest of the known orders."""
    trial = _Trial.of(workload, placement, cluster, config)
    cuts = [trial.best_of(direction, divisions - 1) for direction in DIRECTIONS]
    return _schedule_of(cuts)


def predict_placement(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> Prediction:
    """Predict how long a placement takes with the schedule that it would get; no plan is made.

    Searches over placements minimise it. Some milliseconds for 10,000 tiles.
    """
    _, (forward, backward) = _chosen(workload, placement, cluster, config)
    return Prediction(forward.seconds, backward.seconds)


def estimate_placement(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> float:
    """Estimate the seconds of a placement from the coarsest cut of its remote tiles.

    A fifth of the work of `predict_placement`, and nearly always a little more seconds.
    """
    if config.divisions != "auto":
        return predict_placement(workload, placement, cluster, config).seconds
    trial = _Trial.of(workload, placement, cluster, config)
    return sum(trial.cut(direction, 1).seconds for direction in DIRECTIONS)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Figures of a placement with the schedule that it would get."""

    seconds: float  # predicted, forward and backward
    inter_bytes: tuple[int, int]  # sent between nodes, forward and backward
    memory_bytes: int  # most that a device needs for received blocks and partial results


def weigh_placement(
    workload: Workload, placement: Placement, cluster: Cluster, config: PlanConfig
) -> Weighed:
    """Predict time, bytes between nodes and memory of a placement; no plan is made."""
    trial, cuts = _chosen(workload, placement, cluster, config)
    sent = []
    for moves in (cut.emitted.transfers for cut in cuts):
        crosses = cluster.link_class(moves.source, moves.target) > 0
        sent.append(int(moves.size_bytes[crosses].sum()))
    memory = max(
        trial.memory(d, c.emitted.transfers) for d, c in zip(DIRECTIONS, cuts, strict=True)
    )
    return Weighed(sum(cut.seconds for cut in cuts), (sent[0], sent[1]), memory)
