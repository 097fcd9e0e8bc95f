"""Hold a mask in the format of another tool; write it to files and read it back.

An export has named arrays, a few values, and for some formats Python source. Its file is `.npz` or
`.json` with all arrays, or `.py` with the source and an `.npz` beside it. Reading never unpickles
or executes a file.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import sealed, settle
from dcp_dsl.errors import MAX_TOKENS, ExchangeError
from dcp_dsl.files import replacing
from dcp_dsl.interchange.names import FORMATS

Value: TypeAlias = int | bool | str
SCHEMA = "dcp.export/1"
SUFFIXES = (".npz", ".json", ".py")
ONLY = {"dense": "mask", "dcp": "attn_mask", "flashmask": "startend_row_indices"}
"""The array of each format that has only one."""


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """A mask on a sample in the format of a kernel.

    Attributes:
        format: one of `FORMATS`.
        num_tokens: rows, and keys, of the mask.
        arrays: by name; docs/interchange.md says what each format has.
        values: numbers and words of the format, by name.
        source: Python source, or an empty text.
    """

    format: str
    num_tokens: int
    arrays: Mapping[str, NDArray[Any]]  # Any: the element type is the format's
    values: Mapping[str, Value] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if self.format not in tuple(FORMATS):  # what a file says may not be hashable
            raise ExchangeError(
                f"expected a format out of {', '.join(FORMATS)}, got {self.format!r}"
            )
        # copies, so that nobody else can write to them
        arrays = {name: sealed(np.array(value)) for name, value in self.arrays.items()}
        settle(self, arrays=arrays)

    def integers(self, name: str, *shape: int | None) -> NDArray[np.int64]:
        """Return an array of integers, checked; `shape` as in `readonly`, leading 1s are dropped.

        Raises:
            ExchangeError: if it is missing, of another shape, or holds something else.
        """
        if name not in self.arrays:
            have = ", ".join(self.arrays) or "none"
            raise ExchangeError(f"{self.format}: expected an array `{name}`, got {have}")
        array = self.arrays[name]
        while array.ndim > len(shape) and array.shape[0] == 1:  # a batch or a head of one
            array = array[0]
        if array.ndim > len(shape):
            raise ExchangeError(
                f"{self.format}: expected `{name}` of one sequence and of one mask for all heads, "
                f"got the shape {self.arrays[name].shape}: masks of several sequences, or by head, "
                f"are read one at a time here; give `{name}[b : b + 1]` of sequence b, and "
                f"`{name}[:, h : h + 1]` of head h"
            )
        if array.shape == (0,):  # an empty list in JSON, whose other dims and type are lost
            array = np.zeros([n or 0 for n in shape], np.int64)
        fits = array.ndim == len(shape) and all(
            want is None or want == got for want, got in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in "iub":
            want = ", ".join("*" if n is None else str(n) for n in shape)
            raise ExchangeError(
                f"{self.format}: expected `{name}` to be integers of shape ({want}), got "
                f"{array.dtype} of shape {self.arrays[name].shape}"
            )
        return array.astype(np.int64)


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """Choices that a format leaves open.

    Attributes:
        block_q, block_kv: tokens per block, for the formats with block tables.
        title: name of the mask in written source.
    """

    block_q: int = 128
    block_kv: int = 128
    title: str = "mask"


def write_export(path: str | Path, export: Export) -> tuple[Path, ...]:
    """Write an export; its suffix says how.

    Args:
        path: ``.npz``: arrays as they are, the rest as JSON in ``__meta__``. ``.json``: arrays as
            lists. ``.py``: the source, with an ``.npz`` of the same name beside it.
        export: what to write.

    Returns:
        The files written.

    Raises:
        ExchangeError: for another suffix, a format without source as ``.py``, or a file that cannot
            be written.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise ExchangeError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if target.suffix == ".json":
        # 0 and 1 are shorter in JSON than `false` and `true`
        plain = {k: v.astype(np.int8) if v.dtype == bool else v for k, v in export.arrays.items()}
        document = _meta(export) | {"arrays": {k: v.tolist() for k, v in plain.items()}}
        return (_replace(target, (json.dumps(document) + "\n").encode()),)
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**export.arrays, "__meta__": np.array(json.dumps(_meta(export)))}
    np.savez_compressed(buffer, **arrays)  # Any: its stub takes a flag for one of the arrays
    if target.suffix == ".npz":
        return (_replace(target, buffer.getvalue()),)
    if not export.source:
        raise ExchangeError(f"{path}: `{export.format}` has no source; write .npz or .json")
    # tables first: a source file is never without its tables
    tables = _replace(target.with_suffix(".npz"), buffer.getvalue())
    return _replace(target, export.source.encode()), tables


def read_export(path: str | Path, format: str | None = None) -> Export:
    """Read an export, or arrays saved by another program.

    Args:
        path: ``.npz`` or ``.json`` as written by `write_export`. Without our ``__meta__`` an
            ``.npz`` needs `format`, its arrays the names of that format, and numbers such as
            ``causal`` may be arrays without dims; the same for an ``.npy`` with one array.
        format: expected, or needed where the file does not say.

    Raises:
        ExchangeError: if it cannot be read, holds objects, or is of another format.
    """
    source = Path(path)
    try:
        if source.suffix == ".json":
            return _from_json(source, format)
        return _from_numpy(source, format)
    except FileNotFoundError:
        raise ExchangeError(f"{path}: no such file; `dcpm export` writes one") from None
    except IsADirectoryError:
        raise ExchangeError(f"{path}: expected an .npz, .npy or .json file, got a folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ExchangeError(f"{path}: cannot be read: {error}") from None


def _meta(export: Export) -> dict[str, Any]:  # Any: JSON
    return {
        "schema": SCHEMA, "format": export.format, "tokens": export.num_tokens,
        "values": dict(export.values), "source": export.source,
    }  # fmt: skip


def _from_json(path: Path, wanted: str | None) -> Export:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or not isinstance(document.get("arrays"), dict):
        raise ExchangeError(
            f"{path}: expected a JSON object with `arrays`, as `dcpm export` writes"
        )
    arrays = {name: np.array(value) for name, value in document["arrays"].items()}
    return _export(path, document, arrays, wanted)


def _from_numpy(path: Path, wanted: str | None) -> Export:
    with path.open("rb") as file:
        # of any other file np.load says that it is a pickle, which misleads
        if not file.read(8).startswith((b"PK", b"\x93NUMPY")):
            raise ExchangeError(
                f"{path}: expected arrays of numpy (.npz or .npy), or JSON in a file named .json"
            )
        file.seek(0)
        loaded = _load(path, file)
    if isinstance(loaded, np.ndarray):
        if wanted not in ONLY:
            raise ExchangeError(f"{path}: a single array is one of {', '.join(ONLY)}; say --format")
        values = {"causal": True} if wanted == "flashmask" and loaded.shape[-1:] == (1,) else {}
        return _export(path, {"values": values}, {ONLY[wanted]: loaded}, wanted)
    others = [name for name, value in loaded.items() if not isinstance(value, np.ndarray)]
    if others:  # any other archive: a plan, a wheel, a document
        raise ExchangeError(
            f"{path}: expected an archive of numpy arrays (.npz), as `dcpm export` writes, got one "
            f"with `{others[0]}`"
        )
    meta = json.loads(str(loaded.pop("__meta__"))) if "__meta__" in loaded else {}
    return _export(path, meta, loaded, wanted)


def _load(path: Path, file: IO[bytes]) -> NDArray[Any] | dict[str, Any]:  # Any: as in `Export`
    """Read one array, or the members of an archive: arrays, and bytes where they are none."""
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:
        # Damaged headers and archives end in errors of numpy, zlib, zipfile, ast and tokenize.
        raise ExchangeError(f"{path}: cannot be read: {error}") from None


def _export(  # Any: JSON
    path: Path, meta: Any, arrays: dict[str, Any], wanted: str | None
) -> Export:
    if not isinstance(meta, dict) or not isinstance(meta.get("values", {}), dict):
        raise ExchangeError(f"{path}: expected `values` by name; `dcpm export` writes them so")
    found = meta.get("format", wanted)
    if found is None:
        raise ExchangeError(f"{path}: does not say its format; say --format")
    if wanted not in (None, found):
        raise ExchangeError(f"{path}: expected format {wanted!r}, got {found!r}")
    values = dict(meta.get("values", {}))
    # other programs save numbers, such as `causal`, as arrays without dims
    for name in [name for name, array in arrays.items() if array.ndim == 0]:
        values[name] = arrays.pop(name).item()
    tokens = meta.get("tokens", _tokens(str(found), arrays))
    if not isinstance(tokens, int) or not 0 <= tokens <= MAX_TOKENS:
        raise ExchangeError(
            f"{path}: expected `tokens` from 0 to {MAX_TOKENS}, or arrays that say how many there "
            f"are, got {tokens!r}"
        )
    return Export(found, tokens, arrays, values, str(meta.get("source", "")))


def _tokens(name: str, arrays: dict[str, Any]) -> int | None:  # Any: numpy arrays
    """Return the tokens that the arrays imply; None if they are not those of the format."""
    if name == "magi" and {"q_ranges", "k_ranges"} <= arrays.keys():
        ranges = [arrays[key] for key in ("q_ranges", "k_ranges")]
        if any(array.dtype.kind not in "iu" for array in ranges if array.size):
            return None
        return int(max(array.max(initial=0) for array in ranges))
    shape = arrays[ONLY[name]].shape if ONLY.get(name) in arrays else ()
    if len(shape) < 2:
        return None
    # `[n, 2, 2]`, two ranges a row, beside `[n, 2]`; batch dims may stand in front
    is_double = name == "dcp" and shape[-2:] == (2, 2) and len(shape) >= 3
    return int(shape[-3 if is_double else -2])


def _replace(path: Path, data: bytes) -> Path:
    with replacing(path, ExchangeError) as draft:
        draft.write_bytes(data)
    return path
