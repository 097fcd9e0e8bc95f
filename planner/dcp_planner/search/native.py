"""The partitioner `native`: coarsen, search with noise, refine, polish, relieve busy devices.

This is multilevel partitioning. Devices are split level by level (nodes in groups of at most 16,
nodes, devices), so bytes between nodes are saved before bytes inside. Each level starts on a
coarser problem, in which neighbouring blocks are merged, from several seeds; the best result is
projected to the finer blocks and refined with little noise. Then all devices are searched together
under the cost of both kinds of links, and tiles and blocks above a cap are moved. Finally the
search for time (`bottleneck`) relieves the busiest devices and ports.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cost_model import price_between_nodes
from dcp_planner.model.problem import (
    Caps,
    Partitioner,
    Placement,
    Workload,
    at_home,
    cap_of,
    caps_of,
    loads_on,
)
from dcp_planner.search.bottleneck import load_state_of, relieve
from dcp_planner.search.caps import exchange_owners, hold_caps, level_work, prices_of
from dcp_planner.search.refinement import descend, seeds
from dcp_planner.search.state import (
    Problem,
    Split,
    State,
    coarsen,
    cost_of,
    problem_of,
    repeated,
    restarted,
    restrict,
    state_of_split,
)
from dcp_planner.simulation.schedules import predict_placement
from dcp_planner.tables.head_groups import expand_placement


@dataclass(frozen=True, slots=True)
class Effort:
    """Work that one search may do."""

    starts: int  # splits to start from, the cheapest of `seeds`
    runs: int  # searches per level on the coarsest problem, distributed over the starts
    sweeps: int  # sweeps of all moves in each run
    noise: float  # at the beginning of a run, in bytes of a median row
    coarse_tiles: int  # tiles per part of the coarsest problem
    # fine_sweeps, fine_noise: the same on each finer problem
    fine_sweeps: int
    fine_noise: float
    polish_sweeps: int  # most sweeps on all devices together
    polish_work: int  # most tiles times parts that are priced there
    relief: int  # moves of a tile or an owner that are valued in the search for time


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "fast": Effort(2, 2, 8, 1.0, 48, 3, 0.25, 2, 1_000_000, 30_000),
        "balanced": Effort(4, 6, 40, 1.0, 64, 10, 0.25, 12, 20_000_000, 50_000),
    }
)
"""Presets by the name that ``PlanConfig.budget`` takes."""
_MOST_PARTS = 16
_WIDE = 64  # levels of more parts search less; their number has no divisor up to 16
_RAMP = ((0.25, 1.0), (0.5, 0.5), (1.0, 0.25))  # share of prices, and of noise, step after step
_MOST_CELLS = 1 << 26  # most pin counts in one state

Tree: TypeAlias = "int | tuple[Tree, ...]"
"""A device, or the parts of a level."""


def device_tree(cluster: Cluster) -> Tree:
    """Group devices into nodes, and nodes and wide nodes into parts.

    A part has at most 16 members where a divisor of their number allows it.
    """
    ptr = cluster.node_ptr.tolist()
    nodes = [_grouped(list(range(a, b))) for a, b in itertools.pairwise(ptr)]
    return _grouped(nodes)


def _grouped(members: "Sequence[Tree]") -> Tree:
    """Build the tree over members that are equally far from each other."""
    # Levels are divisors up to 16 of the number; a number without such a divisor is one wide level.
    sizes, count = [], len(members)
    while count > _MOST_PARTS:
        sizes.append(next((n for n in range(_MOST_PARTS, 1, -1) if count % n == 0), count))
        count //= sizes[-1]
    for size in reversed([*sizes, count] if count > 1 else sizes):
        members = [tuple(members[i : i + size]) for i in range(0, len(members), size)]
    return members[0]


def _leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for part in tree for leaf in _leaves(part)]


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A search: the workload, the cluster, and the settings that all levels share."""

    workload: Workload  # the whole batch
    problem: Problem  # that of the workload
    cluster: Cluster  # the machine
    effort: Effort  # work to do
    caps: Caps  # most work and tokens of one device
    seed: int  # of the noise

    @classmethod
    def of(cls, workload: Workload, cluster: Cluster, config: PlanConfig) -> "Search":
        """Search with the caps and the budget of a configuration."""
        devices = cluster.num_devices
        pairs = cap_of(workload.compute_pairs, devices, config.searched_tolerance)
        # Not widened to what LPT reaches, as `cap_of` does: moves and swaps may reach the tolerance
        # where LPT does not, and `hold_caps` accepts the load that it reaches.
        tokens = int((1 + config.token_tolerance) * int(workload.block_tokens.sum()) / devices)
        effort = EFFORTS[config.budget]
        caps, problem = Caps(pairs, tokens), problem_of(workload)
        return cls(workload, problem, cluster, effort, caps, config.seed)

    def few_bytes(self) -> Split:
        """Split the problem over all devices at few bytes; the same seed gives the same split."""
        cluster = self.cluster
        split = self._recurse(self.problem, device_tree(cluster), cluster.work_of_device)
        return self.polish(split)

    def polish(self, split: Split) -> Split:
        """Search on all devices together under the cost of both kinds of links, then hold the caps.

        A split made elsewhere may be given; the caps hold afterwards if blocks and tiles allow it.
        """
        effort, width = self.effort, self.cluster.num_devices + self.cluster.nodes
        affordable = effort.polish_work // max(1, self.problem.num_tiles * width)
        sweeps = min(effort.polish_sweeps, affordable)
        if self._is_small:
            split = self._descend(self.state_of(split), sweeps, effort.fine_noise, self.problem)
        return self.hold(split)

    def hold(self, split: Split) -> Split:
        """Bring a split under the caps at few bytes, and choose better owners under them."""
        return self._changed(split, lambda state: hold_caps(state, self.effort.polish_sweeps))

    def level(self, split: Split) -> Split:
        """Move tiles off devices above the cap on work, the cheapest first; owners stay."""
        return self._changed(split, level_work)

    def relieve(self, split: Split, budget: int, *, keeps_owners: bool = False) -> Split:
        """Relieve the busiest devices and ports; no device ends above a cap that it kept.

        `budget` counts moves of a tile or an owner that may be valued; some 0.6 us each.
        """

        def change(state: State) -> None:
            loads = load_state_of(state, self.workload, self.cluster)
            if keeps_owners:
                state.limits[1] = -1.0  # no device has room for one more token
            relieve(loads, budget)

        return self._changed(split, change)

    def _changed(self, split: Split, change: Callable[[State], None]) -> Split:
        """Change the state of all devices together; a split too large for it stays as it is."""
        if not self._is_small:
            return split
        state = self.state_of(split)
        change(state)
        return Split(state.part, state.owner)

    @property
    def _is_small(self) -> bool:
        width = self.cluster.num_devices + self.cluster.nodes
        return 2 * self.problem.num_blocks * width <= _MOST_CELLS

    def state_of(self, split: Split) -> State:
        """Build the state of all devices together, in which nodes are the groups."""
        cluster, devices = self.cluster, self.cluster.num_devices
        # Rounded, so that sums of costs are exact in float64 and plans are the same everywhere.
        far = float(round(price_between_nodes(cluster) - 1.0)) if cluster.nodes > 1 else 0.0
        limits = self._limits(np.stack([cluster.work_of_device, np.ones(devices)]), is_last=True)
        prices, node = prices_of(self.problem, devices) * (1 + far), cluster.node_of_device
        return state_of_split(self.problem, split, limits, prices, node, far, self.seed)

    def _limits(self, room: Floats, *, is_last: bool) -> Floats:
        """Compute the limits of parts, float64 ``[2, K]``: work, tokens; `room` in mean devices.

        Upper levels use half of the tolerance; the other half is room for the levels below.
        """
        share, devices = 1.0 if is_last else 0.5, self.cluster.num_devices
        limits = np.empty(room.shape)
        held = (self.caps.pairs, self.problem.work), (self.caps.tokens, self.problem.tokens)
        for row, (cap, sizes) in enumerate(held):
            mean = float(sizes.sum()) / devices
            limits[row] = (mean + share * (cap - mean)) * room[row]
        return limits

    def _recurse(self, problem: Problem, tree: Tree, work: Floats) -> Split:
        """Split into the parts of the first level, then each part into those of the next."""
        if isinstance(tree, int):
            part = np.full(problem.num_tiles, tree, np.int32)
            return Split(part, np.where(problem.is_owned, tree, -1).astype(np.int32))
        leaves = [_leaves(part) for part in tree]
        room = np.array([[work[own].sum() for own in leaves], [len(own) for own in leaves]])
        is_last = all(len(own) == 1 for own in leaves)
        split = self._split_once(problem, self._limits(room, is_last=is_last))
        # Until the next level splits a part, its first device stands for it.
        first = np.array([own[0] for own in leaves], np.int32)
        part = first[split.part]
        owner = np.where(split.owner >= 0, first[split.owner], np.int32(-1))
        if is_last:
            return Split(part, owner)
        for number, branch in enumerate(tree):
            inner, tiles, blocks = restrict(problem, split, number)
            found = self._recurse(inner, branch, work)
            part[tiles] = found.part
            owner[blocks] = np.where(found.owner >= 0, found.owner, owner[blocks])
        return Split(part, owner)

    def _split_once(self, problem: Problem, limits: Floats) -> Split:
        """Split into the parts of one level: on the coarsest problem first, then on finer ones."""
        effort, parts = self.effort, limits.shape[1]
        # Each with the coarse tile and block of the tiles and blocks of the problem before it.
        problems = [(problem, np.zeros(0, np.int64), np.zeros(0, np.int64))]
        while problems[-1][0].num_tiles > effort.coarse_tiles * parts:
            coarser = coarsen(problems[-1][0])
            if coarser[0].num_tiles > 0.9 * problems[-1][0].num_tiles:
                break  # blocks of many short sequences or other owners cannot be merged
            problems.append(coarser)
        best = self._best_start(problems[-1][0], limits)
        for (finer, _, _), (_, tile, block) in zip(problems[-2::-1], problems[:0:-1], strict=True):
            owner = np.where(finer.is_owned, best.owner[block], np.int32(-1))
            state = _flat_state(finer, Split(best.part[tile], owner), limits, self.seed)
            best = self._descend(state, effort.fine_sweeps, effort.fine_noise, finer)
        state = _flat_state(problem, best, limits, self.seed)
        hold_caps(state, 1)
        return Split(state.part, state.owner)

    def _best_start(self, problem: Problem, limits: Floats) -> Split:
        """Search from several seeds and return the cheapest result.

        Step by step the noise falls and the price of loads above a cap rises. Caps are loose at
        first, so that documents may pass through full parts. After every step the cheaper half of
        the runs goes on, at least two.
        """
        effort, parts = self.effort, limits.shape[1]
        # Tiles grow with the parts, and each is priced for every part: the work is quadratic.
        share = min(1.0, _WIDE / parts)
        runs = max(effort.starts, int(effort.runs * share))
        sweeps = max(effort.fine_sweeps, int(effort.sweeps * share))
        first, *others = seeds(problem, parts)
        blank = _flat_state(problem, first, limits, 0)
        # A stable sort: among equals the most promising seed stays first.
        starts = sorted([blank, *(restarted(blank, other) for other in others)], key=cost_of)
        starts = starts[: effort.starts]
        states = [repeated(starts[run % len(starts)], self.seed + run) for run in range(runs)]
        prices, unit = blank.prices.copy(), effort.noise * problem.row_bytes
        for share, noise in _RAMP:
            blank.prices[:] = share * prices  # all states share this array
            for state in states:
                descend(state, sweeps // len(_RAMP) + 1, noise * unit)
            blank.prices[:] = prices
            states = sorted(states, key=cost_of)[: max(2, (len(states) + 1) // 2)]
        return Split(states[0].part, states[0].owner)

    def _descend(self, state: State, sweeps: int, noise: float, problem: Problem) -> Split:
        """Search; return the new split, or the old split if the noise made it dearer.

        The noise is in bytes of a median row.
        """
        found = Split(state.part.copy(), state.owner.copy())
        before, after = descend(state, sweeps, noise * problem.row_bytes)
        return found if before <= after else Split(state.part, state.owner)


def _flat_state(problem: Problem, split: Split, limits: Floats, seed: int) -> State:
    """Build the state of a level on which all parts are equally far from each other."""
    parts = limits.shape[1]
    one = np.zeros(parts, np.int64)
    return state_of_split(problem, split, limits, prices_of(problem, parts), one, 0.0, seed)


RUNGS = (1.0, 0.5)
"""Shares of the tolerances that `ladder` tries, one after the other."""
WIDE = 0.4
"""Compute tolerance of a second search, where none is given: uneven compute may save bytes."""


@dataclass(frozen=True, slots=True)
class Native(Partitioner):
    """The search of this package, first for few bytes, then for a short time."""

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

    Yields the placement of few bytes, then for every rung of `RUNGS` a placement of a short time:
    the placement before, brought under the caps of the rung and relieved. A lower rung has less
    room and gets less work. Where no compute tolerance is given, a second search follows under
    `WIDE`, without lower rungs. The same seed gives the same result.
    """
    yield from _descend_rungs(workload, cluster, config, config.searched_tolerance, RUNGS)
    if config.compute_tolerance is None:
        yield from _descend_rungs(workload, cluster, config, WIDE, RUNGS[:1])


def _descend_rungs(
    workload: Workload,
    cluster: Cluster,
    config: PlanConfig,
    compute: float,
    rungs: Sequence[float],
) -> Iterator[Placement]:
    """Search under a compute tolerance, then under each share of it and of the token tolerance."""
    split = None
    for rung in rungs:
        tokens = config.token_tolerance
        caps = replace(config, compute_tolerance=rung * compute, token_tolerance=rung * tokens)
        search = Search.of(workload, cluster, caps)
        if split is None:
            split = search.few_bytes()
            yield at_home(Placement(split.owner, split.part), workload)
        else:
            split = search.hold(split)
        split = search.relieve(split, int(rung * search.effort.relief))
        yield at_home(Placement(split.owner, split.part), workload)


def refine(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Improve any placement: search for few bytes, enforce the caps, relieve the busiest devices.

    Returns the placement before or after relief, whichever the simulator predicts to be faster.
    """
    search = Search.of(workload, cluster, config)
    held = search.polish(_split_of(found))
    after = search.relieve(held, search.effort.relief)
    tried = (Placement(split.owner, split.part) for split in (held, after))
    return min(tried, key=lambda one: predict_placement(workload, one, cluster, config).seconds)


def hold(found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Bring any placement under the caps: tiles, then owners, move where that costs least bytes."""
    split = Search.of(workload, cluster, config).hold(_split_of(found))
    return Placement(split.owner, split.part)


def hold_tokens(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> Placement:
    """Bring the owners of a placement in head groups under the token cap, at few bytes."""
    cap = caps_of(workload, cluster.num_devices, config).tokens
    if loads_on(found, workload, cluster)[1].max(initial=0) <= cap:
        return found
    expanded, placed = expand_placement(workload, found)
    state = Search.of(expanded, cluster, config).state_of(_split_of(placed))
    return replace(found, device_of_data=exchange_owners(state, found.head_groups, cap))


def tiles_placed(
    owner: NDArray[np.int32], workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[Placement, Placement]:
    """Place tiles for fixed owners in two ways.

    The first places tiles with their queries and moves some until the cap on work holds; the second
    continues with the search for time.
    """
    search = Search.of(workload, cluster, config)
    start = search.level(Split(owner[workload.compute_q], owner))
    timed = search.relieve(start, search.effort.relief, keeps_owners=True)
    return Placement(owner, start.part), Placement(owner, timed.part)


def _split_of(found: Placement) -> Split:
    return Split(found.device_of_compute, found.device_of_data)
