"""A batch made ready to be planned: its rows read and screened, their masks found.

Masks are compiled by whoever plans: a rank that is sent its part of a plan never needs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import DatasetError, Mask, Sample, Stack
from dcp_runtime.data.layer_masks import LayerMasks
from dcp_runtime.data.rows import Row, Tokens
from dcp_runtime.data.screening import Screening

Resolver: TypeAlias = Callable[[int, Row], tuple[Mask | Stack, Sample]]
"""Takes the number and the columns of a row; gives its mask, or those of its layers, and what they
need of it."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One row of a batch.

    Attributes:
        row: its number in the data set.
        tokens: int64 ``[n]``, those that take part.
        is_target: bool ``[n]``, whether the loss counts each as a target.
        masks: of its layers.
        sample: what they are made of; may be longer than ``n``.
    """

    row: int
    tokens: Tokens
    is_target: NDArray[np.bool_]
    masks: LayerMasks
    sample: Sample


@dataclass(frozen=True, slots=True)
class RowReader:
    """Makes rows ready, one at a time.

    Attributes:
        resolve: finds mask and sample of a row.
        token_budget: most tokens of a row.
        screening: what becomes of rows that cannot be used.
        loss_column: column of 0 and 1 per token that says which tokens the loss counts.
    """

    resolve: Resolver
    token_budget: int
    screening: Screening
    loss_column: str | None = None

    def usable_tokens(self, row: int, length: int) -> int:
        """Give how many tokens of a row take part by its length alone; 0 leaves it out.

        Raises:
            DatasetError: if the row cannot be used and the policy is to raise.
        """
        if length == 0:
            self.screening.leave_out(row, "empty", f"row {row} has no tokens")
            return 0
        if length > self.token_budget:
            return self.screening.shorten(row, length, self.token_budget)
        return length

    def read(self, index: int, row: Row, tokens: Tokens) -> PackedSequence | None:
        """Find the masks of a row; ``None`` leaves it out.

        Raises:
            DatasetError: naming the row, if its columns do not fit and the policy is to raise.
        """
        count = self.usable_tokens(index, len(tokens))
        if not count:
            return None
        try:
            found, sample = self.resolve(index, _with_length(row, len(tokens)))
            masks = LayerMasks.of(found)
            is_target = self._targets(row, len(tokens))
        except DatasetError as error:
            self.screening.leave_out(index, "unfit", f"row {index}: {error}")
            return None
        return PackedSequence(index, tokens[:count], is_target[:count], masks, sample)

    def _targets(self, row: Row, length: int) -> NDArray[np.bool_]:
        if self.loss_column is None:
            return np.ones(length, bool)
        if row.get(self.loss_column) is None:
            have = ", ".join(f"`{name}`" for name in sorted(row))
            raise DatasetError(f"no column `{self.loss_column}` for the loss; there are {have}")
        found = np.asarray(row[self.loss_column])
        if found.shape != (length,) or not np.isin(found, (0, 1)).all():
            raise DatasetError(
                f"column `{self.loss_column}`: expected {length} values 0 or 1, one per token, got "
                f"{str(row[self.loss_column])[:60]}"
            )
        return found.astype(bool)


def _with_length(row: Row, length: int) -> Row:
    """Add the length where the token column has a name that nobody else knows.

    Raises:
        DatasetError: if the row states another one.
    """
    for name in ("len", "length"):
        if row.get(name) is not None and row[name] != length:
            raise DatasetError(f"column `{name}` says {row[name]} tokens, the row has {length}")
    return row if row.get("len") is not None else {**row, "len": length}
