"""Random nested tables, written as files and read back: is every value the one that was written?

The oracle is the Python value that went to the writer: the `json` module for JSON lines, pyarrow
for Parquet, `datasets` for its folders. Columns nest lists and objects, with nulls at any place;
those of JSON lines may also mix kinds of values or hold integers that no type holds, and must be
refused exactly then.
"""

import codecs
import json
import math
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dcp_dsl import Dataset, DatasetError, read_dataset
from dcp_dsl.data import json_lines, sources
from dcp_dsl.data.nesting import column_depth, flatten_column
from dcp_dsl.data.sources import Source, find_sources

Row = dict[str, Any]
Place = tuple[str | None, ...]  # keys from the row inwards; None stands for the items of a list

INTS = (0, 1, -1, 7, 2**31, -(2**31) - 1, 2**53, -(2**53), 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e300, 5e-324, 0.1, math.inf, -math.inf, math.nan)
TEXTS = ("", "x", "null", "größe", "文档", "2020-01-01", "1", "a\nb\r\n", "\x00", "😀", '"\\')
NAMES = ("tokens", "a", "a.b", "größe", "my col", "for", "[]", "文", "A", "list", "item", "element")
RATES = (0.0, 0.0, 0.1, 0.5, 0.95, 1.0)


class WrongValueError(Exception):
    """A value that was read otherwise than it was written."""


# ---- what is written -----------------------------------------------------------------------------


def draw_column(rng: random.Random, depth: int = 0) -> Callable[[], Any]:
    """Return a function that draws values of one random type, with a random share of nulls."""
    rate = rng.choice(RATES)
    shares = (6, 2, 1, 2, 1, 9 - 3 * depth, max(0, 4 - 2 * depth))
    kind = rng.choices(("int", "float", "bool", "str", "null", "list", "dict"), shares)[0]
    if kind == "list":
        item, most = draw_column(rng, depth + 1), rng.choice((0, 1, 3, 9))
        draw = lambda: [item() for _ in range(rng.randint(0, most))]  # noqa: E731
    elif kind == "dict":
        fields = {
            name: draw_column(rng, depth + 1) for name in rng.sample(NAMES, rng.randint(1, 3))
        }
        draw = lambda: {name: field() for name, field in fields.items()}  # noqa: E731
    else:
        plain = {
            "int": lambda: rng.choice((rng.randint(-9, 99), rng.choice(INTS))),
            "float": lambda: rng.choice((rng.gauss(0, 1), rng.choice(FLOATS))),
            "bool": lambda: rng.random() < 0.5,
            "str": lambda: rng.choice(TEXTS),
            "null": lambda: None,
        }
        draw = plain[kind]
    return lambda: None if rng.random() < rate else draw()


def draw_rows(rng: random.Random) -> list[Row]:
    """Return the rows of one file."""
    columns = {name: draw_column(rng) for name in rng.sample(NAMES, rng.randint(1, 4))}
    if "tokens" in columns:
        columns["tokens"] = lambda: [rng.randint(0, 2**31) for _ in range(rng.randint(0, 5))]
    count = rng.choice((1, 1, 2, 3, 5, 17, 60))
    return [{name: draw() for name, draw in columns.items()} for _ in range(count)]


def spoil(rows: list[Row], rng: random.Random) -> None:
    """Put a value of any kind at a random place, or leave keys out."""
    for _ in range(rng.randint(0, 3)):
        at: Any = rng.choice(rows)
        while True:
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at))) if at else None
            if key is None:
                break
            if not isinstance(at[key], dict | list) or rng.random() < 0.5:
                if isinstance(at, dict) and rng.random() < 0.5:
                    del at[key]
                else:
                    odd = (
                        None,
                        1,
                        True,
                        0.5,
                        "x",
                        [],
                        {},
                        [None],
                        2**63,
                        2**64 - 1,
                        2**64,
                        -1,
                        2**70,
                    )
                    at[key] = rng.choice(odd)
                break
            at = at[key]


# ---- what the values say -------------------------------------------------------------------------


def places(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every value in a value, with its place."""
    yield place, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*place, key))
    elif isinstance(value, list):
        for item in value:
            yield from places(item, (*place, None))


def is_refused(rows: list[Row]) -> bool:
    """Return whether no column can hold these rows exactly: mixed kinds, or too large integers."""
    found: dict[Place, list[Any]] = defaultdict(list)
    for row in rows:
        for place, value in places(row):
            found[place] += [value] * (value is not None)
    for values in found.values():
        kinds = {float if type(v) is int else type(v) for v in values}
        integers = [v for v in values if type(v) is int]
        if len(kinds) > 1:
            return True
        if any(type(v) is float for v in values):
            # Arrow takes integers as floats up to here only, though some beyond have a float, too.
            if any(abs(v) > 2**53 for v in integers):
                return True
        elif integers:
            low, high = min(integers), max(integers)
            if high >= 2**64 or low < -(2**63) or (high >= 2**63 and low < 0):
                return True
    return False


class Expected:
    """The rows as a table gives them: keys that an object lacks are None."""

    def __init__(self, rows: list[Row]) -> None:
        self.keys: dict[Place, dict[str, None]] = defaultdict(dict)
        self.has_float = set()
        for row in rows:
            for place, value in places(row):
                if isinstance(value, dict):
                    self.keys[place] |= dict.fromkeys(value)
                elif isinstance(value, float):
                    self.has_float.add(place)
        self.rows = [self._filled(row, ()) for row in rows]

    def _filled(self, value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(value.get(key), (*place, key)) for key in self.keys[place]}
        if isinstance(value, list):
            return [self._filled(item, (*place, None)) for item in value]
        return value

    def same(self, value: Any, got: Any, place: Place, where: str) -> None:
        """Raise if a value at a place was read otherwise than written."""
        if isinstance(got, np.ndarray):
            assert got.dtype.kind in "iu", got.dtype
            got = got.tolist()
        if isinstance(value, dict) and isinstance(got, dict) and value.keys() == got.keys():
            for key in value:
                self.same(value[key], got[key], (*place, key), f"{where}, {key!r}")
            return
        if isinstance(value, list) and isinstance(got, list) and len(value) == len(got):
            for index, pair in enumerate(zip(value, got, strict=True)):
                self.same(*pair, (*place, None), f"{where}[{index}]")
            return
        is_widened = type(value) is int and type(got) is float and place in self.has_float
        is_same = value == got and (type(value) is type(got) or is_widened)
        if isinstance(value, float) and isinstance(got, float):
            is_same = (value != value and got != got) or (
                value == got and math.copysign(1, value) == math.copysign(1, got)
            )
        if not is_same:
            raise WrongValueError(f"{where}: wrote {value!r}, read {got!r}")


# ---- how it is written ---------------------------------------------------------------------------


def as_jsonl(rows: list[Row], rng: random.Random) -> bytes:
    """Write JSON lines with the `json` module, in one of many styles."""
    end = rng.choice(("\n", "\n", "\r\n"))
    style = {
        "ensure_ascii": rng.random() < 0.5,
        "separators": rng.choice(((", ", ": "), (",", ":"))),
    }
    lines = []
    for row in rows:
        keys = rng.sample(list(row), len(row)) if rng.random() < 0.3 else list(row)
        lines += [json.dumps({key: row[key] for key in keys}, **style)]
        lines += ["", " \t"][: rng.choice((0, 0, 0, 0, 1, 2))]
    text = end.join(lines) + rng.choice(("", end))
    return codecs.BOM_UTF8 * (rng.random() < 0.1) + text.encode()


def arrow_type(values: list[Any], rng: random.Random) -> pa.DataType:
    """Return a random type that holds all of these values, which are of one kind."""
    there = [value for value in values if value is not None]
    if not there:
        return rng.choice((pa.null(), pa.int32(), pa.list_(pa.int64()), pa.string()))
    if isinstance(there[0], list):
        item = arrow_type([item for value in there for item in value], rng)
        sizes = set(map(len, there))
        kinds = [pa.list_(item), pa.large_list(item)]
        if len(sizes) == 1 and sizes != {0}:
            kinds += [pa.list_(item, sizes.pop())] * 2
        return rng.choice(kinds)
    if isinstance(there[0], dict):
        keys = dict.fromkeys(key for value in there for key in value)
        return pa.struct([(k, arrow_type([v.get(k) for v in there], rng)) for k in keys])
    if type(there[0]) is int:
        kinds = [pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint64(), pa.uint32()]
        fits = [kind for kind in kinds if _fits(there, kind)]
        return rng.choice(fits)
    one = {bool: pa.bool_(), float: pa.float64(), str: pa.string()}[type(there[0])]
    return pa.large_string() if one == pa.string() and rng.random() < 0.3 else one


def _fits(values: list[int], kind: pa.DataType) -> bool:
    bits, is_unsigned = kind.bit_width, kind in (pa.uint64(), pa.uint32())
    low, end = (0, 2**bits) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return all(low <= value < end for value in values)


def as_table(rows: list[Row], rng: random.Random) -> pa.Table:
    """Return the rows as a table of random types."""
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    fields = [(name, arrow_type(values, rng)) for name, values in columns.items()]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def as_parquet(rows: list[Row], rng: random.Random) -> bytes:
    """Write Parquet with pyarrow: row groups, pages, encodings and codecs at random."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        as_table(rows, rng), sink, row_group_size=rng.choice((1, 2, 7, 1000)),
        data_page_size=rng.choice((1, 64, 1 << 20)), write_batch_size=rng.choice((1, 3, 1024)),
        use_dictionary=rng.random() < 0.5, compression=rng.choice(("none", "snappy", "zstd")),
        data_page_version=rng.choice(("1.0", "2.0")), write_page_checksum=rng.random() < 0.5,
        version=rng.choice(("1.0", "2.4", "2.6")),
    )  # fmt: skip
    return sink.getvalue().to_pybytes()


# ---- reading it back -----------------------------------------------------------------------------


def compare_dataset(path: Path, files: list[list[Row]], rng: random.Random) -> None:
    """Read a data set in all ways that the product reads it; compare with the rows of its files."""
    expected = [Expected(rows) for rows in files]
    everything = read_dataset(path)
    compare_lengths(everything, expected)
    for wanted in (set(NAMES), *(set(rng.sample(NAMES, 3)) for _ in range(2))):
        dataset = everything if len(wanted) == len(NAMES) else read_dataset(path, wanted)
        places = [(one, row) for one in expected for row in range(len(one.rows))]
        for number, (one, row) in enumerate(places):
            _compare_row(one, row, dataset[number], wanted)
        if len(dataset) != len(places):
            raise WrongValueError(f"wrote {len(places)} rows, read {len(dataset)}")
    for source, one in zip(find_sources(str(path)), expected, strict=True):
        compare_batches(source, one, set(rng.sample(NAMES, 6)))


def compare_lengths(dataset: Dataset, expected: list[Expected]) -> None:
    """Compare the lengths of rows with tokens."""
    for part, one in zip(dataset.parts, expected, strict=True):
        if all(isinstance(row.get("tokens"), list) for row in one.rows):
            lengths = part.stated_lengths()
            if lengths is None or lengths.tolist() != [len(row["tokens"]) for row in one.rows]:
                raise WrongValueError(f"{part.name}: lengths {lengths}")


def compare_batches(source: Source, expected: Expected, names: set[str]) -> None:
    """Compare the rows of a source as `dcpm check --dataset` reads them."""
    first = 0
    for batch in source.batches(names):
        for row, got in enumerate(batch.to_pylist()):
            _compare_row(expected, first + row, got, names)
        for name in batch.column_names:
            if column_depth(batch.schema.field(name).type) is not None:
                _compare_flat(expected.rows[first:], name, batch)
        first += batch.num_rows
    if first != len(expected.rows):
        raise WrongValueError(f"batches of {first} rows, wrote {len(expected.rows)}")


def _compare_row(expected: Expected, number: int, got: Row, wanted: set[str] | None) -> None:
    row = expected.rows[number]
    kept = {key: value for key, value in row.items() if wanted is None or key in wanted}
    expected.same(kept, got, (), f"row {number}")


def _compare_flat(rows: list[Row], name: str, batch: pa.Table) -> None:
    flat = flatten_column(batch.column(name))
    for number in range(batch.num_rows):
        value = rows[number][name]
        inside = [v for _, v in places(value) if not isinstance(v, list)]
        is_odd = any(v is None or v >= 2**63 for v in inside)
        if flat.has_null[number] != is_odd or not (is_odd or flat.row_lists(number) == value):
            raise WrongValueError(f"{name}: wrote {value!r}, flat {flat.row_lists(number)!r}")


# ---- cases of the fuzzer -------------------------------------------------------------------------

Case = tuple[str, bytes, Callable[[Path], object]]


def read_jsonl_file(path: Path, rows: list[Row], rng: random.Random) -> None:
    """Read JSON lines, in blocks of any size; they are refused if, and only if, they have to be."""
    whole, json_lines.BLOCK_BYTES = json_lines.BLOCK_BYTES, rng.choice((0, 20, 200, 1 << 20))
    try:
        if not is_refused(rows):
            _compare(path, [rows], rng)
            return
        dataset = read_dataset(path)
        raise WrongValueError(f"expected a refusal of {rows}, read {list(dataset)}"[:2000])
    finally:
        json_lines.BLOCK_BYTES = whole


def _compare(path: Path, files: list[list[Row]], rng: random.Random) -> None:
    whole, sources.BATCH_ROWS = sources.BATCH_ROWS, rng.choice((1, 2, 5, 4096))
    try:
        compare_dataset(path, files, rng)
    except DatasetError as error:
        if not any(map(is_misread, [path, *path.rglob("*")])):
            raise WrongValueError(f"refused without need: {error}") from error
        raise
    finally:
        sources.BATCH_ROWS = whole


def is_misread(path: Path) -> bool:
    """Return whether Arrow leaves out rows of a column; it stops at pages without values."""
    if path.suffix != ".parquet":
        return False
    with pq.ParquetFile(path) as file:
        try:
            found = {file.read([name]).num_rows for name in file.schema_arrow.names}
        except pa.ArrowInvalid:  # columns of an object differ in their rows
            return True
        return found != {file.metadata.num_rows}


def draw_jsonl(rng: random.Random) -> Case:
    """One file of JSON lines."""
    rows = draw_rows(rng)
    if rng.random() < 0.5:
        spoil(rows, rng)
    return "a.jsonl", as_jsonl(rows, rng), lambda path: read_jsonl_file(path, rows, rng)


def draw_parquet(rng: random.Random) -> Case:
    """One Parquet file."""
    rows = draw_rows(rng)
    return "a.parquet", as_parquet(rows, rng), lambda path: _compare(path, [rows], rng)


def draw_folder(rng: random.Random) -> Case:
    """A folder of several files of both formats with columns of their own."""
    files = [draw_rows(rng) for _ in range(rng.randint(1, 4))]
    kinds = [rng.choice((("jsonl", as_jsonl), ("parquet", as_parquet))) for _ in files]
    written = [(f"{n}.{end}", write(files[n], rng)) for n, (end, write) in enumerate(kinds)]

    def read(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            for name, data in written:
                Path(folder, name).write_bytes(data)
            _compare(Path(folder), files, rng)

    return "none", b"", read


def draw_saved(rng: random.Random) -> Case:
    """A folder that `datasets.save_to_disk` wrote, perhaps of rows in another order."""
    import datasets

    datasets.disable_progress_bars()
    rows = draw_rows(rng)
    chosen = [rng.randrange(len(rows)) for _ in rows] if rng.random() < 0.5 else None

    def read(path: Path) -> None:
        made = datasets.Dataset(as_table(rows, rng))
        if chosen is not None:
            made = made.select(chosen)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made.save_to_disk(folder, num_shards=rng.randint(1, min(3, len(rows))))
            _compare(Path(folder), [rows if chosen is None else [rows[n] for n in chosen]], rng)

    return "none", b"", read


DRAWS = {"jsonl": draw_jsonl, "parquet": draw_parquet, "folder": draw_folder, "saved": draw_saved}


def value_cases() -> Callable[[random.Random], Case]:
    """Tables of all formats; few of `datasets`, which take ten times as long."""
    return lambda rng: DRAWS[rng.choices(tuple(DRAWS), (10, 6, 3, 1))[0]](rng)
