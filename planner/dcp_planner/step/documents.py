"""The documents of one global batch, with the attention that each needs under its own mask."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dcp_dsl.arrays import Floats, Ints, Record
from dcp_planner.errors import PlanError


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Record):
    """Lengths and visible pairs, one row a document.

    Attributes:
        tokens: tokens of each document, int64 ``[N]``, at least 1.
        pairs: visible pairs of each document in one layer, the mean over a stack's layers, float64
            ``[N]``.

    Raises:
        ValueError: if a column has another type or length.
        PlanError: if a document is empty.

    >>> Documents.causal([3, 2]).pairs.tolist()
    [6.0, 3.0]
    """

    tokens: Annotated[Ints, "N"]
    pairs: Annotated[Floats, "N"]

    def _check(self) -> None:
        if np.any(self.tokens < 1):
            place = int(np.argmax(self.tokens < 1))
            raise PlanError(
                f"document {place}: expected at least 1 token, got {self.tokens[place]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def causal(cls, lengths: Ints | list[int]) -> "Documents":
        """Build documents under a causal mask each."""
        tokens = np.asarray(lengths, np.int64)
        return cls(tokens, tokens * (tokens + 1) / 2.0)
