"""`DCPExecutor` and `DCPAttn` on three real gloo processes, as a training script uses them."""

import json
from pathlib import Path

import pytest

RANKS = 3
SCRIPT = Path(__file__).with_name("executor_scenarios.py")


@pytest.mark.dist
def test_every_scenario_passes_on_every_rank(tmp_path, start_python):
    forks = [
        start_python(SCRIPT, tmp_path, rank, RANKS, folder=tmp_path, PYTHONWARNINGS="error")
        for rank in range(RANKS)
    ]
    try:
        for fork in forks:
            fork.wait(250)
    finally:
        for fork in forks:
            fork.kill()
    logs = [fork.err.read_text() for fork in forks]
    files = [tmp_path / f"result-{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), logs
    for file in files:
        found = json.loads(file.read_text())
        assert len(found) == 8
        failed = [f"{name}: {said}" for name, said in found.items() if said != "ok"]
        assert not failed, "\n".join(failed)
