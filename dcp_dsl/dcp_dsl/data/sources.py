"""The files a data set consists of, read batch by batch and only in the columns asked for.

A source is a Parquet or JSON lines file, or a split of a Hugging Face data set; `find_sources`
finds them under a path. The library `datasets` is only needed for the latter.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcp_dsl.data.files import find_files, is_parquet, read_file
from dcp_dsl.data.hugging_face import HUB, is_saved_dataset, load_tables
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax.diagnostics import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Give the sources of a data set.

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
    """Give the type of a column.

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
