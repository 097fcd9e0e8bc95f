"""Read a user's data set: Parquet or JSON lines, one file or a folder of them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl.arrays import Ints, sealed
from dcp_dsl.data.data_file import DataFile, join_names
from dcp_dsl.data.sources import find_sources
from dcp_dsl.errors import DatasetError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows of a data set, held in memory file by file; files may have different columns.

    Attributes:
        path: file or folder it was read from.
        parts: its files, or its splits, in the order of their rows.
    """

    path: str
    parts: tuple[DataFile, ...]

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} rows of {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: int) -> dict[str, Any]:  # Any: whatever the columns hold
        """Return a row: texts, numbers and bytes as they are, lists of integers as numpy arrays.

        A row has the columns of its file. Lists are views of the table where they can be.
        """
        part, row = self._place(index)
        return {name: part.value(name, row) for name in part.columns}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that a file has, each once, in file order."""
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
        return join_lengths(map(_stated, self.parts))

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
            their names; a folder that `datasets.save_to_disk` wrote; ``hf:NAME`` or
            ``hf:NAME:SPLIT``.
        columns: read these alone, as far as they are there.

    Raises:
        DatasetError: if it is missing, of another kind, damaged or empty; for JSON lines the
            message names the line.
    """
    found = ((source.name, source.read(columns)) for source in find_sources(str(path)))
    parts = (DataFile(name, table.combine_chunks()) for name, table in found)
    return Dataset(str(path), tuple(parts))


def join_lengths(parts: Iterable[Ints]) -> Ints:
    """Join the lengths of the rows of several files, read-only."""
    return sealed(np.concatenate([np.zeros(0, np.int64), *parts]))


def _stated(part: DataFile) -> Ints:
    found = part.stated_lengths()
    if found is None:
        raise DatasetError(
            f"{part.name}: rows need their length: a column `len`, `length`, `tokens` or "
            f"`input_ids`; this data set has {join_names(part.columns)}"
        )
    return found
