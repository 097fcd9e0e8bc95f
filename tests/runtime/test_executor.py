"""`DCPExecutor` and `DCPAttn` on three real gloo processes, as a training script uses them."""

import json
from pathlib import Path

import pytest

RANKS = 3
SCRIPT = Path(__file__).with_name("executor_scenarios.py")
SCENARIOS = (
    "missing_process_group_is_explained",
    "gathered_timeline_holds_all_ranks",
    "tensors_by_token_go_to_their_ranks_and_come_back",
    "rows_go_where_they_are_wanted",
    "wrong_world_size_is_refused",
    "what_is_no_plan_tensor_or_timeout_is_refused",
    "a_rank_outside_the_group_is_refused",
    "error_on_one_rank_is_named_on_all",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory, start_python):
    """Run all scenarios once, on three processes."""
    folder = tmp_path_factory.mktemp("ranks")
    forks = [
        start_python(SCRIPT, folder, rank, RANKS, folder=folder, PYTHONWARNINGS="error")
        for rank in range(RANKS)
    ]
    try:
        for fork in forks:
            fork.wait(250)
    finally:
        for fork in forks:
            fork.kill()
    logs = [fork.err.read_text() for fork in forks]
    files = [folder / f"result-{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), logs
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.dist
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_executor(results, scenario):
    assert [result[scenario] for result in results] == ["ok"] * RANKS


@pytest.mark.dist
def test_every_scenario_is_asserted(results):
    assert set(results[0]) == set(SCENARIOS)
