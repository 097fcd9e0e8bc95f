"""Who owns which token block, given where the tiles are: regret first, under a token cap."""

import heapq

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.packing import loads_of, pack_largest_first

Parts = NDArray[np.int32]


def choose_owners(
    cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int, found: Parts
) -> Parts:
    """Give every block an owner that is cheap and keeps every part's tokens under the cap.

    Blocks that lose most by their second choice choose first. If that strands a block, blocks
    choose largest first; if that fails too, the owners found so far or, at last, an LPT packing are
    taken.

    Args:
        cost: float64 ``[D, P]``, cost of each block at each part.
        tokens: int64 ``[D]``.
        cap: most tokens of a part; at least what LPT needs.
        found: int32 ``[D]``, owners as the partitioner left them.

    Returns:
        int32 ``[D]``. O(D P log D).
    """
    parts = cost.shape[1]
    for owner in (_by_regret(cost, tokens, cap), _by_size(cost, tokens, cap), found):
        if owner is not None and loads_of(owner, tokens, parts).max(initial=0) <= cap:
            return owner
    return pack_largest_first(tokens, parts)


def _by_regret(cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int) -> Parts | None:
    blocks, parts = cost.shape
    order = np.argsort(cost, axis=1, kind="stable")
    room = np.full(parts, cap, np.int64)
    owner = np.full(blocks, -1, np.int32)

    def choice(block: int) -> tuple[float, int, int] | None:
        """Give (minus the regret, block, best part) among the parts with room."""
        fitting = order[block][room[order[block]] >= tokens[block]]
        if fitting.size == 0:
            return None
        regret = cost[block, fitting[1]] - cost[block, fitting[0]] if fitting.size > 1 else np.inf
        return -float(regret), block, int(fitting[0])

    heap = [choice(block) for block in range(blocks)]
    if None in heap:
        return None
    queue = [entry for entry in heap if entry is not None]
    heapq.heapify(queue)
    while queue:
        entry = heapq.heappop(queue)
        block = entry[1]
        now = choice(block)
        if now is None:
            return None
        if now != entry:  # its best part has filled up meanwhile
            heapq.heappush(queue, now)
            continue
        owner[block] = now[2]
        room[now[2]] -= tokens[block]
    return owner


def _by_size(cost: NDArray[np.float64], tokens: NDArray[np.int64], cap: int) -> Parts | None:
    room = np.full(cost.shape[1], cap, np.int64)
    owner = np.full(len(cost), -1, np.int32)
    for block in np.argsort(-tokens, kind="stable").tolist():
        fits = room >= tokens[block]
        if not fits.any():
            return None
        owner[block] = int(np.argmin(np.where(fits, cost[block], np.inf)))
        room[owner[block]] -= tokens[block]
    return owner
