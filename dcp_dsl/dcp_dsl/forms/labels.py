"""Parts of a mask: slabs in which only pairs with equal labels count, as for random flags.

``causal and q in asking and k in kept`` falls into a range per token where flags are scattered, but
it is one triangle in which only some rows and some keys count. In a block inside the triangle the
pairs are products of label counts; only in blocks that its border cuts are rows counted one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dcp_dsl.arrays import Bools, Floats, Ints, Record, expand
from dcp_dsl.forms.form import FormName, digest_of
from dcp_dsl.forms.slabs import Slabs, cut_at_rows, slab_entries

MAX_TOKENS = 2**22  # labels of all tokens are held; pairs stay far below 2**53, exact as float64
CELLS_AT_ONCE = 2**24  # labels of all blocks held at once
ROWS_AT_ONCE = 2**22  # rows of cut blocks held at once


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPart(Record):
    """The pairs of some slabs whose query and key carry the same label, int64 ``[T]``.

    -1 is equal to nothing. `sign` is 1 to add the pairs, -1 to take them away.
    """

    form: ClassVar[FormName] = "tiles"

    slabs: Slabs
    q_label: Annotated[Ints, "T"]
    k_label: Annotated[Ints, "T"]
    sign: int = 1

    def _check(self) -> None:
        if self.slabs.num_tokens > MAX_TOKENS:
            tokens = self.slabs.num_tokens
            raise ValueError(f"LabelledPart: expected at most {MAX_TOKENS} tokens, got {tokens}")

    @property
    def name(self) -> str:
        """SHA-256 of slabs and labels, and the sign."""
        n, columns = self.slabs.num_tokens, (self.slabs.table(), self.q_label, self.k_label)
        return f"{self.sign} {digest_of('labels', n, *columns)}"

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the part's pairs among some queries and keys, bool ``[queries, keys]``."""
        rows, keys = self.q_label[q_start:q_end, None], self.k_label[kv_start:kv_end]
        equal: Bools = (rows == keys) & (rows >= 0)
        return equal & self.slabs.tile(q_start, q_end, kv_start, kv_end)

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, column and signed pairs of the blocks that each slab touches."""
        last = len(q_bounds) - 1, len(kv_bounds) - 1
        q_bounds, kv_bounds = self._to_end(q_bounds), self._to_end(kv_bounds)
        pieces = cut_at_rows(self.slabs, q_bounds, kv_bounds)
        row, col, seen = slab_entries(pieces, kv_bounds)
        # the last two columns are the blocks of keys that a piece touches, one entry for each
        slab = np.repeat(pieces[0], pieces[-1] - pieces[-2])
        # a block is full here if the slab covers it, whatever labels its tokens have
        is_full = seen == np.diff(q_bounds)[row] * np.diff(kv_bounds)[col]
        pairs = np.zeros(len(row), np.int64)
        self._count_full(q_bounds, kv_bounds, (row, col), is_full, pairs)
        cut = np.flatnonzero(~is_full)
        pairs[cut] = self._count_cut(q_bounds, kv_bounds, (row[cut], col[cut]), slab[cut])
        kept = (row < last[0]) & (col < last[1])
        return row[kept], col[kept], self.sign * pairs[kept]

    def _to_end(self, bounds: Ints) -> Ints:
        """Add a block behind the last border, for the tokens of a sequence that was truncated.

        A truncated `Parts` has fewer tokens; the slabs and labels of its parts stay whole.
        """
        end = self.slabs.num_tokens
        return bounds if bounds[-1] == end else np.append(bounds, end)

    def _count_full(
        self, q_bounds: Ints, kv_bounds: Ints, place: tuple[Ints, Ints], is_full: Bools, pairs: Ints
    ) -> None:
        """Count the pairs of equal labels in blocks that lie inside a slab."""
        # a label on one side only makes no pairs
        labels = np.intersect1d(_labels_of(self.q_label), _labels_of(self.k_label))
        row, col = (at[is_full] for at in place)
        step = max(1, CELLS_AT_ONCE // (len(q_bounds) + len(kv_bounds)))
        for first in range(0, len(labels), step):
            some = labels[first : first + step]
            of_rows = _count_labels(self.q_label, q_bounds, some)
            of_keys = _count_labels(self.k_label, kv_bounds, some)
            if len(some) == 1:
                pairs[is_full] += (of_rows[row, 0] * of_keys[col, 0]).astype(np.int64)
            else:  # a matrix product sums over labels; fast in float64 only, and exact (MAX_TOKENS)
                pairs[is_full] += (of_rows @ of_keys.T)[row, col].astype(np.int64)

    def _count_cut(
        self, q_bounds: Ints, kv_bounds: Ints, place: tuple[Ints, Ints], slab: Ints
    ) -> Ints:
        """Count row by row the pairs of blocks that a slab's border cuts; int64 ``[blocks]``."""
        row, col = place
        most = self.k_label.max(initial=-1)
        # queries without a label, or with one above those of all keys, see nothing
        labelled = np.flatnonzero((self.q_label >= 0) & (self.q_label <= most))
        low = np.maximum(q_bounds[row], self.slabs.q_start[slab])
        high = np.minimum(q_bounds[row + 1], self.slabs.q_end[slab])
        low, high = np.searchsorted(labelled, low), np.searchsorted(labelled, high)
        rank = _ranks(self.k_label)
        ends = np.cumsum(high - low)
        counted = [np.empty(0, np.int64)]
        first = 0
        # in bunches: a block may have a million rows, and each takes a line of the tables here
        while first < len(row):
            done = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + ROWS_AT_ONCE, side="right")))
            part = slice(first, last)
            index, at = expand(low[part], (high - low)[part])
            query, own = labelled[at], slab[part][index]
            down = query - self.slabs.q_start[own]
            start = self.slabs.kv_start[own] + self.slabs.start_slope[own] * down
            end = self.slabs.kv_end[own] + self.slabs.end_slope[own] * down
            column = col[part][index]
            start = np.maximum(start, kv_bounds[column])
            # an end before the block means no keys, not a negative number of them
            end = np.maximum(np.minimum(end, kv_bounds[column + 1]), start)
            label = self.q_label[query]
            found = rank(label, end) - rank(label, start)  # keys of the label from start to end
            counted.append(np.bincount(index, found, last - first).astype(np.int64))
            first = last
        return np.concatenate(counted)


def _labels_of(label: Ints) -> Ints:
    """Return the labels that occur, rising."""
    most = int(label.max(initial=-1))
    if most <= 0:
        return np.arange(most + 1)
    # bincount takes memory for every number up to the largest label
    if most > 4 * len(label):
        return np.unique(label[label >= 0])
    return np.flatnonzero(np.bincount(label + 1, minlength=most + 2)[1:])


def _count_labels(label: Ints, bounds: Ints, labels: Ints) -> Floats:
    """Count how often each of some labels occurs in each block, float64 ``[blocks, labels]``."""
    if len(labels) == 1:
        before = np.append(0, np.cumsum(label == labels[0]))
        return np.diff(before[bounds])[:, None].astype(np.float64)
    at = np.searchsorted(labels, label)
    # a label beyond the last would be read outside the array; the comparison below drops it
    at[at == len(labels)] = 0
    kept = labels[at] == label
    block = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))[kept]
    size = (len(bounds) - 1) * len(labels)
    counts = np.bincount(block * len(labels) + at[kept], minlength=size)
    return counts.reshape(-1, len(labels)).astype(np.float64)


def _ranks(label: Ints) -> Callable[[Ints, Ints], Ints]:
    """Return a function that counts the positions of a label before others.

    Counts of one label are all too large by the same number, which falls out of differences.
    """
    if label.max(initial=-1) <= 0:  # one label: sums of flags
        before = np.concatenate([[0], np.cumsum(label == 0)])
        return lambda own, position: before[position]
    base = len(label) + 1
    # (label, position) as one number: a search among all of them counts those below
    keys = np.sort(label * base + np.arange(len(label)))

    def rank(own: Ints, position: Ints) -> Ints:
        wanted = own * base + position
        order = np.argsort(wanted)  # in order they are found several times faster
        found = np.empty_like(wanted)
        found[order] = np.searchsorted(keys, wanted[order])
        return found

    return rank
