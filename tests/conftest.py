"""Settings and fixtures of all tests: the same examples in every run, others at night."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from forks import Fork, ForkServer, fork_workers
from hypothesis import settings
from snapshots import Snapshots

settings.register_profile("dcp", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, print_blob=True)
settings.load_profile("dcp")

TIMES_AS_MANY = 10  # examples at night, when they are drawn anew


BROWSER = "tests/dashboard/browser/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # Any: xdist's
    """Schedule the tests of the browser on one worker, other files on whoever is free.

    Files run in the order of their names (`--no-loadscope-reorder`), so that doctests are the last:
    a file with one long test at the end would keep one worker busy alone.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return BROWSER if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)

    return Together(config, log)


def pytest_sessionstart() -> None:
    """Look for no garbage while a million objects are made that all stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave modules and tests out of every later search, and search less often than usual."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write all snapshots anew")


@pytest.fixture(scope="module")
def snapshots(request: pytest.FixtureRequest) -> Snapshots:
    """What the tests of this file compare with texts that were read (`snapshots.py`)."""
    is_update = request.config.getoption("--update-snapshots")
    name = request.path.stem.removeprefix("test_")
    return Snapshots(request.path.parent / "snapshots" / f"{name}.txt", is_update=is_update)


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
def forked_workers(request: pytest.FixtureRequest, fork_server: ForkServer) -> Iterator[None]:
    """Worker processes of the product are forks, too, unless their memory has a limit.

    Files without a test that starts processes do not wait for the fork server.
    """
    own = (item for item in request.session.items if item.path == request.path)
    if any(item.get_closest_marker(name) for item in own for name in ("dist", "browser")):
        fork_server.warm_up()
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(fork_server, patch.setattr)
        yield


@pytest.fixture(scope="module")
def forked_audits(fork_server: ForkServer) -> Iterator[None]:
    """The processes of `dcpm audit` are forks, which have their imports."""
    from dcp_runtime.auditing import runs

    def start(command: list[str], environment: dict[str, str], out: int) -> Fork:
        return fork_server.start(command[1:], {1: out, 2: out}, environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "start_process", start)
        yield


@pytest.fixture
def mortal_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker that reads plan files is one that some files end (`mortal_reader`)."""
    from dcp_planner.plan import arrow_tables

    monkeypatch.setattr(arrow_tables, "ENTRY", "mortal_reader:start")
    arrow_tables._worker.cache_clear()
    yield
    arrow_tables._worker.cache_clear()
