"""Frames: a JSON object and some bytes, as an owner and its worker process send them.

A frame is two sizes (u32 and u64, little-endian), a JSON text and the bytes. There is no pickle: a
worker may have read the text of a stranger, so nothing that it sends may run here.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from dcp_dsl import DCPError

Answer: TypeAlias = tuple[dict[str, Any], bytes]
"""A JSON object and bytes; `Any`: JSON values."""

MAX_TEXT_BYTES = 1 << 28
MAX_BLOB_BYTES = 1 << 32

_SIZES = struct.Struct("<IQ")


class FrameError(DCPError):
    """Bytes that are no frame, or a frame that is too large."""


def pack_frame(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    r"""Encode a frame; `Any`: JSON values.

    Raises:
        FrameError: if it is too large.

    >>> pack_frame({"a": 1}, b"xy")
    b'\x07\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00{"a":1}xy'
    """
    text = json.dumps(message, separators=(",", ":")).encode()
    _check_sizes(len(text), len(blob))
    return b"".join((_SIZES.pack(len(text), len(blob)), text, blob))


class FrameBuffer:
    """Collects the bytes that arrive and takes whole frames out of them.

    >>> buffer = FrameBuffer()
    >>> buffer.feed(pack_frame({"a": 1}, b"xy") + b"the next")
    >>> buffer.take()
    ({'a': 1}, b'xy')
    """

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._data += data

    def take(self) -> Answer | None:
        """Take the next frame out, ``None`` if it is not whole yet.

        Raises:
            FrameError: if the bytes are no frame.
        """
        if len(self._data) < _SIZES.size:
            return None
        text_size, blob_size = _SIZES.unpack_from(self._data)
        _check_sizes(text_size, blob_size)
        middle = _SIZES.size + text_size
        end = middle + blob_size
        if len(self._data) < end:
            return None
        try:
            message = json.loads(self._data[_SIZES.size : middle])
            if not isinstance(message, dict):
                raise FrameError("no JSON object")
        except (ValueError, RecursionError) as error:
            raise FrameError(f"no JSON: {error}") from error
        blob = bytes(memoryview(self._data)[middle:end])
        del self._data[:end]
        return message, blob


def _check_sizes(text_size: int, blob_size: int) -> None:
    if text_size > MAX_TEXT_BYTES or blob_size > MAX_BLOB_BYTES:
        raise FrameError(
            f"expected at most {MAX_TEXT_BYTES} bytes of JSON and {MAX_BLOB_BYTES} of data, got "
            f"{text_size} and {blob_size}"
        )
