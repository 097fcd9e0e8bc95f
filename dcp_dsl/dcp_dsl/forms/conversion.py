"""Convert exact forms: regions to the shortest form, every form to slabs or rows."""

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.form import Form, row_chunks
from dcp_dsl.forms.rows import Columns, Rows
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.forms.strided import Strided, StridedPart
from dcp_dsl.symbolic.classes import Classes, MaskValue
from dcp_dsl.symbolic.piecewise import TooManyPieces, expand
from dcp_dsl.symbolic.region import Region

MAX_SLABS = 2**20
MAX_RANGES = 2**24  # of rows: some hundred megabytes
MIN_ROWS_SLABS = 64  # few slabs are never worth another form
ROWS_PER_SLAB = 1.5  # rows that slabs must have on average to be shorter than ranges per row


def to_form(value: MaskValue, *, is_transposed: bool) -> Form:
    """Return the value in the form that describes it shortest."""
    if isinstance(value, Classes):
        assert not is_transposed, "remainders of the distance are found in rows"
        return _strided(value)
    rows = int((value.q_end - value.q_start).sum())
    size = len(value.q_start)
    if not value.is_maximal and rows <= ROWS_PER_SLAB * (size - value.num_links()):
        inner: Slabs | Rows = _rows(value)  # gluing could not make it short
    else:
        value = value.maximal()
        size = len(value.q_start)
        is_short = size < MIN_ROWS_SLABS or rows > ROWS_PER_SLAB * size
        inner = slabs_of(value) if is_short else _rows(value)
    return Columns(inner) if is_transposed else inner


def _strided(value: Classes) -> Strided:
    parts = []
    for label, region in enumerate(value.regions):
        if len(region.q_start):
            remainders = np.flatnonzero(value.labels == label)
            parts.append(StridedPart(slabs_of(region), remainders))
    return Strided(value.num_tokens, value.period, tuple(parts))


def _rows(region: Region) -> Rows:
    which, row = expand(region.q_start, region.q_end - region.q_start)
    down = row - region.q_start[which]
    start = region.kv_start[which] + region.start_slope[which] * down
    end = region.kv_end[which] + region.end_slope[which] * down
    if (row[1:] < row[:-1]).any():
        order = np.lexsort((start, row))
        row, start, end = row[order], start[order], end[order]
    row_ptr = np.searchsorted(row, np.arange(region.num_tokens + 1))
    return Rows(region.num_tokens, row_ptr, start, end)


def slabs_of(region: Region) -> Slabs:
    """Return a region as the public value, in maximal slabs."""
    q_start, q_end, kv_start, kv_end, *slopes = region.maximal().columns()
    start_slope, end_slope = (slope.astype(np.uint8) for slope in slopes)
    return Slabs(region.num_tokens, q_start, q_end, kv_start, kv_end, start_slope, end_slope)


def as_slabs(form: Form, max_slabs: int = MAX_SLABS) -> Slabs:
    """Return any exact form as slabs.

    Costs what the form has in row ranges: a strided or transposed mask of some thousand tokens
    fits, one of a million does not.

    Raises:
        DatasetError: if there would be more than `max_slabs` slabs.
    """
    if isinstance(form, Slabs):
        return form
    try:
        region = _as_region(form, max_slabs)
    except TooManyPieces:
        region = None
    if region is not None:
        region = region.maximal()
    if region is None or len(region.q_start) > max_slabs:
        raise DatasetError(
            f"a mask of form `{form.form}` on {form.num_tokens:_} tokens falls into more than "
            f"{max_slabs:_} slabs; use a shorter sample, or what takes `{form.form}` as it is"
        )
    return slabs_of(region)


def as_rows(form: Form, max_ranges: int = MAX_RANGES) -> Rows:
    """Return any exact form as key ranges of each row; costs what it has in such ranges.

    Raises:
        DatasetError: if there would be more than `max_ranges` ranges.

    >>> as_rows(Columns(Rows(3, [0, 1, 2, 3], [0, 1, 2], [3, 3, 3]))).kv_end.tolist()
    [1, 2, 3]
    """
    found = _row_ranges(form, max_ranges)
    if found is None:
        raise DatasetError(
            f"a mask of form `{form.form}` on {form.num_tokens:_} tokens has more than "
            f"{max_ranges:_} key ranges of rows; use a shorter sample"
        )
    row, start, end = found
    return Rows(form.num_tokens, np.searchsorted(row, np.arange(form.num_tokens + 1)), start, end)


def _as_region(form: Form, max_slabs: int) -> Region | None:
    """Return a form as a region; None if its row ranges are too many."""
    found = _row_ranges(form, 4 * max_slabs)
    if found is None:
        return None
    row, start, end = found
    return Region.rectangles(form.num_tokens, row, row + 1, start, end)


def _row_ranges(form: Form, most: int) -> tuple[Ints, Ints, Ints] | None:
    """List row, first key and end of all key ranges; None if there are more than `most`."""
    parts = [(np.empty(0, np.int64),) * 3]
    total = 0
    for begin, end in row_chunks(form.num_tokens, form.num_tokens):
        row_ptr, starts, ends = form.row_ranges(begin, end)
        total += len(starts)
        if total > most:
            return None
        parts.append((begin + np.repeat(np.arange(end - begin), np.diff(row_ptr)), starts, ends))
    row, start, end_ = (np.concatenate(c) for c in zip(*parts, strict=True))
    return row, start, end_
