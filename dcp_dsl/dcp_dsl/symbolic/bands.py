"""Where an expression is evaluated: bands of rows, each with the keys that matter there.

A whole sample is one band of all keys; inside `per` every instance is a band; and what has been
found so far restricts what is looked at next. Bands are disjoint in their rows.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """Rows ``[row_start, row_end)`` with keys ``[key_start, key_end)``; int64 ``[N]``, sorted."""

    row_start: Ints
    row_end: Ints
    key_start: Ints
    key_end: Ints

    @classmethod
    def whole(cls, num_tokens: int) -> "Bands":
        """Give the one band of a whole sample."""
        zero, end = np.zeros(1, np.int64), np.full(1, num_tokens, np.int64)
        return cls(zero, end, zero, end)

    @classmethod
    def square(cls, start: Ints, end: Ints) -> "Bands":
        """Give the bands of stretches that see themselves."""
        return cls(start, end, start, end)

    def is_whole(self, num_tokens: int) -> bool:
        """Whether this is all there is."""
        return (
            len(self.row_start) == 1
            and self.row_end[0] - self.row_start[0] == num_tokens
            and self.key_end[0] - self.key_start[0] == num_tokens
        )

    def columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Give the four arrays."""
        return self.row_start, self.row_end, self.key_start, self.key_end

    def cut_rows(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Intersect ranges of rows with the bands; (starts, ends, band) of each piece."""
        band, index = overlaps(self.row_start, self.row_end, starts, ends)
        low = np.maximum(self.row_start[band], starts[index])
        return low, np.minimum(self.row_end[band], ends[index]), band

    def cut_keys(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Intersect ranges of keys with each band; (starts, ends, band) of each piece."""
        band, index = overlaps(self.key_start, self.key_end, starts, ends)
        low = np.maximum(self.key_start[band], starts[index])
        return low, np.minimum(self.key_end[band], ends[index]), band


def overlaps(low: Ints, high: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Pair every window ``[low, high)`` with the sorted, disjoint ranges that it overlaps.

    Returns:
        (window, range) of each pair, int64 ``[P]``.
    """
    first = np.searchsorted(ends, low, side="right")
    counts = np.maximum(np.searchsorted(starts, high, side="left") - first, 0)
    return expand(first, counts)


def expand(first: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Give ``(i, first[i]), (i, first[i] + 1), ...``, ``counts[i]`` pairs for every i."""
    index = np.repeat(np.arange(len(counts)), counts)
    shift = np.cumsum(counts) - counts - first
    return index, np.arange(len(index)) - shift[index]
