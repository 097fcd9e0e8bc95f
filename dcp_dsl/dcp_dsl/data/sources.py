"""Find the files of a data set and read them, whole or in batches, only in the columns asked for.

A source is a Parquet or JSON lines file, or a split of a Hugging Face data set; `find_sources`
finds them under a path. The library `datasets` is only needed for the latter. Where JSON lines
cannot be read, the message names the line.
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

MAX_JSON_NESTING = 500
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
    options = pyarrow.json.ReadOptions(block_size=max(2**20, min(path.stat().st_size + 1, 2**30)))
    try:
        table = pyarrow.json.read_json(path, read_options=options)
    except pa.ArrowException as error:
        _explain_jsonl(path)  # Arrow does not say which line
        raise DatasetError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if table.num_rows != rows:  # several values in a line, some of them null
        _explain_jsonl(path)
        raise DatasetError(f"{path}: expected {rows} rows, one per line, got {table.num_rows}")
    return table


def _check_lines(path: Path) -> int:
    """Count the lines that are not blank, and keep from Arrow's parser what kills the process.

    It dies of a first line that is `null`, and runs out of stack where values nest too deeply.
    """
    rows = 0
    opening, closing = np.zeros((2, 256), np.int8)
    opening[[ord("["), ord("{")]], closing[[ord("]"), ord("}")]] = 1, 1
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(codecs.BOM_UTF8 * (number == 1)).strip()
            rows += bool(text)
            if text and not (text.startswith(b"{") and text.endswith(b"}")):
                _explain_jsonl(path)
                raise DatasetError(f"{path}: line {number}: expected one JSON object")
            if line.count(b"[") + line.count(b"{") <= MAX_JSON_NESTING:
                continue
            codes = np.frombuffer(line, np.uint8)  # the depth of nesting, without a loop over bytes
            if np.cumsum((opening - closing)[codes], dtype=np.int64).max() > MAX_JSON_NESTING:
                try:
                    json.loads(line)  # brackets in texts do not nest
                except RecursionError:
                    raise DatasetError(f"{path}: line {number} is nested too deeply") from None
                except ValueError as error:
                    raise _no_json(path, number, error) from None
    return rows


def _no_json(path: Path, number: int, error: Exception) -> DatasetError:
    told = f"{path}: line {number}: expected a JSON object, got no JSON: "
    if isinstance(error, json.JSONDecodeError):  # its own line number would be that of the text
        return DatasetError(f"{told}{error.msg} at column {error.colno}")
    return DatasetError(f"{told}{error}")


def _explain_jsonl(path: Path) -> None:
    """Raise for the first line that is no JSON object or changes the type of a column."""
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
                kind = _JSON_KINDS.get(type(value), "")
                known, first = kinds.setdefault(name, (kind, number)) if kind else (kind, number)
                if kind != known:
                    raise DatasetError(
                        f"{path}: line {number}: column `{name}` is {kind}, but {known} in line "
                        f"{first}"
                    )


PARQUET_SUFFIXES = (".parquet", ".pq")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
HUB = "hf:"
BATCH_ROWS = 4096
_MARKS = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves in a folder


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows that belong together: a file, or a split of a data set.

    Attributes:
        name: what a `for` pattern is matched against: a path, or ``hf:NAME/split``.
        columns: types by name.
        num_rows: rows.
        table: the rows, if they are in memory or mapped; else they are read from the file `name`.
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
        """Read all rows, or some of their columns, as far as they are there.

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
        """Read the rows in order, some thousands at a time, and of these columns alone.

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
    """Return the sources of a data set; `read_dataset` says what a path may be."""
    is_hub = path.startswith(HUB)
    name = path.removeprefix(HUB).partition(":")[0].strip("/") if is_hub else path
    if not name.strip():  # an empty path would be the current folder
        raise DatasetError(f"expected the path or hf:NAME of a data set, got {path!r}")
    # `os.path` answers False for impossible names, which `Path` refuses.
    if is_hub or any(os.path.isfile(os.path.join(path, mark)) for mark in _MARKS):
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
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in known and p.is_file())
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
    """Turn what Arrow raises for damaged files into a `DatasetError`."""
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
    told = getattr(error, "strerror", None) or str(error)  # without number and path again
    return told.splitlines()[0] if told else type(error).__name__


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
        # What the library raises for unknown names, no network and damaged folders.
        raise DatasetError(f"{path}: `datasets` cannot load it: {_first_line(error)}") from None
    for key, rows in (found if isinstance(found, dict) else {split: found}).items():
        plain = rows.flatten_indices() if rows._indices is not None else rows
        table = plain.data.table
        title = f"{path}/{key}" if key and not split else path
        yield Source.of(title, table.schema, table.num_rows, table)


def require_column(source: Source, column: str) -> Any:  # Any: a pyarrow type
    """Return the type of a column."""
    if column not in source.columns:
        hint = did_you_mean(column, list(source.columns))
        have = list_names(source.columns, "none")
        raise DatasetError(
            f"{source.name} has no column `{column}`{'; ' + hint if hint else ''} (columns: {have})"
        )
    return source.columns[column]
