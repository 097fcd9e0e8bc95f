"""Write and read formats of one line per query or key: pairs, ranges of keys, hidden rows.

Slabs describe a mask without looking at single rows; most kernels want something per row or per
key. Costs here are proportional to rows, keys and runs, but for dense masks never to pairs.

The ranges of `dcp`, at most two per row, are the `attn_mask` tensor of the released DCP code.
Source: DCP (SOSP'25), Sec. 3.2 and its artifact: int32 ``[n, 2]`` or ``[n, 2, 2]`` (row, range,
start and end), half-open, positions within the sequence.

The `startend_row_indices` of FlashMask, int32 ``[1, 1, n, c]``, say for key k which rows do *not*
see it; with ``r = startend_row_indices[0, 0, k]``, n rows, and ``causal`` hiding the rows before k:

| causal | c | hidden rows |
|---|---|---|
| true | 1 | ``[r0, n)`` |
| true | 2 | ``[r0, r1)`` |
| false | 2 | ``[r0, n)`` and ``[0, r1)`` |
| false | 4 | ``[r0, r1)`` and ``[r2, r3)`` |

Where a run crosses the diagonal it is cut there, so that readers who apply the first pair below the
diagonal only, and the second above it only, see the same mask.
Source: FlashMask (arXiv 2410.01359), Sec. 4; Paddle's documentation of flashmask_attention.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.algebra import MaskComparison, compare_masks
from dcp_dsl.forms.conversion import slabs_of, transpose
from dcp_dsl.forms.form import Form, ranges_of_tile
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export
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


MAX_TOKENS = 2**15  # 1 GiB of booleans
MAX_RANGES = 2  # of keys per row, in the format of DCP


def to_dense(slabs: Slabs) -> Export:
    """Write `mask`, bool ``[n, n]``; entry (q, k) says whether query q sees key k.

    Raises:
        ExchangeError: X304 beyond `MAX_TOKENS`.
    """
    n = slabs.num_tokens
    if n > MAX_TOKENS:
        raise ExchangeError(
            f"dense: {n:_} tokens make {n * n:_} booleans; a dense mask holds at most "
            f"{MAX_TOKENS:_} tokens, use a block format such as `flex` or `magi`",
            "X304",
        )
    return Export("dense", n, {"mask": slabs.tile(0, n, 0, n)})


def from_dense(export: Export) -> Slabs:
    """Read `mask`: bool or integers 0 and 1, ``[n, n]``."""
    n = export.num_tokens
    mask = export.integers("mask", n, n)
    if not ((mask == 0) | (mask == 1)).all():
        raise ExchangeError("dense: expected booleans or 0 and 1 in `mask`")
    row_ptr, lo, hi = ranges_of_tile(mask == 1)
    return slabs_of_rows(LineRuns(n, np.repeat(np.arange(n), np.diff(row_ptr)), lo, hi))


def to_dcp(slabs: Slabs) -> Export:
    """Write `attn_mask`, int32 ``[n, 2]`` if no row needs a second range, else ``[n, 2, 2]``.

    Raises:
        ExchangeError: X302 if a row needs more than two ranges.
    """
    n = slabs.num_tokens
    runs = row_runs(slabs)
    per_row = runs.per_line()
    if per_row.max(initial=0) > MAX_RANGES:
        row = int(np.argmax(per_row > MAX_RANGES))
        shown = ", ".join(f"[{lo}, {hi})" for lo, hi in runs.of_line(row)[:3])
        more = ", ..." if per_row[row] > 3 else ""
        raise ExchangeError(
            f"dcp: row {row} sees {per_row[row]} ranges of keys ({shown}{more}); "
            f"the format holds {MAX_RANGES} per row; use `magi`, `flex` or `flash4`",
            "X302",
        )
    # Empty ranges lie at the row itself: the planner of the format takes their bounding box.
    ranges = np.broadcast_to(np.arange(n)[:, None, None], (n, 2, 2)).copy()
    rank = runs.rank()
    ranges[runs.line, rank, 0], ranges[runs.line, rank, 1] = runs.lo, runs.hi
    one = per_row.max(initial=0) < MAX_RANGES
    return Export("dcp", n, {"attn_mask": (ranges[:, 0] if one else ranges).astype(np.int32)})


def from_dcp(export: Export) -> Slabs:
    """Read `attn_mask`; ranges of a row may be empty, touch or overlap."""
    n = export.num_tokens
    array = export.arrays.get("attn_mask")
    is_double = array is not None and array.shape[-2:] == (2, 2) and array.ndim >= 3
    ranges = export.integers("attn_mask", n, *((2, 2) if is_double else (2,)))
    ranges = ranges if is_double else ranges[:, None]
    lo, hi = ranges[..., 0], ranges[..., 1]
    wrong = (lo < hi) & ((lo < 0) | (hi > n))
    if wrong.any():
        row, which = np.argwhere(wrong)[0]
        raise ExchangeError(
            f"dcp: expected ranges of keys within {n} tokens, got "
            f"[{lo[row, which]}, {hi[row, which]}) in row {row}"
        )
    line = np.repeat(np.arange(n), ranges.shape[1])
    return slabs_of_rows(merge_runs(n, line, lo.ravel(), hi.ravel()))


MAX_HIDDEN = 2


def to_flashmask(slabs: Slabs) -> Export:
    """Write `startend_row_indices` in the narrowest of its four shapes, and the value `causal`.

    Raises:
        ExchangeError: X301 if the hidden rows of a key fall into more runs than the format holds.
    """
    n = slabs.num_tokens
    visible = key_runs(slabs)
    if (visible.lo >= visible.line).all():
        hidden = visible.gaps(np.arange(n))
        if hidden.per_line().max(initial=0) <= 1:
            return _export(n, _causal_columns(hidden), is_causal=True)
    hidden = visible.gaps(np.zeros(n, np.int64))
    counts = hidden.per_line()
    if counts.max(initial=0) > MAX_HIDDEN:
        key = int(np.argmax(counts > MAX_HIDDEN))
        shown = ", ".join(f"[{lo}, {hi})" for lo, hi in hidden.of_line(key)[:4])
        raise ExchangeError(
            f"flashmask: key {key} is hidden from {counts[key]} runs of rows ({shown}"
            f"{', ...' if counts[key] > 4 else ''}); the format holds {MAX_HIDDEN} per key; use "
            "`magi`, `flex` or `flash4`",
            "X301",
        )
    return _export(n, _two_sided_columns(hidden), is_causal=False)


def _export(n: int, columns: Ints, *, is_causal: bool) -> Export:
    indices = columns.astype(np.int32)[None, None]
    return Export("flashmask", n, {"startend_row_indices": indices}, {"causal": is_causal})


def _causal_columns(hidden: LineRuns) -> Ints:
    n = hidden.num_lines
    columns = np.full((n, 2), n)
    columns[hidden.line, 0], columns[hidden.line, 1] = hidden.lo, hidden.hi
    return columns[:, :1] if (columns[:, 1] == n).all() else columns


def _two_sided_columns(hidden: LineRuns) -> Ints:
    n = hidden.num_lines
    below, above = np.full((n, 2), n), np.zeros((n, 2), np.int64)
    alone = hidden.per_line()[hidden.line] == 1
    first = ~alone & (hidden.rank() == 0)
    second = ~alone & ~first
    for pick, side in ((first, above), (second, below)):
        side[hidden.line[pick], 0], side[hidden.line[pick], 1] = hidden.lo[pick], hidden.hi[pick]
    key, lo, hi = hidden.line[alone], hidden.lo[alone], hidden.hi[alone]
    middle = np.clip(key, lo, hi)
    above[key] = np.column_stack([lo, middle])
    below[key] = np.column_stack([middle, hi])
    is_open_above = (above[:, 0] == 0) | (above[:, 0] == above[:, 1])
    is_open_below = (below[:, 1] == n) | (below[:, 0] == below[:, 1])
    if (is_open_above & is_open_below).all():
        r0 = np.where(below[:, 0] < below[:, 1], below[:, 0], n)
        r1 = np.where(above[:, 0] < above[:, 1], above[:, 1], 0)
        return np.column_stack([r0, r1])
    return np.column_stack([below, above])


def from_flashmask(export: Export) -> Slabs:
    """Read `startend_row_indices` and `causal`; batch and head dims must be 1.

    Raises:
        ExchangeError: if the shape does not fit `causal`.
    """
    n = export.num_tokens
    is_causal = export.values.get("causal")
    if not isinstance(is_causal, bool):
        raise ExchangeError(
            f"flashmask: expected a value `causal`, true or false, got {is_causal!r}"
        )
    indices = export.integers("startend_row_indices", n, None)
    width = indices.shape[1]
    if width not in ((1, 2) if is_causal else (2, 4)):
        raise ExchangeError(
            f"flashmask: expected {'1 or 2' if is_causal else '2 or 4'} values per key with "
            f"causal={is_causal}, got {width}"
        )
    r, key, zero, end = indices.T, np.arange(n), np.zeros(n, np.int64), np.full(n, n)
    hidden = {
        (True, 1): [(zero, key), (r[0], end)],
        (True, 2): [(zero, key), (r[0], r[-1])],
        (False, 2): [(zero, r[-1]), (r[0], end)],
        (False, 4): [(r[0], r[1 % width]), (r[2 % width], r[3 % width])],
    }[is_causal, width]
    lo, hi = (np.clip(np.concatenate(side), 0, n) for side in zip(*hidden, strict=True))
    runs = merge_runs(n, np.tile(key, len(hidden)), lo, hi)
    return _transposed(slabs_of_rows(runs.gaps(zero)))  # lines are keys
