"""The cost model: seconds of tiles, kernel launches, messages and reductions on a cluster.

The simulator charges these and the searches minimise them, so that plans are judged by the figures
they were made for. ``docs/cost-model.md`` lists what each piece of work costs and how far off
predictions are; ``docs/clusters.md`` has the constants and their sources.

A launch computes tiles for many query rows (`KernelWork`). Every `kernel_tile` rows of a query
block, for one query head, are one block of threads (CTA), which walks through all keys of the
launch that its rows see. A device runs `sms` CTAs at once, so a launch of few or unequal CTAs takes
longer than its FLOPs alone. How much longer depends on how CTAs get multiprocessors:

- ``list``: the hardware starts CTAs in order, each where an earlier CTA has ended (the Triton
  kernels of the runtime, FlashAttention-2);
- ``persistent``: multiprocessors take CTAs from a queue, longest first; the launch takes the larger
  of the mean load and the longest CTA;
- ``split``: the keys of long CTAs are split, so that all multiprocessors work to the end; partial
  results are merged in a pass over the launch's results.

Backward runs two such kernels: one for dq with CTAs of query rows (3 of 7 products), one for dk and
dv with CTAs of keys (4 of 7). Each CTA also takes a fixed time, `cta_keys` keys long.

Not modelled: rows of one block whose numbers of keys differ (each has the block's mean), and heads
that share a CTA.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner.jit import compiled, inlined
from dcp_planner.model.cluster import BACKWARD_FLOPS_RATIO, KERNEL_SCHEDULES, Cluster, ModelShape
from dcp_planner.model.problem import Workload

_MOST_PRICE = 8.0  # both links work at once, so their seconds do not add up; see LOG.md
REDUCTION_ACCESSES = 3
"""Times a merged partial result passes through memory: two reads, one write."""


def price_between_nodes(cluster: Cluster) -> float:
    """Compute the price of a byte between nodes, in bytes inside a node."""
    ratio = cluster.intra_bytes_per_s / cluster.inter_bytes_per_s
    return min(max(1.0, ratio), _MOST_PRICE)


def computed_pairs(
    pairs: ArrayLike, q_tokens: ArrayLike, kv_tokens: ArrayLike, kernel_tile: int
) -> Floats:
    """Estimate the pairs that the kernel computes to obtain the visible ones.

    A full tile is rounded up to whole kernel tiles. In a partial tile a border of the mask crosses
    the rows, and half a kernel tile of every row is computed in vain: a tile of ``n`` rows costs
    ``pairs + n * kernel_tile / 2``, never more than the full tile. For a diagonal through a
    multiple of `kernel_tile` that is exact up to ``n / 2`` pairs; for several borders it is low.
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
    """Compute the seconds that each tile takes on one device, without its launch; O(W)."""
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
    """
    return cluster.link(is_inter=is_inter).busy_s(np.asarray(size_bytes, np.float64))


def reduction_seconds(size_bytes: ArrayLike, cluster: Cluster) -> Floats:
    """Compute the seconds to merge arrived partial results of `size_bytes` into the owner's."""
    size = np.asarray(size_bytes, np.float64)
    return size * REDUCTION_ACCESSES / (cluster.copy_bytes_per_s or np.inf)


# Both backward kernels compute QK^T and dO V^T; one adds dQ, the other dK and dV: 3 and 4 products.
_DQ_SHARE = 3 / 7
_PERSISTENT, _SPLIT = (KERNEL_SCHEDULES.index(name) for name in ("persistent", "split"))


class _Kernel(NamedTuple):
    """One attention kernel on one cluster; forward has one, backward two."""

    block_of_tile: Indices  # `[W]`, block whose CTAs compute each tile
    seconds: Floats  # float64 `[W]`, of each tile on a whole device that is never idle
    ctas: Ints  # `[D]`, CTAs of each block
    # float64 `[D]`, of merging the partial results of each block, if keys are split: float32,
    # written and read
    merge_s: Floats
    cta_s: float  # fixed time of a CTA, on one multiprocessor
    # sms, schedule: as in `Cluster`, the schedule as an index into `KERNEL_SCHEDULES`
    sms: int
    schedule: int


@dataclass(frozen=True, slots=True, eq=False)
class KernelWork:
    """Inputs of the price of one direction's launches."""

    # float64 `[W]`, of each tile in all kernels, on a whole device that is never idle
    seconds: Floats
    kernels: tuple[_Kernel, ...]  # of the direction, each with its share of the seconds

    @classmethod
    def of(
        cls,
        tiles: tuple[Indices, Indices, Ints],
        tokens: Ints,
        shape: ModelShape,
        cluster: Cluster,
        *,
        is_backward: bool,
    ) -> "KernelWork":
        """Price the tiles of one direction: query blocks, key blocks and visible pairs."""
        q, kv, pairs = tiles
        seconds = tile_seconds(
            pairs, tokens[q], tokens[kv], shape, cluster, is_backward=is_backward
        )
        rate = cluster.attention_flops_per_s(is_backward=is_backward)
        flops = 4.0 * shape.head_dim * cluster.cta_keys * cluster.kernel_tile
        if is_backward:
            flops *= BACKWARD_FLOPS_RATIO
        cta_s = flops * cluster.sms / rate  # the rate is the device's, a CTA has one of `sms`
        # 8: the four bytes of a float32, once written and once read.
        merged_bytes = tokens * (8.0 * shape.q_heads * shape.head_dim)
        ctas = -(-tokens // cluster.kernel_tile) * shape.q_heads
        sides = ((q, _DQ_SHARE), (kv, 1 - _DQ_SHARE)) if is_backward else ((q, 1.0),)
        kernels = tuple(
            _Kernel(
                block_of_tile=block,
                seconds=seconds * share,
                ctas=ctas,
                merge_s=np.asarray(merged_bytes / (cluster.copy_bytes_per_s or np.inf)),
                cta_s=cta_s * share,
                sms=cluster.sms,
                schedule=KERNEL_SCHEDULES.index(cluster.kernel_schedule),
            )
            for block, share in sides
        )
        return cls(seconds, kernels)

    def launch_seconds(self, rows: Ints, item_ptr: Ints, items: Indices) -> Floats:
        """Compute the seconds of launches, float64 ``[n]``; O(tiles + CTAs of unequal length).

        Launch ``rows[i]`` has the tiles `items` from ``item_ptr[rows[i]]`` on.
        """
        taken = np.zeros(len(rows))
        for kernel in self.kernels:
            blocks, slots = len(kernel.ctas), kernel.sms + 2
            scratch = _Scratch(
                np.zeros(blocks), np.zeros(blocks + 1, np.int64),
                np.zeros(slots), np.zeros(slots, np.int64),
            )  # fmt: skip
            _add_launches(kernel, rows, item_ptr, items, scratch, taken)
        return taken


class _Scratch(NamedTuple):
    """Memory for one launch at a time.

    Multiprocessors that become free at the same time share one entry of `times`, rising; `counts`
    says how many they are. CTAs of a block are equally long, so there are few such moments.
    """

    load: Floats  # float64 `[D]`, seconds of each block's tiles; 0 between launches
    touched: Ints  # `[D+1]`, blocks of the launch, in the order of its tiles
    times: Floats  # float64 `[sms+2]`, rising
    counts: Ints  # `[sms+2]`


@compiled
def _add_launches(
    kernel: _Kernel, rows: Ints, item_ptr: Ints, items: Indices, scratch: _Scratch, taken: Floats
) -> None:
    load, touched, sms = scratch.load, scratch.touched, kernel.sms
    for n in range(len(rows)):
        row, known, total, longest, merged = rows[n], 0, 0.0, 0.0, 0.0
        for x in range(item_ptr[row], item_ptr[row + 1]):
            block = kernel.block_of_tile[items[x]]
            if load[block] == 0.0:
                touched[known] = block
                known += 1
            # A load of 0 marks a block that is not listed, and a tile may cost nothing.
            load[block] += kernel.seconds[items[x]] + 1e-300
        for i in range(known):
            block = touched[i]
            each = load[block] * sms / kernel.ctas[block] + kernel.cta_s
            total += each * kernel.ctas[block]
            longest = max(longest, each)
            merged += kernel.merge_s[block]
        # One multiprocessor (a CPU) runs CTAs one by one, whatever the schedule.
        if sms == 1:
            taken[n] += total
        elif kernel.schedule == _PERSISTENT:
            taken[n] += max(total / sms, longest)
        elif kernel.schedule == _SPLIT:
            taken[n] += total / sms
            # Where no CTA holds the others up, nothing is split and nothing is merged.
            if longest > total / sms:
                taken[n] += merged
        else:
            taken[n] += _list_seconds(scratch, known, kernel.ctas, kernel.cta_s, sms)
        for i in range(known):
            load[touched[i]] = 0.0


@inlined
def _list_seconds(scratch: _Scratch, known: int, ctas: Ints, cta_s: float, sms: int) -> float:
    """Start the CTAs of the first `known` touched blocks in order; return when the last ends."""
    times, counts = scratch.times, scratch.counts
    end, offset = 1, 0.0
    times[0], counts[0] = 0.0, sms
    for i in range(known):
        block = scratch.touched[i]
        each = scratch.load[block] * sms / ctas[block] + cta_s
        left = ctas[block]
        while left > 0:
            # If all become free within one CTA's length, a round gives a CTA to each of them and
            # keeps their order. All times move alike, so only `offset` changes.
            if left >= sms and times[end - 1] - times[0] <= each:
                offset += (left // sms) * each  # one for every multiprocessor, in turn
                left -= (left // sms) * sms
                continue
            moved = min(left, counts[0])
            when = times[0] + each
            left -= moved
            counts[0] -= moved
            if counts[0] == 0:  # `times` has no entries of no multiprocessors
                for k in range(end - 1):
                    times[k], counts[k] = times[k + 1], counts[k + 1]
                end -= 1
            # Equal times share an entry, so there are few entries to search.
            at = end
            while at > 0 and times[at - 1] > when:
                at -= 1
            if at > 0 and times[at - 1] == when:
                counts[at - 1] += moved
            else:
                for k in range(end, at, -1):
                    times[k], counts[k] = times[k - 1], counts[k - 1]
                times[at], counts[at] = when, moved
                end += 1
    return float(times[end - 1] + offset)
