"""Communication runs while devices compute: the share that is exposed, with overlap and without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("overlap_scenario.py")
RANKS = 4


def measure(folder, goal):
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(rank), str(RANKS), goal])
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            assert process.wait(timeout=150) == 0
    finally:
        for process in processes:
            process.kill()
    return json.loads((folder / "shares.json").read_text())


@pytest.mark.dist
def test_overlap_hides_much_of_what_is_exposed_without_it(tmp_path):
    shares = measure(tmp_path, "relative")
    assert min(shares["overlapped"]) <= 0.65 * max(shares["serial"]), shares


@pytest.mark.dist
@pytest.mark.slow  # the shares themselves need a machine that does nothing else
def test_a_fifth_at_most_is_exposed_and_without_overlap_more_than_half(tmp_path):
    shares = measure(tmp_path, "absolute")
    assert min(shares["overlapped"]) <= 0.2, shares
    assert max(shares["serial"]) > 0.5, shares
