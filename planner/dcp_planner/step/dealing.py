"""Deal documents into bins of equal work, under a cap on the tokens of a bin."""

import heapq
from collections.abc import Sequence

import numpy as np

from dcp_dsl.arrays import Floats, Ints


def deal(seconds: Floats, tokens: Ints, bins: int, cap: float) -> Ints:
    """Choose a bin for every document: longest first, into the bin with least work and room.

    A document that fits nowhere goes to the bin with the fewest tokens. Then pairs of documents
    between the fullest bin and others are exchanged while that lowers the larger of the two.

    Args:
        seconds: work of each document ``[N]``.
        tokens: of each document ``[N]``.
        bins: how many.
        cap: most tokens of a bin.

    Returns:
        The bin of each document, int64 ``[N]``. Deterministic. Cost: O(N log bins + exchanges).

    Source: longest processing time first (Graham 1969), with a second resource.

    >>> deal(np.array([4.0, 3, 3, 2]), np.array([1, 1, 1, 1]), 2, cap=2).tolist()
    [0, 1, 1, 0]
    """
    bin_of = np.zeros(len(seconds), np.int64)
    load, held = np.zeros(bins), np.zeros(bins)
    queue = [(0.0, number) for number in range(bins)]
    for row in sorted(range(len(seconds)), key=lambda i: (-seconds[i], i)):
        chosen = _roomy(queue, held, float(tokens[row]), cap)
        bin_of[row] = chosen
        load[chosen] += seconds[row]
        held[chosen] += tokens[row]
        heapq.heappush(queue, (float(load[chosen]), chosen))
    _exchange(bin_of, seconds, tokens, load, held, cap)
    return bin_of


def _roomy(queue: list[tuple[float, int]], held: Floats, size: float, cap: float) -> int:
    """Take the least loaded bin with room out of the queue."""
    full = []
    while queue:
        entry = heapq.heappop(queue)
        if held[entry[1]] + size <= cap:
            chosen = entry[1]
            break
        full.append(entry)
    else:
        chosen = int(np.argmin(held))
        full = [entry for entry in full if entry[1] != chosen]
    for entry in full:
        heapq.heappush(queue, entry)
    return chosen


def _exchange(
    bin_of: Ints, seconds: Floats, tokens: Ints, load: Floats, held: Floats, cap: float
) -> None:
    """Relieve the fullest bin by moving or swapping one document at a time, in place."""
    tried: set[int] = set()
    for _ in range(8 * len(load)):
        open_bins = [b for b in range(len(load)) if b not in tried]
        if not open_bins:
            return
        fullest = max(open_bins, key=lambda b: (load[b], -b))
        best = _best_exchange(bin_of, seconds, tokens, load, held, cap, fullest)
        if best is None:
            tried.add(fullest)
            if load[fullest] >= load.max():
                return  # the longest bin decides: nothing else helps
            continue
        here, there, other = best
        for row, old, new in ((here, fullest, other), (there, other, fullest)):
            if row >= 0:
                bin_of[row] = new
                load[old] -= seconds[row]
                load[new] += seconds[row]
                held[old] -= tokens[row]
                held[new] += tokens[row]


def _best_exchange(
    bin_of: Ints, seconds: Floats, tokens: Ints, load: Floats, held: Floats, cap: float, full: int
) -> tuple[int, int, int] | None:
    """Find the exchange that lowers the larger of two bins most.

    Returns:
        The document that leaves, the document that comes (-1: none), the other bin.
    """
    mine = np.flatnonzero(bin_of == full)
    others = np.flatnonzero(bin_of != full)
    others = np.append(others, np.full(len(load), -1))
    target = np.append(bin_of[others[: -len(load)]], np.arange(len(load)))
    back_s = np.where(others >= 0, seconds[others], 0.0)
    back_t = np.where(others >= 0, tokens[others], 0)
    best, best_gain = None, load[full] * 1e-9
    for row in mine.tolist():
        shift = seconds[row] - back_s
        larger = np.maximum(load[full] - shift, load[target] + shift)
        grown = tokens[row] - back_t
        fits = (held[target] + grown <= cap) & (held[full] - grown <= max(cap, held[full]))
        gain = np.where(fits & (target != full), load[full] - larger, -np.inf)
        place = int(np.argmax(gain))
        if gain[place] > best_gain:
            best_gain = gain[place]
            best = (row, int(others[place]), int(target[place]))
    return best


def alike(loads: Sequence[float], micro_batches: int) -> Ints:
    """Order bins so that each micro-batch gets bins of similar work; returns bins ``[M, groups]``.

    >>> alike([3.0, 1.0, 2.0, 4.0], 2).tolist()
    [[3, 0], [2, 1]]
    """
    order = np.lexsort((np.arange(len(loads)), -np.asarray(loads)))
    return order.reshape(micro_batches, -1)
