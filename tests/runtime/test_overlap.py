"""Communication runs while devices compute: the share that is exposed, with overlap and without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("overlap_scenario.py")
RANKS = 4


@pytest.mark.dist
def test_overlap_hides_what_is_exposed_without_it(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(tmp_path), str(rank), str(RANKS)])
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            assert process.wait(timeout=150) == 0
    finally:
        for process in processes:
            process.kill()
    shares = json.loads((tmp_path / "shares.json").read_text())
    assert min(shares["overlapped"]) <= 0.2, shares
    assert max(shares["serial"]) > 0.5, shares
