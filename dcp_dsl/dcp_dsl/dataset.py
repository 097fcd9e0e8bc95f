"""Read a user's data set: Parquet or JSON lines, one file or a folder of them."""

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.diagnostics import did_you_mean
from dcp_dsl.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_SUFFIXES = (".parquet", ".pq")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TOKEN_COLUMN = "tokens"
LENGTH_COLUMNS = ("len", "length")
MAX_JSON_NESTING = 500


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows of a data set, held in memory column by column.

    Attributes:
        path: file or folder it was read from.
        table: the columns.
    """

    path: str
    table: "pa.Table"

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} rows of {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:  # Any: whatever the columns hold
        """Give one row: texts, numbers and bytes as they are, lists of integers as numpy arrays.

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

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 ``[N]``: column `len` or `length`, else the size of `tokens`.

        Raises:
            DatasetError: if there is none of them, or two of them disagree in a row.
        """
        found = {name: self._integers(name) for name in LENGTH_COLUMNS if name in self.columns}
        if TOKEN_COLUMN in self.columns:
            found[TOKEN_COLUMN] = self._token_counts()
        if not found:
            raise DatasetError(
                f"{self.path}: rows need their length: a column `len`, `length` or "
                f"`{TOKEN_COLUMN}`; "
                f"this data set has {_join(self.columns)}"
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
        """Give the tokens of one row, int64 ``[length]``; bytes count as one token each.

        Raises:
            DatasetError: if the data set has no token column or the row has none.
        """
        if TOKEN_COLUMN not in self.columns:
            raise DatasetError(
                f"{self.path} has no column `{TOKEN_COLUMN}`; it has {_join(self.columns)}"
            )
        value = self._value(TOKEN_COLUMN, index)
        if value is None:
            raise DatasetError(f"{self.path}: row {index} has no tokens")
        if isinstance(value, bytes):
            return np.frombuffer(value, np.uint8).astype(np.int64)
        if not isinstance(value, np.ndarray):
            raise DatasetError(
                f"{self.path}: row {index}: expected `{TOKEN_COLUMN}` to be integers or bytes, got "
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

    def _token_counts(self) -> NDArray[np.int64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.table.column(TOKEN_COLUMN)
        kind = column.type
        self._no_nulls(TOKEN_COLUMN)
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
                f"{self.path}: expected column `{TOKEN_COLUMN}` to hold lists of integers or "
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


def read_dataset(path: str | Path) -> Dataset:
    """Read a Parquet or JSON lines file, or all such files of a folder in the order of their names.

    Raises:
        DatasetError: if it is missing, of another kind, damaged, empty, or its files do not fit
            together; for JSON lines the message names the line.
    """
    path = Path(path)
    try:
        files = _find_files(path)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None
    tables = [_read_file(file) for file in files]
    return Dataset(str(path), _concatenate(path, files, tables))


def _find_files(path: Path) -> list[Path]:
    """Give the files of a data set."""
    if not path.exists():
        near = (
            [p.name for p in path.parent.iterdir() if p.name != path.name]
            if path.parent.is_dir()
            else []
        )
        hint = did_you_mean(path.name, near)
        raise DatasetError(f"{path}: no such file or folder{'; ' + hint if hint else ''}")
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if _kind(p) is not None and p.is_file())
        if not files:
            raise DatasetError(f"{path}: the folder holds no .parquet or .jsonl file")
        return files
    if _kind(path) is None:
        raise DatasetError(
            f"{path}: expected a .parquet or .jsonl file, got {path.suffix or 'no suffix'}"
        )
    if not path.is_file():
        raise DatasetError(f"{path}: expected a file, got a pipe or a device")
    return [path]


def _kind(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        return "parquet"
    return "jsonl" if suffix in JSONL_SUFFIXES else None


def _read_file(path: Path) -> "pa.Table":
    import pyarrow as pa

    try:
        table = _read_parquet(path) if _kind(path) == "parquet" else _read_jsonl(path)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path}: cannot be read: {reason}") from None
    if len(set(names)) != len(names):
        raise DatasetError(f"{path}: two columns have the same name: {_join(names)}")
    return table


def _read_parquet(path: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    return pq.read_table(path)


def _read_jsonl(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.json

    if path.stat().st_size == 0:
        raise DatasetError(f"{path}: the file is empty; expected one JSON object per line")
    _refuse_deep_lines(path)
    # A row can be longer than Arrow's default block of 1 MiB.
    options = pyarrow.json.ReadOptions(block_size=max(2**20, min(path.stat().st_size + 1, 2**30)))
    try:
        return pyarrow.json.read_json(path, read_options=options)
    except pa.ArrowException as error:
        _explain_jsonl(path)  # Arrow does not say which line
        raise DatasetError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _refuse_deep_lines(path: Path) -> None:
    """Raise for a line that nests so deeply that Arrow's parser would run out of stack and die."""
    import json

    opening, closing = np.zeros((2, 256), np.int8)
    opening[[ord("["), ord("{")]], closing[[ord("]"), ord("}")]] = 1, 1
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.count(b"[") + line.count(b"{") <= MAX_JSON_NESTING:
                continue
            codes = np.frombuffer(line, np.uint8)
            if np.cumsum((opening - closing)[codes], dtype=np.int64).max() > MAX_JSON_NESTING:
                try:
                    json.loads(line)  # brackets in texts do not nest
                except RecursionError:
                    raise DatasetError(f"{path}: line {number} is nested too deeply") from None
                except ValueError as error:
                    raise DatasetError(f"{path}: line {number} is not JSON: {error}") from None


def _explain_jsonl(path: Path) -> None:
    """Raise for the first line that is no JSON object or changes the type of a column."""
    import json

    kinds: dict[str, tuple[str, int]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DatasetError(f"{path}: line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise DatasetError(
                    f"{path}: line {number}: expected a JSON object, got {type(row).__name__}"
                )
            for name, value in row.items():
                kind = _json_kind(value)
                known, first = kinds.setdefault(name, (kind, number)) if kind else (kind, number)
                if kind != known:
                    raise DatasetError(
                        f"{path}: line {number}: column `{name}` is {kind}, but {known} in line "
                        f"{first}"
                    )


def _json_kind(value: Any) -> str:  # Any: a JSON value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "a bool"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def _concatenate(path: Path, files: list[Path], tables: "list[pa.Table]") -> "pa.Table":
    import pyarrow as pa

    for file, table in zip(files, tables, strict=True):
        if set(table.column_names) != set(tables[0].column_names):
            raise DatasetError(
                f"{path}: {file.name} has the columns {_join(table.column_names)}, "
                f"{files[0].name} has "
                f"{_join(tables[0].column_names)}; files of one folder need the same columns"
            )
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(f"{path}: its files do not fit together: {reason}") from None


def _join(names: "Collection[str]") -> str:
    return ", ".join(f"`{name}`" for name in names) or "no columns"
