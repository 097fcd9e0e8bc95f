"""Write exact forms as a name and one array of integers, for files and messages; read them back.

| kind | integers |
|---|---|
| `slabs` | the six columns of `Slabs.table`, slab after slab |
| `rows` | ranges of each of the T rows, then the starts of all ranges, then their ends |
| `cols:slabs`, `cols:rows` | the same of the transposed mask |
| `strided` | the period, then for each part: remainders M, slabs N, the M remainders, the N slabs |
"""

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.parts import Parts, RegionPart, keys_of, regions_of
from dcp_dsl.forms.slabs import Rows, Slabs
from dcp_dsl.symbolic.terms import MAX_PERIOD

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
            return _slabs(num_tokens, items)
        case "rows":
            return _rows(num_tokens, items)
        case "cols:slabs":
            return Parts.of_keys(_slabs(num_tokens, items))
        case "cols:rows":
            return Parts.of_keys(_rows(num_tokens, items))
        case "strided":
            return _strided(num_tokens, items)
    raise ValueError(f"form: expected a kind among {', '.join(KINDS)}, got {kind!r:.60}")


def _slabs(num_tokens: int, items: Ints) -> Slabs:
    if len(items) % 6:
        raise ValueError(f"form `slabs`: expected six integers a slab, got {len(items)} in all")
    table = items.reshape(-1, 6)
    if ((table < 0) | (table > num_tokens)).any() or (table[:, 4:] > 1).any():
        raise ValueError(f"form `slabs`: expected slabs inside {num_tokens} tokens, slopes 0 or 1")
    return Slabs(num_tokens, *table[:, :4].T, *table[:, 4:].T.astype(np.uint8))


def _rows(num_tokens: int, items: Ints) -> Rows:
    ranges, odd = divmod(len(items) - num_tokens, 2)
    counts, start, end = np.split(items, [num_tokens, num_tokens + max(ranges, 0)])
    if ranges < 0 or odd or (counts < 0).any() or (counts > ranges).any() or counts.sum() != ranges:
        raise ValueError(
            f"form `rows`: expected the ranges of {num_tokens} rows, their starts and ends, got "
            f"{len(items)} integers that are none"
        )
    row = np.repeat(np.arange(num_tokens), counts)
    follows = row[1:] == row[:-1]
    if (start < 0).any() or (end > num_tokens).any() or (follows & (start[1:] <= end[:-1])).any():
        raise ValueError(f"form `rows`: expected rising ranges apart, inside {num_tokens} tokens")
    return Rows(num_tokens, np.append(0, np.cumsum(counts)), start, end)


def _strided(num_tokens: int, items: Ints) -> Form:
    period, at, parts = int(items[0]) if len(items) else 0, 1, []
    if not 2 <= period <= MAX_PERIOD:
        raise ValueError(f"form `strided`: expected a period of 2 to {MAX_PERIOD}, got {period}")
    while at < len(items):
        sizes = items[at : at + 2]
        left = len(items) - at - 2
        if left < 0 or (sizes < 0).any() or (sizes > left).any() or sizes[0] + 6 * sizes[1] > left:
            raise ValueError(f"form `strided`: expected a part at {at}, got {sizes.tolist()}")
        first, end = at + 2 + int(sizes[0]), at + 2 + int(sizes[0] + 6 * sizes[1])
        slabs = _slabs(num_tokens, items[first:end])
        parts.append(RegionPart(slabs, False, period, items[at + 2 : first]))
        at = end
    every = np.concatenate([np.empty(0, np.int64), *(part.remainders for part in parts)])
    if len(np.unique(every)) != len(every):
        raise ValueError("form `strided`: expected every remainder once, got one twice")
    return Parts(num_tokens, tuple(parts)) if parts else _slabs(num_tokens, items[:0])
