"""Tiles and blocks that changed their device between two plans that cut the same blocks."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dcp_dashboard.library.summary import tiles_of_group
from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record
from dcp_planner import Plan

SAME, MOVED, ONLY_FIRST, ONLY_SECOND = range(4)
CHANGES = ("same device", "moved", "only in A", "only in B")


@dataclass(frozen=True, slots=True, eq=False)
class Moves(Record):
    """The tiles of two plans, each once, sorted by (group, q_block, kv_block).

    Attributes:
        q_block, kv_block: blocks of both plans.
        group: group of heads, of `common_groups`; all 0 if neither plan has several.
        pairs: visible pairs, of the first plan where it has the tile.
        change: index into `CHANGES`.
        fitted: the same after B's devices got the numbers that fit A best.
        first, second: row of the tile in each plan's tiles, -1: not there.
        is_moved_block: whether a block changed its owner.
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

    def _pairs_moved(self, change: Bytes) -> float:
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
    plans = (first, second)
    keys, tiles = zip(*(_sorted_tiles(plan, groups, blocks) for plan in plans), strict=True)
    union = np.union1d(*keys)
    rows = [np.append(tile, -1)[_rows(union, key)] for key, tile in zip(keys, tiles, strict=True)]
    # A tile that a plan lacks has row -1 there, which reads what is appended.
    a, b = (np.append(p.tiles.device, -1)[row] for p, row in zip(plans, rows, strict=True))
    ours, theirs = (np.append(p.tiles.pairs, 0)[row] for p, row in zip(plans, rows, strict=True))
    pairs, on_both = np.where(a >= 0, ours, theirs), (a >= 0) & (b >= 0)
    num_devices = max(plan.num_devices for plan in plans)
    numbers = fit_devices(a[on_both], b[on_both], pairs[on_both], num_devices)
    moved = first.blocks.owner != second.blocks.owner
    tokens = int(first.blocks.num_tokens[moved].sum())
    return Moves(
        q_block=union // blocks % blocks,
        kv_block=union % blocks,
        group=union // blocks**2,
        pairs=pairs,
        change=_changes(a, b),
        fitted=_changes(a, np.append(numbers, -1)[b]),
        first=rows[0],
        second=rows[1],
        is_moved_block=moved,
        moved_tokens=tokens / max(1, first.num_tokens),
    )


def _sorted_tiles(plan: Plan, groups: int, blocks: int) -> tuple[Ints, Ints]:
    """Return a sorted key and the row of each tile, once per group of `common_groups`."""
    share = groups // plan.head_groups
    tiles = [tiles_of_group(plan, group // share) for group in range(groups)]
    group = np.repeat(np.arange(groups), [len(rows) for rows in tiles])
    row, table = np.concatenate(tiles), plan.tiles
    return (group * blocks + table.q_block[row]) * blocks + table.kv_block[row], row


def _changes(first: Indices, second: Indices) -> Bytes:
    """Compare the devices of each tile in both plans, -1 where a plan lacks the tile."""
    found = np.where(first == second, SAME, MOVED)
    found[second < 0], found[first < 0] = ONLY_FIRST, ONLY_SECOND
    return found.astype(np.uint8)


def common_groups(first: Plan, second: Plan) -> int:
    """Return the number of head groups that both plans' groups can be cut into."""
    return math.lcm(first.head_groups, second.head_groups)


def fit_devices(first: Indices, second: Indices, weight: Ints, size: int) -> Indices:
    """Renumber the second placement's devices so that it looks like the first.

    Both place the same items, ``[N]``, of the given weights on `size` devices. Greedy: the two
    devices that share the largest weight get one number, and so on, which keeps at least half of
    the weight that the best renumbering keeps. O(N + R^2 log R). Return a permutation ``[R]``.

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


def _rows(union: Ints, keys: Ints) -> Ints:
    """Find the row of each key of the union in sorted `keys`, -1 where the key is missing."""
    at = np.searchsorted(keys, union)
    return np.where(np.append(keys, -1)[at] == union, at, -1)
