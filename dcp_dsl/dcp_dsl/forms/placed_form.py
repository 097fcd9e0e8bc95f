"""The mask of one sequence at its place in a packed batch."""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.forms.form import BlockCounts, Form


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
        """One behind the sequence's last query in the batch."""
        return self.q_start + self.form.num_tokens

    @property
    def kv_end(self) -> int:
        """One behind the sequence's last key in the batch."""
        return self.kv_start + self.form.num_tokens

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Give the mask of some queries and keys of the batch, bool ``[queries, keys]``."""
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
            low, high = np.searchsorted(bounds, [start, end]).tolist()
            own.append(bounds[low : high + 1] - start)
            base.append(low)
        found = self.form.count_blocks(*own)
        return BlockCounts.without_slabs(found.row + base[0], found.col + base[1], found.pairs)
