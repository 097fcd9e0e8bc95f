"""Hold one file of a data set in memory: its rows, their lengths, their tokens."""

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.data.nesting import is_list
from dcp_dsl.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

TOKEN_COLUMNS = ("tokens", "input_ids")
LENGTH_COLUMNS = ("len", "length")


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """Rows that share their columns, held in memory column by column.

    Attributes:
        name: path of the file, or name of the split; a `for` pattern matches this.
        table: the columns.
    """

    name: str
    table: "pa.Table"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in file order."""
        return tuple(self.table.column_names)

    def stated_lengths(self) -> Ints | None:
        """Return the length of each row, from `len`, `length` or the tokens; None without them.

        Raises:
            DatasetError: if two of them disagree in a row, or one is no length.
        """
        found = {name: self._integers(name) for name in LENGTH_COLUMNS if name in self.columns}
        found |= {name: self._token_counts(name) for name in TOKEN_COLUMNS if name in self.columns}
        if not found:
            return None
        (name, lengths), *others = found.items()
        for other, counts in others:
            if not np.array_equal(lengths, counts):
                row = int(np.flatnonzero(lengths != counts)[0])
                raise DatasetError(
                    f"{self.where(row)}: `{name}` says {lengths[row]} tokens, `{other}` has "
                    f"{counts[row]}"
                )
        if len(lengths) and lengths.min() < 0:
            row = int(np.argmin(lengths))
            raise DatasetError(f"{self.where(row)} has the negative length {lengths[row]}")
        return lengths

    def tokens(self, row: int) -> Ints:
        """Return the tokens of one row, int64 ``[length]``; bytes count as one token each.

        Raises:
            DatasetError: if there is no token column or the row has none.
        """
        name = next((name for name in TOKEN_COLUMNS if name in self.columns), None)
        if name is None:
            raise DatasetError(
                f"{self.name} has no column `tokens` or `input_ids`; it has "
                f"{join_names(self.columns)}"
            )
        value = self.value(name, row)
        if value is None:
            raise DatasetError(f"{self.where(row)} has no tokens")
        if isinstance(value, bytes):
            return np.frombuffer(value, np.uint8).astype(np.int64)
        if not isinstance(value, np.ndarray):
            raise DatasetError(
                f"{self.where(row)}: expected `{name}` to be integers or bytes, got "
                f"{reprlib.repr(value)}"
            )
        tokens = value.astype(np.int64)
        if not np.array_equal(tokens, value):
            raise DatasetError(f"{self.where(row)}: a token does not fit into int64")
        return tokens

    def value(self, name: str, row: int) -> Any:  # Any: whatever a column holds
        """Return the value of a column in a row; lists of integers are views where they can be."""
        import pyarrow as pa

        scalar = self.table.column(name)[row]
        if scalar.is_valid and isinstance(scalar, pa.ListScalar):  # or a large, or a fixed-size one
            values = scalar.values
            assert values is not None, "a valid list has values"
            if pa.types.is_integer(values.type) and not values.null_count:
                return values.to_numpy(zero_copy_only=False)
            if not len(values):
                return np.empty(0, np.int64)
        try:
            return scalar.as_py()
        except (ValueError, OverflowError) as error:  # no UTF-8, a date beyond Python's
            raise DatasetError(
                f"{self.where(row)}, column `{name}` cannot be read: {error}"
            ) from None

    def where(self, row: int) -> str:
        """Name a row of this file, counted from 0."""
        return f"{self.name}: row {row}"

    def _integers(self, name: str) -> Ints:
        import pyarrow as pa

        column = self.table.column(name)
        require_lengths(self.name, name, column.type)
        self._no_nulls(name)
        try:
            return column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:  # an unsigned one
            raise DatasetError(f"{self.name}, column `{name}`: {error}") from None

    def _token_counts(self, name: str) -> Ints:
        import pyarrow.compute as pc

        column = self.table.column(name)
        require_lengths(self.name, name, column.type)
        self._no_nulls(name)
        counts = pc.list_value_length if is_list(column.type) else pc.binary_length
        lengths: Ints = counts(column).to_numpy().astype(np.int64)
        return lengths

    def _no_nulls(self, name: str) -> None:
        column = self.table.column(name)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DatasetError(f"{self.where(row)} has no value in column `{name}`")


def require_lengths(source: str, name: str, kind: Any) -> None:  # Any: a pyarrow type
    """Refuse a column of lengths or tokens that has none.

    Raises:
        DatasetError: naming the file and the column.
    """
    import pyarrow as pa

    if name in LENGTH_COLUMNS:
        is_right, expected = pa.types.is_integer(kind), "integers"
    else:
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        is_right, expected = is_bytes or is_list(kind), "lists of integers or bytes"
    if not is_right:
        raise DatasetError(f"{source}: expected column `{name}` to hold {expected}, got {kind}")


def join_names(names: Collection[str]) -> str:
    """List columns for a message."""
    return ", ".join(f"`{name}`" for name in names) or "no columns"
