"""A pytest plugin that runs the tests listed in the file CHOSEN names, in the order listed."""

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {test: i for i, test in enumerate(json.loads(Path(os.environ["CHOSEN"]).read_text()))}
    items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])
