"""Convert exact forms: to the shortest one, to slabs or rows, transposed, to integers for files.

Files keep a form as a kind and integers:

| kind | integers |
|---|---|
| `slabs` | the six columns of `Slabs.table`, slab after slab |
| `rows` | ranges of each of the T rows, then the starts of all ranges, then their ends |
| `cols:slabs`, `cols:rows` | the same of the transposed mask |
| `strided` | the period, then for each part: remainders M, slabs N, the M remainders, the N slabs |
"""

from dataclasses import replace

import numpy as np

from dcp_dsl.arrays import Ints, expand, sealed
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.form import CrossForm, Form, row_chunks
from dcp_dsl.forms.parts import Parts, RegionPart, keys_of, regions_of
from dcp_dsl.forms.slabs import Rows, Slabs
from dcp_dsl.symbolic.classes import Classes, MaskValue
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.shortcuts import are_linked
from dcp_dsl.symbolic.terms import MAX_PERIOD


def transpose(region: Region) -> Region:
    """Return the transposed region: row k holds the queries that see key k.

    A key of a slab is seen by a run of its rows. From key to key both ends of the run move by 0 or
    1, and change that at most twice in all.

    >>> below = Region.of(3, tuple(np.array([v]) for v in (0, 3, 0, 1, 0, 1)))
    >>> [c.tolist() for c in transpose(below).columns()]
    [[0], [3], [0], [3], [1], [0]]
    """
    q_start, q_end, kv_start, kv_end, low, high = region.columns()
    rows = q_end - q_start
    last_end = kv_end + high * (rows - 1)
    # keys at which an end of the run of rows begins or stops to move, and both outermost keys
    turns = np.column_stack([
        kv_start,
        np.where(high == 1, kv_end, last_end),
        np.where(low == 1, kv_start + rows - 1, last_end),
        last_end,
    ])  # fmt: skip
    turns = np.sort(np.clip(turns, kv_start[:, None], last_end[:, None]), axis=1)
    slab, part = expand(0, np.full(len(rows), 3))
    start, end = turns[slab, part], turns[slab, part + 1]
    # Later keys are seen only from the row on at which the slab's end has passed them; early keys
    # until the row at which its start passes them.
    is_later = (high[slab] == 1) & (start >= kv_end[slab])
    is_growing = (low[slab] == 1) & (start - kv_start[slab] + 1 < rows[slab])
    first = q_start[slab] + np.where(is_later, start - kv_end[slab] + 1, 0)
    last = q_start[slab] + np.where(is_growing, start - kv_start[slab] + 1, rows[slab])
    slopes = is_later.astype(np.int64), is_growing.astype(np.int64)
    # between two turns both ends of the run are straight, so each stretch of keys is one slab
    columns: tuple[Ints, ...] = (start, end, first, last, *slopes)
    kept = start < end
    return Region.of(region.num_tokens, tuple(c[kept] for c in columns))


def as_regions(mask: Form, *, is_transposed: bool) -> MaskValue | None:
    """Return a mask as regions with queries (or keys) as their rows; None if that is impossible."""
    parts = regions_of(mask)
    if mask.form == "strided" and not is_transposed:
        # label 0 stands for remainders of no part: an empty region
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


MAX_SLABS = 2**20  # of a mask that is converted
MAX_RANGES = 2**24  # of rows: some hundred megabytes
MAX_TOKENS = 2**17  # of a mask whose pairs are looked at: 17 billion of them, in bunches
ROWS_TO_GUESS = 64  # rows whose ranges are counted to judge all of them
GUESS_MARGIN = 2  # a mask is refused if that guess is so many times the limit
MIN_ROWS_SLABS = 64  # with fewer slabs a mask stays slabs
ROWS_PER_SLAB = 1.5  # with more rows on average, slabs are shorter than ranges per row


def to_form(value: MaskValue, *, is_transposed: bool) -> Form:
    """Return the value in the form that describes it shortest."""
    if isinstance(value, Classes):
        assert not is_transposed, "remainders of the distance are found in rows"
        return _strided(value)
    rows = int((value.q_end - value.q_start).sum())
    size = len(value.q_start)
    # Each chain of slabs stays one slab at least, so their number shows whether gluing may pay.
    may_be_long = not value.is_maximal and rows <= ROWS_PER_SLAB * size
    followers, chains = None, 0
    if may_be_long and rows == size > 0:
        chains = size - int(np.count_nonzero(are_linked(value.columns())))
    elif may_be_long:
        followers = value.followers()
        chains = int(np.count_nonzero(followers < 0))
    if chains >= MIN_ROWS_SLABS and rows <= ROWS_PER_SLAB * chains:
        inner: Slabs | Rows = _rows(value)
    else:
        value = value.maximal(followers)
        size = len(value.q_start)
        is_short = size < MIN_ROWS_SLABS or rows > ROWS_PER_SLAB * size
        inner = slabs_of(value) if is_short else _rows(value)
    return Parts.of_keys(inner) if is_transposed else inner


def _strided(value: Classes) -> Parts:
    parts = (
        RegionPart(slabs_of(region), False, value.period, np.flatnonzero(value.labels == label))
        for label, region in enumerate(value.regions)
        if len(region.q_start)
    )
    return Parts(value.num_tokens, tuple(parts))


def _rows(region: Region) -> Rows:
    n, height = region.num_tokens, region.q_end - region.q_start
    row, start, end = region.q_start, region.kv_start, region.kv_end
    if (height > 1).any():
        which, row = expand(row, height)
        down = row - region.q_start[which]
        start = start[which] + region.start_slope[which] * down
        end = end[which] + region.end_slope[which] * down
    step = row[1:] - row[:-1]
    # the last rows of a tall slab may lie behind the first rows of the slabs that follow
    is_single = bool((step > 0).all())
    if not is_single and ((step < 0) | (step == 0) & (start[1:] < start[:-1])).any():
        order = np.lexsort((start, row))
        row, start, end = row[order], start[order], end[order]
    if is_single and len(row) == n:
        row_ptr = np.arange(n + 1)
    else:
        row_ptr = np.append(0, np.cumsum(np.bincount(row, minlength=n)))
    return Rows(n, *(sealed(column) for column in (row_ptr, start, end)))


def slabs_of(region: Region) -> Slabs:
    """Return a region as the public value, in maximal slabs."""
    columns = region.maximal().columns()
    slopes = (slope.astype(np.uint8) for slope in columns[4:])
    return Slabs(region.num_tokens, *map(sealed, columns[:4]), *map(sealed, slopes))


def as_slabs(form: Form, max_slabs: int = MAX_SLABS) -> Slabs:
    """Return any exact form as slabs.

    Costs what the form has in row ranges: a strided or transposed mask of some thousand tokens
    fits, one of a million does not.

    Raises:
        DatasetError: if there would be more than `max_slabs` slabs.
    """
    if isinstance(form, Slabs):
        return form
    region = _transposed(form)
    if region is None:
        row, start, end = _row_ranges(form, 4 * max_slabs)
        flat = np.zeros_like(row)
        columns = (row, row + 1, start, end, flat, flat)  # in order and apart: nothing to sweep
        region = Region(form.num_tokens, *columns, is_maximal=False)
    region = region.maximal()
    if len(region.q_start) > max_slabs:
        raise DatasetError(
            f"a mask of form `{form.form}` on {form.num_tokens:_} tokens falls into "
            f"{len(region.q_start):_} slabs, at most {max_slabs:_} are made; use a shorter sample, "
            f"or a function that takes the form `{form.form}`"
        )
    return slabs_of(region)


def square_slabs(form: Form, max_slabs: int = MAX_SLABS) -> Slabs:
    """Return any form as slabs; a `CrossForm` in a square of its longer side, query 0 in row 0.

    Raises:
        DatasetError: if there would be more than `max_slabs` slabs.
    """
    if not isinstance(form, CrossForm):
        return as_slabs(form, max_slabs)
    found, up = as_slabs(form.square, max_slabs), form.first_row
    size = max(form.num_tokens, form.num_kv)
    # The square holds no pair outside the rectangle, so no slab moves to a row below 0.
    return replace(found, num_tokens=size, q_start=found.q_start - up, q_end=found.q_end - up)


def _transposed(form: Form) -> Region | None:
    """Return slabs seen from the keys as slabs; None for other forms, and for too many."""
    if not isinstance(keys_of(form), Slabs):
        return None
    try:
        region = as_regions(form, is_transposed=False)
    except TooManyPieces:
        return None
    return region if isinstance(region, Region) else None


def as_rows(form: Form, max_ranges: int = MAX_RANGES) -> Rows:
    """Return any exact form as key ranges of each row; O(ranges).

    Raises:
        DatasetError: if there would be more than `max_ranges` ranges, or a mask that is looked at
            pair by pair is too long for that.

    >>> as_rows(Parts.of_keys(Rows(3, [0, 1, 2, 3], [0, 1, 2], [3, 3, 3]))).kv_end.tolist()
    [1, 2, 3]
    """
    row, start, end = _row_ranges(form, max_ranges)
    return Rows(form.num_tokens, np.searchsorted(row, np.arange(form.num_tokens + 1)), start, end)


def _row_ranges(form: Form, most: int) -> tuple[Ints, Ints, Ints]:
    """List row, first key and end of all key ranges; `DatasetError` if more than `most`."""
    n, keys = form.num_tokens, keys_of(form)
    if keys is not None:
        return _ranges_of_keys(form, keys, most)
    if not isinstance(form, Slabs | Rows):
        if form.form == "strided":
            _limit_ranges(form, _count_strided(form), most)
        else:
            _guess_ranges(form, most)
        if n > MAX_TOKENS:
            raise DatasetError(
                f"a mask of form `{form.form}` is written as ranges pair by pair, on at most "
                f"{MAX_TOKENS:_} tokens; got {n:_}"
            )
    parts = [(np.empty(0, np.int64),) * 3]
    total = 0
    for begin, end in row_chunks(n, n):
        row_ptr, starts, ends = form.row_ranges(begin, end)
        total += len(starts)
        _limit_ranges(form, total, most, ", or more")
        parts.append((begin + np.repeat(np.arange(end - begin), np.diff(row_ptr)), starts, ends))
    row, start, end_ = (np.concatenate(c) for c in zip(*parts, strict=True))
    return row, start, end_


def _limit_ranges(form: Form, count: int, most: int, how: str = "") -> None:
    if count > most:
        raise DatasetError(
            f"a mask of form `{form.form}` on {form.num_tokens:_} tokens has {count:_} key ranges "
            f"of rows{how}, at most {most:_} are written out; use a shorter sample, or a function "
            f"that takes the form `{form.form}`"
        )


def _guess_ranges(form: Form, most: int) -> None:
    """Refuse a mask at once if a few rows, evenly apart, show that it has far too many ranges."""
    rows = np.unique(np.linspace(0, form.num_tokens - 1, ROWS_TO_GUESS).astype(np.int64)).tolist()
    found = sum(len(form.row_ranges(row, row + 1)[1]) for row in rows)
    count = found * form.num_tokens // len(rows)
    if count > GUESS_MARGIN * most:
        _limit_ranges(form, count, most, f", judged by {len(rows)} of them")


def _count_strided(form: Form) -> int:
    """Count the key ranges of all rows: pairs of which the pair one key before is not visible."""
    whole = as_regions(form, is_transposed=False)
    assert isinstance(whole, Classes), "a strided mask has classes"
    # one key further the distance is one less: a mask moved by one key has its labels one before
    moved = Classes(form.num_tokens, np.roll(whole.labels, -1), tuple(
        replace(r, kv_start=r.kv_start + 1, kv_end=r.kv_end + 1) for r in whole.regions
    ))  # fmt: skip
    return form.num_pairs - to_form(whole & moved, is_transposed=False).num_pairs


def _ranges_of_keys(form: Form, keys: Form, most: int) -> tuple[Ints, Ints, Ints]:
    """List the key ranges of all rows of a mask seen from the keys, without looking at pairs.

    Pairs are numbered ``key * n + row``, so the next key of a row is n further on. A range begins
    at a pair whose key before is not visible, and ends at a pair whose next key is not.
    """
    n = form.num_tokens
    key, start, end = _row_ranges(keys, MAX_RANGES)
    low, high = key * n + start, key * n + end
    begins = _without(low, high, n)
    _limit_ranges(form, int((begins[1] - begins[0]).sum()), most)
    first, last = (_by_row(edges, n) for edges in (begins, _without(low, high, -n)))
    return first[0], first[1], last[1] + 1


def _by_row(edges: tuple[Ints, Ints], num_tokens: int) -> tuple[Ints, Ints]:
    """Return (row, key) of pairs numbered key by key, row after row."""
    low, high = edges
    key, row = np.divmod(expand(low, high - low)[1], num_tokens)
    order = np.argsort(row * num_tokens + key)
    return row[order], key[order]


def _without(low: Ints, high: Ints, shift: int) -> tuple[Ints, Ints]:
    """Return the numbers in some ranges, rising and apart, but in none of the moved ranges."""
    marks = np.concatenate([low, high, low + shift, high + shift])
    # inside a range the sum is 1, inside a moved one -2, in both -1: only 1 is kept
    change = np.repeat([1, -1, -2, 2], len(low))
    order = np.argsort(marks, kind="stable")
    marks, cover = marks[order], np.cumsum(change[order])
    is_final = np.append(marks[1:] != marks[:-1], True)[: len(marks)]
    marks, is_in = marks[is_final], cover[is_final] == 1
    was_in = np.concatenate([[False], is_in[:-1]])[: len(is_in)]
    return marks[is_in & ~was_in], marks[was_in & ~is_in]


KINDS = ("slabs", "rows", "cols:slabs", "cols:rows", "strided")


def items_of(form: Form) -> tuple[str, Ints]:
    """Return a form as its kind and integers; `form_of` makes it again.

    Raises:
        DatasetError: for a form of tiles, which is made of a predicate and not of arrays.

    >>> kind, items = items_of(Slabs(4, [0], [4], [0], [1], [0], [1]))
    >>> kind, items.tolist()
    ('slabs', [0, 4, 0, 1, 0, 1])
    """
    if isinstance(form, Slabs):
        return "slabs", form.table().ravel()
    if isinstance(form, Rows):
        return "rows", np.concatenate([np.diff(form.row_ptr), form.kv_start, form.kv_end])
    if (keys := keys_of(form)) is not None:
        kind, items = items_of(keys)
        return f"cols:{kind}", items
    if form.form == "strided":
        own = regions_of(form)
        parts = [np.array([own[0].period])]
        for part in own:
            parts.append(np.array([len(part.remainders), len(part.region)]))
            parts += [part.remainders, items_of(part.region)[1]]
        return "strided", np.concatenate(parts)
    raise DatasetError(
        f"a mask of form `{form.form}` on {form.num_tokens:_} tokens cannot be kept in a file: "
        f"expected slabs, rows, cols or strided; use a shorter sample"
    )


def form_of(kind: str, num_tokens: int, items: Ints) -> Form:
    """Make the form that `items_of` took apart; whatever is in `items` is checked.

    Raises:
        ValueError: if the integers are no such form of `num_tokens` tokens.
    """
    match kind:
        case "slabs":
            return _read_slabs(num_tokens, items)
        case "rows":
            return _read_rows(num_tokens, items)
        case "cols:slabs":
            return Parts.of_keys(_read_slabs(num_tokens, items))
        case "cols:rows":
            return Parts.of_keys(_read_rows(num_tokens, items))
        case "strided":
            return _read_strided(num_tokens, items)
    raise ValueError(f"form: expected a kind among {', '.join(KINDS)}, got {kind!r:.60}")


def _read_slabs(num_tokens: int, items: Ints) -> Slabs:
    if len(items) % 6:
        raise ValueError(f"form `slabs`: expected six integers a slab, got {len(items)} in all")
    table = items.reshape(-1, 6)
    if ((table < 0) | (table > num_tokens)).any() or (table[:, 4:] > 1).any():
        raise ValueError(f"form `slabs`: expected slabs inside {num_tokens} tokens, slopes 0 or 1")
    return Slabs(num_tokens, *table[:, :4].T, *table[:, 4:].T.astype(np.uint8))


def _read_rows(num_tokens: int, items: Ints) -> Rows:
    ranges, odd = divmod(len(items) - num_tokens, 2)
    counts, start, end = np.split(items, [num_tokens, num_tokens + max(ranges, 0)])
    if ranges < 0 or odd or (counts < 0).any() or (counts > ranges).any() or counts.sum() != ranges:
        raise ValueError(
            f"form `rows`: expected the ranges of {num_tokens} rows, their starts and ends, got "
            f"{len(items)} integers that do not fit"
        )
    row = np.repeat(np.arange(num_tokens), counts)
    # `<=`: ranges of a row that touch would be one, and a mask would have two digests
    follows = row[1:] == row[:-1]
    if (start < 0).any() or (end > num_tokens).any() or (follows & (start[1:] <= end[:-1])).any():
        raise ValueError(f"form `rows`: expected rising ranges apart, inside {num_tokens} tokens")
    return Rows(num_tokens, np.append(0, np.cumsum(counts)), start, end)


def _read_strided(num_tokens: int, items: Ints) -> Form:
    period, at, parts = int(items[0]) if len(items) else 0, 1, []
    if not 2 <= period <= MAX_PERIOD:
        raise ValueError(f"form `strided`: expected a period of 2 to {MAX_PERIOD}, got {period}")
    while at < len(items):
        sizes = items[at : at + 2]
        # sizes are judged one by one first: their sum may leave int64 in a damaged file
        left = len(items) - at - 2
        if left < 0 or (sizes < 0).any() or (sizes > left).any() or sizes[0] + 6 * sizes[1] > left:
            raise ValueError(f"form `strided`: expected a part at {at}, got {sizes.tolist()}")
        first, end = at + 2 + int(sizes[0]), at + 2 + int(sizes[0] + 6 * sizes[1])
        slabs = _read_slabs(num_tokens, items[first:end])
        parts.append(RegionPart(slabs, False, period, items[at + 2 : first]))
        at = end
    every = np.concatenate([np.empty(0, np.int64), *(part.remainders for part in parts)])
    if len(np.unique(every)) != len(every):
        raise ValueError("form `strided`: expected every remainder once, got one twice")
    return Parts(num_tokens, tuple(parts)) if parts else _read_slabs(num_tokens, items[:0])
