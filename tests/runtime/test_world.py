"""`run_plan` on real processes: verified results, and ranks that die, stop or break."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dcp_planner import LANES, Cluster, ModelShape, PlanConfig, TransferKind, build_plan
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
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


def test_blocks_that_cross_through_a_rank_that_does_not_need_them_are_exact(lab, world):
    """Rank 1 passes on keys and queries of rank 0, and takes sums home that it adds nothing to."""
    workload = build_workload(
        lab.sparsity_of([lab.masks["causal"](96)], 16), ModelShape(4, 2, 8, 4)
    )
    owner, q, kv = np.array([0, 0, 0, 0, 1, 2]), workload.compute_q, workload.compute_kv
    device = np.where((q == 5) | ((q < 4) & (kv == 0) & (q > 0)), 2, owner[q])
    device[(q == 4) & (kv < 4)] = 0
    cluster = Cluster(nodes=2, devices_per_node=2, devices=((1.0, 1.0), (1.0,)))
    division = ((owner[q] != device) | (owner[kv] != device)).astype(np.int32)
    schedule = Schedule(division, division, 2 * (Manner("node", is_striped=True),))
    plan = assemble(workload, cluster, Placement(owner, device), schedule, "striped")
    table = plan.transfers
    brought, passed = (end == 1 for end in (table.target, table.source))
    for kind in TransferKind:  # each is passed on by rank 1, which owns none of these blocks
        both = np.intersect1d(*(table.block[x & (table.kind == kind)] for x in (brought, passed)))
        assert both.size
        assert (owner[both] == 0).all()
    result = run_plan(plan, RunConfig(RANKS, verify=True), world)
    assert result.verified, result.errors


def test_a_ring_of_three_measures_messages_of_every_size_and_count(world):
    ring = {"sizes": [8, 64], "counts": [1, 3], "repeats": 2}
    for answer, _ in world.run({"ring": ring}):
        found = [(s["size_bytes"], s["count"]) for s in answer["ring"]]
        assert found == [(8, 1), (8, 3), (64, 1), (64, 3)]
        assert all(0 < s["seconds"] < 10 for s in answer["ring"])


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
    code = (
        "import time\n"
        "from dcp_runtime import open_world\n"
        "with open_world(2) as world:\n"
        "    print(*world.pids, flush=True)\n"
        "    time.sleep(60)\n"
    )
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
