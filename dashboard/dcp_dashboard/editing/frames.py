"""Messages between the server and its worker processes: a JSON object and bytes behind it.

A frame is two sizes (u32, little-endian), the JSON text, the bytes. No pickle: a worker has read
texts from a browser, so nothing it sends may run here.
"""

import json
import os
import select
import struct
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

_SIZES = struct.Struct("<II")
MAX_JSON_BYTES = 1 << 24
MAX_BLOB_BYTES = 1 << 30


class BrokenFrame(Exception):
    """The other side ended or sent something that is no frame."""


class Overdue(Exception):
    """The other side did not answer in time."""


def pack_frame(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    r"""Give the bytes of a frame; `Any`: JSON values.

    >>> pack_frame({"a": 1}, b"xy")
    b'\x07\x00\x00\x00\x02\x00\x00\x00{"a":1}xy'
    """
    text = json.dumps(message, separators=(",", ":")).encode()
    return _SIZES.pack(len(text), len(blob)) + text + blob


def read_frame(file: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read a frame from a blocking file, ``None`` at its end; `Any`: JSON values."""
    head = file.read(_SIZES.size)
    if len(head) < _SIZES.size:
        return None
    text_size, blob_size = _check_sizes(head)
    return json.loads(file.read(text_size)), file.read(blob_size)


def receive_frame(descriptor: int, deadline: float) -> tuple[dict[str, Any], bytes]:
    """Read a frame from a pipe until `deadline` on the clock of ``time.monotonic``.

    Raises:
        Overdue: if it is not there in time.
        BrokenFrame: if the pipe ends or holds no frame.
    """
    text_size, blob_size = _check_sizes(_receive(descriptor, _SIZES.size, deadline))
    text = _receive(descriptor, text_size, deadline)
    blob = _receive(descriptor, blob_size, deadline)
    try:
        message = json.loads(text)
    except ValueError as error:
        raise BrokenFrame(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenFrame("no JSON object")
    return message, blob


def _check_sizes(head: bytes) -> tuple[int, int]:
    text_size, blob_size = _SIZES.unpack(head)
    if text_size > MAX_JSON_BYTES or blob_size > MAX_BLOB_BYTES:
        raise BrokenFrame(f"sizes {text_size} and {blob_size}")
    return text_size, blob_size


def _receive(descriptor: int, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise Overdue
        part = os.read(descriptor, min(size - len(parts), 1 << 20))
        if not part:
            raise BrokenFrame("the pipe ended")
        parts += part
    return bytes(parts)
