"""Read JSON lines: the table holds the values that Python's `json` module reads, and no others.

Arrow's own reader changes values without a word: it drops nulls at the start of lists, so that all
later rows get values of their neighbours; integers from 2^63 on become floats; texts that look like
dates become dates. Source: https://github.com/apache/arrow/issues/51305.

Python parses the lines block by block, and `_Kind` notes the kinds of values at each place of a
row. Arrow then takes a block in exactly these types, or refuses it. A file is read a second time if
the types grow behind the first block, or, line by line, to name the line that does not fit.
"""

import codecs
import reprlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcp_dsl.core.sample import read_columns
from dcp_dsl.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_JSON_NESTING = 100  # lists and objects in each other: Arrow walks types by recursion
BLOCK_BYTES = 1 << 20  # of text; as Python objects it takes about ten times as much
_KINDS = {
    bool: "a bool", int: "a number", float: "a number", str: "a text", list: "a list",
    dict: "an object",
}  # fmt: skip

Row = dict[str, Any]  # Any: whatever JSON holds


class _MixedError(Exception):
    """Values of two kinds at one place, or values that nest too deeply."""


class _Kind:
    """The kinds of the values at one place of all rows, and of what these values contain.

    `place` is for messages: `a[].b` is key b of the objects in the lists of column a. `line` had
    the first value; `is_large` says that an integer of 2^63 or more is among them.
    """

    __slots__ = ("fields", "is_large", "items", "line", "place", "types")

    def __init__(self, place: str = "") -> None:
        self.place, self.line, self.is_large = place, 0, False
        self.types: set[type] = set() if place else {dict}
        self.items: _Kind | None = None
        self.fields: dict[str, _Kind] = {}

    def add(self, values: list[Any], line: int, depth: int = 0) -> None:
        """Take in the values of some rows, of which the first is in this line."""
        types = dict.fromkeys(map(type, values))  # in order, so that messages are always the same
        if type(None) in types:
            values = [value for value in values if value is not None]
            del types[type(None)]
        if not types:
            return
        self.line = self.line or line
        kinds = dict.fromkeys(_KINDS[one] for one in chain(self.types, types))
        if len(kinds) > 1:
            old, new = islice(kinds, 2)
            raise _MixedError(
                f"column `{self.place}` is {new}, but {old} in line {self.line}; expected one kind "
                "of values, or null"
            )
        if depth > MAX_JSON_NESTING:
            raise _MixedError(
                f"the values are nested too deeply; expected at most {MAX_JSON_NESTING} lists and "
                "objects in each other"
            )
        self.types.update(types)
        if list in types:
            self.items = self.items or _Kind(f"{self.place}[]")
            self.items.add(list(chain.from_iterable(values)), line, depth + 1)
        elif dict in types:
            self._add_fields(values, line, depth)
        elif len(types) == 1 and int in types:
            self.is_large = self.is_large or max(values) >= 2**63

    def _add_fields(self, objects: list[Row], line: int, depth: int) -> None:
        columns: dict[str, list[Any]] = {}
        for key, value in chain.from_iterable(map(dict.items, objects)):
            columns.setdefault(key, []).append(value)
        for key, values in columns.items():
            if key not in self.fields:
                self.fields[key] = _Kind(f"{self.place}.{key}" if depth else key or '""')
            self.fields[key].add(values, line, depth + 1)

    def arrow_type(self) -> "pa.DataType":
        """Return the type that holds all values so far."""
        import pyarrow as pa

        if dict in self.types:
            return pa.struct([(key, field.arrow_type()) for key, field in self.fields.items()])
        if list in self.types:
            return pa.list_(pa.null() if self.items is None else self.items.arrow_type())
        if float in self.types:
            return pa.float64()
        if int in self.types:
            return pa.uint64() if self.is_large else pa.int64()
        return pa.string() if str in self.types else pa.bool_() if self.types else pa.null()


def read_jsonl(path: Path) -> "pa.Table":
    """Read a file with one JSON object per line; a column that a line leaves out is null there.

    Integers are int64, or uint64 where a column needs that. Beside numbers with a fraction they are
    float64, if that holds them exactly.

    Raises:
        DatasetError: if a line is no object, or a column has values of two kinds or values that
            its type cannot hold; it names the line.
    """
    import pyarrow as pa

    if path.stat().st_size == 0:
        raise DatasetError(f"{path}: the file is empty; expected one JSON object per line")
    kind = _Kind()
    try:
        blocks = _convert(path, kind)
        # Later lines had more columns, or values where earlier ones had only nulls. Read anew, as
        # a cast of nested lists of nulls makes invalid arrays.
        while any(block.type != kind.arrow_type() for block in blocks):
            blocks = _convert(path, kind)
    except (_MixedError, pa.ArrowException, OverflowError, UnicodeError) as error:
        _explain(path)
        raise DatasetError(f"{path}: cannot be read: {error}") from None
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(block) for block in blocks])


def _convert(path: Path, kind: _Kind) -> list[Any]:  # Any: the stubs know no array of a given type
    """Return all rows in blocks, each in the type that holds the rows up to its end."""
    import pyarrow as pa

    blocks = []
    for line, rows in _blocks(path):
        kind.add(rows, line)
        blocks.append(pa.array(rows, kind.arrow_type()))
    return blocks


def _blocks(path: Path) -> Iterator[tuple[int, list[Row]]]:
    """Yield all rows, some megabytes of text at a time, with the number of the first line."""
    first, size, rows = 1, 0, list[Row]()
    for number, line in _lines(path):
        if size > BLOCK_BYTES:
            yield first, rows
            first, size, rows = number, 0, []
        size += len(line)
        rows.append(_parse(path, number, line))
    yield first, rows


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(codecs.BOM_UTF8 * (number == 1))
            if text.strip():
                yield number, text


def _parse(path: Path, number: int, line: bytes) -> Row:
    where = f"{path}: line {number}"
    try:
        return read_columns(line.decode(), where)
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{where}: expected UTF-8, got {error.reason} at byte {error.start + 1}"
        ) from None


def _explain(path: Path) -> None:
    """Raise for the first line of a refused file that does not fit the others."""
    import pyarrow as pa

    kind = _Kind()
    for number, line in _lines(path):
        try:
            kind.add([_parse(path, number, line)], number)
            kind.arrow_type()  # refuses names that are no UTF-8
        except (_MixedError, UnicodeError) as error:
            raise DatasetError(f"{path}: line {number}: {error}") from None
    held = {name: field.arrow_type() for name, field in kind.fields.items()}
    for number, line in _lines(path):
        row = _parse(path, number, line)
        for name in filter(held.__contains__, row):
            try:
                pa.array([row[name]], held[name])
            except (pa.ArrowException, OverflowError, UnicodeError) as error:
                raise DatasetError(
                    f"{path}: line {number}: column `{name}` is {held[name]}, which cannot hold "
                    f"{reprlib.repr(row[name])}: {error}; mend it, or write all numbers of this "
                    "column as texts"
                ) from None
