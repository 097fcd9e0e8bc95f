"""See regions from the keys, and every exact form that has regions as such."""

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.parts import regions_of
from dcp_dsl.forms.rows import Rows
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.symbolic.classes import Classes, MaskValue
from dcp_dsl.symbolic.piecewise import expand
from dcp_dsl.symbolic.region import Region


def transpose(region: Region) -> Region:
    """Return the transposed region: row k holds the queries that see key k.

    A slab of r rows is seen by each of its keys from a run of its rows; where that run begins and
    ends moves by 0 or 1 per key, with at most two turns.

    >>> below = Region.of(3, tuple(np.array([v]) for v in (0, 3, 0, 1, 0, 1)))
    >>> [c.tolist() for c in transpose(below).columns()]
    [[0], [3], [0], [3], [1], [0]]
    """
    q_start, q_end, kv_start, kv_end, low, high = region.columns()
    rows = q_end - q_start
    last_end = kv_end + high * (rows - 1)
    # Keys at which one of the ends of the run of rows turns.
    turns = np.column_stack([
        kv_start,
        np.where(high == 1, kv_end, last_end),
        np.where(low == 1, kv_start + rows - 1, last_end),
        last_end,
    ])  # fmt: skip
    turns = np.sort(np.clip(turns, kv_start[:, None], last_end[:, None]), axis=1)
    slab, part = expand(np.zeros(len(rows), np.int64), np.full(len(rows), 3))
    start, end = turns[slab, part], turns[slab, part + 1]
    first, first_slope = _first_row(start, kv_end[slab], high[slab])
    last, last_slope = _last_row(start, kv_start[slab], low[slab], rows[slab])
    base = q_start[slab]
    columns: tuple[Ints, ...] = (start, end, base + first, base + last, first_slope, last_slope)
    kept = start < end
    return Region.of(region.num_tokens, tuple(c[kept] for c in columns))


def _first_row(key: Ints, kv_end: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the first row of a slab whose end has passed a key, and its growth per key."""
    is_later = (high == 1) & (key >= kv_end)
    return np.where(is_later, key - kv_end + 1, 0), is_later.astype(np.int64)


def _last_row(key: Ints, kv_start: Ints, low: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the end of the rows whose start has not passed a key, and its growth per key."""
    is_growing = (low == 1) & (key - kv_start + 1 < rows)
    return np.where(is_growing, key - kv_start + 1, rows), is_growing.astype(np.int64)


def as_regions(mask: Form, *, is_transposed: bool) -> MaskValue | None:
    """Return a mask as regions with queries (or keys) as their rows; None if it has none."""
    parts = regions_of(mask)
    if mask.form == "strided" and not is_transposed:
        labels = np.zeros(parts[0].period, np.int64)
        for index, part in enumerate(parts):
            labels[part.remainders] = index + 1
        regions = (Region.empty(mask.num_tokens), *(_region(part.region) for part in parts))
        return Classes(mask.num_tokens, labels, regions)
    if mask.form in ("strided", "tiles") or len(parts) != 1:
        return None
    region = _region(parts[0].region)
    return region if parts[0].is_transposed == is_transposed else transpose(region)


def _region(mask: Slabs | Rows) -> Region:
    if isinstance(mask, Slabs):
        slopes = mask.start_slope.astype(np.int64), mask.end_slope.astype(np.int64)
        ends = mask.q_start, mask.q_end, mask.kv_start, mask.kv_end
        return Region(mask.num_tokens, *ends, *slopes)
    row = np.repeat(np.arange(mask.num_tokens), np.diff(mask.row_ptr))
    return Region.rectangles(mask.num_tokens, row, row + 1, mask.kv_start, mask.kv_end)
