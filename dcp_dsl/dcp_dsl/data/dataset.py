"""Read a user's data set, Parquet or JSON lines, and pack its samples into batches."""

import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.data.sources import HUB, find_files, is_saved_dataset, load_tables, read_file
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax.diagnostics import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

TOKEN_COLUMNS = ("tokens", "input_ids")
LENGTH_COLUMNS = ("len", "length")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows of a data set, held in memory column by column.

    Attributes:
        path: file or folder it was read from.
        table: the columns.
        files: paths of the files in it, or names of its splits; a `for` pattern matches these.
    """

    path: str
    table: "pa.Table"
    files: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} rows of {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:  # Any: whatever the columns hold
        """Return a row: texts, numbers and bytes as they are, lists of integers as numpy arrays.

        Lists are views of the table where they can be; nothing is turned into Python objects but
        what the row's other columns hold.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = index % len(self)
        return {name: self._value(name, row) for name in self.columns}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in file order."""
        return tuple(self.table.column_names)

    @property
    def token_column(self) -> str | None:
        """The column that holds the tokens: `tokens`, else `input_ids`; None without either."""
        return next((name for name in TOKEN_COLUMNS if name in self.columns), None)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 ``[N]``: column `len` or `length`, else the tokens.

        Raises:
            DatasetError: if there is none of them, or two of them disagree in a row.
        """
        found = {name: self._integers(name) for name in LENGTH_COLUMNS if name in self.columns}
        found |= {name: self._token_counts(name) for name in TOKEN_COLUMNS if name in self.columns}
        if not found:
            raise DatasetError(
                f"{self.path}: rows need their length: a column `len`, `length`, `tokens` or "
                f"`input_ids`; this data set has {_join(self.columns)}"
            )
        (name, lengths), *others = found.items()
        for other, counts in others:
            if not np.array_equal(lengths, counts):
                row = int(np.flatnonzero(lengths != counts)[0])
                raise DatasetError(
                    f"{self.path}: row {row}: `{name}` says {lengths[row]} tokens, `{other}` has "
                    f"{counts[row]}"
                )
        if len(lengths) and lengths.min() < 0:
            row = int(np.argmin(lengths))
            raise DatasetError(f"{self.path}: row {row} has the negative length {lengths[row]}")
        lengths.setflags(write=False)
        return lengths

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of one row, int64 ``[length]``; bytes count as one token each.

        Raises:
            DatasetError: if the data set has no token column or the row has none.
        """
        name = self.token_column
        if name is None:
            raise DatasetError(
                f"{self.path} has no column `tokens` or `input_ids`; it has {_join(self.columns)}"
            )
        value = self._value(name, index)
        if value is None:
            raise DatasetError(f"{self.path}: row {index} has no tokens")
        if isinstance(value, bytes):
            return np.frombuffer(value, np.uint8).astype(np.int64)
        if not isinstance(value, np.ndarray):
            raise DatasetError(
                f"{self.path}: row {index}: expected `{name}` to be integers or bytes, got "
                f"{reprlib.repr(value)}"
            )
        tokens = value.astype(np.int64)
        if not np.array_equal(tokens, value):
            raise DatasetError(f"{self.path}: row {index}: a token does not fit into int64")
        return tokens

    def _value(self, name: str, row: int) -> Any:  # Any: as in a row
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
                f"{self.path}: row {row}, column `{name}` cannot be read: {error}"
            ) from None

    def require(self, columns: Collection[str]) -> None:
        """Check that the data set has columns.

        Raises:
            DatasetError: naming the first missing one and the closest that is there.
        """
        for name in sorted(columns):
            if name not in self.columns:
                hint = did_you_mean(name, self.columns)
                raise DatasetError(
                    f"{self.path} has no column `{name}`{'; ' + hint if hint else ''} "
                    f"(columns: {_join(self.columns)})"
                )

    def _integers(self, name: str) -> NDArray[np.int64]:
        import pyarrow as pa

        column = self.table.column(name)
        if not pa.types.is_integer(column.type):
            raise DatasetError(
                f"{self.path}: expected column `{name}` to hold integers, got {column.type}"
            )
        self._no_nulls(name)
        return column.to_numpy().astype(np.int64)

    def _token_counts(self, name: str) -> NDArray[np.int64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.table.column(name)
        kind = column.type
        self._no_nulls(name)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            counts = pc.binary_length(column)
        elif (
            pa.types.is_list(kind)
            or pa.types.is_large_list(kind)
            or pa.types.is_fixed_size_list(kind)
        ):
            counts = pc.list_value_length(column)
        else:
            raise DatasetError(
                f"{self.path}: expected column `{name}` to hold lists of integers or "
                f"bytes, "
                f"got {kind}"
            )
        result: NDArray[np.int64] = counts.to_numpy().astype(np.int64)
        return result

    def _no_nulls(self, name: str) -> None:
        column = self.table.column(name)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DatasetError(f"{self.path}: row {row} has no value in column `{name}`")


def read_dataset(path: str | Path, columns: Collection[str] | None = None) -> Dataset:
    """Read a data set into memory.

    Args:
        path: a Parquet or JSON lines file; a folder of them, at any depth, read in the order of
            their names; a folder that `datasets.save_to_disk` wrote; ``hf:NAME`` or
            ``hf:NAME:SPLIT``.
        columns: read these alone, as far as they are there.

    Raises:
        DatasetError: if it is missing, of another kind, damaged, empty, or its files do not fit
            together; for JSON lines the message names the line.
    """
    if str(path).startswith(HUB) or is_saved_dataset(Path(path)):
        parts = list(load_tables(str(path)))
        tables = [table for _, table in parts]
        if columns is not None:
            tables = [t.select([n for n in t.column_names if n in columns]) for t in tables]
        names = tuple(name for name, _ in parts)
        return Dataset(str(path), _concatenate(str(path), names, tables), names)
    path = Path(path)
    found = find_files(path, is_deep=True)
    tables = [read_file(file, columns) for file in found]
    shown = [str(file.relative_to(path)) if file != path else file.name for file in found]
    files = tuple(map(str, found))
    return Dataset(str(path), _concatenate(str(path), shown, tables), files)


def _concatenate(path: str, files: Sequence[str], tables: "list[pa.Table]") -> "pa.Table":
    import pyarrow as pa

    for file, table in zip(files, tables, strict=True):
        if set(table.column_names) != set(tables[0].column_names):
            raise DatasetError(
                f"{path}: {file} has the columns {_join(table.column_names)}, "
                f"{files[0]} has "
                f"{_join(tables[0].column_names)}; files of one folder need the same columns: give "
                "one of them, or a folder of those that agree"
            )
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(f"{path}: its files do not fit together: {reason}") from None


def _join(names: "Collection[str]") -> str:
    return ", ".join(f"`{name}`" for name in names) or "no columns"


def pack(
    lengths: Sequence[int],
    token_budget: int,
    *,
    order: Literal["in_order", "decreasing"] = "in_order",
) -> tuple[tuple[int, ...], ...]:
    """Choose which samples share a batch.

    Args:
        lengths: tokens of each sample.
        token_budget: most tokens of a batch.
        order: ``"in_order"`` fills a batch until the next sample does not fit and keeps the order
            of the data set; ``"decreasing"`` takes the longest sample first and puts it into the
            first batch with room (fewer batches, at most 11/9 of the best number).

    Returns:
        Indices of the samples of each batch; every sample is in exactly one.

    Raises:
        DatasetError: if a sample alone exceeds the budget.

    >>> pack([3, 5, 2, 4], 7)
    ((0,), (1, 2), (3,))
    >>> pack([3, 5, 2, 4], 7, order="decreasing")
    ((1, 2), (3, 0))
    """
    sizes = [int(length) for length in lengths]
    for index, size in enumerate(sizes):
        if size > token_budget:
            raise DatasetError(
                f"sample {index} has {size} tokens, the token budget is {token_budget}; raise the "
                f"budget or leave the sample out"
            )
    if order == "in_order":
        return _in_order(sizes, token_budget)
    if order == "decreasing":
        return _decreasing(sizes, token_budget)
    raise ValueError(f"order: expected 'in_order' or 'decreasing', got {order!r}")


def _in_order(sizes: list[int], budget: int) -> tuple[tuple[int, ...], ...]:
    batches: list[tuple[int, ...]] = []
    current: list[int] = []
    used = 0
    for index, size in enumerate(sizes):
        if current and used + size > budget:
            batches.append(tuple(current))
            current, used = [], 0
        current.append(index)
        used += size
    return (*batches, tuple(current)) if current else tuple(batches)


def _decreasing(sizes: list[int], budget: int) -> tuple[tuple[int, ...], ...]:
    """First fit: a batch's room is looked up with one vectorised comparison per sample."""
    batches: list[list[int]] = []
    room = np.zeros(len(sizes), np.int64)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fits = np.flatnonzero(room[: len(batches)] >= sizes[index])
        at = int(fits[0]) if len(fits) else len(batches)
        if at == len(batches):
            batches.append([])
            room[at] = budget
        batches[at].append(index)
        room[at] -= sizes[index]
    return tuple(tuple(batch) for batch in batches)
