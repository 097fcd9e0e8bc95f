"""Find which of several transfers of a block serves a tile, a message or a sum.

A device may receive a block again in a later division: each receive begins a visit of the block. A
tile or message that uses the block in a division belongs to the last visit that began by then. A
result takes home the sums of one visit; a partial result is merged into the next result that leaves
its target.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Indices, Ints
from dcp_planner.model.cluster import MOST_DEVICES
from dcp_planner.tables.plan import ComputeBlocks, Plan, TransferKind, Transfers

# Of each kind, whether it concerns keys: KV and DKV share a place, and so do Q, OUT and DQ.
_KEYS = np.array([kind in (TransferKind.KV, TransferKind.DKV) for kind in TransferKind])


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The transfers that serve tiles, results and messages, in both directions."""

    # of queries and of keys: the input that each tile reads, int64 `[2, W]`, or -1
    read_by: tuple[Ints, Ints]
    input_of: Ints  # the input whose sums each result takes home, int64 `[X]`, or -1
    merged_into: Ints  # the result that each partial result is merged into, int64 `[X]`, or -1
    feeder: Ints  # the input that brought each passed-on input to its source, int64 `[X]`, or -1

    @classmethod
    def of(cls, plan: Plan) -> "Visits":
        """Find the visits of a plan of one head group; O((W + X) log X)."""
        table, inputs, owner = plan.transfers, _inputs(plan.transfers), plan.blocks.owner
        return cls(
            _of_tiles(inputs, plan.tiles),
            _at_source(inputs, table, table.kind >= TransferKind.OUT),
            find_merges(table, owner),
            # By the owner, not by the hop: validation checks the hops against these feeders.
            _at_source(
                inputs,
                table,
                (table.kind < TransferKind.OUT) & (table.source != owner[table.block]),
            ),
        )


def inputs_of_tiles(tiles: ComputeBlocks, transfers: Transfers) -> tuple[Ints, Ints]:
    """Find the transfers that bring each tile its queries and its keys; O((W + X) log X).

    Two int64 ``[2, W]``, of queries and of keys: rows of `transfers` in forward and in backward, -1
    where nothing brings the block to the tile's device.
    """
    return _of_tiles(_inputs(transfers), tiles)


def _of_tiles(inputs: "_Index", tiles: ComputeBlocks) -> tuple[Ints, Ints]:
    divisions = (tiles.division, tiles.backward_division)
    q, kv = (
        np.stack([
            inputs.latest(_place(block, tiles.device, is_keys, way), divisions[way])
            for way in (0, 1)
        ])
        for is_keys, block in ((0, tiles.q_block), (1, tiles.kv_block))
    )  # fmt: skip
    return q, kv


def inputs_of_results(transfers: Transfers) -> Ints:
    """Find the visit whose sums each result takes home: its input, int64 ``[X]``; -1 for inputs."""
    return _at_source(_inputs(transfers), transfers, transfers.kind >= TransferKind.OUT)


def find_feeders(transfers: Transfers) -> Ints:
    """Find the transfer that brings an input of hop above 0 to its source ``[X]``, or -1."""
    is_passed = (transfers.hop > 0) & (transfers.kind < TransferKind.OUT)
    return _at_source(_inputs(transfers), transfers, is_passed)


def find_merges(transfers: Transfers, owner: Indices) -> Ints:
    """Find the result that each partial result is merged into, int64 ``[X]``, or -1.

    Inputs, and results that arrive at the owner, are merged into no other result. `owner` is int32
    ``[D]``, the device of every block.
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
    # With time reversed, the next result to leave is the latest one.
    time = -transfers.division.astype(np.int64)
    found[partials] = _Index.of(results, place, time[results]).latest(wanted, time[partials])
    return found


def _inputs(transfers: Transfers) -> "_Index":
    """Index the inputs, each of which begins a visit at its target."""
    rows = np.flatnonzero(transfers.kind < TransferKind.OUT)
    kind, is_backward = transfers.kind[rows], transfers.is_backward[rows]
    place = _place(transfers.block[rows], transfers.target[rows], _KEYS[kind], is_backward)
    return _Index.of(rows, place, transfers.division[rows])


def _at_source(inputs: "_Index", transfers: Transfers, chosen: Bools) -> Ints:
    """Find the visit, at their sources, that the chosen transfers belong to; -1 for others."""
    found, x = np.full(len(transfers), -1, np.int64), np.flatnonzero(chosen)
    is_keys, is_backward = _KEYS[transfers.kind[x]], transfers.is_backward[x]
    wanted = _place(transfers.block[x], transfers.source[x], is_keys, is_backward)
    found[x] = inputs.latest(wanted, transfers.division[x])
    return found


def _place(
    block: Indices,
    device: Indices,
    is_keys: NDArray[np.generic] | int,
    is_backward: NDArray[np.generic] | int,
) -> Ints:
    """Number the places where visits happen: block, device, direction, queries or keys."""
    side = 2 * np.asarray(is_backward, np.int64) + np.asarray(is_keys, np.int64)
    # Below 2**49, which leaves 14 bits for the rank of the division.
    return (block * np.int64(MOST_DEVICES) + device) * 4 + side


class _Index(NamedTuple):
    """Rows of a table, sorted by their place, then by their division."""

    rows: Ints  # `[N]`, in this order
    place: Ints  # `[N]`, of each
    known: Ints  # the divisions that occur, rising
    keys: Ints  # `[N]`, place, and rank of the division among `known`, in one number; rising

    @classmethod
    def of(cls, rows: Ints, place: Ints, division: NDArray[np.integer]) -> "_Index":
        """Sort rows of some places and divisions; O(N log N)."""
        known, rank = np.unique(division, return_inverse=True)
        keys = place * (len(known) + 1) + rank
        order = np.argsort(keys, kind="stable")
        return cls(rows[order], place[order], known, keys[order])

    def latest(self, wanted: Ints, at: NDArray[np.integer]) -> Ints:
        """Find the row of each wanted place with the greatest division not above `at`; O(M log N).

        The first row of the place if none is early enough, -1 if it has none.
        """
        if len(self.rows) == 0:
            return np.full(len(wanted), -1, np.int64)
        width = len(self.known) + 1
        # Divisions up to `at` have ranks below `rank`, so the row before this key is the latest;
        # if it belongs to an earlier place, the first row of the wanted place is taken.
        rank = np.searchsorted(self.known, at, side="right")
        found = np.searchsorted(self.keys, wanted * width + rank) - 1
        first = np.searchsorted(self.keys, wanted * width)
        n = np.minimum(np.maximum(found, first), len(self.rows) - 1)
        return np.asarray(np.where(self.place[n] == wanted, self.rows[n], -1))
