"""Communication runs while devices compute: the share that is exposed, with overlap and without."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("overlap_scenario.py")
RANKS = 4


def measure(folder, start_python):
    forks = [start_python(SCRIPT, folder, rank, RANKS, folder=folder) for rank in range(RANKS)]
    try:
        for fork in forks:
            assert fork.wait(240) == 0, fork.err.read_text()
    finally:
        for fork in forks:
            fork.kill()
    return json.loads((folder / "shares.json").read_text())


@pytest.mark.dist
@pytest.mark.timing
def test_a_fifth_at_most_is_exposed_and_without_overlap_more_than_half(tmp_path, start_python):
    shares = measure(tmp_path, start_python)
    assert min(shares["overlapped"]) <= 0.2, shares
    assert max(shares["serial"]) > 0.5, shares
