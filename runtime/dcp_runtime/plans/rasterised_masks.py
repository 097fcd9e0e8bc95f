"""Masks inside rectangles, painted pair by pair: for sequences whose mask is no slabs.

A dilated window, a tree or a cache that drops keys has hundreds of ranges on a row, so ranges would
cost more than the bits that a kernel reads in the end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import PlacedForm


@dataclass(frozen=True, slots=True, eq=False)
class PaintedMask:
    """The mask of a rectangle, trimmed to the keys from the first to the last that a row sees.

    Attributes:
        low, high: these keys, packed.
        pairs: visible pairs.
        ranges: int32 ``[2, most, rows]``, starts and ends of each row's ranges counted from `low`,
            ``[0, 0)`` where a row has fewer; ``None`` if every pair is visible, or a row has more.
        bits: uint8, packed rows; ``None`` if every pair is visible, or `ranges` say it.
    """

    low: int
    high: int
    pairs: int
    ranges: NDArray[np.int32] | None = None
    bits: NDArray[np.uint8] | None = None


def paint_mask(
    form: PlacedForm, queries: tuple[int, int], keys: tuple[int, int], most: int
) -> PaintedMask | None:
    """Paint one rectangle; ``None`` if no pair of it is visible. O(pairs of the rectangle).

    Args:
        form: the mask.
        queries: half-open, packed.
        keys: half-open, packed.
        most: ranges per row that are kept as ranges.
    """
    seen = form.tile(*queries, *keys)
    met = np.flatnonzero(seen.any(axis=0))
    if not met.size:
        return None
    first, last = int(met[0]), int(met[-1]) + 1
    seen = np.ascontiguousarray(seen[:, first:last])
    pairs = int(np.count_nonzero(seen))
    place = keys[0] + first, keys[0] + last, pairs
    if pairs == seen.size:
        return PaintedMask(*place)
    opens = seen.copy()
    opens[:, 1:] &= ~seen[:, :-1]
    counts = np.count_nonzero(opens, axis=1)
    if counts.max() > most:
        return PaintedMask(*place, bits=np.packbits(seen, axis=1).reshape(-1))
    closes = seen.copy()
    closes[:, :-1] &= ~seen[:, 1:]
    row, start = np.nonzero(opens)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    ranges = np.zeros((2, most, len(seen)), np.int32)
    ranges[0, nth, row] = start
    ranges[1, nth, row] = np.nonzero(closes)[1] + 1
    return PaintedMask(*place, ranges=ranges)
