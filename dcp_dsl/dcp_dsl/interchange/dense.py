"""Write two plain formats: every pair as a boolean, and visible key ranges per row.

The ranges, at most two per row, are the `attn_mask` tensor of the released DCP code.
Source: DCP (SOSP'25), Sec. 3.2 and its artifact: int32 ``[n, 2]`` or ``[n, 2, 2]`` (row, range,
start and end), half-open, positions within the sequence.
"""

import numpy as np

from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.form import ranges_of_tile
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export
from dcp_dsl.interchange.runs import LineRuns, merge_runs, row_runs, slabs_of_rows

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
