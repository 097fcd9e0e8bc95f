"""Write and read formats of one line per query or key: pairs, ranges of keys, hidden rows.

Slabs describe a mask without looking at single rows; most kernels take a line per row or per key.
Costs here are proportional to rows, keys and runs; only dense masks cost a step for each pair.

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

import numpy as np

from dcp_dsl.arrays import Ints, expand
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.algebra import MaskComparison, compare_masks
from dcp_dsl.forms.conversion import as_slabs
from dcp_dsl.forms.form import Form, ranges_of_tile
from dcp_dsl.forms.parts import Parts
from dcp_dsl.forms.slabs import Rows, Slabs
from dcp_dsl.interchange.export import Export

MAX_SLABS = 2**22  # of a transposed mask


def merge_runs(num_lines: int, line: Ints, lo: Ints, hi: Ints) -> Rows:
    """Return the union of intervals, which come in any order and may be empty, touch or overlap.

    >>> runs = merge_runs(5, *np.array([[1, 0, 1, 1], [3, 2, 1, 2], [5, 2, 3, 4]]))
    >>> runs.row_ptr.tolist(), runs.kv_start.tolist(), runs.kv_end.tolist()
    ([0, 0, 1, 1, 1, 1], [1], [5])
    """
    order = np.lexsort((lo, line))
    order = order[lo[order] < hi[order]]
    line, lo, hi = line[order], lo[order], hi[order]
    shift = line * (num_lines + 1)  # lines one behind the other, with a gap
    # a run opens where an interval begins behind all before it
    reach = np.maximum.accumulate(hi + shift)
    opens = np.ones(len(line), bool)
    opens[1:] = (lo + shift)[1:] > reach[:-1]
    closes = np.append(opens[1:], True)[: len(line)]
    row_ptr = np.searchsorted(line[opens], np.arange(num_lines + 1))
    return Rows(num_lines, row_ptr, lo[opens], (reach - shift)[closes])


def row_runs(slabs: Slabs) -> Rows:
    """Return the ranges of keys that every row sees."""
    return Rows(slabs.num_tokens, *slabs.row_ranges(0, slabs.num_tokens))


def key_runs(slabs: Slabs) -> Rows:
    """Return the ranges of rows that see every key: lines of the result are keys."""
    return row_runs(_transposed(slabs))


def _transposed(slabs: Slabs) -> Slabs:
    return as_slabs(Parts.of_keys(slabs), MAX_SLABS)


def _to_slabs(runs: Rows) -> Slabs:
    return as_slabs(runs, max_slabs=len(runs))  # never more slabs than ranges


def _gaps(runs: Rows, begin: Ints) -> Rows:
    """Return what runs leave of ``[begin[line], num_tokens)`` on every line."""
    n = runs.num_tokens
    # A line of r runs has r + 1 gaps: one before each run, and one behind the last.
    start = np.insert(runs.kv_end, runs.row_ptr[:-1], begin)
    end = np.insert(runs.kv_start, runs.row_ptr[1:], n)
    return merge_runs(n, np.repeat(np.arange(n), np.diff(runs.row_ptr) + 1), start, end)


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
    """Write `mask`, bool ``[n, n]``; entry (q, k) says whether query q sees key k."""
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
    return _to_slabs(Rows(n, *ranges_of_tile(mask == 1)))


def to_dcp(slabs: Slabs) -> Export:
    """Write `attn_mask`, int32 ``[n, 2]`` if no row needs a second range, else ``[n, 2, 2]``."""
    n = slabs.num_tokens
    runs = row_runs(slabs)
    per_row = np.diff(runs.row_ptr)
    if per_row.max(initial=0) > MAX_RANGES:
        row = int(np.argmax(per_row > MAX_RANGES))
        raise ExchangeError(
            f"dcp: row {row} sees {per_row[row]} ranges of keys ({_show(runs, row, 3)}); "
            f"the format holds {MAX_RANGES} per row; use `magi`, `flex` or `flash4`",
            "X302",
        )
    # Empty ranges lie at the row itself, since DCP's planner takes the bounding box of both ranges.
    ranges = np.broadcast_to(np.arange(n)[:, None, None], (n, 2, 2)).copy()
    line, rank = expand(0, per_row)
    ranges[line, rank, 0], ranges[line, rank, 1] = runs.kv_start, runs.kv_end
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
    return _to_slabs(merge_runs(n, line, lo.ravel(), hi.ravel()))


MAX_HIDDEN = 2


def to_flashmask(slabs: Slabs) -> Export:
    """Write `startend_row_indices` in the narrowest of its four shapes, and the value `causal`."""
    n = slabs.num_tokens
    visible = key_runs(slabs)
    # no key is seen by rows before it: `causal` hides those, and what is left may be one run
    if (visible.kv_start >= expand(0, np.diff(visible.row_ptr))[0]).all():
        hidden = _gaps(visible, np.arange(n))
        if np.diff(hidden.row_ptr).max(initial=0) <= 1:
            return _export(n, _causal_columns(hidden), is_causal=True)
    hidden = _gaps(visible, np.zeros(n, np.int64))
    counts = np.diff(hidden.row_ptr)
    if counts.max(initial=0) > MAX_HIDDEN:
        key = int(np.argmax(counts > MAX_HIDDEN))
        raise ExchangeError(
            f"flashmask: key {key} is hidden from {counts[key]} runs of rows "
            f"({_show(hidden, key, 4)}); the format holds {MAX_HIDDEN} per key; use `magi`, `flex` "
            "or `flash4`",
            "X301",
        )
    # of two runs the first one must end above the diagonal, and the second one begin below it
    double = np.flatnonzero(counts == 2)
    first = hidden.row_ptr[double]
    wrong = (hidden.kv_end[first] > double) | (hidden.kv_start[first + 1] < double)
    if wrong.any():
        key = int(double[wrong][0])
        raise ExchangeError(
            f"flashmask: key {key} is hidden from two runs of rows on one side of the diagonal "
            f"({_show(hidden, key, 2)}); the format holds one before row {key} and one from it on; "
            "use `magi`, `flex` or `flash4`",
            "X301",
        )
    return _export(n, _two_sided_columns(hidden), is_causal=False)


def _show(runs: Rows, line: int, most: int) -> str:
    """List the first runs of a line, for a message."""
    _, starts, ends = runs.row_ranges(line, line + 1)
    shown = [f"[{lo}, {hi})" for lo, hi in zip(starts[:most], ends[:most], strict=True)]
    return ", ".join([*shown, "..."] if len(starts) > most else shown)


def _export(n: int, columns: Ints, *, is_causal: bool) -> Export:
    indices = columns.astype(np.int32)[None, None]
    return Export("flashmask", n, {"startend_row_indices": indices}, {"causal": is_causal})


def _causal_columns(hidden: Rows) -> Ints:
    """Return hidden rows ``[r0, r1)`` of each key, or r0 alone if all of these end at n."""
    n = hidden.num_tokens
    columns = np.full((n, 2), n)
    columns[np.diff(hidden.row_ptr) > 0] = np.column_stack([hidden.kv_start, hidden.kv_end])
    return columns[:, :1] if (columns[:, 1] == n).all() else columns


def _two_sided_columns(hidden: Rows) -> Ints:
    """Return the hidden rows below and above the diagonal, in two columns if they are enough."""
    n, counts = hidden.num_tokens, np.diff(hidden.row_ptr)
    below, above = np.full((n, 2), n), np.zeros((n, 2), np.int64)
    runs = np.column_stack([hidden.kv_start, hidden.kv_end])
    above[counts == 2] = runs[hidden.row_ptr[:-1][counts == 2]]
    below[counts == 2] = runs[hidden.row_ptr[1:][counts == 2] - 1]
    # a single run is cut at the diagonal, where one part may be empty
    key = np.flatnonzero(counts == 1)
    lo, hi = runs[hidden.row_ptr[key]].T
    middle = np.clip(key, lo, hi)
    above[key] = np.column_stack([lo, middle])
    below[key] = np.column_stack([middle, hi])
    # Two columns are enough if what is hidden above begins at row 0, and what is below ends at n.
    is_open_above = (above[:, 0] == 0) | (above[:, 0] == above[:, 1])
    is_open_below = (below[:, 1] == n) | (below[:, 0] == below[:, 1])
    if (is_open_above & is_open_below).all():
        r0 = np.where(below[:, 0] < below[:, 1], below[:, 0], n)
        r1 = np.where(above[:, 0] < above[:, 1], above[:, 1], 0)
        return np.column_stack([r0, r1])
    return np.column_stack([below, above])


def from_flashmask(export: Export) -> Slabs:
    """Read `startend_row_indices` and `causal`; batch and head dims must be 1."""
    n = export.num_tokens
    is_causal = export.values.get("causal")
    if not isinstance(is_causal, bool):
        raise ExchangeError(
            f"flashmask: expected a value `causal`, true or false, got {is_causal!r}"
        )
    if n == 0:  # JSON keeps no dims behind an empty one, so the width is not known
        return Slabs(0, *np.zeros((6, 0), np.int64))
    indices = export.integers("startend_row_indices", n, None)
    width = indices.shape[1]
    if width not in ((1, 2) if is_causal else (2, 4)):
        raise ExchangeError(
            f"flashmask: expected {'1 or 2' if is_causal else '2 or 4'} values per key with "
            f"causal={is_causal}, got {width}"
        )
    r, key, zero, end = indices.T, np.arange(n), np.zeros(n, np.int64), np.full(n, n)
    # all four entries are evaluated: `% width` keeps columns inside, one entry is taken
    hidden = {
        (True, 1): [(zero, key), (r[0], end)],
        (True, 2): [(zero, key), (r[0], r[-1])],
        (False, 2): [(zero, r[-1]), (r[0], end)],
        (False, 4): [(r[0], r[1 % width]), (r[2 % width], r[3 % width])],
    }[is_causal, width]
    lo, hi = (np.clip(np.concatenate(side), 0, n) for side in zip(*hidden, strict=True))
    runs = merge_runs(n, np.tile(key, len(hidden)), lo, hi)
    return _transposed(_to_slabs(_gaps(runs, zero)))  # lines are keys
