"""KaHyPar as a partitioner: nodes first, then the devices of each node, in a process of its own.

KaHyPar knows one int32 weight per vertex, we have two constraints. A block weighs ``M * tokens``, a
tile its share of the pairs in small integers, and a part may hold ``M * T + C`` where T are the
tokens that an LPT packing gives it and C the compute cap. ``M > C`` makes one token more than T
outweigh all the compute a part may have, so the token targets are met exactly and the compute cap
as well; M and the integers are chosen so that the sum stays far below 2^31 and even a short last
block keeps its weight. Where exact targets leave the search no way (few, ragged blocks), a second
encoding without token targets wins, because owners are chosen anew afterwards in any case; the
result with the shorter predicted time is taken.

Source: two levels and one hyperedge per block as in DCP (SOSP'25), Sec. 4.2; Schlag et al.,
High-Quality Hypergraph Partitioning (2022).
"""

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.hypergraph import Hypergraph, build_hypergraph
from dcp_planner.model.packing import cap_of, loads_of, pack_largest_first
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.search.kahypar_process import (
    KAHYPAR,
    WEIGHT_LIMIT,
    Problem,
    Solver,
    solve_problems,
)
from dcp_planner.search.repair import caps_of, price_between_nodes, repair
from dcp_planner.simulation.schedules import predict_placement

_UNITS_PER_TILE = 16  # mean weight of a tile below which token units are made coarser
_MOST_PER_TILE = 1e6  # mean weight of a tile: more would be precision that nobody asked for
_ENCODINGS = (True, False)  # with and without token targets


@dataclass(frozen=True, slots=True)
class KaHyPar:
    """Adapter for the optional packages `kahypar` (GPL-3) and `mtkahypar` (MIT).

    Attributes:
        solver: which of the two.
    """

    solver: Solver = KAHYPAR

    @property
    def name(self) -> str:
        """Key in the registry."""
        return self.solver.package

    @property
    def is_fixed(self) -> bool:
        """Its result is repaired to the caps."""
        return False

    def unavailable(self) -> str | None:
        """Look for the package without importing it."""
        if importlib.util.find_spec(self.solver.package) is None:
            return f"the package {self.name} is not installed; {self.solver.install}"
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Partition into nodes, then each node into devices; the same seed gives the same result.

        Raises:
            PlanError: if the process fails or exceeds ``config.time_limit_s``.
        """
        deadline = time.monotonic() + config.time_limit_s
        nodes = _place_on_nodes(workload, cluster, config, deadline, self.solver)
        placements = _place_on_devices(nodes, workload, cluster, config, deadline, self.solver)
        repaired = [repair(found, workload, cluster, config) for found in placements]
        return min(repaired, key=lambda found: _quality(found, workload, cluster, config))


def _quality(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[int, float]:
    """Give the pairs above the cap, then the predicted seconds: less is better."""
    load = loads_of(found.device_of_compute, workload.compute_pairs, cluster.num_devices)
    excess = max(0, int(load.max()) - caps_of(workload, cluster.num_devices, config).pairs)
    return excess, predict_placement(workload, found, cluster, config).seconds


def _place_on_nodes(
    workload: Workload, cluster: Cluster, config: PlanConfig, deadline: float, solver: Solver
) -> list[Placement]:
    """Give a placement on nodes per encoding, repaired to half the compute tolerance."""
    if cluster.nodes == 1:
        here = np.zeros(workload.num_blocks, np.int32)
        return [Placement(here, np.zeros(workload.num_tiles, np.int32))] * len(_ENCODINGS)
    hypergraph = _both_directions(workload)
    level = replace(config, compute_tolerance=config.compute_tolerance / 2)
    cap = cap_of(workload.compute_pairs, cluster.nodes, level.compute_tolerance)
    problems = [
        _encode(hypergraph, workload.num_tiles, cluster.nodes, cap, has_targets=has_targets)
        for has_targets in _ENCODINGS
    ]
    flat = replace(cluster, nodes=1, devices_per_node=cluster.nodes)
    return [
        repair(
            Placement(part[workload.num_tiles :], part[: workload.num_tiles]), workload, flat, level
        )
        for part in solve_problems(problems, config, deadline, solver)
    ]


def _place_on_devices(
    nodes: Sequence[Placement],
    workload: Workload,
    cluster: Cluster,
    config: PlanConfig,
    deadline: float,
    solver: Solver,
) -> list[Placement]:
    per_node = cluster.devices_per_node
    hypergraph = _both_directions(workload)
    cap = cap_of(workload.compute_pairs, cluster.num_devices, config.compute_tolerance)
    ratio = price_between_nodes(cluster)
    problems, places = [], []
    results = [np.zeros(hypergraph.num_vertices, np.int32) for _ in nodes]
    for index, (found, has_targets) in enumerate(zip(nodes, _ENCODINGS, strict=True)):
        node = np.concatenate([found.device_of_compute, found.device_of_data])
        for number in range(cluster.nodes):
            vertices = np.flatnonzero(node == number)
            results[index][vertices] = number * per_node
            num_tiles = int((vertices < workload.num_tiles).sum())
            if num_tiles and per_node > 1:
                part = _restrict(hypergraph, vertices, workload.num_tiles, ratio)
                problems.append(_encode(part, num_tiles, per_node, cap, has_targets=has_targets))
                places.append((index, vertices))
            else:
                tokens = hypergraph.vertex_weight[vertices, 1]
                results[index][vertices] += pack_largest_first(tokens, per_node)
    solved = solve_problems(problems, config, deadline, solver)
    for (index, vertices), part_of in zip(places, solved, strict=True):
        results[index][vertices] += part_of
    tiles = workload.num_tiles
    return [Placement(part[tiles:], part[:tiles]) for part in results]


def _both_directions(workload: Workload) -> Hypergraph:
    """Give the hypergraph whose cost is the bytes of a forward and a backward pass."""
    forward, backward = (build_hypergraph(workload, d) for d in ("forward", "backward"))
    return replace(forward, edge_weight=forward.edge_weight + backward.edge_weight)


def _restrict(
    hypergraph: Hypergraph, vertices: NDArray[np.int64], num_tiles: int, ratio: float
) -> Hypergraph:
    """Keep some vertices; a hyperedge whose block lies elsewhere pays the price between nodes."""
    new = np.full(hypergraph.num_vertices, -1, np.int64)
    new[vertices] = np.arange(len(vertices))
    edges = len(hypergraph.edge_weight)
    edge = np.repeat(np.arange(edges), np.diff(hypergraph.pin_ptr))
    kept = new[hypergraph.pins] >= 0
    sizes = np.bincount(edge[kept], minlength=edges)
    has_owner = new[num_tiles + np.arange(edges) % (edges // 2)] >= 0
    used = sizes > 1
    weight = hypergraph.edge_weight * np.where(has_owner, 1.0, ratio)
    return Hypergraph(
        vertex_weight=hypergraph.vertex_weight[vertices],
        pin_ptr=np.append(0, np.cumsum(sizes[used])),
        pins=new[hypergraph.pins[kept & used[edge]]].astype(np.int32),
        edge_weight=weight[used].astype(np.int64),
    )


def _encode(
    hypergraph: Hypergraph, num_tiles: int, parts: int, cap_pairs: int, *, has_targets: bool
) -> Problem:
    """Write pairs and tokens into one int32 weight per vertex; see the module's docstring."""
    pairs, tokens = hypergraph.vertex_weight[:num_tiles, 0], hypergraph.vertex_weight[num_tiles:, 1]
    share = max(cap_pairs / pairs.sum(), 1.0 / parts)  # of all compute that one part may have
    units = tokens if has_targets else np.zeros_like(tokens)
    step = max(1, int(np.gcd.reduce(units, initial=0)))
    budget = _compute_budget(units, step, share)
    while has_targets and budget < _UNITS_PER_TILE * num_tiles and step < tokens.max():
        step *= 2
        budget = _compute_budget(units, step, share)
    units = np.maximum(np.rint(units / step).astype(np.int64), int(has_targets))
    exact = pairs * (min(budget, _MOST_PER_TILE * num_tiles) / pairs.sum())
    weight = np.maximum(1, np.rint(exact)).astype(np.int64)
    # A little slack keeps the cap attainable after rounding.
    cap = int(np.ceil(share * weight.sum())) + int(weight.max()) // 16
    scale = cap + 1 if has_targets else 0
    blocks = scale * units if has_targets else np.ones_like(units)
    packed = loads_of(pack_largest_first(units, parts), units, parts)
    target = scale * packed + cap + (0 if has_targets else len(units))
    return Problem(hypergraph, np.concatenate([weight, blocks]), target)


def _compute_budget(units: NDArray[np.int64], step: int, share: float) -> float:
    """Give the largest sum of tile weights that keeps the whole sum under the limit."""
    total = float(np.rint(units / step).sum())
    return (WEIGHT_LIMIT - 2 * total) / (share * total + 1)
