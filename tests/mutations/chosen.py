"""A pytest plugin that runs the tests listed in the file CHOSEN names, in the order listed.

The file has the seconds of each. A test that takes far longer fails: the mutant runs for ever.
"""

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seconds = json.loads(Path(os.environ["CHOSEN"]).read_text())
    order = {test: i for i, test in enumerate(seconds)}
    items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])
    for item in items:
        item.add_marker(pytest.mark.timeout(100 + 10 * seconds[item.nodeid]), append=False)
