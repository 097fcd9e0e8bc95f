"""Partition with KaHyPar: nodes first, then the devices of each node.

KaHyPar has one int32 weight per vertex, but two constraints must hold: compute and tokens. A block
weighs ``M * tokens``, a tile its share of the pairs as a small integer, and a part may hold
``M * T + C``, where T are the tokens that an LPT packing gives it and C is the compute cap. As
``M > C``, one token more than T outweighs all compute of a part, so both constraints hold exactly.
M and the integers keep the sum far below 2^31, and even a short last block keeps its weight. With
exact targets the search may find no feasible start (few, ragged blocks), so each problem is also
encoded without token targets; owners are chosen anew afterwards in any case. The result with the
shorter predicted time wins.

Source: two levels and one hyperedge per block as in DCP (SOSP'25), Sec. 4.2; Schlag et al.,
High-Quality Hypergraph Partitioning (2022).
"""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Indices, Ints, Record
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cost_model import price_between_nodes
from dcp_planner.model.problem import (
    Direction,
    Partitioner,
    Placement,
    Workload,
    cap_of,
    caps_of,
    loads_of,
    loads_on,
    net_bytes,
    pack_largest_first,
)
from dcp_planner.search.native import hold
from dcp_planner.simulation.schedules import predict_placement
from dcp_planner.workers.process import WorkerProgram
from dcp_planner.workers.worker import TaskError, Worker, WorkerLost, WorkerPool

WEIGHT_LIMIT = 10**9  # of a sum, about; KaHyPar adds tolerances on top and computes in int32
_UNITS_PER_TILE = 16  # token units are made coarser if the mean weight of a tile is below this
_MOST_PER_TILE = 1e6  # most mean weight of a tile: more is needless precision
_ENCODINGS = (True, False)  # with and without token targets
_MOST_PROCESSES = 8
_INSTALL = "install it with `pip install 'dcp-dsl[kahypar]'`, or choose partitioner='native'"


@dataclass(frozen=True, slots=True, eq=False)
class Hypergraph(Record):
    """Vertices with two weights, hyperedges with one.

    Vertices are the W tiles, then the D token blocks. Hyperedge i is the row net of block i (its
    queries, and results on their way home), hyperedge D + i its column net (keys and values). The
    pins are the block and every tile that reads it. The cost of a partition is the connectivity
    metric, the sum of ``weight * (parts touched - 1)``: exactly the bytes that are sent.

    Source: DCP (SOSP'25), Sec. 4.2, with one vertex per token block and tiles not split by heads.
    """

    vertex_weight: Annotated[Ints, "V", 2]  # int64 `[V, 2]`: visible pairs, tokens owned
    pin_ptr: Annotated[Ints, "E+1"]  # CSR
    pins: Annotated[Indices, "P"]  # vertices of hyperedge e are `pins[pin_ptr[e]:pin_ptr[e+1]]`
    edge_weight: Annotated[Ints, "E"]  # bytes

    @property
    def num_vertices(self) -> int:
        """Vertices V."""
        return len(self.vertex_weight)


def build_hypergraph(workload: Workload, direction: Direction = "forward") -> Hypergraph:
    """Build the hypergraph whose cost is the bytes one direction sends; O((W + D) log W)."""
    tiles, blocks, shape = workload.num_tiles, workload.num_blocks, workload.shape
    weight = np.zeros((tiles + blocks, 2), np.int64)
    weight[:tiles, 0] = workload.compute_pairs
    weight[tiles:, 1] = workload.block_tokens
    edge = np.concatenate([np.arange(2 * blocks), workload.compute_q, workload.compute_kv + blocks])
    own = tiles + np.arange(blocks)  # a block is a pin of both of its nets
    vertex = np.concatenate([own, own, np.arange(tiles), np.arange(tiles)])
    order = np.argsort(edge, kind="stable")
    row, column = net_bytes(shape, direction)
    return Hypergraph(
        vertex_weight=weight,
        pin_ptr=np.append(0, np.cumsum(np.bincount(edge, minlength=2 * blocks))),
        pins=vertex[order].astype(np.int32),
        edge_weight=np.concatenate([workload.block_tokens * row, workload.block_tokens * column]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class KahyparProblem:
    """Input of one call of KaHyPar."""

    hypergraph: Hypergraph  # pins and edge weights; its vertex weights are not used
    vertex_weight: NDArray[np.int64]  # int64 `[V]`, the single weight that KaHyPar takes
    target: NDArray[np.int64]  # int64 `[k]`, largest weight of each part


_Solve: TypeAlias = Callable[[Sequence[KahyparProblem]], list[NDArray[np.int32]]]


@contextmanager
def solving(config: PlanConfig) -> Iterator[_Solve]:
    """Yield a function that partitions hypergraphs in processes; the time limit begins now.

    The function takes problems in any order and returns the part of every vertex, per problem. It
    raises `PlanError` if a process fails or ``config.time_limit_s`` passes.
    """
    # One deadline for both calls: nodes are cut first, then their devices.
    deadline = time.monotonic() + config.time_limit_s
    ini = str(Path(__file__).with_name("kahypar.ini"))
    program = WorkerProgram("dcp_planner.search.kahypar_worker:start", (ini,), is_quiet=True)
    # The cores that this process may use, not all that the machine has.
    count = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    with closing(WorkerPool([Worker(program, "KaHyPar") for _ in range(count)])) as pool:
        yield lambda problems: _solve(problems, pool, config, deadline)


def _solve(
    problems: Sequence[KahyparProblem],
    pool: WorkerPool,
    config: PlanConfig,
    deadline: float,
) -> list[NDArray[np.int32]]:
    # The largest problems first, so that no process starts a long one at the end.
    order = sorted(range(len(problems)), key=lambda i: -len(problems[i].hypergraph.pins))
    futures = {i: pool.submit(partial(_partition, problems[i], config.seed)) for i in order}
    try:
        return [futures[i].result(deadline - time.monotonic()) for i in range(len(problems))]
    except TimeoutError:
        raise PlanError(
            f"KaHyPar took longer than the time limit of {config.time_limit_s:g} s; use "
            "larger blocks, a larger time_limit_s, or partitioner='native'"
        ) from None
    except TaskError as error:
        raise PlanError(f"KaHyPar cannot be loaded: {error}; {_INSTALL}") from error
    except WorkerLost as error:
        raise PlanError(
            f"{error}; if memory ran out use larger blocks, or choose partitioner='native'"
        ) from error


def _partition(problem: KahyparProblem, seed: int, worker: Worker) -> NDArray[np.int32]:
    columns = (
        problem.hypergraph.pin_ptr,
        problem.hypergraph.pins,
        problem.vertex_weight,
        _to_int32(problem.hypergraph.edge_weight),
        problem.target,
    )
    message = {"seed": seed, "sizes": [len(column) for column in columns]}
    blob = b"".join(column.astype(np.int64).tobytes() for column in columns)
    _, parts = worker.call(message, blob=blob)
    return np.frombuffer(parts, np.int32)


def _to_int32(edge_weight: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide by the greatest common divisor of all weights, then scale until the sum fits."""
    weight = edge_weight // max(1, int(np.gcd.reduce(edge_weight, initial=0)))
    excess = float(weight.sum()) / WEIGHT_LIMIT
    return np.maximum(1, np.rint(weight / excess)).astype(np.int64) if excess > 1 else weight


@dataclass(frozen=True, slots=True)
class KaHyPar(Partitioner):
    """Adapter for the optional package `kahypar` (GPL-3)."""

    @property
    def name(self) -> str:
        """Key in the registry."""
        return "kahypar"

    @property
    def is_fixed(self) -> bool:
        """Its result is repaired to the caps."""
        return False

    def unavailable(self) -> str | None:
        """Look for the package without importing it."""
        if importlib.util.find_spec("kahypar") is None:
            return f"the package kahypar is not installed; {_INSTALL}"
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Partition into nodes, then each node into devices; one seed gives one result."""
        if cluster.devices:
            raise PlanError(
                "kahypar places on equal nodes of equal devices; use the partitioner native "
                "or portfolio for a cluster whose `devices` differ"
            )
        with solving(config) as solve:
            nodes = _place_on_nodes(workload, cluster, config, solve)
            placements = _place_on_devices(nodes, workload, cluster, config, solve)
        repaired = [hold(found, workload, cluster, config) for found in placements]
        return min(repaired, key=lambda found: _quality(found, workload, cluster, config))


def _quality(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[int, float]:
    """Compute the pairs above the cap, then the predicted seconds: less is better."""
    load, _ = loads_on(found, workload, cluster)
    excess = max(0, int(load.max()) - caps_of(workload, cluster.num_devices, config).pairs)
    return excess, predict_placement(workload, found, cluster, config).seconds


def _place_on_nodes(
    workload: Workload, cluster: Cluster, config: PlanConfig, solve: _Solve
) -> list[Placement]:
    """Return a placement on nodes per encoding, repaired to half the compute tolerance.

    The other half is room for cutting each node into devices.
    """
    if cluster.nodes == 1:
        here = np.zeros(workload.num_blocks, np.int32)
        return [Placement(here, np.zeros(workload.num_tiles, np.int32))] * len(_ENCODINGS)
    hypergraph = _both_directions(workload)
    level = replace(config, compute_tolerance=config.searched_tolerance / 2)
    cap = cap_of(workload.compute_pairs, cluster.nodes, level.searched_tolerance)
    problems = [
        _encode(hypergraph, workload.num_tiles, cluster.nodes, cap, has_targets=has_targets)
        for has_targets in _ENCODINGS
    ]
    flat = replace(cluster, nodes=1, devices_per_node=cluster.nodes, slow_ports=())
    return [
        hold(
            Placement(part[workload.num_tiles :], part[: workload.num_tiles]), workload, flat, level
        )
        for part in solve(problems)
    ]


def _place_on_devices(
    nodes: Sequence[Placement],
    workload: Workload,
    cluster: Cluster,
    config: PlanConfig,
    solve: _Solve,
) -> list[Placement]:
    """Cut every node of every placement into its devices; all problems are solved in one call."""
    per_node = cluster.devices_per_node
    hypergraph = _both_directions(workload)
    cap = cap_of(workload.compute_pairs, cluster.num_devices, config.searched_tolerance)
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
    for (index, vertices), part_of in zip(places, solve(problems), strict=True):
        results[index][vertices] += part_of
    tiles = workload.num_tiles
    return [Placement(part[tiles:], part[:tiles]) for part in results]


def _both_directions(workload: Workload) -> Hypergraph:
    """Return the hypergraph whose cost is the bytes of a forward and a backward pass."""
    forward, backward = (build_hypergraph(workload, d) for d in ("forward", "backward"))
    return replace(forward, edge_weight=forward.edge_weight + backward.edge_weight)


def _restrict(
    hypergraph: Hypergraph, vertices: NDArray[np.int64], num_tiles: int, ratio: float
) -> Hypergraph:
    """Keep the vertices of a node; nets of blocks owned elsewhere cost `ratio` times as much."""
    new = np.full(hypergraph.num_vertices, -1, np.int64)
    new[vertices] = np.arange(len(vertices))
    edges = len(hypergraph.edge_weight)
    edge = np.repeat(np.arange(edges), np.diff(hypergraph.pin_ptr))
    kept = new[hypergraph.pins] >= 0
    sizes = np.bincount(edge[kept], minlength=edges)
    # Hyperedges i and D + i belong to block i.
    has_owner = new[num_tiles + np.arange(edges) % (edges // 2)] >= 0
    used = sizes > 1  # a single pin is never cut
    weight = hypergraph.edge_weight * np.where(has_owner, 1.0, ratio)
    return Hypergraph(
        vertex_weight=hypergraph.vertex_weight[vertices],
        pin_ptr=np.append(0, np.cumsum(sizes[used])),
        pins=new[hypergraph.pins[kept & used[edge]]].astype(np.int32),
        edge_weight=weight[used].astype(np.int64),
    )


def _encode(
    hypergraph: Hypergraph, num_tiles: int, parts: int, cap_pairs: int, *, has_targets: bool
) -> KahyparProblem:
    """Write pairs and tokens into one int32 weight per vertex; see the module's docstring."""
    pairs, tokens = hypergraph.vertex_weight[:num_tiles, 0], hypergraph.vertex_weight[num_tiles:, 1]
    share = max(cap_pairs / pairs.sum(), 1.0 / parts)  # of all compute, that a part may have
    units = tokens if has_targets else np.zeros_like(tokens)
    step = max(1, int(np.gcd.reduce(units, initial=0)))
    budget = _compute_budget(units, step, share)
    # Coarser units of tokens leave more of the int32 range to the weights of tiles.
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
    return KahyparProblem(hypergraph, np.concatenate([weight, blocks]), target)


def _compute_budget(units: NDArray[np.int64], step: int, share: float) -> float:
    """Compute the largest sum of tile weights that keeps the sum of all weights under the limit."""
    # S for all tiles and scale * total for all blocks, scale about share * S + 2; solved for S.
    total = float(np.rint(units / step).sum())
    return (WEIGHT_LIMIT - 2 * total) / (share * total + 1)
