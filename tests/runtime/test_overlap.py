"""Communication runs while devices compute: the share that is exposed, with overlap and without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("overlap_scenario.py")
RANKS = 4


def measure(folder):
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(rank), str(RANKS)])
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            assert process.wait(timeout=240) == 0
    finally:
        for process in processes:
            process.kill()
    return json.loads((folder / "shares.json").read_text())


@pytest.mark.dist
@pytest.mark.timing
def test_a_fifth_at_most_is_exposed_and_without_overlap_more_than_half(tmp_path):
    shares = measure(tmp_path)
    assert min(shares["overlapped"]) <= 0.2, shares
    assert max(shares["serial"]) > 0.5, shares
