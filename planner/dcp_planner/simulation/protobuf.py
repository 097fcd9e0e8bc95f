"""The wire format of protobuf: single fields as bytes, and whole columns of fields as matrices.

A varint may be longer than it has to be (its last bytes are then zeros that "go on"), so all
numbers of a column can take the same room, and messages of one sort become rows of one matrix.

Source: https://protobuf.dev/programming-guides/encoding
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]

_MOST = 10
"""Bytes of the widest varint: 64 bits, seven to a byte."""


def varint(value: int) -> bytes:
    """Encode a number as a varint, negative ones as two's complement of 64 bits.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int, *, is_raw: bool = False) -> bytes:
    """Encode a field that holds a number; `is_raw` takes the key itself for the field's number.

    >>> number(1, 5).hex(), number(1 << 3 | 2, 5, is_raw=True).hex()
    ('0805', '0a05')
    """
    return varint(field if is_raw else field << 3) + varint(value)


def message(field: int, data: bytes) -> bytes:
    """Encode a field that holds another message, or bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """Encode a field that holds a text.

    >>> text(2, "a").hex()
    '120161'
    """
    return message(field, value.encode("utf-8", "replace"))


def constant(data: bytes, size: int) -> Bytes:
    """Encode the same bytes in every row, uint8 ``[size, len(data)]``."""
    return np.broadcast_to(np.frombuffer(data, np.uint8), (size, len(data)))


def column(field: int, values: NDArray[np.integer]) -> Bytes:
    """Encode a field per row, all of one width, uint8 ``[N, key + width]``.

    >>> column(1, np.array([1, 300])).tolist()
    [[8, 129, 0], [8, 172, 2]]
    """
    key = np.frombuffer(varint(field << 3), np.uint8)
    widest = _MOST if values.min(initial=0) < 0 else len(varint(int(values.max(initial=0))))
    left = values.astype(np.int64).view(np.uint64)
    rows = np.empty((len(values), len(key) + widest), np.uint8)
    rows[:, : len(key)] = key
    for place in range(widest):
        goes_on = 128 if place + 1 < widest else 0
        rows[:, len(key) + place] = (left & np.uint64(127)).astype(np.uint8) | goes_on
        left = left >> np.uint64(7)
    return rows


def fixed64_column(field: int, values: NDArray[np.integer]) -> Bytes:
    """Encode a field of eight bytes per row, uint8 ``[N, key + 8]``."""
    key = np.frombuffer(varint(field << 3 | 1), np.uint8)
    rows = np.empty((len(values), len(key) + 8), np.uint8)
    rows[:, : len(key)] = key
    rows[:, len(key) :] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    return rows


def joined(*parts: Bytes) -> Bytes:
    """Put the rows of matrices side by side."""
    return np.concatenate(parts, axis=1)


def place_rows(out: Bytes, rows: Bytes, begins: NDArray[np.int64]) -> None:
    """Copy row i of a matrix to ``out[begins[i]:]``; rows must not overlap.

    One element per row instead of one per byte: a view of `out` in which an element is as wide as
    a row and begins at every byte.
    """
    width = rows.shape[1]
    if not len(rows) or not width:
        return
    assert int(begins.max()) + width <= len(out), "rows lie inside what they are copied to"
    wide = np.dtype((np.void, width))
    places = np.lib.stride_tricks.as_strided(
        out[:width].view(wide), shape=(len(out) - width + 1,), strides=(1,)
    )
    places[begins] = np.ascontiguousarray(rows).view(wide)[:, 0]
