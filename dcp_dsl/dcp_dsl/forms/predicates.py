"""Masks as trees of regions and comparisons, decided block by block or pair by pair."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.forms.form import Form
from dcp_dsl.symbolic.grid import Grid
from dcp_dsl.symbolic.number_trees import NumberTree

# For every block: whether all of its pairs are visible, and whether any may be.
Verdict: TypeAlias = tuple[Bools, Bools]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A part of the mask that has an exact form of its own."""

    mask: Form

    def on(self, grid: Grid) -> Verdict:
        """Decide every block of a grid."""
        q, k = grid.q_bounds, grid.kv_bounds
        if grid.is_of_pairs:
            seen = self.mask.tile(int(q[0]), int(q[-1]), int(k[0]), int(k[-1]))
            return seen, seen
        n = self.mask.num_tokens
        borders = [np.unique(np.concatenate([[0], b, [n]])) for b in (q, k)]
        counts = self.mask.count_blocks(borders[0], borders[1])
        pairs = np.zeros((len(borders[0]) - 1, len(borders[1]) - 1), np.int64)
        pairs[counts.row, counts.col] = counts.pairs
        rows, columns = grid.shape
        row, column = (int(np.searchsorted(b, v[0])) for b, v in zip(borders, (q, k), strict=True))
        own = pairs[row : row + rows, column : column + columns]
        return own == np.diff(q)[:, None] * np.diff(k), own > 0

    def parts(self) -> Iterator[Ints | str]:
        """Give what the mask is made of, for a digest."""
        yield self.mask.digest


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """``left op right``."""

    op: str
    left: NumberTree
    right: NumberTree

    def on(self, grid: Grid) -> Verdict:
        """Decide every block of a grid."""
        always, ever = self.left.on(grid).compare(self.op, self.right.on(grid))
        return np.broadcast_to(always, grid.shape), np.broadcast_to(ever, grid.shape)

    def parts(self) -> Iterator[Ints | str]:
        """Give what the mask is made of, for a digest."""
        yield self.op
        yield from self.left.parts()
        yield from self.right.parts()


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """All, or any, of several masks."""

    is_and: bool
    items: tuple["Predicate", ...]

    def on(self, grid: Grid) -> Verdict:
        """Decide every block of a grid."""
        verdicts = [item.on(grid) for item in self.items]
        join = np.logical_and.reduce if self.is_and else np.logical_or.reduce
        return join([a for a, _ in verdicts]), join([b for _, b in verdicts])

    def parts(self) -> Iterator[Ints | str]:
        """Give what the mask is made of, for a digest."""
        yield f"{'and' if self.is_and else 'or'} {len(self.items)}"
        for item in self.items:
            yield from item.parts()


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """What a mask does not show."""

    inner: "Predicate"

    def on(self, grid: Grid) -> Verdict:
        """Decide every block of a grid."""
        always, ever = self.inner.on(grid)
        return ~ever, ~always

    def parts(self) -> Iterator[Ints | str]:
        """Give what the mask is made of, for a digest."""
        yield "not"
        yield from self.inner.parts()


Predicate: TypeAlias = Known | Compared | Joined | Inverted
