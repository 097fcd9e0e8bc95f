"""The wire format of the canvases' data: a JSON header and aligned binary columns.

```
offset 0        4 bytes   b"DCPC"
offset 4        u32       H, bytes of the header; 8 + H is a multiple of 8
offset 8        H bytes   JSON (UTF-8), padded with spaces at the end
offset 8 + H    columns   little-endian, each begins at a multiple of 8
```
The header is an object with entries of the caller, `"schema"`, and `"columns"`, a list of
`{"name", "dtype", "length", "offset"}` whose offsets count from the end of the header. `dtype` is
numpy's short name (`u1 u2 u4 i2 i4 f8`). `web/src/api.ts` makes typed arrays over the body
without a copy.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"DCPC"
ALIGNMENT = 8
DTYPES = ("u1", "u2", "u4", "i2", "i4", "f8")


def encode(schema: str, header: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Pack one-dimensional columns behind a JSON header.

    Args:
        schema: what the columns mean, for example ``"dcp.timeline/1"``.
        header: further entries of the header, anything JSON can hold.  (Any: JSON values.)
        columns: arrays of one of `DTYPES`; they may differ in length.

    Raises:
        ValueError: if a column has another element type.

    >>> decode(encode("x/1", {"n": 2}, {"a": np.array([1, 2], np.uint16)}))[1]["a"].tolist()
    [1, 2]
    """
    described, body = [], bytearray()
    for name, column in columns.items():
        dtype = column.dtype.str[1:]
        if dtype not in DTYPES:
            raise ValueError(f"column {name!r}: expected one of {DTYPES}, got {dtype}")
        described.append({"name": name, "dtype": dtype, "length": len(column), "offset": len(body)})
        body += column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
        body += bytes(-len(body) % ALIGNMENT)
    full = {"schema": schema, **header, "columns": described}
    text = json.dumps(full, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + len(MAGIC) + 4) % ALIGNMENT)
    return MAGIC + struct.pack("<I", len(text)) + text + bytes(body)


def decode(payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Unpack header and columns of `encode`; the tests read payloads with it.

    Raises:
        ValueError: if the payload does not begin like one.
    """
    if payload[:4] != MAGIC:
        raise ValueError(f"expected a payload that begins with {MAGIC!r}, got {payload[:4]!r}")
    (size,) = struct.unpack_from("<I", payload, 4)
    header: dict[str, Any] = json.loads(payload[8 : 8 + size])
    columns = {
        column["name"]: np.frombuffer(
            payload, "<" + column["dtype"], column["length"], 8 + size + column["offset"]
        )
        for column in header["columns"]
    }
    return header, columns


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Cast integers to the first of u1, u2, u4, i2, i4 that holds them, else to f8.

    >>> [narrow(np.array(n)).dtype.str[1:] for n in ([0, 255], [0, 2**40], [-1, 3], [-1, 70_000])]
    ['u1', 'f8', 'i2', 'i4']
    """
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    for dtype in (np.uint8, np.uint16, np.uint32, np.int16, np.int32):
        if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
            return values.astype(dtype)
    return values.astype(np.float64)
