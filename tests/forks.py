"""Start programs as forks of a process that has their imports: `fork_server.py`, or a fork of one.

The fork server starts with the first program.
"""

import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from fork_server import serve


class Fork:
    """A program that the fork server runs, with the part of `subprocess.Popen` that tests need."""

    stdin: BinaryIO
    stdout: BinaryIO
    out: Path
    err: Path

    def __init__(self, told: int) -> None:
        self.returncode: int | None = None
        self._told, self._unread, self._lock = told, b"", threading.Lock()
        self.pid = self._next_number(60)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                self.returncode = self._next_number(timeout)
                os.close(self._told)
        return self.returncode

    def kill(self) -> None:
        """End the program, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _next_number(self, timeout: float | None) -> int:
        while b"\n" not in self._unread:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            received = os.read(self._told, 64)
            assert received, "the fork server has ended"
            self._unread += received
        number, self._unread = self._unread.split(b"\n", 1)
        return int(number)


class ForkServer:
    """Starts programs as forks of a process, `fork_server.py`, which starts with the first."""

    def __init__(self) -> None:
        self.started: list[Fork] = []

    def warm_up(self) -> None:
        """Start the process now, and not within a limit of time that a test sets."""
        assert self._server

    @cached_property
    def _server(self) -> socket.socket:
        """Our connection to the process, which all workers of pytest share."""
        address = f"\0dcp-forks-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener, suppress(OSError):  # another worker has the address
            listener.bind(address)
            listener.listen()
            listener.set_inheritable(True)
            program = Path(__file__).with_name("fork_server.py")
            command = [sys.executable, str(program), str(listener.fileno())]
            os.posix_spawn(sys.executable, command, {**os.environ, "OMP_NUM_THREADS": "1"})
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limit_s = time.monotonic() + 20
        while ours.connect_ex(address):  # who has the address does not listen yet
            assert time.monotonic() < limit_s, "no fork server listens"
            time.sleep(0.01)
        assert ours.recv(16) == b"ready"
        return ours

    def start(
        self,
        arguments: Sequence[object],
        files: Mapping[int, int],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        session: bool = False,
    ) -> Fork:
        """Start a program with open files under the numbers that are their keys."""
        request = {
            "arguments": [str(a) for a in arguments],
            "numbers": list(files),
            "folder": str(folder or Path.cwd()),
            "environment": dict(environment),
            "session": session,
        }
        told, telling = os.pipe()
        socket.send_fds(self._server, [json.dumps(request).encode()], [telling, *files.values()])
        os.close(telling)
        self.started.append(Fork(told))
        return self.started[-1]

    def close(self) -> None:
        """End what still runs."""
        for fork in self.started:
            fork.kill()
            fork.wait()
        if "_server" in vars(self):
            self._server.close()


class OwnForks(ForkServer):
    """Forks of this process, as it is now; it must have one thread."""

    def __init__(self) -> None:
        super().__init__()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            self._socket = ours
            return
        ours.close()
        status = 1
        try:
            sys.argv = serve(theirs)
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    @cached_property
    def _server(self) -> socket.socket:
        return self._socket


def fork_workers(server: ForkServer, replace: Callable[[object, str, object], None]) -> None:
    """Have the product start its workers as forks.

    Numbers of files, session, environment and limit are as in `WorkerProgram.start`; what a fork
    has from the beginning is not counted.
    """
    import dcp_planner.workers.program
    from dcp_planner.workers import WorkerProgram

    python, start_process = sys.executable, WorkerProgram.start

    def start(program: WorkerProgram, number: int) -> Any:
        if sys.executable != python:
            return start_process(program, number)
        (its_input, our_end), (our_output, its_output) = os.pipe(), os.pipe()
        files = {0: its_input, 1: its_output, 2: its_output}
        files |= {file: file for file in (number, *program.files)}
        path = os.pathsep.join(path for path in sys.path if path)
        try:
            fork = server.start(
                [dcp_planner.workers.program.__file__, number, program.entry, *program.arguments],
                files,
                {**os.environ, **program.environment, "PYTHONPATH": path},
                session=True,
            )
        finally:
            os.close(its_input)
            os.close(its_output)
        if program.memory_bytes is not None:
            with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
                status = Path(f"/proc/{fork.pid}/status").read_text(encoding="utf-8")
                has = 1024 * int(status.partition("VmData:")[2].split()[0])
                limit = program.memory_bytes + has
                resource.prlimit(fork.pid, resource.RLIMIT_DATA, (limit, limit))
        fork.stdin, fork.stdout = os.fdopen(our_end, "wb", 0), os.fdopen(our_output, "rb", 0)
        return fork

    replace(WorkerProgram, "start", start)
