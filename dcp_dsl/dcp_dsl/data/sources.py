"""Find the files of a data set and read them, whole or in batches, only in the columns asked for.

A source is a Parquet or JSON lines file, or a split of a Hugging Face data set; only the last needs
the library `datasets`. `find_sources` finds the sources under a path. Whatever format rows come
from, they are validated before anybody sees them.
"""

import os
from bisect import bisect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcp_dsl.data.json_lines import read_jsonl
from dcp_dsl.errors import DatasetError, list_names
from dcp_dsl.syntax.diagnostics import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_READERS = {".jsonl": read_jsonl, ".ndjson": read_jsonl}
"""Formats that are read whole, from a path to an Arrow table, by their suffixes."""
_SUFFIXES = (*PARQUET_SUFFIXES, *TABLE_READERS)
_EXPECTED = ".parquet or .jsonl"  # in messages: a suffix for each format
HUB = "hf:"
BATCH_ROWS = 4096  # few enough for memory, many enough that the cost of a batch does not count
SAVED_MARKS = ("state.json", "dataset_dict.json")  # files that `save_to_disk` leaves in a folder


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows that belong together: a file, or a split of a data set.

    `name` is a path, or ``hf:NAME/split``; `for` patterns are matched against it. `table` is None
    if the rows are in the Parquet file `name`, of which `stamp` is what `_stamp` said when it was
    found.
    """

    name: str
    columns: "dict[str, pa.DataType]"
    num_rows: int
    table: "pa.Table | None" = None
    stamp: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, name: str, schema: "pa.Schema", rows: int, table: "pa.Table | None",
        stamp: tuple[int, ...] = (),
    ) -> "Source":  # fmt: skip
        """Make a source; refuse two columns with the same name."""
        if len(set(schema.names)) != len(schema.names):
            shown = ", ".join(f"`{column}`" for column in schema.names)
            raise DatasetError(f"{name}: two columns have the same name: {shown}")
        return cls(name, dict(zip(schema.names, schema.types, strict=True)), rows, table, stamp)

    def read(self, columns: Collection[str] | None = None) -> "pa.Table":
        """Read all rows, with all columns or with those named; missing columns are left out."""
        chosen = [name for name in self.columns if columns is None or name in columns]
        if self.table is not None:
            table = self.table.select(chosen)
        else:
            with self._opened() as file:
                table = file.read(chosen)
            self._require_rows(table.num_rows)
        return _validated(self.name, table, 0)

    def batches(self, columns: Collection[str]) -> "Iterator[pa.Table]":
        """Read the rows in order, some thousands at a time, with these columns alone."""
        import pyarrow as pa

        chosen = [name for name in self.columns if name in columns]
        if self.table is not None:
            # As a whole: Arrow validates all items of a column of lists for any slice of it.
            table = _validated(self.name, self.table.select(chosen), 0)
            for start in range(0, self.num_rows, BATCH_ROWS):
                # A table without columns has as many rows as a slice asks for.
                yield table.slice(start, min(BATCH_ROWS, self.num_rows - start))
            return
        start = 0
        with self._opened() as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=chosen):
                yield _validated(self.name, pa.Table.from_batches([batch]), start)
                start += batch.num_rows
        self._require_rows(start)

    def _require_rows(self, found: int) -> None:
        """Refuse a Parquet file if Arrow leaves out rows; it stops at pages without values."""
        if found != self.num_rows:
            raise DatasetError(
                f"{self.name}: expected {self.num_rows} rows, as the file says, but Arrow reads "
                f"{found}; write the file anew, with larger pages or row groups"
            )

    @contextmanager
    def _opened(self) -> "Iterator[pq.ParquetFile]":
        """Open the Parquet file; refuse it if it is not, or does not stay, the file found first."""
        with _reading(self.name):
            with _open_parquet(self.name) as file:
                self._require_stamp()
                yield file
            self._require_stamp()

    def _require_stamp(self) -> None:
        if _stamp(self.name) != self.stamp:
            raise DatasetError(
                f"{self.name}: expected the file to stay as it was found, but it was replaced or "
                "written meanwhile; run the command again when it is complete"
            )


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
    if not path.exists():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        hint = did_you_mean(path.name, [p.name for p in beside if p.name != path.name])
        raise DatasetError(
            f"{path}: no such file or folder; {hint or f'expected a {_EXPECTED} file'}"
        )
    if path.is_dir():
        # Sorted, so that rows have the same numbers on every system.
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
        # Files and folders with a dot in front are hidden.
        files = [p for p in files if not any(n[0] == "." for n in p.relative_to(path).parts)]
        if not files:
            raise DatasetError(f"{path}: the folder holds no {_EXPECTED} file")
        return files
    if path.suffix.lower() not in _SUFFIXES:
        raise DatasetError(f"{path}: expected a {_EXPECTED} file, got {path.suffix or 'no suffix'}")
    if not path.is_file():
        raise DatasetError(f"{path}: expected a file, got a pipe or a device")
    return [path]


def _open(path: Path) -> Source:
    name = str(path)
    with _reading(name):
        if read := TABLE_READERS.get(path.suffix.lower()):
            table = read(path)
            return Source.of(name, table.schema, table.num_rows, table)
        stamp = _stamp(name)
        with _open_parquet(name) as file:
            return Source.of(name, file.schema_arrow, file.metadata.num_rows, None, stamp)


def _open_parquet(path: str) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, page_checksum_verification=True)


def _stamp(path: str) -> tuple[int, ...]:
    """Return what changes with a file: which one it is, its size, and when it was written."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _validated(name: str, table: "pa.Table", first_row: int) -> "pa.Table":
    """Return a table if its values are what its types promise; name the first row where not."""
    import pyarrow as pa

    def reason(column: "pa.ChunkedArray[Any]", rows: int) -> str:
        try:
            column.slice(0, rows).validate(full=True)
        except pa.ArrowException as error:
            return _first_line(error)
        return ""

    for column, values in zip(table.column_names, table.columns, strict=True):
        if reason(values, len(values)):
            row = bisect(range(1, len(values)), False, key=lambda n: bool(reason(values, n)))
            raise DatasetError(
                f"{name}: row {first_row + row}, column `{column}`: expected {values.type}, got "
                f"damaged data: {reason(values, row + 1)}; rows before it may hold wrong values, "
                "too: write the data set anew"
            )
    return table


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
    if isinstance(error, _OF_DAMAGED_FOLDERS):  # its text may be a key alone
        reason = f"{type(error).__name__}: {reason}"
    return reason.splitlines()[0] if reason else type(error).__name__


_OF_DAMAGED_FOLDERS = (LookupError, TypeError, AttributeError)  # keys and types in its JSON files


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
    except (OSError, ValueError, RuntimeError, ImportError, *_OF_DAMAGED_FOLDERS) as error:
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
