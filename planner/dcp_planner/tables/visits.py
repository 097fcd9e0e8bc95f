"""Which of several transfers of one block to one device a tile, a message or a sum belongs to.

A device may receive a block again in a later division: each receive begins a visit of the block.
What uses the block in a division uses the visit that began last by then. A result takes home the
sums of one visit; a partial result is merged into the next result that leaves its target.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Indices, Ints
from dcp_planner.tables.plan import ComputeBlocks, TransferKind, Transfers

_KEYS = np.array([kind in (TransferKind.KV, TransferKind.DKV) for kind in TransferKind])


def inputs_of_tiles(tiles: ComputeBlocks, transfers: Transfers) -> tuple[Ints, Ints]:
    """Find the transfers that bring each tile its queries and its keys; O((W + X) log X).

    Args:
        tiles: of one head group.
        transfers: likewise; one direction or both.

    Returns:
        Two int64 ``[2, W]``, of queries and of keys: rows of `transfers` in forward and in
        backward, -1 where nothing brings the block to the tile's device.
    """
    divisions = (tiles.division, tiles.backward_division)
    q, kv = (
        np.stack([
            _inputs(transfers, block, tiles.device, is_keys, way, divisions[way])
            for way in (0, 1)
        ])
        for is_keys, block in ((0, tiles.q_block), (1, tiles.kv_block))
    )  # fmt: skip
    return q, kv


def inputs_of_results(transfers: Transfers) -> Ints:
    """Find the visit whose sums each result takes home: its input, int64 ``[X]``; -1 for inputs."""
    found = np.full(len(transfers), -1, np.int64)
    rows = np.flatnonzero(transfers.kind >= TransferKind.OUT)
    found[rows] = _inputs(
        transfers, transfers.block[rows], transfers.source[rows], _KEYS[transfers.kind[rows]],
        transfers.is_backward[rows], transfers.division[rows],
    )  # fmt: skip
    return found


def find_feeders(transfers: Transfers, is_passed: Bools | None = None) -> Ints:
    """Find the transfer that brings each passed-on input to its source, int64 ``[X]``, or -1.

    `is_passed` says which inputs are passed on, bool ``[X]``; left out, their hops say it.
    """
    found = np.full(len(transfers), -1, np.int64)
    if is_passed is None:
        is_passed = transfers.hop > 0
    rows = np.flatnonzero(is_passed & (transfers.kind < TransferKind.OUT))
    found[rows] = _inputs(
        transfers, transfers.block[rows], transfers.source[rows], _KEYS[transfers.kind[rows]],
        transfers.is_backward[rows], transfers.division[rows],
    )  # fmt: skip
    return found


def find_merges(transfers: Transfers, owner: Indices) -> Ints:
    """Find the result that each partial result is merged into, int64 ``[X]``; -1 at the owner.

    `owner` is int32 ``[D]``, the device of every block.
    """
    found = np.full(len(transfers), -1, np.int64)
    is_result = transfers.kind >= TransferKind.OUT
    results = np.flatnonzero(is_result)
    partials = np.flatnonzero(is_result & (transfers.target != owner[transfers.block]))
    ends = ((results, transfers.source), (partials, transfers.target))
    place, wanted = (
        _place(transfers.block[x], end[x], _KEYS[transfers.kind[x]], transfers.is_backward[x])
        for x, end in ends
    )
    # The next result is the latest one, with time turned round.
    time = -transfers.division.astype(np.int64)
    at = latest(place, time[results], wanted, time[partials])
    found[partials] = np.where(at >= 0, results[at] if len(results) else -1, -1)
    return found


def _inputs(
    transfers: Transfers,
    block: Indices,
    device: Indices,
    is_keys: NDArray[np.generic] | int,
    is_backward: NDArray[np.generic] | int,
    division: Indices,
) -> Ints:
    """Find the input of a block that began the visit of each division at a device, or -1."""
    rows = np.flatnonzero(transfers.kind < TransferKind.OUT)
    place = _place(
        transfers.block[rows], transfers.target[rows], _KEYS[transfers.kind[rows]],
        transfers.is_backward[rows],
    )  # fmt: skip
    wanted = _place(block, device, is_keys, is_backward)
    at = latest(place, transfers.division[rows], wanted, division)
    return np.where(at >= 0, rows[at] if len(rows) else -1, -1)


def _place(
    block: Indices,
    device: Indices,
    is_keys: NDArray[np.generic] | int,
    is_backward: NDArray[np.generic] | int,
) -> Ints:
    side = 2 * np.asarray(is_backward, np.int64) + np.asarray(is_keys, np.int64)
    return ((block.astype(np.int64) << 31) + device) * 4 + side


def latest(
    place: Ints, division: NDArray[np.integer], wanted: Ints, at: NDArray[np.integer]
) -> Ints:
    """Find the row of each wanted place with the greatest division that is not above `at`.

    Args:
        place: int64 ``[N]``, what each row is of.
        division: integers ``[N]``.
        wanted: int64 ``[M]``.
        at: integers ``[M]``.

    Returns:
        int64 ``[M]``: the first row of the place if none is early enough, -1 if it has none.
        O((N + M) log N).

    >>> place, division = np.array([7, 7, 8]), np.array([1, 5, 2])
    >>> latest(place, division, np.array([7, 7, 7, 8, 9]), np.array([0, 4, 5, 2, 0])).tolist()
    [0, 0, 1, 2, -1]
    """
    if len(place) == 0:
        return np.full(len(wanted), -1, np.int64)
    order = np.lexsort((division, place))
    known, rank = np.unique(division, return_inverse=True)
    places, number = np.unique(place, return_inverse=True)
    of = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    width = len(known) + 1
    keys = (number * width + rank)[order]
    found = np.searchsorted(keys, of * width + np.searchsorted(known, at, side="right")) - 1
    first = np.searchsorted(keys, of * width)
    rows = order[np.maximum(found, first)]
    return np.asarray(np.where(places[of] == wanted, rows, -1))
