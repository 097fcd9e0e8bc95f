"""Tables of a plan file as Arrow IPC bytes, read with a bound on the bytes they unpack to.

Arrow is C++ code, and a stranger's bytes may crash it. So a worker process decodes the tables of
foreign files, with limits of memory and time; only the worker is lost. It answers with plain
arrays: JSON for texts, an ``npz`` without pickle for numbers. Its answer is checked like a file.
"""

import io
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dcp_planner.errors import PlanFileError
from dcp_planner.workers import TaskError, Worker, WorkerLost, WorkerProgram
from dcp_planner.workers.program import Answer

# Any: the element type of a column is its entry in TABLES; texts are lists of str.
Column: TypeAlias = Any
Columns: TypeAlias = dict[str, Column]

_I32, _I64, _U8, _BOOL, _TEXT = pa.int32(), pa.int64(), pa.uint8(), pa.bool_(), pa.string()
TABLES: Mapping[str, Mapping[str, pa.DataType]] = {
    "sequences": {"sequence": _I32, "start": _I32, "end": _I32},
    "blocks": {"block": _I32, "sequence": _I32, "start": _I64, "end": _I64, "owner": _I32},
    "tiles": {
        "q_block": _I32, "kv_block": _I32, "kind": _U8, "pairs": _I64, "device": _I32,
        "division": _I32, "backward_division": _I32,
    },
    "transfers": {
        "transfer": _I32, "is_backward": _BOOL, "kind": _U8, "block": _I32, "source": _I32,
        "target": _I32, "division": _I32, "size_bytes": _I64, "hop": _U8, "slot": _I32,
    },
    "instructions": {
        "direction": _TEXT, "device": _I32, "position": _I32, "op": _TEXT, "key": _I32,
        "division": _I32, "items": pa.list_(pa.int32()),
    },
    "slabs": {
        "q_start": _I64, "q_end": _I64, "kv_start": _I64, "kv_end": _I64, "start_slope": _U8,
        "end_slope": _U8,
    },
    "forms": {
        "kind": _TEXT, "q_start": _I64, "kv_start": _I64, "tokens": _I64,
        "items": pa.list_(pa.int64()),
    },
    "events": {
        "source": _TEXT, "device": _I32, "kind": _TEXT, "name": _TEXT, "is_backward": _BOOL,
        "division": _I32, "peer": _I32, "size_bytes": _I64, "transfer": _I32, "ready_ns": _I64,
        "start_ns": _I64, "end_ns": _I64,
    },
}  # fmt: skip
"""Every table of a plan file: its columns in order, with their types."""
OPTIONAL_TABLES = frozenset({"forms"})
"""Tables that a plan file has only where its plan needs them."""
_GROUPED = ("tiles", "transfers")  # have an extra column `group` if there are several head groups

_MAGIC = b"ARROW1\0\0"  # behind it an IPC file is an IPC stream, then a footer that is not read


def kinds_of(name: str, *, is_grouped: bool) -> Mapping[str, pa.DataType]:
    """Return the columns of a table with their types."""
    more = {"group": _U8} if is_grouped and name in _GROUPED else {}
    return {**TABLES[name], **more}


def encode_table(name: str, columns: Columns) -> bytes:
    """Write one table as an Arrow IPC file with zstd-compressed buffers."""
    kinds = kinds_of(name, is_grouped="group" in columns)
    schema = pa.schema([pa.field(key, kind) for key, kind in kinds.items()])
    arrays = [
        _list_array(kind.value_type, *columns[key])
        if pa.types.is_list(kind)
        else pa.array(columns[key], kind)
        for key, kind in kinds.items()
    ]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


# Any: the stubs miss list arrays and their types
def _list_array(kind: Any, pointers: Column, values: Column) -> Any:
    offsets = pa.array(np.asarray(pointers), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values, kind))


def decode_table(
    name: str, data: bytes, rows: int, limit_bytes: int, *, is_grouped: bool = False
) -> Columns:
    """Read a table of `TABLES` from an Arrow IPC file; it must have so many rows.

    `limit_bytes` is checked before anything is unpacked. Columns are numpy arrays; lists of str for
    texts; ``(item_ptr, items)`` for lists.
    """
    if not data.startswith(_MAGIC):
        raise PlanFileError(f"table {name}: expected an Arrow IPC file, got {data[:8]!r}")
    kinds = kinds_of(name, is_grouped=is_grouped)
    try:
        stream = pa.py_buffer(data)[len(_MAGIC) :]
        batches = list(_read_batches(name, kinds, stream, rows, limit_bytes))
        table = pa.Table.from_batches(batches, schema=pa.schema(list(kinds.items())))
        columns = {key: _column(name, key, table.column(key)) for key in kinds}
    except (pa.ArrowException, OSError, struct.error, IndexError, ValueError) as error:
        # IndexError and struct.error: metadata points outside; ValueError: a text is not UTF-8.
        raise PlanFileError(f"table {name}: Arrow cannot read it: {error}") from error
    if table.num_rows != rows:
        raise PlanFileError(
            f"table {name}: expected {rows} rows as in meta.json, got {table.num_rows}"
        )
    return columns


def _read_batches(
    name: str, kinds: Mapping[str, pa.DataType], buffer: pa.Buffer, rows: int, limit_bytes: int
) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.MessageReader.open_stream(buffer)
    try:
        message = reader.read_next_message()
    except StopIteration:
        raise PlanFileError(f"table {name}: expected an Arrow schema, got the end") from None
    if message.type != "schema":  # Arrow reads the bytes of any message as a schema, and crashes
        raise PlanFileError(f"table {name}: expected an Arrow schema first, got a {message.type}")
    schema = pa.ipc.read_schema(message)
    expected = list(kinds.items())
    if [(field.name, field.type) for field in schema] != expected:
        raise PlanFileError(
            f"table {name}: expected columns {_told(expected)}, got "
            f"{_told([(f.name, f.type) for f in schema])}"
        )
    left_rows, left_bytes = rows, limit_bytes
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type != "record batch":
            raise PlanFileError(f"table {name}: expected record batches, got a {message.type}")
        body = message.body or pa.py_buffer(b"")
        length, size = _declared_sizes(message.metadata.to_pybytes(), body)
        left_rows, left_bytes = left_rows - length, left_bytes - size
        if length < 0 or left_rows < 0 or left_bytes < 0:
            raise PlanFileError(
                f"table {name}: declares more than the {rows} rows of meta.json or unpacks to more "
                f"than {limit_bytes} bytes; a plan file never does"
            )
        batch = pa.ipc.read_record_batch(message, schema)
        # Offsets and indices come from the file: unchecked, Arrow reads beyond its buffers.
        batch.validate(full=True)
        yield batch


def _declared_sizes(metadata: bytes, body: pa.Buffer) -> tuple[int, int]:
    """Read the rows of a record batch and the bytes its buffers claim to unpack to.

    The flatbuffer (Arrow's Message.fbs) is read by hand, because pyarrow tells sizes only after
    unpacking. Each compressed buffer begins with its unpacked size as int64, -1 if it is stored
    as it is.
    """
    # Message: version, type of the header, header (2). RecordBatch: length (0), nodes, buffers (2),
    # compression (3). A buffer is two int64: its begin in the body, and its length. The first four
    # bytes of a flatbuffer are the offset of its root table.
    message = _Flat(metadata, struct.unpack_from("<I", metadata)[0])
    batch = message.table(2)
    start, count = batch.vector(2)
    is_compressed = batch.place(3) is not None
    total = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", metadata, start + 16 * index)
        if offset < 0 or length < 0 or offset + length > body.size:
            raise IndexError(f"buffer {index} lies outside the {body.size} bytes of its message")
        size = length
        if is_compressed and length >= 8:  # an empty buffer has no such prefix
            size = struct.unpack("<q", body[offset : offset + 8].to_pybytes())[0]
            size = length if size == -1 else size
            if size < 0:
                raise IndexError(f"buffer {index} declares {size} bytes")
        total += size
    # A writer may leave out a field that has its default, here a length of 0.
    place = batch.place(0)
    return (0 if place is None else struct.unpack_from("<q", metadata, place)[0]), total


class _Flat:
    """A table inside a flatbuffer: fields by number.

    A table begins with the distance back to its vtable, which lists the offset of every field.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.vtable = at - struct.unpack_from("<i", data, at)[0]

    def place(self, number: int) -> int | None:
        # A vtable begins with two uint16: its own size, and that of the table.
        slot = 4 + 2 * number
        if slot >= struct.unpack_from("<H", self.data, self.vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self.data, self.vtable + slot)[0]
        return self.at + offset if offset else None  # 0: the field is absent

    def target(self, number: int) -> int:
        place = self.place(number)
        if place is None:
            raise IndexError(f"field {number} of a message is missing")
        return int(place + struct.unpack_from("<I", self.data, place)[0])

    def table(self, number: int) -> "_Flat":
        return _Flat(self.data, self.target(number))

    def vector(self, number: int) -> tuple[int, int]:
        start = self.target(number)
        return start + 4, struct.unpack_from("<I", self.data, start)[0]


def _column(table: str, key: str, column: Any) -> Column:  # Any: the stubs miss list arrays
    array = column.combine_chunks()
    if array.null_count:
        raise PlanFileError(f"table {table}: column {key} has nulls")
    if pa.types.is_list(array.type):
        values = array.flatten()
        if values.null_count:
            raise PlanFileError(f"table {table}: column {key} has nulls")
        # Lengths, since the offsets of a batch need not begin at 0; `flatten` drops earlier values.
        sizes = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        return np.append(0, np.cumsum(sizes)), values.to_numpy()
    if pa.types.is_string(array.type):
        return array.to_pylist()
    return array.to_numpy(zero_copy_only=False)


def _told(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


ENTRY = f"{__name__}:start"
MEMORY_BYTES = 16 * 2**30
LIMIT_S = 60.0


def decode_foreign(
    parts: Mapping[str, bytes], rows: Mapping[str, int], limit_bytes: int, *, is_grouped: bool
) -> dict[str, Columns]:
    """Decode tables in a worker process, each as `decode_table` does.

    The first call of a process starts the worker, 0.4 CPU seconds. `read_plan` of 0.8 MB takes half
    as long again as with `decode_table`, of 26 kB some tens of milliseconds on a busy machine.
    """
    request = {
        "sizes": {name: len(data) for name, data in parts.items()},
        "rows": {name: rows[name] for name in parts},
        "limit_bytes": limit_bytes,
        "is_grouped": is_grouped,
    }
    try:
        answer, blob = _worker(os.getpid()).call(request, LIMIT_S, blob=b"".join(parts.values()))
        with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
            texts = answer["texts"]
            return {
                table: {
                    name: _received(arrays, texts, f"{table}.{name}", kind, rows[table])
                    for name, kind in kinds_of(table, is_grouped=is_grouped).items()
                }
                for table in parts
            }
    except TaskError as error:
        raise PlanFileError(str(error)) from error
    except WorkerLost as error:
        raise PlanFileError(f"it cannot be read: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise PlanFileError(f"it cannot be read: its reader sent no tables: {error}") from error


# By process id: a fork must not share the worker of its parent.
@cache
def _worker(_pid: int) -> Worker:
    return Worker(
        WorkerProgram(ENTRY, memory_bytes=MEMORY_BYTES, is_quiet=True), "the reader of plan files"
    )


# Any, below: JSON values
def _received(
    arrays: Any, texts: Mapping[str, list[str]], key: str, kind: pa.DataType, rows: int
) -> Column:
    if pa.types.is_list(kind):
        pointers = _array(arrays, f"{key}.ptr", pa.int64(), rows + 1)
        if pointers[0] != 0 or (np.diff(pointers) < 0).any():
            raise ValueError(f"{key}: the lists do not rise")
        return pointers, _array(arrays, key, kind.value_type, int(pointers[-1]))
    if pa.types.is_string(kind):
        numbers = _array(arrays, key, pa.uint32(), rows)
        return [texts[key][number] for number in numbers.tolist()]
    return _array(arrays, key, kind, rows)


def _array(arrays: Any, key: str, kind: pa.DataType, size: int) -> Column:
    found = arrays[key]
    if found.dtype != kind.to_pandas_dtype() or found.shape != (size,):
        raise ValueError(f"{key}: {found.dtype} {found.shape}")
    # A byte of 2 in a foreign bool is neither True nor False to numpy.
    return found.view(np.uint8) != 0 if found.dtype == np.bool_ else found


def start() -> Any:
    """Return the function that answers requests (`dcp_planner.workers.program`)."""
    return _answer


def _answer(request: Mapping[str, Any], blob: bytes, _tell: object) -> Answer:
    texts: dict[str, list[str]] = {}
    arrays: dict[str, Column] = {}
    at = 0
    for table, size in request["sizes"].items():
        columns = decode_table(
            table, blob[at : at + size], request["rows"][table], request["limit_bytes"],
            is_grouped=request["is_grouped"],
        )  # fmt: skip
        at += size
        for name, column in columns.items():
            key = f"{table}.{name}"
            if isinstance(column, list):
                # Texts in an `npz` would need pickle: it gets their numbers, and JSON the texts.
                numbers = {text: number for number, text in enumerate(dict.fromkeys(column))}
                texts[key] = list(numbers)
                column = np.array([numbers[text] for text in column], np.uint32)
            if isinstance(column, tuple):
                arrays[f"{key}.ptr"], column = column
            arrays[key] = column
    file = io.BytesIO()
    np.savez(file, **arrays)
    return {"texts": texts}, file.getvalue()
