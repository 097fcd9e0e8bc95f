"""A worker process from the server's side: started when needed, timed, ended, replaced.

Server and worker exchange frames: two sizes (u32, little-endian), a JSON text, bytes. No pickle: a
worker has read texts from a browser, so nothing that it sends may run here.
"""

import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Literal

from dcp_dashboard.library.folder import DashboardError

_SIZES = struct.Struct("<II")
MAX_JSON_BYTES = 1 << 24
MAX_BLOB_BYTES = 1 << 30

START_LIMIT_S = 300.0
"""Time to load the libraries; the planner compiles itself once per installation."""

Kind = Literal["check", "plan"]

Answer = tuple[dict[str, Any], bytes]
"""A JSON object and bytes; `Any`: JSON values."""


class BrokenFrame(Exception):
    """The other side ended or sent something that is no frame."""


class Overdue(Exception):
    """The other side did not answer in time."""


def pack_frame(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    r"""Encode a frame; `Any`: JSON values.

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


class WorkerEnded(DashboardError):
    """The worker was ended from outside or crashed; the next call starts another."""


class Worker:
    """One process that answers one request at a time; calls from several threads wait in line.

    Attributes:
        kind: what it loads in advance.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._turn = threading.Lock()
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Its process, ``None`` while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Start the process if there is none; returns at once.

        Raises:
            WorkerEnded: if the worker was closed.
        """
        with self._starting:
            if self._is_closed:
                raise WorkerEnded("the server is ending; start it again")
            if self.pid is not None:
                return
            self._release()
            command = [sys.executable, "-m", "dcp_dashboard.editing.worker", self.kind]
            # Its own group: Ctrl-C in the terminal is for the server, which ends the worker itself.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._process, self._is_ready = process, False
            weakref.finalize(self, _end, process)

    def call(
        self,
        request: Mapping[str, Any],  # Any: JSON values
        limit_s: float,
        on_stage: Callable[[str], None] | None = None,
    ) -> Answer:
        """Send a request and return the answer.

        Args:
            request: with the name of the ``task``.
            limit_s: seconds it may take once the worker is ready; then the worker is ended.
            on_stage: told the stages of a long task.

        Raises:
            DashboardError: what the task refuses, or that it took too long.
            WorkerEnded: if the process ended before it answered.
        """
        with self._turn:
            self.start()
            process = self._process
            assert process is not None, "started above"
            try:
                return self._ask(process, request, limit_s, on_stage)
            except Overdue:
                _end(process)
                raise DashboardError(
                    f"this took longer than {limit_s:g} s and was stopped; try a shorter sample, "
                    "larger blocks or a simpler mask"
                ) from None
            except (BrokenFrame, OSError) as error:
                _end(process)
                raise WorkerEnded(
                    f"the worker process ended before it answered (exit status "
                    f"{process.returncode}); the next request starts another"
                ) from error

    def end(self) -> None:
        """End the process at once, whatever it does; the next call starts another."""
        process = self._process
        if process is not None:
            process.kill()  # no more: a call that waits for it reads the end of its pipe

    def close(self) -> None:
        """End the process and free its pipes; calls in line and later ones are refused."""
        with self._starting:
            self._is_closed = True
        self.end()
        with self._turn, self._starting:
            self._release()

    def _release(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _ask(
        self,
        process: "subprocess.Popen[bytes]",
        request: Mapping[str, Any],
        limit_s: float,
        on_stage: Callable[[str], None] | None,
    ) -> Answer:
        assert process.stdin is not None, "opened as a pipe"
        assert process.stdout is not None, "opened as a pipe"
        pipe = process.stdout.fileno()
        if not self._is_ready:
            receive_frame(pipe, time.monotonic() + START_LIMIT_S)
            self._is_ready = True
        deadline = time.monotonic() + limit_s
        process.stdin.write(pack_frame(request))
        process.stdin.flush()
        while True:
            message, blob = receive_frame(pipe, deadline)
            if "error" in message:
                raise DashboardError(str(message["error"]))
            if "done" in message:
                return message, blob
            if on_stage is not None:
                on_stage(str(message.get("stage")))


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was buffered for it has nowhere to go
                pipe.close()
