"""Read JSON lines with Arrow, and name the line where that fails."""

import codecs
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcp_dsl.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_JSON_NESTING = 500


def read_jsonl(path: Path) -> "pa.Table":
    """Read a file with one JSON object per line.

    Raises:
        DatasetError: if it is empty or damaged; the message names the line.
    """
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
            codes = np.frombuffer(line, np.uint8)
            if np.cumsum((opening - closing)[codes], dtype=np.int64).max() > MAX_JSON_NESTING:
                try:
                    json.loads(line)  # brackets in texts do not nest
                except RecursionError:
                    raise DatasetError(f"{path}: line {number} is nested too deeply") from None
                except ValueError as error:
                    raise DatasetError(f"{path}: line {number} is not JSON: {error}") from None
    return rows


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
