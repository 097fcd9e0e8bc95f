"""Decode the tables of foreign plan files in a process that may be lost over them.

Arrow is C++ that reads what a stranger wrote. A worker decodes, with limits of memory and time, and
answers with plain arrays: JSON for texts, an ``npz`` without pickle for numbers. What it sends is
checked like a file.
"""

import io
import os
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from dcp_planner.errors import PlanFileError
from dcp_planner.plan.arrow_tables import Column, Columns, decode_table, kinds_of
from dcp_planner.workers import TaskError, Worker, WorkerLost, WorkerProgram
from dcp_planner.workers.frames import Answer

ENTRY = f"{__name__}:start"
MEMORY_BYTES = 16 * 2**30
LIMIT_S = 60.0


def decode_foreign(
    parts: Mapping[str, bytes], rows: Mapping[str, int], limit_bytes: int, *, is_grouped: bool
) -> dict[str, Columns]:
    """Decode tables as `decode_table` does each of them, in a worker process.

    The first call of a process starts the worker, 0.4 CPU seconds. `read_plan` of 0.8 MB takes half
    as long again as with `decode_table`, of 26 kB some tens of milliseconds on a busy machine.

    Args:
        parts: name and bytes of each table.
        rows: how many rows each of them has to have.
        limit_bytes: most bytes the buffers of a table may unpack to.
        is_grouped: whether the plan has several head groups.

    Raises:
        PlanFileError: if one is no such table, or ends the worker.
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


@cache
def _worker(_pid: int) -> Worker:  # a fork must not share that of its parent
    return Worker(
        WorkerProgram(ENTRY, memory_bytes=MEMORY_BYTES, is_quiet=True), "the reader of plan files"
    )


# Any, below: JSON values
def _received(
    arrays: Any, texts: Mapping[str, list[str]], key: str, kind: pa.DataType, rows: int
) -> Column:
    """Return a column of the answer; `ValueError` or `IndexError` if it is none."""
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
    return found.view(np.uint8) != 0 if found.dtype == np.bool_ else found


def start() -> Any:
    """Return what decodes the tables of a request (`dcp_planner.workers.program`)."""
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
                numbers = {text: number for number, text in enumerate(dict.fromkeys(column))}
                texts[key] = list(numbers)
                column = np.array([numbers[text] for text in column], np.uint32)
            if isinstance(column, tuple):
                arrays[f"{key}.ptr"], column = column
            arrays[key] = column
    file = io.BytesIO()
    np.savez(file, **arrays)
    return {"texts": texts}, file.getvalue()
