"""Where each instance of a segment begins and ends: arrays of borders, never labels per token.

Numbers count within the nearest named group around a segment, else within the sample; instances
without tokens count too.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.errors import DatasetError
from dcp_dsl.piecewise import Piecewise

Ints = NDArray[np.int64]

MAX_INSTANCES = 2**22


@dataclass(frozen=True, eq=False)
class Instances:
    """The instances of one segment, in the order of their tokens; they never overlap.

    Attributes:
        start, end: int64 ``[I]``, tokens.
        number: int64 ``[I]``, from 0 within the parent.
        total: int64 ``[I]``, how many the parent has.
        parent: int64 ``[I]``, equal for instances of the same parent.
        is_named: whether numbers are the ids of a column: several stretches may share one, and
            they keep their numbers inside `per`.
    """

    start: Ints
    end: Ints
    number: Ints
    total: Ints
    parent: Ints
    is_named: bool = False

    @classmethod
    def of(cls, start: Ints, end: Ints) -> "Instances":
        """Number instances that have the whole sample as their parent."""
        size = len(start)
        return cls(start, end, np.arange(size), np.full(size, size), np.zeros(size, np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def is_split(self) -> bool:
        """Whether one id names several stretches."""
        return self.is_named and len(np.unique(self.number)) < len(self.number)

    def select(self, chosen: NDArray[np.bool_]) -> "Instances":
        """Give some of the instances with their numbers unchanged."""
        return Instances(
            self.start[chosen], self.end[chosen], self.number[chosen], self.total[chosen],
            self.parent[chosen], self.is_named,
        )  # fmt: skip

    def filled(self) -> "Instances":
        """Give the instances that have tokens."""
        has_tokens = self.end > self.start
        return self if has_tokens.all() else self.select(has_tokens)

    def function(self, num_tokens: int, values: Ints, slope: int = 0) -> Piecewise:
        """Give ``values[i] + slope * (t - start[i])`` on instance i, undefined between them."""
        has_tokens = self.end > self.start
        start, end, values = self.start[has_tokens], self.end[has_tokens], values[has_tokens]
        before = np.concatenate([[0], end])  # a gap may follow each instance and precede the first
        has_gap = np.append(start, num_tokens) > before
        gaps = before[has_gap]
        if len(gaps) == 0:
            slopes = np.full(len(start), slope, np.int64)
            return Piecewise(num_tokens, start, values, slopes, np.ones(len(start), np.bool_))
        starts = np.concatenate([start, gaps])
        gap = np.zeros(len(gaps), np.int64)
        order = np.argsort(starts, kind="stable")
        return Piecewise(
            num_tokens,
            starts[order],
            np.concatenate([values, gap])[order],
            np.concatenate([np.full(len(start), slope, np.int64), gap])[order],
            np.concatenate([np.ones(len(start), np.bool_), np.zeros(len(gap), np.bool_)])[order],
        )

    def clip(self, cells: "Instances") -> tuple["Instances", Ints]:
        """Give what lies inside each cell, numbered within it, and the cell of each piece.

        Instances without tokens in a cell are absent from it. Ids keep their numbers.
        """
        own = self.filled()
        low = np.searchsorted(cells.end, own.start, side="right")
        high = np.searchsorted(cells.start, own.end, side="left")
        counts = np.maximum(high - low, 0)
        index = np.repeat(np.arange(len(own)), counts)
        cell = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts - low, counts)
        start = np.maximum(own.start[index], cells.start[cell])
        end = np.minimum(own.end[index], cells.end[cell])
        number, total, parent = own.number[index], own.total[index], own.parent[index]
        if self.is_named:
            return Instances(start, end, number, total, cell, is_named=True), cell
        base = int(parent.max(initial=0)) + 1
        _, group = np.unique(cell * base + parent, return_inverse=True)
        size = int(group.max(initial=-1)) + 1
        first = np.full(size, np.iinfo(np.int64).max)
        np.minimum.at(first, group, number)
        members = np.bincount(group, minlength=size)
        return Instances(start, end, number - first[group], members[group], group), cell


def tile(size: int, parents: Instances) -> Instances:
    """Cut every parent into tiles of `size` tokens; the last one may be short."""
    lengths = parents.end - parents.start
    counts = -(-lengths // size)
    if counts.sum() > MAX_INSTANCES:
        raise DatasetError(
            f"`every {size}` makes {counts.sum():_} tiles; at most {MAX_INSTANCES:_} are supported"
        )
    parent = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = parents.start[parent] + number * size
    end = np.minimum(start + size, parents.end[parent])
    return Instances(start, end, number, counts[parent], parent)


def join(parts: list[Instances]) -> Instances:
    """Join instances of different parents, in the order of their tokens."""
    if len(parts) == 1:
        return parts[0]
    shift = np.cumsum([0, *(int(p.parent.max(initial=-1)) + 1 for p in parts[:-1])])
    columns = zip(
        *(
            (p.start, p.end, p.number, p.total, p.parent + s)
            for p, s in zip(parts, shift, strict=True)
        ),
        strict=True,
    )
    start, end, number, total, parent = (np.concatenate(c) for c in columns)
    order = np.lexsort((end, start))
    return Instances(start[order], end[order], number[order], total[order], parent[order])
