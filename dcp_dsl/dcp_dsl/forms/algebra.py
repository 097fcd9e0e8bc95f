"""Compare masks on a sample exactly, whatever their forms.

Slabs, ranges per row, strided masks and masks seen from the keys are compared symbolically. Where
that takes too many pieces, or one mask has labels or a predicate, pairs are compared in bunches of
rows, which is limited to some ten thousand tokens.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.conversion import as_regions, to_form
from dcp_dsl.forms.form import CrossForm, Form, ranges_of_tile, row_chunks
from dcp_dsl.forms.parts import keys_of
from dcp_dsl.forms.slabs import Rows, Slabs
from dcp_dsl.symbolic.piecewise import TooManyPieces

MAX_TOKENS = 2**15  # of masks compared pair by pair: a billion pairs


@dataclass(frozen=True, slots=True)
class MaskComparison:
    """The difference of two masks on a sample; `first` is (query, key), in reading order."""

    only_left: int
    only_right: int
    first: tuple[int, int] | None
    first_is_left: bool

    @property
    def is_equal(self) -> bool:
        """True if the two masks see the same pairs."""
        return self.only_left == 0 and self.only_right == 0


def subtract(left: Form, right: Form) -> Form:
    """Return the pairs that the left mask sees and the right one does not."""
    if left.num_tokens != right.num_tokens:
        raise DatasetError(
            f"expected masks of as many tokens, got {left.num_tokens:_} and {right.num_tokens:_}"
        )
    for is_transposed in (False, True):
        try:
            a, b = (as_regions(mask, is_transposed=is_transposed) for mask in (left, right))
            if a is not None and b is not None:
                return to_form(a - b, is_transposed=is_transposed)
        except TooManyPieces:
            continue
    return _subtract_pairs(left, right)


def is_empty(mask: Form) -> bool:
    """Return whether no query sees any key."""
    return mask.num_pairs == 0


def is_equal(left: Form, right: Form) -> bool:
    """Return whether two masks see the same pairs; equal digests decide at once."""
    if left.num_tokens != right.num_tokens:
        return False
    return left.digest == right.digest or compare_masks(left, right).is_equal


def compare_masks(left: Form, right: Form) -> MaskComparison:
    """Count the pairs that only one of two masks sees, and find the first."""
    # query 0 is the row `first_row` of both squares
    shift = 0
    if isinstance(left, CrossForm) and isinstance(right, CrossForm):  # of one shape
        shift, left, right = left.first_row, left.square, right.square
    sides = subtract(left, right), subtract(right, left)
    firsts = [
        (*pair, index == 0) for index, pair in enumerate(map(first_pair, sides)) if pair is not None
    ]
    counts = sides[0].num_pairs, sides[1].num_pairs
    if not firsts:
        return MaskComparison(0, 0, None, False)
    query, key, is_left = min(firsts)
    return MaskComparison(*counts, (query - shift, key), is_left)


def first_pair(mask: Form) -> tuple[int, int] | None:
    """Return the first visible pair in reading order, None if there is none."""
    # a slab sees keys on all of its rows, so its first row is enough
    rows = mask.q_start if isinstance(mask, Slabs) else rows_with_pairs(mask)
    if not len(rows):
        return None
    row = int(rows.min())
    return row, int(mask.row_ranges(row, row + 1)[1][0])


def rows_with_pairs(mask: Form) -> Ints:
    """Return the rows that see anything, by counting blocks of one row and all keys."""
    # From the keys, blocks of one row would be as many as pairs. Runs of rows that see each key are
    # few: a row sees something where their changes add up to more than 0.
    if (keys := keys_of(mask)) is not None:
        _, starts, ends = keys.row_ranges(0, mask.num_tokens)
        size = mask.num_tokens + 1
        change = np.bincount(starts, minlength=size) - np.bincount(ends, minlength=size)
        return np.flatnonzero(np.cumsum(change)[:-1])
    bounds = np.arange(mask.num_tokens + 1), np.array([0, mask.num_tokens])
    return mask.count_blocks(*bounds).row


def _subtract_pairs(left: Form, right: Form) -> Form:
    """Compare two masks pair by pair, some rows at a time."""
    n = left.num_tokens
    if n > MAX_TOKENS:
        raise DatasetError(
            f"masks of the forms `{left.form}` and `{right.form}` are compared pair by pair, on at "
            f"most {MAX_TOKENS:_} tokens; got {n:_}"
        )
    parts: list[tuple[Ints, Ints, Ints]] = []
    for begin, end in row_chunks(n, n):
        a, b = (mask.tile(begin, end, 0, n) for mask in (left, right))
        row_ptr, starts, ends = ranges_of_tile(a & ~b)
        parts.append((np.diff(row_ptr), starts, ends))
    counts, starts, ends = (np.concatenate(c) for c in zip(*parts, strict=True))
    return Rows(n, np.concatenate([[0], np.cumsum(counts)]), starts, ends)
