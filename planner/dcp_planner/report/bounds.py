"""Lower bounds of compute, bytes and time, from the blocks and the caps alone.

Bytes. A device (or node) that computes c pairs reads r query tokens and k key tokens with ``c <= r
* k`` (Loomis and Whitney: a set of pairs is no larger than the product of its shadows), c at most
the pairs of the r fullest rows and of the k fullest columns. It owns at most T tokens, so it sends
or receives at least ``f(c) = min row * max(0, r - T) + column * max(0, k - T)`` bytes. All P of
them share C pairs, none above the cap; with g the lower convex envelope of f up to the cap, the sum
is at least ``P * g(C / P)`` (Jensen). Bytes between nodes follow with nodes in place of devices.

Source: Irony, Toledo, Tiskin, Communication Lower Bounds for Distributed-Memory Matrix
Multiplication (2004), Sec. 3, for the shadows; the caps and the envelope are ours.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.model.cluster import BACKWARD_FLOPS_RATIO, Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.placement import Caps, caps_of, loads_of
from dcp_planner.model.workload import DIRECTIONS, Direction, Workload, net_bytes
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.metrics import measure
from dcp_planner.tables.plan import Plan

_GRID = 64  # points of c and of r at which the bound is evaluated


@dataclass(frozen=True, slots=True)
class DirectionBounds:
    """Least that any placement needs in one direction.

    Attributes:
        compute_s: seconds at perfect balance and the rate of the cluster.
        total_bytes: between all devices.
        inter_node_bytes: between nodes.
        seconds: the largest of compute and the bytes between nodes over all network ports.
    """

    compute_s: float
    total_bytes: float
    inter_node_bytes: float
    seconds: float


def bounds(
    workload: Workload,
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
) -> dict[Direction, DirectionBounds]:
    """Compute lower bounds for all plans within the tolerances of `config`; O(W + D log D).

    >>> from dcp_dsl import Slabs, block_sparsity
    >>> from dcp_planner.model.workload import build_workload
    >>> causal = Slabs(4096, [0], [4096], [0], [1], [0], [1])
    >>> blocks = build_workload(block_sparsity([causal], 128, 128), ModelShape())
    >>> least = bounds(blocks, Cluster(nodes=1, devices_per_node=1))
    >>> least["forward"].total_bytes, least["forward"].compute_s > 0
    (0.0, True)
    """
    caps = caps_of(workload, cluster.num_devices, config)
    return _bounds_of(_Shadows.of(workload), workload.shape, cluster, caps)


def bound_ratios(plan: Plan, predicted_s: tuple[float, float] | None = None) -> dict[str, float]:
    """Compute how far a plan is above the bounds at its own balance; 1 is the best possible.

    Args:
        plan: any plan.
        predicted_s: seconds of forward and backward, for the ratios of time.

    Returns:
        ``compute``, and for each direction ``*_bytes``, ``*_inter_bytes`` and, if predicted,
        ``*_time``. A ratio is left out where the bound is 0.
    """
    found, plan = measure(plan), expand_head_groups(plan)
    tiles, tokens = plan.tiles, plan.blocks.num_tokens
    work = loads_of(tiles.device, tiles.pairs, plan.num_devices)
    owned = loads_of(plan.blocks.owner, tokens, plan.num_devices)
    caps = Caps(int(work.max(initial=0)), int(owned.max(initial=0)))
    shadows = _Shadows(tiles.q_block, tiles.kv_block, tiles.pairs, tokens)
    least = _bounds_of(shadows, plan.shape, plan.cluster, caps)
    ratios = {"compute": found.compute_imbalance}
    for index, (name, low) in enumerate(least.items()):
        real = found.forward if name == "forward" else found.backward
        values: dict[str, tuple[float, float]] = {
            f"{name}_bytes": (real.total_bytes, low.total_bytes),
            f"{name}_inter_bytes": (real.inter_node_bytes, low.inter_node_bytes),
        }
        if predicted_s is not None:
            values[f"{name}_time"] = (predicted_s[index], low.seconds)
        ratios |= {key: real / low for key, (real, low) in values.items() if low > 0}
    return ratios


@dataclass(frozen=True, slots=True, eq=False)
class _Shadows:
    """Tiles and blocks, from a workload or a plan."""

    q: Indices
    kv: Indices
    pairs: Ints
    tokens: Ints

    @classmethod
    def of(cls, workload: Workload) -> "_Shadows":
        return cls(
            workload.compute_q, workload.compute_kv, workload.compute_pairs, workload.block_tokens
        )

    def reach(self, block: Indices) -> tuple[Floats, Floats]:
        """Compute tokens, and the most pairs that so many rows (or columns) have, both rising."""
        degree = np.zeros(len(self.tokens))
        np.add.at(degree, block, self.pairs)
        order = np.argsort(-degree / np.maximum(self.tokens, 1), kind="stable")
        tokens = np.append(0.0, np.cumsum(self.tokens[order]))
        return tokens, np.append(0.0, np.cumsum(degree[order]))


def _bounds_of(
    shadows: _Shadows, shape: ModelShape, cluster: Cluster, caps: Caps
) -> dict[Direction, DirectionBounds]:
    total = float(shadows.pairs.sum())
    inside, speed = cluster.devices_per_node, float(cluster.speed_of_device.sum())
    most = float(cluster.work_of_device.max())
    caps = Caps(int(np.ceil(caps.pairs * most)), caps.tokens)  # of the fastest device
    found: dict[Direction, DirectionBounds] = {}
    for direction in DIRECTIONS:
        row, column = net_bytes(shape, direction)
        everywhere = _least_bytes(shadows, caps, cluster.num_devices, row, column)
        wide = Caps(caps.pairs * inside, caps.tokens * inside)
        between = _least_bytes(shadows, wide, cluster.nodes, row, column)
        is_backward = direction == "backward"
        flops = total * shape.flops_per_pair * (BACKWARD_FLOPS_RATIO if is_backward else 1.0)
        rate = cluster.attention_flops_per_s(is_backward=is_backward)
        compute = flops / (rate * speed)
        network = between / (cluster.inter_bytes_per_s * cluster.num_devices)
        seconds = max(compute, network)
        found[direction] = DirectionBounds(compute, everywhere, between, seconds)
    return found


def _least_bytes(shadows: _Shadows, caps: Caps, parts: int, row: int, column: int) -> float:
    """Compute the least bytes between so many parts; see the module's docstring."""
    total = float(shadows.pairs.sum())
    if parts == 1 or total == 0:
        return 0.0
    grid = np.linspace(0.0, max(float(caps.pairs), total / parts), _GRID + 1)
    reach = (shadows.reach(shadows.q), shadows.reach(shadows.kv))
    low = np.array([_least_of_one(c, reach, caps.tokens, row, column) for c in grid])
    # Between two points f is at least what it is at the left one, and it never falls.
    held = np.append(0.0, low[:-1])
    return parts * _envelope_at(total / parts, grid, held)


def _least_of_one(
    pairs: float,
    reach: tuple[tuple[Floats, Floats], tuple[Floats, Floats]],
    owned: int,
    row: int,
    column: int,
) -> float:
    """Compute the least bytes of a part that computes so many pairs and owns so many tokens.

    Rounded down: r is tried on a grid, k is taken for the upper end of each of its cells.
    """
    if pairs <= 0:
        return 0.0
    (row_tokens, row_pairs), (column_tokens, column_pairs) = reach
    least_r = float(np.interp(pairs, row_pairs, row_tokens))
    least_k = float(np.interp(pairs, column_pairs, column_tokens))
    most = float(row_tokens[-1])
    r = np.geomspace(max(least_r, 1.0), max(most, least_r, 1.0), _GRID)
    upper = np.append(r[1:], r[-1])
    k = np.maximum(pairs / upper, least_k)
    cost = row * np.maximum(0.0, r - owned) + column * np.maximum(0.0, k - owned)
    return float(cost.min())


def _envelope_at(point: float, x: Floats, y: Floats) -> float:
    """Evaluate the lower convex envelope of points, x rising."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return float(np.interp(point, x[hull], y[hull]))
