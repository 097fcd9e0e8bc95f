"""Estimate the attention time of a group of devices without planning its blocks.

A plan of a group balances pairs and tokens over the group's devices. Then a document of ``n``
tokens and ``p`` pairs keeps ``x = max(n / mean tokens, p / mean pairs)`` devices busy:

- ``x <= 1``: one device holds the document whole, and nothing travels;
- ``x > 1``: each of the `x` devices fetches the keys that its queries see and that it does not own,
  at most ``p / n`` on average (causal: half the document; window: the window). Tokens alone need
  ``y = n / mean tokens`` devices; the queries that the other ``x - y`` compute travel as well.

The same count with nodes in place of devices gives the bytes between nodes. Compute hides most
messages. The rest, kernels that leave multiprocessors idle, what the host does for messages, and
how much less evenly plans of several nodes compute, are fitted to 24 simulated plans (8 to 64
H100s; causal; blocks of 1,024 or 2,048 tokens; `native`, fast): half of the estimates are within
6 % of the plan's time, nine of ten within 10 %, the worst is 15 % off. Smaller blocks mean more
messages than that. Even sharding gets the same allowance.
``bench_step.py --validate`` repeats the comparison.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.cost_model import tile_seconds
from dcp_planner.model.workload import net_bytes

Sharding = Literal["planned", "even", "everywhere"]
"""Devices that compute a document's attention: those of its group that a plan needs; all of its
group, evenly; or, as a plan needs them, any of the mesh, wherever the document's tokens are."""

IMBALANCE = 0.27
"""Time above perfect balance in a group inside one node, as a share of compute: most of it are
kernels with too few blocks of threads for a device, and what the host does for messages."""
IMBALANCE_PER_DOUBLING = 0.087
"""What each doubling of a group's nodes adds to that share: ports carry uneven loads."""
EXPOSED = 0.39
"""Share of the messages between nodes that compute does not hide."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Documents in groups, one row a document, and the width of each group.

    Attributes:
        tokens, pairs: of each document, float64 ``[N]``.
        group: of each document, ``[N]``.
        width: devices of each group, float64 ``[G]``.
    """

    tokens: Floats
    pairs: Floats
    group: Ints
    width: Floats

    def sums(self, values: Floats) -> Floats:
        """Add `values` of documents up by group, float64 ``[G]``."""
        found = np.bincount(self.group, weights=values, minlength=len(self.width))
        return found.astype(np.float64)


def attention_seconds(
    groups: Groups, shape: ModelShape, cluster: Cluster, sharding: Sharding = "planned"
) -> Floats:
    """Estimate forward and backward of one attention layer in each group, ``[G]``; O(N)."""
    return _direction(groups, shape, cluster, sharding, is_backward=False) + _direction(
        groups, shape, cluster, sharding, is_backward=True
    )


def pair_seconds(pairs: Floats, tokens: Floats, shape: ModelShape, cluster: Cluster) -> Floats:
    """Compute the seconds that pairs take on one device, forward and backward of one layer."""
    forward, backward = (
        tile_seconds(pairs, tokens, tokens, shape, cluster, is_backward=is_backward)
        for is_backward in (False, True)
    )
    return forward + backward


def unevenness(width: Floats, cluster: Cluster) -> Floats:
    """Estimate the time above perfect balance of groups so wide, as a share of compute."""
    doublings = np.log2(_nodes(width, cluster))
    return np.where(width > 1, IMBALANCE + IMBALANCE_PER_DOUBLING * doublings, 0.0)


def _nodes(width: Floats, cluster: Cluster) -> Floats:
    """Compute the nodes of groups so wide, at least one."""
    return np.maximum(width / cluster.devices_per_node, 1.0)


def messages_seconds(groups: Groups, shape: ModelShape, cluster: Cluster) -> Floats:
    """Estimate what messages between nodes add to one layer, forward and backward, ``[G]``."""
    nodes = _nodes(groups.width, cluster)
    moved = _bytes(groups, shape, "planned", nodes, is_backward=False)
    moved = moved + _bytes(groups, shape, "planned", nodes, is_backward=True)
    return EXPOSED * moved / groups.width / cluster.inter_bytes_per_s


def _direction(
    groups: Groups, shape: ModelShape, cluster: Cluster, sharding: Sharding, *, is_backward: bool
) -> Floats:
    busy = tile_seconds(
        groups.pairs, groups.tokens, groups.tokens, shape, cluster, is_backward=is_backward
    )
    compute = groups.sums(busy) / groups.width
    inside = _bytes(groups, shape, sharding, groups.width, is_backward=is_backward)
    nodes = _nodes(groups.width, cluster)
    across = _bytes(groups, shape, sharding, nodes, is_backward=is_backward)
    intra_s = inside / groups.width / cluster.intra_bytes_per_s
    inter_s = across / groups.width / cluster.inter_bytes_per_s
    overlapped = compute * (1 + unevenness(groups.width, cluster)) + EXPOSED * inter_s
    once = cluster.kernel_launch_s + cluster.pass_s
    return np.maximum(overlapped, np.maximum(intra_s, inter_s)) + once


def _bytes(
    groups: Groups, shape: ModelShape, sharding: Sharding, parts: Floats, *, is_backward: bool
) -> Floats:
    """Estimate the bytes that the parts (devices or nodes) of each group receive, ``[G]``."""
    parts = np.maximum(parts, 1.0)
    own = parts[groups.group]
    by_tokens = own * groups.tokens / np.maximum(groups.sums(groups.tokens), 1)[groups.group]
    by_pairs = own * groups.pairs / np.maximum(groups.sums(groups.pairs), 1)[groups.group]
    is_planned = sharding != "even"
    holders = np.maximum(by_tokens, by_pairs) if is_planned else own
    is_split = holders > 1
    holders = np.maximum(holders, 1.0)
    elsewhere = groups.tokens * (1 - 1 / holders)
    seen = groups.pairs / groups.tokens if is_planned else groups.tokens
    query_bytes, key_bytes = net_bytes(shape, "backward" if is_backward else "forward")
    keys = holders * np.minimum(elsewhere, seen) * key_bytes
    queries = groups.tokens * np.maximum(0.0, 1 - by_tokens / holders)
    moved = queries * query_bytes if is_planned else 0.0
    return groups.sums(np.where(is_split, keys + moved, 0.0))
