"""Warn of columns that cut rows into parts which the attached mask does not keep apart.

The loader refuses such rows, and judges every row; here the first rows of a source are judged, so
that a person hears of it before a run does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp_dsl.arrays import Ints
from dcp_dsl.core.per_token import token_paths
from dcp_dsl.data.dataset import LENGTH_COLUMNS, TOKEN_COLUMNS, DataFile
from dcp_dsl.data.documents import (
    BITS,
    ENOUGH_BITS,
    Kind,
    begins_by_name,
    is_of_other_things,
    keeps_apart,
    kind_by_name,
)
from dcp_dsl.data.nesting import column_depth
from dcp_dsl.data.sources import Source
from dcp_dsl.data.sums import ColumnSums, lists_of
from dcp_dsl.errors import DCPError, printable
from dcp_dsl.specs.attachment import Attachment

ROWS = 64
"""Rows of a source that are judged, fewer where they are long."""

MOST_TOKENS = 2**18  # of these rows, as Python numbers

_SAYS: dict[Kind, str] = {
    "lengths": "lengths of documents", "borders": "borders of documents",
    "numbers": "the numbers of documents", "positions": "positions that begin anew",
}  # fmt: skip


def unread_columns(attachment: Attachment, source: Source) -> tuple[str, ...]:
    """Return a sentence for each column, or sum of columns, that no mask reads."""
    judge = _Judge(attachment)
    try:
        for number, (row, length) in enumerate(_first_rows(attachment, source)):
            judge.see(number, row, length)
    except DCPError:
        return ()  # rows that do not fit are refused with their reason
    return tuple(judge.found.values())


def _first_rows(attachment: Attachment, source: Source) -> Iterator[tuple[dict[str, Any], int]]:
    wanted = [n for n, kind in source.columns.items() if column_depth(kind) is not None]
    is_stated = not {*LENGTH_COLUMNS}.isdisjoint(wanted)
    wanted = [name for name in wanted if name not in TOKEN_COLUMNS]
    table = next(iter(source.batches(wanted + [*TOKEN_COLUMNS] * (not is_stated))), None)
    if table is None or not table.num_rows:
        return
    table = table.slice(0, ROWS)
    lengths = attachment.lengths(DataFile(source.name, table)).tolist()
    count = max(1, min(ROWS, MOST_TOKENS // max(1, max(lengths))))
    others = [name for name in table.column_names if name not in TOKEN_COLUMNS]
    rows = table.select(others).slice(0, count).to_pylist()
    yield from zip(rows, lengths, strict=False)


@dataclass(slots=True)
class _Judge:
    """Judges rows one after the other; `found` are sentences by what they speak of."""

    attachment: Attachment
    found: dict[tuple[str, ...], str] = field(default_factory=dict)
    _sums: ColumnSums = field(default_factory=ColumnSums)
    _bits: dict[tuple[str, Kind], float | None] = field(default_factory=dict)

    def see(self, number: int, row: dict[str, Any], length: int) -> None:
        """Judge a row."""
        sample = self.attachment.sample({**row, "len": length})
        paths = [token_paths(mask, sample) for mask in self.attachment.masks]
        previous = next((found.previous for found in paths if found is not None), None)
        renames = self.attachment.renames
        read = {renames.get(column, column) for column in self.attachment.columns}
        for names, begins, said in self._stated(number, row, length):
            if set(names) <= read or names in self.found or not len(begins):
                continue
            if not keeps_apart(begins, length, sample.columns, previous):
                self.found[names] = _sentence(names, said, row_number=number)

    def _stated(
        self, number: int, row: Mapping[str, Any], length: int
    ) -> Iterator[tuple[tuple[str, ...], Ints, str]]:
        """Yield columns that state parts, where these begin, and in words what they hold."""
        for cut in self._sums.see(number, row, length, LENGTH_COLUMNS):
            if cut.depths != (1,) and self._sums.are_clear(row, cut, LENGTH_COLUMNS):
                yield cut.names, cut.begins(), f"add up to the tokens of every row; {cut.advice}"
        for name, value in row.items():
            values = lists_of(value)
            if values is None or name in LENGTH_COLUMNS:
                continue
            for kind in BITS:
                if kind_by_name(name) == kind or self._is_clear(name, kind, values, length):
                    begins = begins_by_name(kind, name, values, length)
                    yield (name,), begins, f"holds {_SAYS[kind]}; `dcpm init` shows how to read it"

    def _is_clear(self, name: str, kind: Kind, values: Ints, length: int) -> bool:
        """Return whether a column of unknown name holds what this kind does, in all rows so far."""
        bits = self._bits.get((name, kind), 0.0)
        more = BITS[kind](values, length)
        if bits is None or more is None or kind_by_name(name) or is_of_other_things(name):
            self._bits[name, kind] = None
            return False
        self._bits[name, kind] = bits + more
        return more > 0 and bits + more >= ENOUGH_BITS


def _sentence(names: tuple[str, ...], said: str, row_number: int) -> str:
    shown = " and ".join(f"`{printable(name)}`" for name in names)
    column = "columns" if len(names) > 1 else "column"
    return (
        f"{column} {shown} {said}; the mask does not keep the parts of row {row_number} apart, so "
        f"DCPDataloader refuses or warns of such rows; RowRules(unchecked_columns={names!r}) "
        "trains as if nothing were stated"
    )
