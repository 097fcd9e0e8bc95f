"""Masks that repeat with the distance: one region for each class of ``(q - k) % period``.

``(q - k) % 4 == 0`` cannot be written with few slabs, but for each of the four remainders it is
everything or nothing. Masks of this kind are closed under and, or, minus and not, as regions are:
the regions of every pair of classes that share a remainder are combined.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from operator import and_, or_, sub
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.symbolic.piecewise import limit_pieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import MAX_PERIOD

MAX_CLASSES = 256


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Regions by the remainder of the distance; at least two different ones.

    ``regions[labels[(q - k) % period]]`` decides a pair; `labels` are int64 ``[period]``.
    """

    num_tokens: int
    labels: Ints
    regions: tuple[Region, ...]

    @classmethod
    def of_truth(cls, truth: Bools, everything: Region) -> "MaskValue":
        """Return the pairs of `everything` whose distance has a remainder that is true."""
        regions = (Region.empty(everything.num_tokens), everything)
        return _simplified(everything.num_tokens, truth.astype(np.int64), regions)

    @property
    def period(self) -> int:
        """The number of remainders."""
        return len(self.labels)

    def __and__(self, other: "MaskValue") -> "MaskValue":
        return _combine(self, other, and_)

    def __rand__(self, other: Region) -> "MaskValue":
        return _combine(other, self, and_)

    def __or__(self, other: "MaskValue") -> "MaskValue":
        return _combine(self, other, or_)

    def __ror__(self, other: Region) -> "MaskValue":
        return _combine(other, self, or_)

    def __sub__(self, other: "MaskValue") -> "MaskValue":
        return _combine(self, other, sub)

    def __rsub__(self, other: Region) -> "MaskValue":
        return _combine(other, self, sub)


MaskValue: TypeAlias = Region | Classes


def num_slabs(value: MaskValue) -> int:
    """Count the slabs of a mask."""
    if isinstance(value, Region):
        return len(value.q_start)
    return sum(len(region.q_start) for region in value.regions)


def _combine(
    left: MaskValue, right: MaskValue, operation: Callable[[Region, Region], Region]
) -> MaskValue:
    parts = [
        (m.labels, m.regions) if isinstance(m, Classes) else (np.zeros(1, np.int64), (m,))
        for m in (left, right)
    ]
    period = lcm(*(len(labels) for labels, _ in parts))
    limit_pieces(period, MAX_PERIOD, "remainders of a distance")
    wide = [np.tile(labels, period // len(labels)) for labels, _ in parts]
    base = len(parts[1][1])
    # each pair of labels becomes one number, so that `unique` sorts plain integers
    pairs, labels = np.unique(wide[0] * base + wide[1], return_inverse=True)
    # every kind costs one operation on two regions, however few pairs it holds
    limit_pieces(len(pairs), MAX_CLASSES, "kinds of remainders")
    regions = [operation(parts[0][1][p // base], parts[1][1][p % base]) for p in pairs.tolist()]
    return _simplified(left.num_tokens, labels, tuple(regions))


def _simplified(num_tokens: int, labels: Ints, regions: tuple[Region, ...]) -> MaskValue:
    """Join equal regions and find the smallest period."""
    kept: list[Region] = []
    renamed = np.zeros(len(regions), np.int64)
    # Numbered in the order of their first remainders: equal masks get equal labels.
    order = dict.fromkeys(labels.tolist())
    for old in order:
        same = [i for i, other in enumerate(kept) if other.is_equal(regions[old])]
        renamed[old] = same[0] if same else len(kept)
        kept += [] if same else [regions[old]]
    if len(kept) == 1:
        return kept[0]
    labels = renamed[labels]
    period = len(labels)
    # from 2: a period of 1 would be one region, which is returned above
    for size in range(2, period):
        if period % size == 0 and np.array_equal(labels, np.tile(labels[:size], period // size)):
            labels = labels[:size]
            break
    return Classes(num_tokens, labels, tuple(kept))
