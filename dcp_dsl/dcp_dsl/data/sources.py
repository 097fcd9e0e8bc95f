"""Find the files of a data set and read them, whole or in batches, only in the columns asked for.

A source is a Parquet or JSON lines file, or a split of a Hugging Face data set; only the last needs
the library `datasets`. `find_sources` finds the sources under a path. A message about JSON lines
that cannot be read names the line.
"""

import codecs
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcp_dsl.errors import DatasetError, list_names
from dcp_dsl.syntax.diagnostics import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

MAX_JSON_NESTING = 500  # brackets in a line that are harmless; with more, Python parses it first
_JSON_KINDS = {
    bool: "a bool", int: "a number", float: "a number", str: "a text", list: "a list",
    dict: "an object",
}  # fmt: skip


def read_jsonl(path: Path) -> "pa.Table":
    """Read a file with one JSON object per line."""
    import pyarrow as pa
    import pyarrow.json

    if path.stat().st_size == 0:
        raise DatasetError(f"{path}: the file is empty; expected one JSON object per line")
    rows = _check_lines(path)
    # A row can be longer than Arrow's default block of 1 MiB.
    options = pyarrow.json.ReadOptions(block_size=min(path.stat().st_size, 2**30))
    try:
        table = pyarrow.json.read_json(path, read_options=options)
    except pa.ArrowException as error:
        _explain_jsonl(path)  # Arrow does not say which line
        raise DatasetError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if table.num_rows != rows:  # a line held several values; Arrow takes `{} {}` for two rows
        _explain_jsonl(path)
        raise DatasetError(f"{path}: expected {rows} rows, one per line, got {table.num_rows}")
    return table


def _check_lines(path: Path) -> int:
    """Count the lines that are not blank; refuse those that would make Arrow kill the process.

    Its parser crashes on a first line that is `null`, and overflows the stack where values nest too
    deeply.
    """
    rows = 0
    # By byte: 1 where a bracket opens or closes.
    opening, closing = np.zeros((2, 256), np.int8)
    opening[[ord("["), ord("{")]], closing[[ord("]"), ord("}")]] = 1, 1
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(codecs.BOM_UTF8 * (number == 1)).strip()
            rows += bool(text)
            if text and not (text.startswith(b"{") and text.endswith(b"}")):
                _explain_jsonl(path)
                raise DatasetError(f"{path}: line {number}: expected one JSON object")
            # Counting is much cheaper than the depth, and nearly all lines have few brackets.
            if line.count(b"[") + line.count(b"{") <= MAX_JSON_NESTING:
                continue
            codes = np.frombuffer(line, np.uint8)
            # Depth behind each byte, without a loop over bytes; it counts brackets in texts, too.
            if np.cumsum((opening - closing)[codes], dtype=np.int64).max() > MAX_JSON_NESTING:
                try:
                    json.loads(line)  # brackets in texts do not nest; Python knows which do
                except RecursionError:
                    raise DatasetError(f"{path}: line {number} is nested too deeply") from None
                except ValueError as error:
                    raise _no_json(path, number, error) from None
    return rows


def _no_json(path: Path, number: int, error: Exception) -> DatasetError:
    reason = str(error)
    if isinstance(error, json.JSONDecodeError):  # its text would say line 1, since it sees one line
        reason = f"{error.msg} at column {error.colno}"
    return DatasetError(f"{path}: line {number}: expected a JSON object, got no JSON: {reason}")


def _explain_jsonl(path: Path) -> None:
    """Raise for the first line that is no JSON object or changes the type of a column.

    Slow, so only for files that Arrow refused. Returns if it finds no such line.
    """
    # The kind of each column's values, and the line that had it first.
    kinds: dict[str, tuple[str, int]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.removeprefix(codecs.BOM_UTF8 * (number == 1)))
            except (ValueError, RecursionError) as error:
                raise _no_json(path, number, error) from None
            if not isinstance(row, dict):
                raise DatasetError(
                    f"{path}: line {number}: expected a JSON object, got {type(row).__name__}"
                )
            for name, value in row.items():
                kind = _JSON_KINDS.get(type(value), "")  # "" for null, which fits every column
                known, first = kinds.setdefault(name, (kind, number)) if kind else (kind, number)
                if kind != known:
                    raise DatasetError(
                        f"{path}: line {number}: column `{name}` is {kind}, but {known} in line "
                        f"{first}"
                    )


PARQUET_SUFFIXES = (".parquet", ".pq")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
HUB = "hf:"
BATCH_ROWS = 4096  # few enough for memory, many enough that the cost of a batch does not count
SAVED_MARKS = ("state.json", "dataset_dict.json")  # files that `save_to_disk` leaves in a folder


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows that belong together: a file, or a split of a data set.

    Attributes:
        name: path, or ``hf:NAME/split``; `for` patterns are matched against it.
        columns: types by name.
        num_rows: number of rows.
        table: the rows, if they are in memory or mapped; None if they are in the Parquet file
            `name`.
    """

    name: str
    columns: "dict[str, pa.DataType]"
    num_rows: int
    table: "pa.Table | None" = None

    @classmethod
    def of(cls, name: str, schema: "pa.Schema", rows: int, table: "pa.Table | None") -> "Source":
        """Make a source; refuse two columns with the same name."""
        if len(set(schema.names)) != len(schema.names):
            shown = ", ".join(f"`{column}`" for column in schema.names)
            raise DatasetError(f"{name}: two columns have the same name: {shown}")
        return cls(name, dict(zip(schema.names, schema.types, strict=True)), rows, table)

    def read(self, columns: Collection[str] | None = None) -> "pa.Table":
        """Read all rows, with all columns or with those named; missing columns are left out.

        Raises:
            DatasetError: if the file is damaged.
        """
        import pyarrow.parquet as pq

        chosen = [name for name in self.columns if columns is None or name in columns]
        if self.table is not None:
            return self.table.select(chosen)
        with _reading(self.name), pq.ParquetFile(self.name) as file:
            return file.read(chosen)

    def batches(self, columns: Collection[str]) -> "Iterator[pa.Table]":
        """Read the rows in order, some thousands at a time, with these columns alone.

        Raises:
            DatasetError: if the file is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.table is not None:
            table = self.read(columns)
            for start in range(0, self.num_rows, BATCH_ROWS):
                # A table without columns has as many rows as a slice asks for.
                yield table.slice(start, min(BATCH_ROWS, self.num_rows - start))
            return
        chosen = [name for name in self.columns if name in columns]
        with _reading(self.name), pq.ParquetFile(self.name) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=chosen):
                yield pa.Table.from_batches([batch])


def find_sources(path: str) -> tuple[Source, ...]:
    """Return the sources of a data set; see `read_dataset` for the kinds of paths."""
    is_hub = path.startswith(HUB)
    name = path.removeprefix(HUB).partition(":")[0].strip("/") if is_hub else path
    if not name.strip():  # an empty path would be the current folder
        raise DatasetError(f"expected the path or hf:NAME of a data set, got {path!r}")
    # `os.path` answers False for impossible names, which `Path` refuses.
    if is_hub or any(os.path.isfile(os.path.join(path, mark)) for mark in SAVED_MARKS):
        return tuple(_load_splits(path))
    try:
        return tuple(map(_open, _find_files(Path(path))))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None


def _find_files(path: Path) -> list[Path]:
    known = (*PARQUET_SUFFIXES, *JSONL_SUFFIXES)
    if not path.exists():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        hint = did_you_mean(path.name, [p.name for p in beside if p.name != path.name])
        raise DatasetError(
            f"{path}: no such file or folder; {hint or 'expected a .parquet or .jsonl file'}"
        )
    if path.is_dir():
        # Sorted, so that rows have the same numbers on every system.
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in known and p.is_file())
        # Files and folders with a dot in front are hidden.
        files = [p for p in files if not any(n[0] == "." for n in p.relative_to(path).parts)]
        if not files:
            raise DatasetError(f"{path}: the folder holds no .parquet or .jsonl file")
        return files
    if path.suffix.lower() not in known:
        raise DatasetError(
            f"{path}: expected a .parquet or .jsonl file, got {path.suffix or 'no suffix'}"
        )
    if not path.is_file():
        raise DatasetError(f"{path}: expected a file, got a pipe or a device")
    return [path]


def _open(path: Path) -> Source:
    import pyarrow.parquet as pq

    with _reading(path):
        if path.suffix.lower() in JSONL_SUFFIXES:
            table = read_jsonl(path)
            return Source.of(str(path), table.schema, table.num_rows, table)
        with pq.ParquetFile(path) as file:
            return Source.of(str(path), file.schema_arrow, file.metadata.num_rows, None)


@contextmanager
def _reading(path: object) -> Iterator[None]:
    """Turn the errors that Arrow raises for damaged files into a `DatasetError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return the reason of an error in one line.

    >>> _first_line(PermissionError(13, "Permission denied", "a.jsonl"))
    'Permission denied'
    """
    # `strerror` leaves out the number of the error, and the path, which the caller names.
    reason = getattr(error, "strerror", None) or str(error)
    return reason.splitlines()[0] if reason else type(error).__name__


def _load_splits(path: str) -> Iterator[Source]:
    """Yield the splits of a Hugging Face data set, mapped from disk."""
    try:
        import datasets
    except ImportError:
        raise DatasetError(
            "Hugging Face data sets need the library `datasets`: pip install 'dcp-dsl[hf]'"
        ) from None
    name, _, split = path.removeprefix(HUB).partition(":")
    try:
        if path.startswith(HUB):
            found = datasets.load_dataset(name, split=split or None)
        else:
            found = datasets.load_from_disk(path)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        # The library raises these for unknown names, without network and for damaged folders.
        raise DatasetError(f"{path}: `datasets` cannot load it: {_first_line(error)}") from None
    # A data set with splits is a dict of them; one split comes alone.
    for key, rows in (found if isinstance(found, dict) else {split: found}).items():
        # Rows chosen by `select` or `shuffle` are indices into a table that still holds all rows.
        plain = rows.flatten_indices() if rows._indices is not None else rows
        table = plain.data.table
        title = f"{path}/{key}" if key and not split else path
        yield Source.of(title, table.schema, table.num_rows, table)


def require_column(source: Source, column: str) -> Any:  # Any: a pyarrow type
    """Return the type of a column; raise a `DatasetError` if the source lacks it."""
    if column not in source.columns:
        hint = did_you_mean(column, list(source.columns))
        have = list_names(source.columns, "none")
        raise DatasetError(
            f"{source.name} has no column `{column}`{'; ' + hint if hint else ''} (columns: {have})"
        )
    return source.columns[column]
