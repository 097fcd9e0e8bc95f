"""Search for few bytes level by level: coarsen, descend with noise, refine, polish.

Devices are split level by level (nodes in groups of at most 16, nodes, devices), so bytes between
nodes are saved before bytes inside. Each level starts on a coarser problem, neighbouring blocks
merged, from several seeds, whole documents among them; the best result is projected to the finer
blocks and refined with little noise. At last all devices are searched together under the cost of
both kinds of links, and whatever is still above a cap is moved.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cost_model import price_between_nodes
from dcp_planner.model.packing import Caps
from dcp_planner.model.placement import caps_of
from dcp_planner.model.workload import Workload
from dcp_planner.search.caps import hold_caps, level_work
from dcp_planner.search.effort import Effort
from dcp_planner.search.partition_state import PartitionState, bytes_of, excess_of
from dcp_planner.search.problem import Problem, Split, coarsen, restrict, seeds, state_of_split
from dcp_planner.search.refinement import descend

_MOST_PARTS = 16
_WIDE = 64  # parts of a level, where their number has no divisors, beyond which less is searched
_PRICE = 3.0  # of a unit above a cap, in bytes of the mean unit
_MARGIN = 2.0  # times the bytes of tiles in squares
_MOST_CELLS = 1 << 26  # of the pin counts of one state


@dataclass(frozen=True, slots=True)
class SearchSetting:
    """Settings that all levels of one search share.

    Attributes:
        effort: work to do.
        caps: most work and tokens of one device.
        mean_work, mean_tokens: of one device.
        seed: of the noise.
    """

    effort: Effort
    caps: Caps
    mean_work: float
    mean_tokens: float
    seed: int

    def limits(self, room: Floats, *, is_last: bool) -> Floats:
        """Compute the limits of parts; inner levels need room of their own.

        Args:
            room: float64 ``[2, K]``, mean devices that each part is worth: in work, in tokens.
            is_last: whether every part is one device.
        """
        share = 1.0 if is_last else 0.5
        pairs, tokens = self.caps.pairs, self.caps.tokens
        limits = np.empty(room.shape)
        for row, (cap, mean) in enumerate(((pairs, self.mean_work), (tokens, self.mean_tokens))):
            limits[row] = (mean + share * (cap - mean)) * room[row]
        return limits


def setting_of(
    workload: Workload, cluster: Cluster, config: PlanConfig, effort: Effort
) -> SearchSetting:
    """Take caps and means of a whole workload."""
    devices = cluster.num_devices
    # Moves and swaps may reach the tolerance where a packing, largest first, does not; they know
    # to settle for what that reaches.
    tokens = int((1 + config.token_tolerance) * int(workload.block_tokens.sum()) / devices)
    return SearchSetting(
        effort,
        replace(caps_of(workload, devices, config), tokens=tokens),
        float(workload.compute_pairs.sum()) / devices,
        float(workload.block_tokens.sum()) / devices,
        config.seed,
    )


def search(problem: Problem, cluster: Cluster, setting: SearchSetting) -> Split:
    """Split a problem over all devices of a cluster, for few bytes; deterministic."""
    split = _recurse(problem, device_tree(cluster), cluster.work_of_device, setting)
    return polish(problem, split, cluster, setting)


Tree: TypeAlias = "int | tuple[Tree, ...]"
"""A device, or the parts of a level."""


def device_tree(cluster: Cluster) -> Tree:
    """Group devices into nodes, and nodes and wide nodes into parts: at most 16 of most sizes.

    >>> device_tree(Cluster(nodes=2, devices_per_node=3)), device_tree(Cluster(1, 1))
    (((0, 1, 2), (3, 4, 5)), 0)
    """
    ptr = cluster.node_ptr.tolist()
    nodes = [_grouped(list(range(a, b))) for a, b in itertools.pairwise(ptr)]
    return _grouped(nodes)


def _grouped(members: "Sequence[Tree]") -> Tree:
    """Build the tree over members that are equally far from each other."""
    for size in reversed(_factors(len(members))):
        members = [tuple(members[i : i + size]) for i in range(0, len(members), size)]
    return members[0]


def _leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for part in tree for leaf in _leaves(part)]


def _factors(count: int) -> list[int]:
    sizes = []
    while count > _MOST_PARTS:
        size = next((n for n in range(_MOST_PARTS, 1, -1) if count % n == 0), count)
        sizes.append(size)
        count //= size
    return [*sizes, count] if count > 1 else sizes


def _recurse(problem: Problem, tree: Tree, work: Floats, setting: SearchSetting) -> Split:
    """Split into the parts of the first level, each of them into those of the next."""
    if isinstance(tree, int):
        part = np.full(problem.num_tiles, tree, np.int32)
        return Split(part, np.where(problem.is_owned, tree, -1).astype(np.int32))
    leaves = [_leaves(part) for part in tree]
    room = np.array([[work[own].sum() for own in leaves], [len(own) for own in leaves]])
    is_last = all(len(own) == 1 for own in leaves)
    split = split_once(problem, setting.limits(room, is_last=is_last), setting)
    first = np.array([own[0] for own in leaves], np.int32)
    part, owner = first[split.part], np.where(split.owner >= 0, first[split.owner], np.int32(-1))
    if is_last:
        return Split(part, owner)
    for number, branch in enumerate(tree):
        inner, tiles, blocks = restrict(problem, split, number)
        found = _recurse(inner, branch, work, setting)
        part[tiles] = found.part
        owner[blocks] = np.where(found.owner >= 0, found.owner, owner[blocks])
    return Split(part, owner)


def split_once(problem: Problem, limits: Floats, setting: SearchSetting) -> Split:
    """Split into the parts of one level: coarse pictures first, then finer ones."""
    effort, parts = setting.effort, limits.shape[1]
    pictures = [(problem, np.zeros(0, np.int64), np.zeros(0, np.int64))]
    while pictures[-1][0].num_tiles > effort.coarse_tiles * parts:
        coarser = coarsen(pictures[-1][0])
        if coarser[0].num_tiles > 0.9 * pictures[-1][0].num_tiles:
            break
        pictures.append(coarser)
    best = _best_start(pictures[-1][0], limits, setting)
    for (finer, _, _), (_, tile, block) in zip(pictures[-2::-1], pictures[:0:-1], strict=True):
        owner = np.where(finer.is_owned, best.owner[block], np.int32(-1))
        state = _flat_state(finer, Split(best.part[tile], owner), limits, setting.seed)
        best = _descend(state, effort.fine_sweeps, effort.fine_noise * _unit(finer), effort)[1]
    state = _flat_state(problem, best, limits, setting.seed)
    hold_caps(state, 1)
    return Split(state.part, state.owner)


def _descend(
    state: PartitionState, sweeps: int, noise: float, effort: Effort
) -> tuple[float, Split]:
    """Search; return the cost and the split, or those before if the noise led astray."""
    before = _cost(state), Split(state.part.copy(), state.owner.copy())
    descend(state, sweeps, noise, effort.longest)
    after = _cost(state), Split(state.part, state.owner)
    return min(before, after, key=lambda found: found[0])


def _best_start(problem: Problem, limits: Floats, setting: SearchSetting) -> Split:
    """Search from several seeds and return the cheapest result."""
    effort, parts = setting.effort, limits.shape[1]
    # Every part brings tiles, each of which is priced for every part: the work is their square.
    share = min(1.0, _WIDE / parts)
    runs = max(effort.starts, int(effort.runs * share))
    sweeps = max(effort.fine_sweeps, int(effort.sweeps * share))
    starts = list(seeds(problem, parts))
    # A stable sort: among equals the most promising kind of seed stays first.
    starts.sort(key=lambda start: _cost(_flat_state(problem, start, limits, 0)))
    results = []
    for run in range(runs):
        start = starts[run % min(effort.starts, len(starts))]
        state = _flat_state(problem, start, limits, setting.seed + run)
        results.append(_descend(state, sweeps, effort.noise * _unit(problem), effort))
    return min(results, key=lambda found: found[0])[1]


def _cost(state: PartitionState) -> float:
    return float(bytes_of(state) + excess_of(state))


def _unit(problem: Problem) -> float:
    """Compute the unit of the noise: the bytes of a median row."""
    return float(np.median(problem.weight[0])) if problem.num_blocks else 0.0


def prices_of(problem: Problem, parts: int) -> Floats:
    """Price work and tokens above a cap, to five bits at least: pairs of long rows are cheap.

    Tiles that share their blocks best, in squares, still have each of them sent to so many parts;
    if that cost more than being above the cap, everything on one part would be cheapest.
    """
    copies = float(np.sqrt(problem.num_tiles * parts)) / max(1, problem.num_blocks)
    total = max(_PRICE, _MARGIN * copies) * float(problem.weight.sum())
    prices = np.array([total / max(1, n.sum()) for n in (problem.work, problem.tokens)])
    _, exponent = np.frexp(prices)
    # Powers of two: sums of whole multiples of them are exact.
    grain = np.ldexp(1.0, np.minimum(0, exponent - 5))
    return np.asarray(np.rint(prices / grain) * grain)


def _flat_state(problem: Problem, split: Split, limits: Floats, seed: int) -> PartitionState:
    """Lay out a level on which all parts are equally far from each other."""
    parts = limits.shape[1]
    one = np.zeros(parts, np.int64)
    return state_of_split(problem, split, limits, prices_of(problem, parts), one, 0.0, seed)


def polish(problem: Problem, split: Split, cluster: Cluster, setting: SearchSetting) -> Split:
    """Search on all devices together under the cost of both kinds of links, then hold the caps.

    A split made elsewhere may be given; the caps hold afterwards if blocks and tiles allow it.
    """
    effort, width = setting.effort, cluster.num_devices + cluster.nodes
    affordable = effort.polish_work // max(1, problem.num_tiles * width)
    sweeps = int(min(effort.polish_sweeps, affordable))
    if sweeps > 0 and _is_small(problem, cluster):
        state = whole_state(problem, split, cluster, setting)
        _, split = _descend(state, sweeps, effort.fine_noise * _unit(problem), effort)
    return hold_split(problem, split, cluster, setting)


def hold_split(problem: Problem, split: Split, cluster: Cluster, setting: SearchSetting) -> Split:
    """Bring a split under the caps at the least bytes, and choose better owners under them."""
    if not _is_small(problem, cluster):
        return split
    state = whole_state(problem, split, cluster, setting)
    hold_caps(state, setting.effort.polish_sweeps)
    return Split(state.part, state.owner)


def _is_small(problem: Problem, cluster: Cluster) -> bool:
    """Check that all devices together can be searched at once."""
    return 2 * problem.num_blocks * (cluster.num_devices + cluster.nodes) <= _MOST_CELLS


def level_tiles(problem: Problem, split: Split, cluster: Cluster, setting: SearchSetting) -> Split:
    """Move tiles off devices above the cap on work, the cheapest first; owners stay."""
    if not _is_small(problem, cluster):
        return split
    state = whole_state(problem, split, cluster, setting)
    level_work(state)
    return Split(state.part, state.owner)


def whole_state(
    problem: Problem, split: Split, cluster: Cluster, setting: SearchSetting
) -> PartitionState:
    """Lay out all devices together, those of other nodes farther away."""
    devices = cluster.num_devices
    far = float(round(price_between_nodes(cluster) - 1.0)) if cluster.nodes > 1 else 0.0
    room = np.stack([cluster.work_of_device, np.ones(devices)])
    limits, prices = setting.limits(room, is_last=True), prices_of(problem, devices) * (1 + far)
    node = cluster.node_of_device
    return state_of_split(problem, split, limits, prices, node, far, setting.seed)
