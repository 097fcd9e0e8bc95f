"""Seconds of tiles, messages and reductions on a cluster.

The simulator charges these, and searches optimise them, so that a plan is judged by the figures it
was made for. Four terms:

- attention: FLOPs over the device's rate. The kernel computes whole tiles of `kernel_tile` tokens,
  so a partial tile costs more than its visible pairs (`tile_seconds`);
- a message: ``launch + size / bandwidth`` on both ports, then the latency (`link_seconds`);
- a reduction or copy: bytes read and written over the rate of the device's memory;
- `kernel_launch_s` for each attention or reduction, added by whoever walks the program.

Constants, their sources and how far predictions are from measured bars: ``docs/cost-model.md``.
"""

import numpy as np
from numpy.typing import ArrayLike

from dcp_dsl.arrays import Floats
from dcp_planner.model.cluster import BACKWARD_FLOPS_RATIO, Cluster, ModelShape
from dcp_planner.model.workload import Workload

_MOST_PRICE = 8.0  # both links work at once, so their seconds do not add up; see LOG.md
REDUCTION_ACCESSES = 3
"""Times a merged partial result passes through memory: two reads, one write."""


def price_between_nodes(cluster: Cluster) -> float:
    """Compute what a byte between nodes counts, in bytes inside a node."""
    ratio = cluster.intra_bytes_per_s / cluster.inter_bytes_per_s
    return min(max(1.0, ratio), _MOST_PRICE)


def computed_pairs(
    pairs: ArrayLike, q_tokens: ArrayLike, kv_tokens: ArrayLike, kernel_tile: int
) -> Floats:
    """Estimate the pairs that the kernel computes to obtain the visible ones.

    A full tile is rounded up to whole kernel tiles. In a partial one a border crosses the rows, and
    half a kernel tile of every row is computed in vain: a tile of ``n`` rows costs
    ``pairs + n * kernel_tile / 2``, never more than the full one. That is exact up to ``n / 2``
    pairs for a diagonal through a multiple of `kernel_tile`, and low for several borders in a tile.

    >>> computed_pairs([2098176, 4194304, 0], [2048] * 3, [2048] * 3, 128).tolist()
    [2229248.0, 4194304.0, 0.0]
    """
    visible, q, kv = (np.asarray(a, np.float64) for a in (pairs, q_tokens, kv_tokens))
    if kernel_tile == 1:
        return visible
    whole = np.ceil(q / kernel_tile) * np.ceil(kv / kernel_tile) * float(kernel_tile) ** 2
    partial = np.minimum(visible + q * (kernel_tile / 2), whole)
    return np.where(visible == 0, 0.0, np.where(visible >= q * kv, whole, partial))


def tile_seconds(
    pairs: ArrayLike,
    q_tokens: ArrayLike,
    kv_tokens: ArrayLike,
    shape: ModelShape,
    cluster: Cluster,
    *,
    is_backward: bool = False,
) -> Floats:
    """Compute the seconds that each tile takes on one device, without its launch; O(W).

    >>> cluster = Cluster(flops_per_s=1e12)
    >>> tile_seconds([10**6], [1000], [1000], ModelShape(1, 1, 250), cluster).tolist()
    [0.001]
    """
    ratio = BACKWARD_FLOPS_RATIO if is_backward else 1.0
    flops = computed_pairs(pairs, q_tokens, kv_tokens, cluster.kernel_tile)
    flops = flops * (shape.flops_per_pair * ratio)
    seconds: Floats = flops / cluster.attention_flops_per_s(is_backward=is_backward)
    return seconds


def workload_seconds(workload: Workload, cluster: Cluster, *, is_backward: bool = False) -> Floats:
    """Compute the seconds of every tile of a workload, float64 ``[W]``; O(W)."""
    tokens = workload.block_tokens
    return tile_seconds(
        workload.compute_pairs,
        tokens[workload.compute_q],
        tokens[workload.compute_kv],
        workload.shape,
        cluster,
        is_backward=is_backward,
    )


def link_seconds(size_bytes: ArrayLike, cluster: Cluster, *, is_inter: bool) -> Floats:
    """Compute the seconds that each message occupies the ports of one class of links, ``[X]``.

    Messages through one port add up; the latency comes on top, once per message waited for.

    >>> cluster = Cluster(2, 1, inter_bytes_per_s=1e9, message_launch_s=1e-6)
    >>> link_seconds([0, 10**6], cluster, is_inter=True).tolist()
    [1e-06, 0.001001]
    """
    return cluster.link(is_inter=is_inter).busy_s(np.asarray(size_bytes, np.float64))


def reduction_seconds(size_bytes: ArrayLike, cluster: Cluster) -> Floats:
    """Compute the seconds to merge arrived partial results of `size_bytes` into the owner's."""
    size = np.asarray(size_bytes, np.float64)
    if cluster.copy_bytes_per_s is None:
        return np.zeros_like(size)
    return size * REDUCTION_ACCESSES / cluster.copy_bytes_per_s
