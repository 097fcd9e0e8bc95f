"""Caps on pairs and tokens per device, as low as whole blocks can be shared out."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Indices, Ints


@dataclass(frozen=True, slots=True)
class Caps:
    """Most that any part may hold.

    Attributes:
        pairs: visible pairs to compute.
        tokens: tokens to own.
    """

    pairs: int
    tokens: int


def pack_largest_first(sizes: Ints, parts: int) -> Indices:
    """Assign each item, largest first, to the part that holds least so far (LPT); O(n log n).

    Returns:
        int32 ``[n]``, part of each item. The fullest part is at most 4/3 of the best possible.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies (1969).

    >>> pack_largest_first(np.array([2, 3, 5]), 2).tolist()
    [1, 1, 0]
    """
    part = np.zeros(len(sizes), np.int32)
    heap = [(0, p) for p in range(parts)]
    for item in np.argsort(-sizes, kind="stable").tolist():
        load, lightest = heap[0]
        part[item] = lightest
        heapq.heapreplace(heap, (load + int(sizes[item]), lightest))
    return part


def cap_of(sizes: Ints, parts: int, tolerance: float) -> int:
    """Compute the most that a part may hold: the tolerance, or what LPT needs if that is more."""
    total = int(sizes.sum())
    level = min(total, int((1 + tolerance) * total / parts))
    if total + parts * int(sizes.max(initial=0)) <= parts * level:
        return level  # LPT ends at most one item above the mean
    packed = loads_of(pack_largest_first(sizes, parts), sizes, parts)
    return max(level, int(packed.max(initial=0)))


def loads_of(part: Indices, sizes: Ints | Sequence[int], parts: int) -> Ints:
    """Add up the sizes in each part, int64 ``[parts]``."""
    loads = np.zeros(parts, np.int64)
    np.add.at(loads, part, sizes)
    return loads
