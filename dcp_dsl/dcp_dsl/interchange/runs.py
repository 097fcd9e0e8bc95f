"""List a mask line by line, as runs of visible keys or of rows, and find where two masks differ.

Slabs describe a mask without looking at single rows; most kernels want something per row or per
key. Costs here are proportional to rows, keys and runs, never to pairs.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.algebra import MaskComparison, compare_masks
from dcp_dsl.forms.conversion import slabs_of
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.forms.transposition import transpose
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


def merge_runs(num_lines: int, line: Ints, lo: Ints, hi: Ints) -> LineRuns:
    """Return the union of intervals, which come in any order and may be empty, touch or overlap.

    >>> runs = merge_runs(5, *np.array([[1, 0, 1, 1], [3, 2, 1, 2], [5, 2, 3, 4]]))
    >>> runs.line.tolist(), runs.lo.tolist(), runs.hi.tolist()
    ([1], [1], [5])
    """
    order = np.lexsort((lo, line))
    order = order[lo[order] < hi[order]]
    line, lo, hi = line[order], lo[order], hi[order]
    shift = line * (num_lines + 1)  # lines one behind the other, with a gap
    reach = np.maximum.accumulate(hi + shift)
    opens = np.ones(len(line), bool)
    opens[1:] = (lo + shift)[1:] > reach[:-1]
    closes = np.append(opens[1:], True)[: len(line)]
    return LineRuns(num_lines, line[opens], lo[opens], (reach - shift)[closes])


def row_runs(slabs: Slabs) -> LineRuns:
    """Return the visible keys of every row.

    >>> runs = row_runs(Slabs(3, [0], [3], [0], [1], [0], [1]))
    >>> runs.line.tolist(), runs.lo.tolist(), runs.hi.tolist()
    ([0, 1, 2], [0, 0, 0], [1, 2, 3])
    """
    n = slabs.num_tokens
    row_ptr, lo, hi = slabs.row_ranges(0, n)
    return merge_runs(n, np.repeat(np.arange(n), np.diff(row_ptr)), lo, hi)


def key_runs(slabs: Slabs) -> LineRuns:
    """Return the rows that see every key: lines are keys."""
    return row_runs(_transposed(slabs))


def _transposed(slabs: Slabs) -> Slabs:
    q0, q1, k0, k1, a, b = slabs.table().T
    return slabs_of(transpose(Region.of(slabs.num_tokens, (q0, q1, k0, k1, a, b))))


def slabs_of_rows(runs: LineRuns) -> Slabs:
    """Glue the visible keys of every row to slabs in normal form."""
    flat = np.zeros(len(runs.line), np.int64)
    rows = runs.line, runs.line + 1, runs.lo, runs.hi, flat, flat
    return slabs_of(Region(runs.num_lines, *rows, is_maximal=False))  # in normal form already


def slabs_of_keys(runs: LineRuns) -> Slabs:
    """Glue the rows that see every key to slabs in normal form."""
    return _transposed(slabs_of_rows(runs))


def find_difference(left: Form, right: Form) -> MaskComparison | None:
    """Compare two masks exactly; return ``None`` if they see the same pairs.

    Raises:
        ExchangeError: if they have different numbers of tokens.

    >>> causal = Slabs(3, [0], [3], [0], [1], [0], [1])
    >>> find_difference(causal, Slabs(3, [0], [3], [0], [3], [0], [0]))
    MaskComparison(only_left=0, only_right=3, first=(0, 1), first_is_left=False)
    """
    if left.num_tokens != right.num_tokens:
        raise ExchangeError(
            f"expected masks of as many tokens, got {left.num_tokens} and {right.num_tokens}; "
            f"compare on a sample of {left.num_tokens}"
        )
    found = compare_masks(left, right)
    return None if found.is_equal else found
