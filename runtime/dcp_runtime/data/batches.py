"""A batch made ready to be planned: its rows read and screened, their masks found.

Masks are compiled by whoever plans: a rank that is sent its part of a plan never needs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dcp_dsl import DatasetError, Mask, Sample, Stack
from dcp_runtime.data.choices import RowRules
from dcp_runtime.data.layer_masks import LayerMasks
from dcp_runtime.data.rows import Row, Tokens
from dcp_runtime.data.screening import Screening
from dcp_runtime.data.token_columns import TokenColumns, read_columns

Resolver: TypeAlias = Callable[[int, Row], tuple[Mask | Stack, Sample]]
"""Takes the number and the columns of a row; gives its mask, or those of its layers, and what they
need of it."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One row of a batch.

    Attributes:
        row: its number in the data set.
        tokens: int64 ``[n]``, those that take part.
        columns: what the row's columns say about each of them.
        masks: of its layers.
        sample: what they are made of; may be longer than ``n``.
    """

    row: int
    tokens: Tokens
    columns: TokenColumns
    masks: LayerMasks
    sample: Sample


@dataclass(frozen=True, slots=True)
class RowReader:
    """Makes rows ready, one at a time.

    Attributes:
        resolve: finds mask and sample of a row.
        token_budget: most tokens of a row.
        screening: what becomes of rows that cannot be used.
        rules: which columns are read beside the tokens.
    """

    resolve: Resolver
    token_budget: int
    screening: Screening
    rules: RowRules

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
            columns = read_columns(self.rules, row, tokens)
        except DatasetError as error:
            self.screening.leave_out(index, "unfit", f"row {index}: {error}")
            return None
        return PackedSequence(index, tokens[:count], columns.first(count), masks, sample)


def _with_length(row: Row, length: int) -> Row:
    """Add the length where the token column has a name that nobody else knows.

    Raises:
        DatasetError: if the row states another one.
    """
    for name in ("len", "length"):
        if row.get(name) is not None and row[name] != length:
            raise DatasetError(f"column `{name}` says {row[name]} tokens, the row has {length}")
    return row if row.get("len") is not None else {**row, "len": length}
