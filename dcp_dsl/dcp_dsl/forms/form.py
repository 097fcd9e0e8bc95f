"""The interface of exact forms of a bound mask; forms cut to a rectangle or placed in a batch.

A mask bound to a sample is the shortest of three values: `Slabs`, `Rows` (key ranges of each row),
or `Parts`, a sum of regions seen from the keys (`cols`), of slabs by the remainder of the distance
(`strided`), or of labelled slabs or a predicate (`tiles`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.errors import DatasetError

MAX_BLOCKS = 2**26  # some gigabytes of rows, columns and counts

FormName: TypeAlias = Literal["slabs", "cols", "strided", "rows", "tiles"]

# row_ptr int64 [R+1], starts int64 [P], ends int64 [P]: row i sees starts[j] to ends[j] for j in
# row_ptr[i]:row_ptr[i+1]; ranges are half-open, rising, and neither overlap nor touch.
RowRanges: TypeAlias = tuple[Ints, Ints, Ints]


class BlockCounts(NamedTuple):
    """Non-empty blocks of one mask, by row and then by column.

    Attributes:
        row, col: int64 ``[B]``.
        pairs: int64 ``[B]``, visible pairs, at least 1.
    """

    row: Ints
    col: Ints
    pairs: Ints


class Form(Protocol):
    """The exact mask of one sample: which query sees which key."""

    @property
    def form(self) -> FormName:
        """The name of the form."""

    @property
    def num_tokens(self) -> int:
        """Rows, and keys, of the mask."""

    @property
    def num_pairs(self) -> int:
        """Visible (query, key) pairs."""

    @property
    def digest(self) -> str:
        """SHA-256 of the value in hex; equal digests mean equal masks."""

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of queries ``[q_start, q_end)`` and keys ``[kv_start, kv_end)``."""

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of rows: ``(row_ptr [R+1], starts [P], ends [P])``."""

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every non-empty block.

        Args:
            q_bounds: int64 ``[Nq+1]``, rising from 0 to the number of tokens.
            kv_bounds: int64 ``[Nk+1]``, the same for keys.
        """


def limit_blocks(count: int) -> None:
    """Refuse more blocks than memory holds, before they are made."""
    if count > MAX_BLOCKS:
        raise DatasetError(
            f"expected at most {MAX_BLOCKS:_} blocks to look at, got {count:_}; take larger blocks"
        )


def digest_of(form: str, num_tokens: int, *arrays: Ints) -> str:
    """Return the SHA-256 of a form's arrays, in hex."""
    digest = sha256(f"dcp.mask/1 {form} {num_tokens}".encode())
    for array in arrays:
        # shapes keep arrays apart: [1], [2, 3] and [1, 2], [3] have the same bytes
        digest.update(f" {array.shape} ".encode())
        # little-endian, so that digests are the same on every machine
        digest.update(np.ascontiguousarray(array, "<i8").tobytes())
    return digest.hexdigest()


def paint_ranges(ranges: RowRanges, kv_start: int, kv_end: int) -> Bools:
    """Return bool ``[rows, keys]`` for key ranges per row."""
    row_ptr, starts, ends = ranges
    rows, width, counts = len(row_ptr) - 1, kv_end - kv_start, np.diff(row_ptr)
    low = np.clip(starts - kv_start, 0, width)
    high = np.clip(ends - kv_start, 0, width)
    if counts.max(initial=0) == 1:  # by far the most frequent case: a third of the time
        # rows without a range keep [0, 0)
        ends_of_row = np.zeros((2, rows, 1), np.int64)
        ends_of_row[:, counts == 1, 0] = low, high
        keys = np.arange(width)
        return np.asarray((keys >= ends_of_row[0]) & (keys < ends_of_row[1]))
    row = np.repeat(np.arange(rows), counts)
    # ranges of a row never overlap, so sums are 0 or 1 and int8 is enough
    change = np.zeros((rows, width + 1), np.int8)
    np.add.at(change, (row, low), 1)
    np.add.at(change, (row, high), -1)
    seen: Bools = np.cumsum(change, axis=1, dtype=np.int8)[:, :width] > 0
    return seen


def ranges_of_tile(tile: Bools) -> RowRanges:
    """Return the maximal ranges of ones in each row of a tile."""
    # One key on either side that nobody sees: then each range has a start and an end. Both come row
    # by row from left to right, so the n-th start belongs to the n-th end.
    edge = np.zeros((len(tile), 1), np.int8)
    step = np.diff(np.concatenate([edge, tile.astype(np.int8), edge], axis=1), axis=1)
    row, starts = np.nonzero(step == 1)
    _, ends = np.nonzero(step == -1)
    row_ptr = np.searchsorted(row, np.arange(len(tile) + 1))
    return row_ptr, starts.astype(np.int64), ends.astype(np.int64)


def row_chunks(num_rows: int, width: int, at_once: int = 2**24) -> Iterator[tuple[int, int]]:
    """Yield bunches of rows that together hold about `at_once` pairs."""
    step = max(1, at_once // max(1, width))
    for begin in range(0, num_rows, step):
        yield begin, min(begin + step, num_rows)


@dataclass(frozen=True, slots=True, eq=False)
class CrossForm:
    """A mask between two sequences, of queries and of keys; it has all methods of a `Form`.

    Attributes:
        square: a form that holds no pair outside the rectangle.
        num_tokens: queries, rows of the mask.
        num_kv: keys.
        first_row: the row of `square` that is query 0; rows below 0 see nothing.
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
        """Return how many queries stand before the square, and the rows of the others there."""
        low = max(0, q_start + self.first_row)
        high = max(low, q_end + self.first_row)
        return q_end - q_start - (high - low), low, high

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every non-empty block; see `Form`."""
        size = self.square.num_tokens
        # Borders of the square run from 0 to its size; blocks added for that hold no pairs. Blocks
        # before the square become empty; `side="right"` below passes them over.
        own = np.clip(q_bounds + self.first_row, 0, size)
        rows, keys = (np.unique(np.append(bounds, [0, size])) for bounds in (own, kv_bounds))
        found = self.square.count_blocks(rows, keys)
        row = np.searchsorted(own, rows[found.row], side="right") - 1
        return BlockCounts(row, found.col, found.pairs)


def num_keys(form: Form) -> int:
    """Return the keys of a mask: as many as queries, except in a `CrossForm`."""
    return form.num_kv if isinstance(form, CrossForm) else form.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class PlacedForm:
    """An exact mask and where its sequence lies in a packed batch.

    Attributes:
        form: the mask, in coordinates of the sequence.
        q_start, kv_start: the sequence's first query and first key in the batch. They differ only
            where a batch holds copies of a sequence that share keys.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(2, [0], [2], [0], [1], [0], [1])
    >>> PlacedForm(causal, 1, 1).tile(0, 3, 0, 3).astype(int).tolist()
    [[0, 0, 0], [0, 1, 0], [0, 1, 1]]
    """

    form: Form
    q_start: int
    kv_start: int

    @property
    def q_end(self) -> int:
        """The end of the sequence's queries in the batch."""
        return self.q_start + self.form.num_tokens

    @property
    def kv_end(self) -> int:
        """The end of the sequence's keys in the batch."""
        return self.kv_start + num_keys(self.form)

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of some queries and keys of the batch, bool ``[queries, keys]``."""
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        q0, q1 = max(q_start, self.q_start), min(q_end, self.q_end)
        k0, k1 = max(kv_start, self.kv_start), min(kv_end, self.kv_end)
        if q0 < q1 and k0 < k1:
            own = (q0 - self.q_start, q1 - self.q_start, k0 - self.kv_start, k1 - self.kv_start)
            seen[q0 - q_start : q1 - q_start, k0 - kv_start : k1 - kv_start] = self.form.tile(*own)
        return seen

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every non-empty block of the batch; see `Form`.

        Args:
            q_bounds: int64 ``[Nq+1]``, rising; the ends of the sequence are among them.
            kv_bounds: int64 ``[Nk+1]``, the same for keys.
        """
        own, base = [], []
        for bounds, start, end in (
            (q_bounds, self.q_start, self.q_end), (kv_bounds, self.kv_start, self.kv_end)
        ):  # fmt: skip
            # the blocks of the sequence alone, in its own coordinates
            low, high = np.searchsorted(bounds, [start, end]).tolist()
            own.append(bounds[low : high + 1] - start)
            base.append(low)
        found = self.form.count_blocks(*own)
        return BlockCounts(found.row + base[0], found.col + base[1], found.pairs)
