"""A pytest plugin that notes which tests call which functions: `pytest -p reach`, REACH_OUT=FILE.

Each line of the file is a test, its seconds, and the functions that it was the first thing in this
process to do something with, as `path:line`. Functions that other processes call are not seen; the
seconds that a test waits for them are.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType

import pytest

ROOT = os.getcwd()
_called: set[CodeType] = set()


def _note(frame: FrameType, event: str, argument: object) -> None:
    _called.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _called.clear()
    started = time.monotonic()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        _write(item.nodeid, time.monotonic() - started)


def _write(test: str, seconds: float) -> None:
    found = {
        f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_firstlineno}"
        for code in list(_called)
        if code.co_filename.startswith(ROOT) and "/dcp_" in code.co_filename
    }
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    path = os.path.join(ROOT, f"{os.environ['REACH_OUT']}.{worker}")  # tests change the folder
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps([test, seconds, sorted(found)]) + "\n")
