"""A running worker process with its socket and pipes.

Frames travel over a socket of their own, so that no printed text is taken for a frame. Standard
output and error share a pipe, whose last bytes explain how the process ended. Standard input
carries nothing: its end tells the process that the owner has ended (`program`).
"""

import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dcp_planner.workers.program import Answer, FrameBuffer

_END_GRACE_S = 10.0  # between the end of the socket and the end of the process
_LOG_BYTES = 4096


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """The program of a worker process, with its arguments and limits."""

    entry: str  # `"module:function"`; the function makes the handler of the requests (`program`)
    arguments: tuple[str, ...] = ()  # of the function
    # limit of memory for data; beyond it Python raises `MemoryError`
    memory_bytes: int | None = None
    # variables in addition to those of this process
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[int, ...] = ()  # file descriptors that the process inherits under the same numbers
    is_quiet: bool = False  # keep its output for messages, and do not show it on standard error

    def start(self, number: int) -> "subprocess.Popen[bytes]":
        """Start a process that serves the socket of this number."""
        # -P and no empty path: modules in the working folder, maybe a stranger's, must not run.
        command = [sys.executable, "-P", "-m", "dcp_planner.workers.program", str(number)]
        search_path = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            [*command, self.entry, *self.arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(number, *self.files),
            env={**os.environ, **self.environment, "PYTHONPATH": search_path},
            start_new_session=True,  # Ctrl-C in the terminal reaches the owner only, who ends this
        )
        if self.memory_bytes is not None:
            limits = self.memory_bytes, self.memory_bytes
            with suppress(ProcessLookupError):  # it may have ended already
                # Not RLIMIT_AS: libraries reserve far more addresses than they use.
                resource.prlimit(process.pid, resource.RLIMIT_DATA, limits)
        return process


class WorkerProcess:
    """A process; at most one thread at a time talks to it, any thread may kill it.

    Attributes:
        is_ready: whether it has loaded what it needs.
        is_killed: whether it was killed here; it may take a moment to end.
    """

    def __init__(self, program: WorkerProgram) -> None:
        self.is_ready = self.is_killed = False
        self._is_quiet, self._owner = program.is_quiet, os.getpid()
        self._frames = FrameBuffer()
        self._socket, theirs = socket.socketpair()
        try:
            self._popen = program.start(theirs.fileno())
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._socket.setblocking(False)
        assert self._popen.stdout is not None, "opened as a pipe"
        self._output = self._popen.stdout.fileno()
        os.set_blocking(self._output, False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        """True if it has neither ended nor been killed here."""
        return not self.is_killed and self._popen.poll() is None

    @property
    def log(self) -> str:
        """The last text that it printed since `send`."""
        return self._printed.decode(errors="replace").strip()

    def send(self, frame: bytes, limit_s: float) -> None:
        """Set the next frame and the time limit of its answer; `receive` sends the frame.

        The process may be slow to read, so a frame is sent piece by piece while `receive` waits.
        """
        self._printed, self._unsent, self._limit_s = b"", memoryview(frame), limit_s
        self._deadline = time.monotonic() + limit_s

    def receive(self) -> Answer:
        """Wait for a frame."""
        poll = select.poll()  # `select` takes no descriptor beyond 1023
        poll.register(self._output, select.POLLIN)
        while (frame := self._frames.take()) is None:
            if self._socket.fileno() < 0:  # the garbage collector closed it, on this thread
                raise EOFError
            left_ms = 1e3 * (self._deadline - time.monotonic())
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = dict(poll.poll(None if left_ms == math.inf else max(0.0, left_ms)))
            if left_ms < 0 or not ready:
                raise TimeoutError(f"{self._limit_s:g} s")
            if self._output in ready and not self._read_output():
                poll.unregister(self._output)
            if (events := ready.get(self._socket.fileno(), 0)) & select.POLLOUT:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            if events & ~select.POLLOUT:  # POLLHUP and POLLERR as well: `recv` tells them apart
                data = self._socket.recv(1 << 20)
                if not data:
                    raise EOFError
                self._frames.feed(data)
        return frame

    def _read_output(self) -> bool:
        """Return False if there is nothing more to read."""
        try:
            data = os.read(self._output, 1 << 16)
        except OSError:  # nothing is there, or it was closed on this thread (`receive`)
            return False
        if not self._is_quiet:
            sys.stderr.write(data.decode(errors="replace"))
        self._printed = (self._printed + data)[-_LOG_BYTES:]
        return bool(data)

    def wait(self) -> str:
        """Wait briefly for the process to end; return its exit status."""
        try:
            code = self._popen.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its connection and did not end"
        while self._read_output():
            pass
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"was killed by {names.get(-code, f'signal {-code}')}"
        said = self.log.rpartition("\n")[2] if code else ""
        return f"exited with {code}" + (f": {said}" if said else "")

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.is_killed = True
        self._popen.kill()

    def end(self) -> None:
        """Kill it, leave no zombie, and close socket and pipes."""
        if os.getpid() == self._owner:  # a fork must not end what belongs to its parent
            self._popen.kill()
            self._popen.wait()
        self._socket.close()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None, "opened as a pipe"
            pipe.close()
