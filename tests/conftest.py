"""Settings and fixtures of all tests: the same examples in every run, others at night."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pytest
from hypothesis import settings

settings.register_profile("dcp", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, print_blob=True)
settings.load_profile("dcp")

TIMES_AS_MANY = 10  # examples at night, when they are drawn anew


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out scripts that tests start: looking for doctests there imports much for nothing."""
    is_script = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return is_script or None


TOGETHER = (
    (
        "tests/runtime/",
        "tests/dashboard/demo/",
        "tests/planner/test_benchmarks.py",
        "tests/test_readmes.py",
    ),
    ("tests/dashboard/browser/",),
)
"""Tests that share what takes long to start: the fork server, the browser and its servers."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # Any: xdist's
    """Schedule the tests of `TOGETHER` on one of two workers, other files on whoever is free.

    Many tests come first: a file with one long test at the end would keep one worker waiting.
    """
    if config.getoption("dist") != "loadfile" or config.getoption("numprocesses") != 2:
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            starts = (each[0] for each in TOGETHER if nodeid.startswith(each))
            return next(starts, super()._split_scope(nodeid))

    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """At night change what tests settle for themselves, too."""
    if settings.get_current_profile_name() != "nightly":
        return
    for test in {getattr(item, "function", None) for item in items}:
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            test._hypothesis_internal_use_settings = settings(
                own, derandomize=False, max_examples=TIMES_AS_MANY * own.max_examples
            )


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
    def _server(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, Path(__file__).with_name("fork_server.py"), str(theirs.fileno())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        assert ours.recv(16) == b"ready"
        return server, ours

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
        socket.send_fds(self._server[1], [json.dumps(request).encode()], [telling, *files.values()])
        os.close(telling)
        self.started.append(Fork(told))
        return self.started[-1]

    def close(self) -> None:
        """End what still runs."""
        for fork in self.started:
            fork.kill()
            fork.wait()
        if "_server" in vars(self):
            server, ours = self._server
            ours.close()
            server.wait()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


class StartPython(Protocol):
    def __call__(self, *arguments: object, folder: Path, **environment: str) -> Fork: ...


@pytest.fixture(scope="session")
def start_python(fork_server: ForkServer) -> StartPython:
    """Start a Python file with arguments in a folder; what it prints is in `out` and `err`."""

    def start(*arguments: object, folder: Path, **environment: str) -> Fork:
        out, err = (folder / f"{end}-{len(fork_server.started)}" for end in ("out", "err"))
        with out.open("wb") as output, err.open("wb") as errors:
            files = {1: output.fileno(), 2: errors.fileno()}
            given = {**os.environ, **environment}
            fork = fork_server.start(arguments, files, given, folder=folder)
        fork.out, fork.err = out, err
        return fork

    return start


@pytest.fixture(scope="module")
def forked_workers(fork_server: ForkServer) -> Iterator[None]:
    """Worker processes of the product are forks, too, unless their memory has a limit.

    Numbers of files, session and environment are as in `WorkerProgram.start`.
    """
    fork_server.warm_up()
    import dcp_planner.workers.program
    from dcp_planner.workers import WorkerProgram

    python, start_process = sys.executable, WorkerProgram.start

    def start(program: WorkerProgram, number: int) -> Any:
        if sys.executable != python or program.memory_bytes is not None:
            return start_process(program, number)
        (its_input, our_end), (our_output, its_output) = os.pipe(), os.pipe()
        files = {0: its_input, 1: its_output, 2: its_output}
        files |= {file: file for file in (number, *program.files)}
        path = os.pathsep.join(path for path in sys.path if path)
        try:
            fork = fork_server.start(
                [dcp_planner.workers.program.__file__, number, program.entry, *program.arguments],
                files,
                {**os.environ, **program.environment, "PYTHONPATH": path},
                session=True,
            )
        finally:
            os.close(its_input)
            os.close(its_output)
        fork.stdin, fork.stdout = os.fdopen(our_end, "wb", 0), os.fdopen(our_output, "rb", 0)
        return fork

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerProgram, "start", start)
        yield


@pytest.fixture
def mortal_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker that reads plan files is one that some files end (`mortal_reader`)."""
    from dcp_planner.plan import foreign_tables

    monkeypatch.setattr(foreign_tables, "ENTRY", "mortal_reader:start")
    foreign_tables._worker.cache_clear()
    yield
    foreign_tables._worker.cache_clear()
