"""Settings and fixtures of all tests: the same examples in every run, others at night."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

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
    """A program that the fork server runs; what it prints is in the files `out` and `err`."""

    def __init__(self, out: Path, err: Path, told: int) -> None:
        self.out, self.err = out, err
        self.returncode: int | None = None
        self._told, self._unread = told, b""
        self.pid = self._next_number(60)

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            self.returncode = self._next_number(timeout)
            os.close(self._told)
        return self.returncode

    def kill(self) -> None:
        """End the program, unless it has ended, and wait for that."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(60)

    def _next_number(self, timeout: float) -> int:
        while b"\n" not in self._unread:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.out), timeout, stderr=self.err.read_text())
            received = os.read(self._told, 64)
            assert received, "the fork server has ended"
            self._unread += received
        number, self._unread = self._unread.split(b"\n", 1)
        return int(number)


class StartPython(Protocol):
    def __call__(self, *arguments: object, folder: Path, **environment: str) -> Fork: ...


@pytest.fixture(scope="session")
def start_python() -> Iterator[StartPython]:
    """Start a Python file with arguments in a folder, as a fork that has torch imported already.

    What still runs at the end of all tests is ended then.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, Path(__file__).with_name("fork_server.py"), str(theirs.fileno())]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    started: list[Fork] = []

    def start(*arguments: object, folder: Path, **environment: str) -> Fork:
        out, err = (folder / f"{end}-{len(started)}" for end in ("out", "err"))
        request = {
            "arguments": [str(a) for a in arguments],
            "folder": str(folder),
            "environment": {**os.environ, **environment},
        }
        told, telling = os.pipe()
        with out.open("wb") as output, err.open("wb") as errors:
            files = [output.fileno(), errors.fileno(), telling]
            socket.send_fds(ours, [json.dumps(request).encode()], files)
        os.close(telling)
        started.append(Fork(out, err, told))
        return started[-1]

    yield start
    for fork in started:
        fork.kill()
    ours.close()
    server.wait()


@pytest.fixture
def mortal_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker that reads plan files is one that some files end (`mortal_reader`)."""
    from dcp_planner.plan import foreign_tables

    monkeypatch.setattr(foreign_tables, "ENTRY", "mortal_reader:start")
    foreign_tables._worker.cache_clear()
    yield
    foreign_tables._worker.cache_clear()
