"""Lower bounds of compute, bytes and time, from the blocks and the caps alone.

Bytes. A device (or node) that computes c pairs reads r query tokens and k key tokens with ``c <= r
* k`` (Loomis and Whitney: a set of pairs is no larger than the product of its shadows). Further, c
is at most the pairs of the r fullest rows, and of the k fullest columns. The device owns at most T
tokens, so it sends or receives at least ``f(c) = min row * max(0, r - T) + column * max(0, k - T)``
bytes, with the bytes per token of `net_bytes`. All P devices share C pairs, and none exceeds the
cap. With g the lower convex envelope of f up to the cap, the sum is at least ``P * g(C / P)``
(Jensen). Bytes between nodes follow with nodes in place of devices.

Source: Irony, Toledo, Tiskin, Communication Lower Bounds for Distributed-Memory Matrix
Multiplication (2004), Sec. 3, for the shadows; the caps and the envelope are ours.
"""

import numpy as np

from dcp_dsl.arrays import Floats, Indices
from dcp_planner.model.cluster import BACKWARD_FLOPS_RATIO
from dcp_planner.model.problem import DIRECTIONS, Caps, Direction, loads_of, net_bytes
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.metrics import measure
from dcp_planner.tables.plan import Plan

_GRID = 64  # points of c and of r at which the bound is evaluated


def bound_ratios(plan: Plan, predicted_s: tuple[float, float] | None = None) -> dict[str, float]:
    """Compute how far a plan is above the bounds at its own balance; 1 is the best possible.

    The bound of time is the larger of two: compute at the rates of all devices, and the bytes
    between nodes over all network ports. O(W + D log D). A ratio is left out where the bound is 0,
    those of time without `predicted_s` (forward, backward).
    """
    found, plan = measure(plan), expand_head_groups(plan)
    shape, cluster, nodes = plan.shape, plan.cluster, plan.cluster.nodes
    tiles, inside = plan.tiles, cluster.devices_per_node
    work = loads_of(tiles.device, tiles.pairs, plan.num_devices)
    owned = loads_of(plan.blocks.owner, plan.blocks.num_tokens, plan.num_devices)
    # The caps are this plan's own maxima: the bounds hold for every plan as even as this one. A
    # device of a higher rate may have more pairs at the same balance.
    most = int(np.ceil(int(work.max()) * float(cluster.work_of_device.max())))
    caps = Caps(most, int(owned.max()))
    wide = Caps(caps.pairs * inside, caps.tokens * inside)
    ratios = {"compute": found.compute_imbalance}
    for index, direction in enumerate(DIRECTIONS):
        is_backward = direction == "backward"
        real = found.backward if is_backward else found.forward
        between = _least_bytes(plan, wide, nodes, direction)
        rate = cluster.attention_flops_per_s(is_backward=is_backward)
        flops = float(tiles.pairs.sum()) * shape.flops_per_pair
        flops *= BACKWARD_FLOPS_RATIO if is_backward else 1.0
        compute = flops / (rate * float(cluster.speed_of_device.sum()))
        # A port has its whole rate, also where fewer devices than usual share it.
        ports = len(np.unique(cluster.nic_of_device))
        network = between / (cluster.link(is_inter=True).bytes_per_s * ports)
        least = _least_bytes(plan, caps, cluster.num_devices, direction)
        values: dict[str, tuple[float, float]] = {
            f"{direction}_bytes": (real.total_bytes, least),
            f"{direction}_inter_bytes": (real.inter_node_bytes, between),
        }
        if predicted_s is not None:
            values[f"{direction}_time"] = (predicted_s[index], max(compute, network))
        ratios |= {key: real / low for key, (real, low) in values.items() if low > 0}
    return ratios


def _least_bytes(plan: Plan, caps: Caps, parts: int, direction: Direction) -> float:
    """Compute the least bytes between so many parts; see the module's docstring."""
    total = float(plan.tiles.pairs.sum())
    if parts == 1 or total == 0:
        return 0.0
    grid = np.linspace(0.0, max(float(caps.pairs), total / parts), _GRID + 1)
    reach = _reach(plan, plan.tiles.q_block), _reach(plan, plan.tiles.kv_block)
    sizes = net_bytes(plan.shape, direction)
    low = np.array([_least_of_one(c, reach, caps.tokens, *sizes) for c in grid])
    # f never falls, so between two points of the grid it is at least its value at the left one.
    # Shifted by one point, the envelope lies below f everywhere.
    held = np.append(0.0, low[:-1])
    return parts * _envelope_at(total / parts, grid, held)


def _reach(plan: Plan, block: Indices) -> tuple[Floats, Floats]:
    """Compute the most pairs that tokens of rows (or columns) can have: two ``[D+1]``."""
    size = plan.blocks.num_tokens
    degree = np.zeros(len(size))
    np.add.at(degree, block, plan.tiles.pairs)
    order = np.argsort(-degree / np.maximum(size, 1), kind="stable")
    tokens = np.append(0.0, np.cumsum(size[order]))
    return tokens, np.append(0.0, np.cumsum(degree[order]))


def _least_of_one(
    pairs: float,
    reach: tuple[tuple[Floats, Floats], tuple[Floats, Floats]],
    owned: int,
    row: int,
    column: int,
) -> float:
    """Compute the least bytes of a part that computes so many pairs and owns so many tokens.

    Rounded down: r is tried on a grid, and k belongs to the upper end of each cell of the grid.
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
    """Evaluate the lower convex envelope of points, x rising (Andrew's monotone chain).

    >>> _envelope_at(1.0, np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 1.0]))
    0.5
    """
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            # Point b stays if it lies below the line from a to i.
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return float(np.interp(point, x[hull], y[hull]))
