"""Tiles, for masks that slabs cannot hold: blocks are counted by labels, or decided by a predicate.

A predicate decides blocks by bounds, and what these leave open pair by pair; the other parts are
those of `labels`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.forms.form import (
    BlockCounts,
    Form,
    FormName,
    RowRanges,
    ranges_of_tile,
    row_chunks,
)  # fmt: skip
from dcp_dsl.forms.slabs import sum_blocks
from dcp_dsl.symbolic.intervals import Grid

# For every block: whether all of its pairs are visible, and whether any may be.
Verdict: TypeAlias = tuple[Bools, Bools]


BLOCKS_AT_ONCE = 2**18
PAIRS_AT_ONCE = 2**20


def decide_form(form: Form, grid: Grid) -> Verdict:
    """Decide every block of a grid by an exact form."""
    q, k = grid.q_bounds, grid.kv_bounds
    if grid.is_of_pairs:
        seen = form.tile(int(q[0]), int(q[-1]), int(k[0]), int(k[-1]))
        return seen, seen
    borders = [np.unique(np.concatenate([[0], b, [form.num_tokens]])) for b in (q, k)]
    counts = form.count_blocks(borders[0], borders[1])
    pairs = np.zeros((len(borders[0]) - 1, len(borders[1]) - 1), np.int64)
    pairs[counts.row, counts.col] = counts.pairs
    rows, columns = grid.shape
    row, column = (int(np.searchsorted(b, v[0])) for b, v in zip(borders, (q, k), strict=True))
    own = pairs[row : row + rows, column : column + columns]
    return own == np.diff(q)[:, None] * np.diff(k), own > 0


class Part(Protocol):
    """A set of pairs that adds to a mask, or takes away from it."""

    @property
    def name(self) -> str:
        """The same only for equal parts."""

    @property
    def sign(self) -> int:
        """1 to add the pairs, -1 to take them away."""

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the part's pairs among some queries and keys, bool ``[queries, keys]``."""

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, column and signed pairs of blocks, each at most once."""


@dataclass(frozen=True, eq=False)
class DecidedPart:
    """The pairs for which a predicate holds: products of positions, comparisons of random numbers.

    Attributes:
        predicate: decides the blocks of a grid.
        name: the same only for equal predicates.
    """

    predicate: Callable[[Grid], Verdict]
    name: str
    sign: ClassVar[int] = 1

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the part's pairs among some queries and keys, bool ``[queries, keys]``."""
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        if seen.size:
            for begin, end in row_chunks(q_end - q_start, kv_end - kv_start, PAIRS_AT_ONCE):
                grid = Grid.of_pairs((q_start + begin, q_start + end), (kv_start, kv_end))
                seen[begin:end] = self.predicate(grid)[1]
        return seen

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, column and pairs of the blocks that hold some."""
        width = len(kv_bounds) - 1
        parts = [(np.empty(0, np.int64),) * 3]
        for begin, end in row_chunks(len(q_bounds) - 1, width, BLOCKS_AT_ONCE):
            pairs = self._count_some(q_bounds[begin : end + 1], kv_bounds)
            row, col = np.nonzero(pairs)
            parts.append((row + begin, col, pairs[row, col]))
        row, col, pairs = (np.concatenate(c) for c in zip(*parts, strict=True))
        return row, col, pairs

    def _count_some(self, q_bounds: Ints, kv_bounds: Ints) -> Ints:
        always, ever = self.predicate(Grid(q_bounds, kv_bounds))
        pairs = np.where(always, np.diff(q_bounds)[:, None] * np.diff(kv_bounds), 0)
        for row, first, last in zip(*ranges_to_check(ever & ~always), strict=True):
            start, end = kv_bounds[first], kv_bounds[last]
            seen = self.tile(int(q_bounds[row]), int(q_bounds[row + 1]), int(start), int(end))
            borders = kv_bounds[first:last] - start
            counted = np.add.reduceat(seen.sum(axis=0), borders)
            pairs[row, first:last] = counted
        return pairs


@dataclass(frozen=True, eq=False)
class Tiles:
    """A mask as a sum of parts that know how many pairs a block holds, for what slabs cannot hold.

    Attributes:
        num_tokens: rows, and keys, of the mask.
        parts: they add up to 0 or 1 on every pair.
    """

    form: ClassVar[FormName] = "tiles"

    num_tokens: int
    parts: tuple[Part, ...]

    @cached_property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs; costs what counting blocks costs."""
        step = max(256, -(-self.num_tokens // 512))
        bounds = np.unique(np.append(np.arange(0, self.num_tokens, step), self.num_tokens))
        return int(self.count_blocks(bounds, bounds).pairs.sum())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parts; see `Form`."""
        names = " ".join(part.name for part in self.parts)
        return sha256(f"dcp.mask/1 tiles {self.num_tokens} {names}".encode()).hexdigest()

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of some queries and keys, bool ``[queries, keys]``."""
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        for part in self.parts:  # what is added or taken away differs from what is there
            seen ^= part.tile(q_start, q_end, kv_start, kv_end)
        return seen

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
        return ranges_of_tile(self.tile(q_start, q_end, 0, self.num_tokens))

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; see `Form`."""
        found = [part.count_blocks(q_bounds, kv_bounds) for part in self.parts]
        if len(found) == 1 and self.parts[0].sign == 1:
            row, col, pairs = found[0]
            seen = pairs > 0
            return BlockCounts.without_slabs(row[seen], col[seen], pairs[seen])
        none = (np.empty(0, np.int64),) * 3
        row, col, pairs = (np.concatenate(c) for c in zip(none, *found, strict=True))
        return sum_blocks(row, col, pairs, (len(q_bounds) - 1, len(kv_bounds) - 1))


def ranges_to_check(undecided: Bools) -> tuple[list[int], list[int], list[int]]:
    """Return (row, first, end) of the runs of undecided blocks."""
    row_ptr, starts, ends = ranges_of_tile(undecided)
    rows = np.repeat(np.arange(len(undecided)), np.diff(row_ptr))
    return rows.tolist(), starts.tolist(), ends.tolist()
