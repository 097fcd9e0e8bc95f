"""List a mask line by line, as runs of visible keys or of rows, and find where two masks differ.

Slabs describe a mask without looking at single rows; most kernels want something per row or per
key. Costs here are proportional to rows, keys and runs, never to pairs.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.conversion import slabs_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.symbolic.region import Region


@dataclass(frozen=True, slots=True, eq=False)
class LineRuns:
    """Half-open intervals on lines; those of a line are sorted and neither overlap nor touch.

    Attributes:
        num_lines: lines, and places on each line.
        line, lo, hi: int64 ``[N]``, interval i is ``[lo[i], hi[i])`` on line ``line[i]``.
    """

    num_lines: int
    line: Ints
    lo: Ints
    hi: Ints

    def per_line(self) -> Ints:
        """Count the intervals of each line, int64 ``[num_lines]``."""
        return np.bincount(self.line, minlength=self.num_lines)

    def rank(self) -> Ints:
        """Return for each interval how many come before it on its line."""
        counts = self.per_line()
        return np.arange(len(self.line)) - (np.cumsum(counts) - counts)[self.line]

    def of_line(self, line: int) -> list[tuple[int, int]]:
        """List the intervals of one line."""
        a, b = np.searchsorted(self.line, [line, line + 1])
        return list(zip(self.lo[a:b].tolist(), self.hi[a:b].tolist(), strict=True))

    def gaps(self, begin: Ints) -> "LineRuns":
        """Return the rest of ``[begin[line], num_lines)`` on every line."""
        counts = self.per_line() + 1
        first = np.cumsum(counts) - counts
        at = first[self.line] + self.rank()
        start, end = np.empty((2, int(counts.sum())), np.int64)
        start[first] = begin
        start[at + 1] = self.hi
        end[first + counts - 1] = self.num_lines
        end[at] = self.lo
        line = np.repeat(np.arange(self.num_lines), counts)
        kept = start < end
        return LineRuns(self.num_lines, line[kept], start[kept], end[kept])


def row_runs(slabs: Slabs) -> LineRuns:
    """Return the visible keys of every row.

    >>> runs = row_runs(Slabs(3, [0], [3], [0], [1], [0], [1]))
    >>> runs.line.tolist(), runs.lo.tolist(), runs.hi.tolist()
    ([0, 1, 2], [0, 0, 0], [1, 2, 3])
    """
    count = slabs.q_end - slabs.q_start
    slab = np.repeat(np.arange(len(slabs)), count)
    down = np.arange(len(slab)) - np.repeat(np.cumsum(count) - count, count)
    row = slabs.q_start[slab] + down
    lo = slabs.kv_start[slab] + slabs.start_slope[slab] * down
    hi = slabs.kv_end[slab] + slabs.end_slope[slab] * down
    order = np.lexsort((lo, row))
    row, lo, hi = row[order], lo[order], hi[order]
    opens = np.ones(len(row), bool)
    opens[1:] = (row[1:] != row[:-1]) | (lo[1:] != hi[:-1])
    closes = np.append(opens[1:], True)[: len(row)]
    return LineRuns(slabs.num_tokens, row[opens], lo[opens], hi[closes])


def key_runs(slabs: Slabs) -> LineRuns:
    """Return the rows that see every key: lines are keys."""
    return row_runs(transpose(slabs))


def transpose(slabs: Slabs) -> Slabs:
    """Swap queries and keys; the transpose of a slab is at most three slabs.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> transpose(causal).table().tolist()
    [[0, 4, 0, 4, 1, 0]]
    """
    q0, q1, k0, k1, a, b = slabs.table().T
    rows = q1 - q0
    last = k1 + b * (rows - 1)
    # Along the keys, the first row moves down once the moving end has begun to move, and the last
    # row stands still once the moving start has come to rest.
    moves_from, rests_from = np.where(b == 1, k1, last), np.where(a == 1, k0 + rows - 1, k0)
    inner = [np.clip(cut, k0, last) for cut in (moves_from, rests_from)]
    cuts = np.sort(np.stack([k0, *inner, last]), axis=0)
    pieces = []
    for begin, end in pairwise(cuts):
        falls, rises = (b == 1) & (begin >= k1), (a == 1) & (begin < k0 + rows - 1)
        top = q0 + np.where(falls, begin - k1 + 1, 0)
        bottom = np.where(rises, q0 + begin - k0 + 1, q1)
        pieces.append((begin, end, top, bottom, falls.astype(np.int64), rises.astype(np.int64)))
    columns = tuple(np.concatenate(group) for group in zip(*pieces, strict=True))
    return slabs_of(Region.of(slabs.num_tokens, columns))


def slabs_of_rows(runs: LineRuns) -> Slabs:
    """Glue the visible keys of every row to slabs in normal form."""
    flat = np.zeros(len(runs.line), np.int64)
    columns = (runs.line, runs.line + 1, runs.lo, runs.hi, flat, flat)
    return slabs_of(Region.of(runs.num_lines, columns))


def slabs_of_keys(runs: LineRuns) -> Slabs:
    """Glue the rows that see every key to slabs in normal form."""
    return transpose(slabs_of_rows(runs))


def region_of(slabs: Slabs) -> Region:
    """Return slabs in the form that can be combined."""
    q0, q1, k0, k1, a, b = slabs.table().T
    return Region.of(slabs.num_tokens, (q0, q1, k0, k1, a, b))


@dataclass(frozen=True, slots=True)
class MaskDifference:
    """The number of pairs that only one of two masks sees, and the first in reading order.

    Attributes:
        only_left, only_right: pairs.
        query, key: the first pair that differs.
        is_left: whether the left mask sees it.
    """

    only_left: int
    only_right: int
    query: int
    key: int
    is_left: bool


def find_difference(left: Slabs, right: Slabs) -> MaskDifference | None:
    """Compare two masks exactly; return ``None`` if they see the same pairs.

    Raises:
        ExchangeError: if they have different numbers of tokens.

    >>> causal = Slabs(3, [0], [3], [0], [1], [0], [1])
    >>> find_difference(causal, Slabs(3, [0], [3], [0], [3], [0], [0]))
    MaskDifference(only_left=0, only_right=3, query=0, key=1, is_left=False)
    """
    if left.num_tokens != right.num_tokens:
        raise ExchangeError(
            f"expected masks of as many tokens, got {left.num_tokens} and {right.num_tokens}; "
            f"compare on a sample of {left.num_tokens}"
        )
    if np.array_equal(left.table(), right.table()):
        return None
    a, b = region_of(left), region_of(right)
    sides = [slabs_of(a - b), slabs_of(b - a)]
    firsts = [
        (int(s.q_start[0]), int(s.kv_start[0]), i == 0) for i, s in enumerate(sides) if len(s)
    ]
    if not firsts:
        return None
    query, key, is_left = min(firsts)
    return MaskDifference(sides[0].num_pairs, sides[1].num_pairs, query, key, is_left)
