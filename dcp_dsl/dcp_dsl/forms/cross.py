"""The exact mask between queries and keys of two sequences: a rectangle of a square form."""

from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.forms.conversion import as_slabs
from dcp_dsl.forms.form import BlockCounts, Form, FormName, RowRanges, digest_of
from dcp_dsl.forms.slabs import Slabs


@dataclass(frozen=True, slots=True, eq=False)
class CrossForm:
    """A mask of so many queries and so many keys; what a form can do, it can.

    Attributes:
        square: a form that holds no pair outside the rectangle.
        num_tokens: queries, rows of the mask.
        num_kv: keys.
        first_row: the row of `square` that is query 0; rows below 0 see nothing.

    >>> causal = Slabs(4, [2], [4], [0], [3], [0], [1])
    >>> CrossForm(causal, 2, 4, first_row=2).tile(0, 2, 0, 4).astype(int).tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """

    square: Form
    num_tokens: int
    num_kv: int
    first_row: int = 0

    @property
    def form(self) -> FormName:
        """The name of the square form."""
        return self.square.form

    @property
    def num_pairs(self) -> int:
        """Visible (query, key) pairs."""
        return self.square.num_pairs

    @property
    def digest(self) -> str:
        """SHA-256 of the value in hex; equal digests mean equal masks."""
        shape = np.array([self.num_kv, self.first_row])
        return digest_of(f"cross {self.square.digest}", self.num_tokens, shape)

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of queries ``[q_start, q_end)`` and keys ``[kv_start, kv_end)``."""
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        lead, low, high = self._rows(q_start, q_end)
        seen[lead:] = self.square.tile(low, high, kv_start, kv_end)
        return seen

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of rows: ``(row_ptr [R+1], starts [P], ends [P])``."""
        lead, low, high = self._rows(q_start, q_end)
        row_ptr, starts, ends = self.square.row_ranges(low, high)
        return np.concatenate([np.zeros(lead, np.int64), row_ptr]), starts, ends

    def _rows(self, q_start: int, q_end: int) -> tuple[int, int, int]:
        """Return how many queries stand before the square, and the rows of the others."""
        low = max(0, q_start + self.first_row)
        high = max(low, q_end + self.first_row)
        return q_end - q_start - (high - low), low, high

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every non-empty block; see `Form`."""
        size = self.square.num_tokens
        own = np.clip(q_bounds + self.first_row, 0, size)
        rows, keys = (np.unique(np.append(bounds, [0, size])) for bounds in (own, kv_bounds))
        found = self.square.count_blocks(rows, keys)
        row = np.searchsorted(own, rows[found.row], side="right") - 1
        return BlockCounts(row, found.col, found.pairs)

    def slabs(self) -> Slabs:
        """Return the slabs in a square of the longer side, query 0 in row 0.

        Raises:
            DatasetError: if it falls into more than a million slabs.
        """
        found, size = as_slabs(self.square), max(self.num_tokens, self.num_kv)
        shift = self.first_row
        return replace(
            found, num_tokens=size, q_start=found.q_start - shift, q_end=found.q_end - shift
        )


def square_slabs(form: Form) -> Slabs:
    """Return any form as slabs, of a `CrossForm` in a square of its longer side.

    Raises:
        DatasetError: if it falls into more than a million slabs.
    """
    return form.slabs() if isinstance(form, CrossForm) else as_slabs(form)


def num_keys(form: Form) -> int:
    """Return the keys of a mask, which has as many as queries if it is no `CrossForm`."""
    return form.num_kv if isinstance(form, CrossForm) else form.num_tokens
