"""Hold a user's data set in memory, file by file: rows, lengths, tokens, batches of rows.

A column of the file states the length of a row, or a layout adds it up.
"""

import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dcp_dsl.arrays import Ints, sealed
from dcp_dsl.core.layout import natural_length
from dcp_dsl.core.mask import Mask
from dcp_dsl.data.nesting import (
    NestedColumn,
    flatten_column,
    is_list,
    measure_layout,
    require_depth,
)
from dcp_dsl.data.sources import find_sources
from dcp_dsl.elaboration.programs import column_depths, reads_length
from dcp_dsl.errors import DatasetError, list_names, printable
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa


TOKEN_COLUMNS = ("tokens", "input_ids")
LENGTH_COLUMNS = ("len", "length")
NAME_COLUMNS = ("id", "name", "path")
MOST_NAME = 80  # characters of a row's name


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """Rows that share their columns, held in memory; a `for` pattern matches `name`."""

    name: str
    table: "pa.Table"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in file order."""
        return tuple(self.table.column_names)

    def stated_lengths(self) -> Ints | None:
        """Return the length of each row, from `len`, `length` or the tokens; None without them."""
        known = (name for name in (*LENGTH_COLUMNS, *TOKEN_COLUMNS) if name in self.columns)
        found = {name: self._sizes(name) for name in known}
        if not found:
            return None
        # All columns that state lengths must agree, so any of them may be taken.
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
        """Return the tokens of one row, int64 ``[length]``; bytes count as one token each."""
        name = next((name for name in TOKEN_COLUMNS if name in self.columns), None)
        if name is None:
            raise DatasetError(
                f"{self.name} has no column `tokens` or `input_ids`; it has "
                f"{list_names(self.columns, 'no columns')}"
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
        """Return the value of a column in a row; lists of integers are views of it if possible."""
        import pyarrow as pa

        scalar = self.table.column(name)[row]
        # All kinds of list scalars derive from this one. `as_py` would make an object per integer.
        if scalar.is_valid and isinstance(scalar, pa.ListScalar):
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

    def _sizes(self, name: str) -> Ints:
        import pyarrow as pa

        column = self.table.column(name)
        require_lengths(self.name, name, column.type)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DatasetError(f"{self.where(row)} has no value in column `{name}`")
        try:
            lengths: Ints = row_sizes(name, column).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:  # an unsigned length beyond int64
            raise DatasetError(f"{self.name}, column `{name}`: {error}") from None
        return lengths


def row_sizes(name: str, column: Any) -> Any:  # Any: columns of any type, and of integers
    """Return the length of each row by a column of lengths or tokens."""
    import pyarrow.compute as pc

    if name in LENGTH_COLUMNS:
        return column
    return (pc.list_value_length if is_list(column.type) else pc.binary_length)(column)


def require_lengths(source: str, name: str, kind: Any) -> None:  # Any: a pyarrow type
    """Raise a `DatasetError` if a column of lengths or tokens has another type."""
    import pyarrow as pa

    if name in LENGTH_COLUMNS:
        is_right, expected = pa.types.is_integer(kind), "integers"
    else:
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        is_right, expected = is_bytes or is_list(kind), "lists of integers or bytes"
    if not is_right:
        raise DatasetError(f"{source}: expected column `{name}` to hold {expected}, got {kind}")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows of a data set, held in memory file by file; files may have different columns.

    Attributes:
        path: the file or folder that it was read from.
        parts: its files or splits, in the order of their rows.
    """

    path: str
    parts: tuple[DataFile, ...]

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} rows of {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: int) -> dict[str, Any]:  # Any: whatever the columns hold
        """Return a row: texts, numbers and bytes as they are, lists of integers as numpy arrays.

        A row has the columns of its file. Lists are views of the table if possible.
        """
        part, row = self._place(index)
        return {name: part.value(name, row) for name in part.columns}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of all files, each once, in file order."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.columns))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files, or names of the splits; a `for` pattern matches these."""
        return tuple(part.name for part in self.parts)

    @cached_property
    def lengths(self) -> Ints:
        """Tokens of each row, int64 ``[N]``: column `len` or `length`, else the tokens.

        `Attachment.lengths` also asks the layouts of the mask.

        Raises:
            DatasetError: if there is none of them, or two of them disagree in a row.
        """
        found = (file_lengths(part, None, {}) for part in self.parts)
        return sealed(np.concatenate([np.zeros(0, np.int64), *found]))

    def part_of(self, index: int) -> int:
        """Return the number of the file, among `files`, that holds a row."""
        return int(np.searchsorted(self._ends, index % len(self), "right"))

    def tokens(self, index: int) -> Ints:
        """Return the tokens of one row, int64 ``[length]``; bytes count as one token each.

        Raises:
            DatasetError: if its file has no token column or the row has none.
        """
        part, row = self._place(index)
        return part.tokens(row)

    @cached_property
    def _ends(self) -> Ints:
        """Number of the first row behind each file."""
        return np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def _place(self, index: int) -> tuple[DataFile, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number = self.part_of(index)
        part = self.parts[number]
        return part, index % len(self) - int(self._ends[number]) + len(part)


def read_dataset(path: str | Path, columns: Collection[str] | None = None) -> Dataset:
    """Read a data set into memory.

    Args:
        path: a Parquet or JSON lines file; a folder of them, at any depth, read in the order of
            their names, without hidden ones; a folder that `datasets.save_to_disk` wrote; or
            ``hf:NAME`` for a data set that the library `datasets` loads, ``hf:NAME:SPLIT`` for one
            split of it.
        columns: read these alone, as far as they are there.

    Raises:
        DatasetError: if it is missing, of another kind, damaged or empty; for JSON lines the
            message names the line.
    """
    found = ((source.name, source.read(columns)) for source in find_sources(str(path)))
    return Dataset(str(path), tuple(DataFile(name, _in_one_chunk(table)) for name, table in found))


def _in_one_chunk(table: "pa.Table") -> "pa.Table":
    """Join the chunks of a table: a row is then found without a search for its chunk."""
    import pyarrow as pa

    try:
        return table.combine_chunks()
    except pa.ArrowInvalid:  # lists of one chunk hold at most 2^31 items
        return table


def row_name(number: int, row: Mapping[str, Any]) -> str:  # Any: whatever the columns hold
    """Name a row for people: its number, and its `id`, `name` or `path`, the first that it has.

    Only texts and integers count as names. The result has at most `MOST_NAME` characters and no
    control characters.

    >>> row_name(17, {"id": "chat-9f3a"}), row_name(3, {})
    ('row 17: chat-9f3a', 'row 3')
    """
    found = (row[column] for column in NAME_COLUMNS if isinstance(row.get(column), str | int))
    # Cut twice: before escaping, since a text may be huge, and after it, since escapes are longer.
    own = str(next(found, ""))[:MOST_NAME]
    return printable(f"row {number}: {own}" if own else f"row {number}")[:MOST_NAME]


Summed = tuple[ast.Segment, ast.Layout]
"""A segment whose layout alone fixes the length of a row."""


def summed_layout(masks: Iterable[Mask]) -> Summed | None:
    """Return the first layout that masks read and that fixes the length of a row.

    Binding a mask makes sure that all its layouts fill the row, so the first is as good as any.
    """
    pairs = (pair for mask in masks for pair in mask.layouts)
    return next((pair for pair in pairs if not reads_length(pair[1])), None)


def file_lengths(file: DataFile, summed: Summed | None, renames: Mapping[str, str]) -> Ints:
    """Return the tokens of each row of a file, int64 ``[rows]``.

    `summed` adds the lengths up where no column states them.
    """
    stated = file.stated_lengths()
    if stated is not None:
        return stated
    if summed is not None:
        return _sums(file, *summed, renames)
    raise DatasetError(
        f"{file.name}: rows need their length: a column `len`, `length`, `tokens` or `input_ids`, "
        "or a mask with a layout that adds up to it, such as `segment doc = text[lens]*`; this "
        f"file has {list_names(file.columns, 'no columns')}"
    )


def _sums(
    file: DataFile, segment: ast.Segment, layout: ast.Layout, renames: Mapping[str, str]
) -> Ints:
    """Add up a layout for all rows at once, and one by one for rows that need the binder."""
    reader = f"segment `{segment.name.text}`"
    columns = {
        name: _column(file, name, renames.get(name, name), depth, reader)
        for name, depth in column_depths(layout).items()
    }
    for name, column in columns.items():
        if column.has_null.any():
            row = int(np.flatnonzero(column.has_null)[0])
            own = renames.get(name, name)
            raise DatasetError(f"{file.where(row)} has no value in column `{own}`")
    totals = measure_layout(layout, columns, len(file))
    lengths = totals.tokens.copy()
    for row in np.flatnonzero(~totals.is_certain).tolist():
        values = {name: column.row_lists(row) for name, column in columns.items()}
        try:
            found = natural_length(segment, layout, values)
        except DatasetError as error:
            raise DatasetError(f"{file.where(row)}: {error}") from None
        assert found is not None, "the layout does not read the length"
        lengths[row] = found
    return lengths


def _column(file: DataFile, mask_column: str, column: str, depth: int, reader: str) -> NestedColumn:
    """Return a column of a file; raise a `DatasetError` if it is missing or nests otherwise."""
    if column not in file.columns:
        hint = did_you_mean(column, list(file.columns))
        raise DatasetError(
            f"{file.name}: {reader} needs the column `{column}`{'; ' + hint if hint else ''} "
            f"(columns: {list_names(file.columns, 'no columns')})"
        )
    found = file.table.column(column)
    require_depth(
        found.type, depth, source=file.name, column=column, mask_column=mask_column, reader=reader
    )
    return flatten_column(found)


def pack(
    lengths: Sequence[int],
    token_budget: int,
    *,
    order: Literal["in_order", "decreasing"] = "in_order",
) -> tuple[tuple[int, ...], ...]:
    """Divide samples into batches of a limited number of tokens.

    Args:
        lengths: tokens of each sample.
        token_budget: most tokens of a batch.
        order: ``"in_order"`` fills a batch until the next sample does not fit and keeps the order
            of the data set; ``"decreasing"`` takes the longest sample first and puts it into the
            first batch with room (fewer batches: at most 11/9 of the best number, and one more).

    Returns:
        Indices of the samples of each batch; every sample is in exactly one.

    Raises:
        DatasetError: if a sample alone exceeds the budget.

    >>> pack([3, 5, 2, 4], 7)
    ((0,), (1, 2), (3,))
    >>> pack([2, 5, 2, 6], 8, order="decreasing")
    ((3, 0), (1, 2))
    """
    sizes = [int(length) for length in lengths]
    for index, size in enumerate(sizes):
        if size > token_budget:
            raise DatasetError(
                f"sample {index} has {size} tokens, the token budget is {token_budget}; raise the "
                f"budget or leave the sample out"
            )
    if order not in ("in_order", "decreasing"):
        raise ValueError(f"order: expected 'in_order' or 'decreasing', got {order!r}")
    batches = (_in_order if order == "in_order" else _decreasing)(sizes, token_budget)
    return tuple(map(tuple, batches))


def _in_order(sizes: list[int], budget: int) -> list[list[int]]:
    batches: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if not batches or size > room:
            batches.append([])
            room = budget
        batches[-1].append(index)
        room -= size
    return batches


def _decreasing(sizes: list[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: O(samples * batches), the batches in one comparison per sample."""
    batches: list[list[int]] = []
    room = np.zeros(len(sizes), np.int64)
    # The sort is stable, so equal samples stay in order: all ranks, and a resumed run, pack alike.
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fits = np.flatnonzero(room[: len(batches)] >= sizes[index])
        at = int(fits[0]) if len(fits) else len(batches)
        if at == len(batches):
            batches.append([])
            room[at] = budget
        batches[at].append(index)
        room[at] -= sizes[index]
    return batches
