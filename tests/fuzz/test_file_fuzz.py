"""The fuzzer of files finds nothing in its first files, and counts what it looks for."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import file_fuzz
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", file_fuzz.KINDS)
def test_the_first_files_end_nothing(kind):
    command = [sys.executable, file_fuzz.__file__, "--kind", kind, "--count", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)[kind]
    assert counts["read"] + counts["refused"] == 500
    assert counts["read"]


def test_signals_and_errors_are_counted_and_the_next_files_are_read(monkeypatch, capfd):
    def read(path: Path) -> None:
        match path.read_bytes()[0] % 4:
            case 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case 2:
                raise IndexError
            case 3:
                raise file_fuzz.DatasetError("refused")

    cases = {"arrow": lambda: lambda rng: ("a", rng.randbytes(1), read)}
    monkeypatch.setattr(file_fuzz, "KINDS", cases)
    found = file_fuzz.run("arrow", 0, 40, 60)
    assert sum(found.values()) == 40
    assert min(found.values()) > 3
    told = capfd.readouterr().err
    assert told.count(": signal 9\n") == found["signals"]
    assert told.count("IndexError\n\n") == found["errors"]
