"""Find the files of a data set and read them batch by batch, only in the columns asked for.

A source is a Parquet or JSON lines file, or a split of a Hugging Face data set; `find_sources`
finds them under a path. The library `datasets` is only needed for the latter.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax.diagnostics import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_SUFFIXES = (".parquet", ".pq")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
MAX_JSON_NESTING = 500


def find_files(path: Path, *, is_deep: bool = False) -> list[Path]:
    """Return the files of a data set: a file, or those of a folder in the order of their names.

    Args:
        path: file or folder.
        is_deep: also look into folders inside the folder; hidden ones are left out.

    Raises:
        DatasetError: if there is none, or it is no file of a known kind.
    """
    try:
        return _find(path, is_deep=is_deep)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None


def _find(path: Path, *, is_deep: bool) -> list[Path]:
    if not path.exists():
        near = (
            [p.name for p in path.parent.iterdir() if p.name != path.name]
            if path.parent.is_dir()
            else []
        )
        hint = did_you_mean(path.name, near)
        raise DatasetError(f"{path}: no such file or folder{'; ' + hint if hint else ''}")
    if path.is_dir():
        inside = path.rglob("*") if is_deep else path.iterdir()
        files = sorted(p for p in inside if _kind(p) is not None and p.is_file())
        files = [p for p in files if not any(n[0] == "." for n in p.relative_to(path).parts)]
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


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet file, by its suffix."""
    return _kind(path) == "parquet"


def read_file(path: Path, columns: Collection[str] | None = None) -> "pa.Table":
    """Read a file, or some of its columns.

    Raises:
        DatasetError: if it is damaged; for JSON lines the message names the line.
    """
    import pyarrow as pa

    try:
        table = _read_parquet(path, columns) if is_parquet(path) else _read_jsonl(path)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path}: cannot be read: {reason}") from None
    if len(set(names)) != len(names):
        shown = ", ".join(f"`{name}`" for name in names)
        raise DatasetError(f"{path}: two columns have the same name: {shown}")
    return table if columns is None else table.select([n for n in names if n in columns])


def _read_parquet(path: Path, columns: Collection[str] | None) -> "pa.Table":
    import pyarrow.parquet as pq

    if columns is None:
        return pq.read_table(path)
    with pq.ParquetFile(path) as file:  # a name it lacks is no error here
        return file.read([name for name in file.schema_arrow.names if name in columns])


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


HUB = "hf:"
_MARKS = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves in a folder


def is_saved_dataset(path: Path) -> bool:
    """Return whether `datasets.save_to_disk` wrote this folder."""
    return any(os.path.isfile(path / name) for name in _MARKS)  # False for impossible names


def load_tables(path: str) -> "Iterator[tuple[str, pa.Table]]":
    """Yield the splits of a data set as (name, rows), mapped from disk.

    Args:
        path: ``hf:NAME``, ``hf:NAME:SPLIT``, or a folder that `save_to_disk` wrote.

    Raises:
        DatasetError: if `datasets` is not installed or cannot load it.
    """
    library = _library()
    name, _, split = path.removeprefix(HUB).partition(":")
    try:
        if path.startswith(HUB):
            found = library.load_dataset(name, split=split or None)
        else:
            found = library.load_from_disk(path)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        # What the library raises for unknown names, no network and damaged folders.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path}: `datasets` cannot load it: {reason}") from None
    if not isinstance(found, dict):
        found = {split: found}
    for key, rows in found.items():
        plain = rows.flatten_indices() if rows._indices is not None else rows
        yield (f"{path}/{key}" if key and not split else path), plain.data.table


def _library() -> Any:  # Any: a module that may be missing
    try:
        import datasets
    except ImportError:
        raise DatasetError(
            "Hugging Face data sets need the library `datasets`: pip install 'dcp-dsl[hf]'"
        ) from None
    return datasets


BATCH_ROWS = 4096


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

    def batches(self, columns: Collection[str]) -> "Iterator[pa.Table]":
        """Read the rows in order, some thousands at a time, and of these columns alone.

        Raises:
            DatasetError: if the file is damaged.
        """
        import pyarrow as pa

        chosen = [name for name in self.columns if name in columns]
        try:
            yield from self._batches(chosen)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"{self.name}: cannot be read: {_first_line(error)}") from None

    def _batches(self, columns: list[str]) -> "Iterator[pa.Table]":
        import pyarrow as pa

        if self.table is not None:
            table = self.table.select(columns)
            for start in range(0, self.num_rows, BATCH_ROWS):
                yield table.slice(start, BATCH_ROWS)
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.name) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield pa.Table.from_batches([batch])


def find_sources(path: str) -> tuple[Source, ...]:
    """Return the sources of a data set.

    Args:
        path: a ``.parquet`` or ``.jsonl`` file; a folder of them, at any depth; a folder that
            `datasets.save_to_disk` wrote; or ``hf:NAME`` for a data set that the library `datasets`
            loads, ``hf:NAME:SPLIT`` for one split of it.

    Raises:
        DatasetError: if there is nothing to read, or `datasets` is needed and not installed.
    """
    if path.startswith(HUB) or is_saved_dataset(Path(path)):
        return tuple(_from_table(name, table) for name, table in load_tables(path))
    return tuple(map(_open, find_files(Path(path), is_deep=True)))


def _open(path: Path) -> Source:
    if not is_parquet(path):
        return _from_table(str(path), read_file(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            rows = file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path}: cannot be read: {_first_line(error)}") from None
    return Source(str(path), dict(zip(schema.names, schema.types, strict=True)), rows)


def _from_table(name: str, table: "pa.Table") -> Source:
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    return Source(name, types, table.num_rows, table)


def require_column(source: Source, column: str) -> Any:  # Any: a pyarrow type
    """Return the type of a column.

    Raises:
        DatasetError: if the source does not have it; with the closest one it has.
    """
    if column not in source.columns:
        hint = did_you_mean(column, list(source.columns))
        have = ", ".join(f"`{name}`" for name in source.columns) or "none"
        raise DatasetError(
            f"{source.name} has no column `{column}`{'; ' + hint if hint else ''} (columns: {have})"
        )
    return source.columns[column]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
