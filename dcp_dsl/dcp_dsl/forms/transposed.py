"""Masks that are simple seen from the keys: which queries see each key.

Where a bound depends on the key, as in tree attention or a cache that drops keys, the rows fall
apart into many pieces while every key is seen by one run of queries.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.forms.form import (
    BlockCounts,
    FormName,
    RowRanges,
    digest_of,
    ranges_of_tile,
)
from dcp_dsl.forms.rows import Rows
from dcp_dsl.forms.slabs import Slabs


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A mask with queries and keys swapped.

    Attributes:
        keys: the transposed mask: its rows are keys, its keys are queries.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> Columns(causal).tile(0, 2, 0, 3).astype(int).tolist()  # seen from the keys, so anticausal
    [[1, 1, 1], [0, 1, 1]]
    """

    form: ClassVar[FormName] = "cols"

    keys: Slabs | Rows

    @property
    def num_tokens(self) -> int:
        """Rows, and keys, of the mask."""
        return self.keys.num_tokens

    @property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs."""
        return self.keys.num_pairs

    @property
    def digest(self) -> str:
        """SHA-256 of the transposed mask; see `Form`."""
        inner = np.frombuffer(bytes.fromhex(self.keys.digest), np.uint8).astype(np.int64)
        return digest_of(self.form, self.num_tokens, inner)

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Give the mask of some queries and keys, bool ``[queries, keys]``."""
        return self.keys.tile(kv_start, kv_end, q_start, q_end).T

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Give the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
        return ranges_of_tile(self.tile(q_start, q_end, 0, self.num_tokens))

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; see `Form`."""
        found = self.keys.count_blocks(kv_bounds, q_bounds)
        order = np.argsort(found.col * len(kv_bounds) + found.row, kind="stable")
        return BlockCounts.without_slabs(found.col[order], found.row[order], found.pairs[order])
