"""Ranks that are killed, stall or raise, at every phase: all others say so in time and go on."""

import json
from pathlib import Path

import pytest

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import RunConfig, RunError, run_plan

SCRIPT = Path(__file__).with_name("failure_scenario.py")
RANKS, VICTIM, EXIT_CODE = 3, 1, 7

pytestmark = [pytest.mark.dist, pytest.mark.timing]


SLOW = pytest.mark.slow  # each case starts three processes


@pytest.mark.parametrize(
    ("action", "phase", "place"),
    [
        pytest.param("kill", "prepare", "prepare", marks=SLOW),
        pytest.param("kill", "first layer", "the first layer", marks=SLOW),
        pytest.param("kill", "forward", "of forward", marks=SLOW),
        pytest.param("stall", "make", "making the executor", marks=SLOW),
        ("kill", "backward", "of backward"),
        ("stall", "prepare", "prepare"),
        pytest.param("stall", "backward", "of backward", marks=SLOW),
        ("raise", "forward", "division 0 of forward"),
        pytest.param("raise", "backward", "division 0 of backward", marks=SLOW),
        ("kill", "gather", "gathering the trace"),
        pytest.param("stall", "gather", "gathering the trace", marks=SLOW),
    ],
)
def test_every_other_rank_names_the_lost_one_in_time_and_the_job_restarts(
    tmp_path, start_python, action, phase, place
):
    forks = [
        start_python(SCRIPT, tmp_path, rank, RANKS, action, phase, folder=tmp_path)
        for rank in range(RANKS)
    ]
    try:
        codes = [forks[rank].wait(250) for rank in (0, 2)]
    finally:
        for fork in forks:
            fork.kill()
    for rank in (0, 2):
        file = tmp_path / f"said-{rank}.json"
        assert file.exists(), forks[rank].err.read_text()
        said = json.loads(file.read_text())
        assert said["rank"] == VICTIM, said
        assert f"rank {VICTIM}" in said["message"]
        assert place in said["message"]
        assert said["restarted"]
        if place.startswith("of"):
            assert said["division"] is not None
    assert codes == [EXIT_CODE] * 2


def test_a_single_rank_that_never_ends_is_named(lab, tmp_path, monkeypatch):
    (tmp_path / "endless_worker.py").write_text(
        "import dcp_runtime.kernels.cpu as cpu\n"
        "from dcp_runtime.launch.worker import start\n"
        "from time import sleep\n"
        "def loop(*arguments):\n"
        "    while True: sleep(1)\n"
        "cpu.CpuKernel.forward = loop\n"
    )
    monkeypatch.setattr("dcp_runtime.launch.world.ENTRY", "endless_worker:start")
    monkeypatch.syspath_prepend(str(tmp_path))
    sparsity = lab.sparsity_of([lab.masks["causal"](40)], 16)
    config = PlanConfig(partitioner="static:zigzag")
    plan = build_plan(sparsity, ModelShape(2, 1, 8, 4), Cluster(devices_per_node=1), config)
    says = r"rank 0 stalled: no progress within 2 s in attention in division 0 of forward"
    with pytest.raises(RunError, match=says) as caught:
        run_plan(plan, RunConfig(1, timeout_s=2))
    assert (caught.value.rank, caught.value.division) == (0, 0)
