"""The program of a worker process, and the frames in which it talks with its owner.

    python -m dcp_planner.workers.program SOCKET MODULE:FUNCTION [ARGUMENT ...]

The function takes the arguments and returns the handler of the requests; slow imports belong there.
Standard input carries nothing; when its other end closes, the kernel kills this process.

A frame, a JSON object and some bytes, is two sizes (u32 and u64, little-endian), a JSON text and
the bytes. There is no pickle: a worker may have read the text of a stranger, so nothing that it
sends may run here.
"""

import fcntl
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
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
    """Encode a frame; `Any`: JSON values."""
    text = json.dumps(message, separators=(",", ":")).encode()
    _check_sizes(len(text), len(blob))
    return b"".join((_SIZES.pack(len(text), len(blob)), text, blob))


class FrameBuffer:
    """Collects the bytes that arrive and takes whole frames out of them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._data += data

    def take(self) -> Answer | None:
        """Take the next frame out, ``None`` if it is not whole yet."""
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


Tell: TypeAlias = Callable[[Any], None]
"""Sends a note about a request in progress; `Any`: a JSON value."""
Handler: TypeAlias = Callable[[dict[str, Any], bytes, Tell], Answer]
"""Answers one request; the answer has no key ``note``.

A `DCPError` is reported to the owner. Any other error ends the process.
"""


def main(number: str, entry: str, *arguments: str) -> None:
    """Serve requests that arrive on a socket, one after the other."""
    _end_with_owner()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    link = _Link(int(number))
    module, _, function = entry.partition(":")
    handle: Handler = getattr(importlib.import_module(module), function)(*arguments)
    link.send({"ready": True})
    while (frame := link.receive()) is not None:
        try:
            answer = handle(*frame, lambda note: link.send({"note": note}))
        except DCPError as error:
            kinds = [kind.__name__ for kind in type(error).mro()]
            answer = {"error": str(error), "kinds": kinds}, b""
        link.send(*answer)


def _end_with_owner() -> None:
    """Have the kernel kill this process when standard input closes, whatever it computes.

    A thread that waits for the end would not do: a library may hold Python's lock for minutes. Nor
    would ``PR_SET_PDEATHSIG``: it also kills when only the thread that started this process ends.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    closed = select.poll()
    closed.register(0, 0)
    if closed.poll(0):  # before the kernel was told
        os._exit(1)


class _Link:
    """The worker's end of the socket."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.set_inheritable(False)  # processes started here must not keep it open
        self._frames = FrameBuffer()
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Send a frame; threads take turns."""
        data = pack_frame(message, blob)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> Answer | None:
        """Wait for a frame; ``None`` once the owner has closed its end."""
        while (frame := self._frames.take()) is None:
            data = self._socket.recv(1 << 20)
            if not data:
                return None
            self._frames.feed(data)
        return frame


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # at once: exit handlers of libraries may hang
