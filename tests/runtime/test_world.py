"""`run_plan` on real processes: verified results, and ranks that die, stop or break."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dcp_planner import LANES, Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import RunConfig, RunError, open_world, run_plan

pytestmark = [pytest.mark.dist, pytest.mark.timing]
RANKS = 3


def plan_of(lab, masks, ranks=RANKS, partitioner="static:zigzag"):
    cluster, config = Cluster(devices_per_node=ranks), PlanConfig(partitioner=partitioner)
    return build_plan(lab.sparsity_of(masks, 16), ModelShape(4, 2, 16, 4), cluster, config)


@pytest.fixture(scope="module")
def world():
    with open_world(RANKS, timeout_s=60) as opened:
        yield opened


@pytest.mark.parametrize(
    ("mask", "partitioner", "options"),
    [("causal", "kahypar", {"layers": 2}), ("blind_rows", "static:zigzag", {"dtype": "bfloat16"})],
)
def test_run_is_verified(lab, world, mask, partitioner, options):
    plan = plan_of(lab, [lab.masks[mask](n) for n in (90, 1, 50)], partitioner=partitioner)
    result = run_plan(plan, RunConfig(RANKS, verify=True, **options), world)
    assert result.verified, result.errors
    trace = result.trace
    assert set(trace.device.tolist()) == set(range(RANKS))
    received = trace.size_bytes[trace.lane == LANES.index("receive")].sum()
    assert received == result.sent_bytes
    if "layers" in options:
        assert result.sent_bytes == 2 * plan.transfers.size_bytes.sum()
    assert 0 <= result.exposed_s <= result.seconds
    # A rank may begin backward while another one still computes forward.
    assert max(result.forward_s, result.backward_s) <= result.seconds


def test_local_error_of_all_ranks_is_one_message_and_breaks_the_world(lab, world):
    """The last test of the world that they share."""
    plan = plan_of(lab, [lab.masks["causal"](80)])
    with pytest.raises(RunError, match=r"expected a kernel out of .*cpu, reference, got 'flesh'"):
        run_plan(plan, RunConfig(RANKS, kernel="flesh"), world)
    with pytest.raises(RunError, match="open a new one"):
        run_plan(plan, RunConfig(RANKS), world)


def all_gone(pids, within_s=60.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("fault", "point", "ranks", "says"),
    [
        pytest.param("SIGKILL", "start", 2, "was killed by SIGKILL", marks=pytest.mark.slow),
        ("SIGKILL", "division", 3, "was killed by SIGKILL"),
        pytest.param("SIGINT", "division", 2, "was killed by SIGINT", marks=pytest.mark.slow),
        ("SIGSTOP", "division", 2, "dead or stalled|no sign of life"),
        ("BUG", "start", 2, r"exited with 1: ZeroDivisionError: by nought(.|\n)*faulty_worker.py"),
    ],
)
def test_lost_rank_is_named_and_no_process_is_left(lab, monkeypatch, fault, point, ranks, says):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr("dcp_runtime.launch.world.ENTRY", "faulty_worker:start")
    monkeypatch.setenv("DCP_TEST_FAULT", f"{fault} {point}")
    plan = plan_of(lab, [lab.masks["causal"](96)], ranks=ranks)
    # Only a stopped rank is found by a clock; the others must not be found too late on a busy one.
    with open_world(ranks, timeout_s=6 if fault == "SIGSTOP" else 60) as world:
        run_plan(plan, RunConfig(ranks), world)  # started and connected
        pids = world.pids
        with pytest.raises(RunError, match=says) as caught:
            run_plan(plan, RunConfig(ranks, layers=3), world)
        assert caught.value.rank == 1
        assert "rank 1" in str(caught.value)
        assert ("Traceback" in str(caught.value)) == (fault == "BUG")
        if point == "division":  # every other rank saw it too, and said in which division
            assert caught.value.division is not None
            assert "division" in str(caught.value)
    assert all_gone(pids)


def test_processes_end_when_the_world_is_left_by_an_error(lab):
    world = open_world(2, timeout_s=60)
    pids = world.__enter__().pids
    # As a with statement does when Ctrl-C arrives inside it.
    with pytest.raises(KeyboardInterrupt):
        world.gen.throw(KeyboardInterrupt)
    assert all_gone(pids)


def test_nothing_is_left_of_a_parent_that_was_killed(tmp_path):
    code = """if True:
        import time
        from dcp_runtime import open_world
        with open_world(2) as world:
            print(*world.pids, flush=True)
            time.sleep(60)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert all_gone(pids)  # a rank that starts up looks later
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": float("nan")}, "a timeout above 0 and at most 86400 s, got nan s"),
        ({"timeout_s": 1e10}, "a timeout above 0 and at most 86400 s, got 1e"),
        ({"timeout_s": 0}, "a timeout above 0 and at most 86400 s, got 0 s"),
        ({"seed": -1}, "a seed of at least 0, got 'float32' and -1"),
        ({"dtype": "float8"}, "a dtype out of float32, bfloat16, float16, float64 and"),
        ({"layers": 0}, "at least 1 rank, 1 layer and 0 passes of warm-up, got 3, 0 and 0"),
        ({"warmup": -1}, "got 3, 1 and -1"),
    ],
)
def test_a_run_that_cannot_start_is_refused(options, message):
    with pytest.raises(RunError, match=message):
        RunConfig(RANKS, **options)


def test_a_world_refuses_a_timeout_that_no_clock_takes():
    with pytest.raises(RunError, match="got inf s"), open_world(2, float("inf")):
        pass
