"""Tiles and blocks that changed their device between two plans that cut the same blocks."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.library.summary import tiles_of_group
from dcp_dsl.arrays import Bools, Bytes, Ints, Record
from dcp_planner import Plan

SAME, MOVED, ONLY_FIRST, ONLY_SECOND = range(4)
CHANGES = ("same device", "moved", "only in A", "only in B")


@dataclass(frozen=True, slots=True, eq=False)
class Moves(Record):
    """The tiles of two plans, each once, sorted by (group, q_block, kv_block).

    Attributes:
        q_block, kv_block: int64 ``[U]``, blocks of both plans.
        group: int64 ``[U]``, group of heads, of `common_groups`; all 0 if neither plan has several.
        pairs: int64 ``[U]``, visible pairs, of the first plan where it has the tile.
        change: uint8 ``[U]``, index into `CHANGES`.
        fitted: uint8 ``[U]``, the same after B's devices got the numbers that fit A best.
        first, second: int64 ``[U]``, row of the tile in each plan's tiles, -1: not there.
        is_moved_block: bool ``[D]``, whether a block changed its owner.
        moved_tokens: share of all tokens in such blocks.
    """

    q_block: Annotated[Ints, "U"]
    kv_block: Annotated[Ints, "U"]
    group: Annotated[Ints, "U"]
    pairs: Annotated[Ints, "U"]
    change: Annotated[Bytes, "U"]
    fitted: Annotated[Bytes, "U"]
    first: Annotated[Ints, "U"]
    second: Annotated[Ints, "U"]
    is_moved_block: Annotated[Bools, "D"]
    moved_tokens: float

    def tiles(self, change: int) -> int:
        """Count the tiles with a change."""
        return int((self.change == change).sum())

    @property
    def share(self) -> float:
        """Moved tiles over the tiles that both plans have."""
        common = self.tiles(SAME) + self.tiles(MOVED)
        return self.tiles(MOVED) / common if common else 0.0

    @property
    def pair_share(self) -> float:
        """Visible pairs of moved tiles over those of the tiles that both plans have."""
        return self._pairs_moved(self.change)

    @property
    def fitted_pair_share(self) -> float:
        """The same after the devices of the second plan were renumbered to fit the first."""
        return self._pairs_moved(self.fitted)

    def _pairs_moved(self, change: NDArray[np.uint8]) -> float:
        common = int(self.pairs[change <= MOVED].sum())
        return int(self.pairs[change == MOVED].sum()) / common if common else 0.0


def has_same_blocks(first: Plan, second: Plan) -> bool:
    """Return whether two plans cut the same tokens, and heads, into the same blocks."""
    a, b = first.blocks, second.blocks
    if common_groups(first, second) > 1 and first.shape.q_heads != second.shape.q_heads:
        return False
    return np.array_equal(a.start, b.start) and np.array_equal(a.end, b.end)


def find_moves(first: Plan, second: Plan) -> Moves:
    """Match the tiles of two plans over the same blocks; O(W log W + R^2 log R).

    Raises:
        ValueError: if the blocks differ.
    """
    if not has_same_blocks(first, second):
        raise ValueError("expected two plans over the same blocks, got different ones")
    blocks, groups = max(1, len(first.blocks)), common_groups(first, second)
    of_groups = [_tiles_of_groups(plan, groups) for plan in (first, second)]
    keys = [
        (group * blocks + p.tiles.q_block[tile]) * blocks + p.tiles.kv_block[tile]
        for p, (tile, group) in zip((first, second), of_groups, strict=True)
    ]
    union = np.union1d(*keys)
    rows = [
        np.append(tile, -1)[_rows(union, key)]
        for key, (tile, _) in zip(keys, of_groups, strict=True)
    ]
    devices = [
        np.append(p.tiles.device, -1)[row] for p, row in zip((first, second), rows, strict=True)
    ]
    on_both = (rows[0] >= 0) & (rows[1] >= 0)
    pairs = np.where(
        rows[0] >= 0,
        np.append(first.tiles.pairs, 0)[rows[0]],
        np.append(second.tiles.pairs, 0)[rows[1]],
    )
    numbers = fit_devices(
        devices[0][on_both],
        devices[1][on_both],
        pairs[on_both],
        max(first.num_devices, second.num_devices),
    )

    moved = first.blocks.owner != second.blocks.owner
    tokens = int(first.blocks.num_tokens[moved].sum())
    return Moves(
        q_block=union // blocks % blocks,
        kv_block=union % blocks,
        group=union // blocks**2,
        pairs=pairs,
        change=_changes(devices[0], devices[1]),
        fitted=_changes(devices[0], np.append(numbers, -1)[devices[1]]),
        first=rows[0],
        second=rows[1],
        is_moved_block=moved,
        moved_tokens=tokens / first.num_tokens if first.num_tokens else 0.0,
    )


def _changes(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Compare the devices of each tile in both plans, -1 where a plan lacks the tile."""
    found = np.where(first == second, SAME, MOVED)
    found[second < 0], found[first < 0] = ONLY_FIRST, ONLY_SECOND
    return found.astype(np.uint8)


def common_groups(first: Plan, second: Plan) -> int:
    """Return the number of head groups that both plans' groups can be cut into."""
    return math.lcm(first.head_groups, second.head_groups)


def _tiles_of_groups(plan: Plan, groups: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the plan's tiles once per finer group, and these groups, sorted by group."""
    share = groups // plan.head_groups
    tiles = [tiles_of_group(plan, group // share) for group in range(groups)]
    return np.concatenate(tiles), np.repeat(np.arange(groups), [len(rows) for rows in tiles])


def fit_devices(
    first: NDArray[np.int32], second: NDArray[np.int32], weight: NDArray[np.int64], size: int
) -> NDArray[np.int32]:
    """Renumber the second placement's devices so that it looks like the first.

    Both place the same items, ``[N]``, of the given weights on `size` devices. Greedy: the two
    devices that share the largest weight get one number, and so on; that keeps at least half of
    what the best renumbering would keep. O(N + R^2 log R). The result is a permutation, int32
    ``[R]``.

    >>> fit_devices(np.array([0, 0, 1]), np.array([1, 1, 0]), np.array([5, 5, 3]), 2).tolist()
    [1, 0]
    """
    shared = np.zeros((size, size), np.int64)
    np.add.at(shared, (first, second), weight)
    numbers = np.full(size, -1, np.int32)
    is_free = np.ones(size, bool)
    for at in np.argsort(-shared, axis=None, kind="stable").tolist():
        ours, theirs = divmod(at, size)
        if is_free[ours] and numbers[theirs] < 0:
            numbers[theirs], is_free[ours] = ours, False
    return numbers


def _rows(union: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the row of each key of the union in sorted `keys`, -1 where the key is missing."""
    at = np.searchsorted(keys, union)
    is_there = (at < len(keys)) & (np.append(keys, -1)[at] == union)
    rows: NDArray[np.int64] = np.where(is_there, at, -1)
    return rows
