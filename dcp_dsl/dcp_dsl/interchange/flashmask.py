"""Write hidden rows per key: the `startend_row_indices` of FlashMask.

The tensor is int32 ``[1, 1, n, c]`` and says for key k which rows do *not* see it; with
``r = startend_row_indices[0, 0, k]``, n rows, and ``causal`` hiding the rows before k as well:

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

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export
from dcp_dsl.interchange.runs import LineRuns, key_runs, merge_runs, slabs_of_keys

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
    return slabs_of_keys(runs.gaps(zero))
