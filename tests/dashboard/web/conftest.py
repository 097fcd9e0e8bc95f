"""The command that serves, for tests of what it does with signals and hostile requests."""

import time

import pytest

# A shell's background processes ignore Ctrl-C, and so would those that they start.
DCPM = """
import signal
from dcp_dsl.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture
def start_dcpm(tmp_path, start_python):
    """Start `dcpm` in a process of its own, which starts others; return it with its first line."""
    started = []

    def start(*arguments, **environment):
        script = tmp_path / "dcpm.py"
        script.write_text(DCPM, encoding="utf-8")
        started.append(start_python(script, *arguments, folder=tmp_path, **environment))
        limit_s = time.monotonic() + 100
        while "\n" not in (said := started[-1].out.read_text(encoding="utf-8")):
            assert time.monotonic() < limit_s, started[-1].err.read_text(encoding="utf-8")
            time.sleep(0.02)
        return started[-1], said.strip()

    yield start
    for process in started:
        process.kill()
