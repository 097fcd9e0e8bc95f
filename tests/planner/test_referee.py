"""The benchmarks' referee: figures of small plans by hand, and what it refuses."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, measure, write_plan

BENCHMARKS = Path(__file__).resolve().parents[2] / "planner" / "benchmarks"
SHAPE = ModelShape(q_heads=4, kv_heads=2, head_dim=16)


@pytest.fixture(scope="module")
def referee():
    sys.path.insert(0, str(BENCHMARKS))
    yield __import__("referee")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def judged(referee, tmp_path):
    def judge(plan):
        write_plan(tmp_path / "judged.dcpplan", plan)
        return referee.judge(str(tmp_path / "judged.dcpplan"))

    return judge


def test_balance_and_ports_are_those_that_the_plan_says_itself(judged, masks):
    sparsity = masks.pack([masks.causal(160), masks.causal(70)], 8)
    plan = build_plan(sparsity, SHAPE, Cluster(2, 4), PlanConfig(budget="fast"))
    found, metrics = judged(plan), measure(plan)
    assert found["errors"] == []
    assert found["compute"] == pytest.approx(metrics.compute_imbalance)
    assert found["tokens"] == pytest.approx(metrics.token_imbalance)
    ports, table = [], plan.transfers
    crosses = table.source // 4 != table.target // 4
    for is_backward in (False, True):
        rows = crosses & (table.is_backward == is_backward)
        load = np.array([np.bincount(end[rows], table.size_bytes[rows], 8)
                         for end in (table.source, table.target)])  # fmt: skip
        ports.append(load.max() / load.mean())
    assert found["nic"] == pytest.approx(max(ports))


def test_seconds_of_one_device_are_its_thread_blocks_in_waves(referee, judged, masks):
    tokens = 3 * referee.TILE
    plan = build_plan(masks.pack([np.ones((tokens, tokens), bool)], tokens), SHAPE, Cluster(1, 1))
    # 3 thread blocks for each of 4 heads, each of TILE x 3 TILE pairs: one wave.
    machine = referee.MACHINES["a100"]
    forward = referee.TILE * tokens * 4 * 16 / (machine.flops * referee.EFFICIENCY / machine.sms)
    assert judged(plan)["seconds"]["a100"] == pytest.approx(forward * (1 + referee.BACKWARD))


def test_seconds_of_a_slow_network_are_those_of_the_busiest_port(
    referee, judged, masks, monkeypatch
):
    slow = referee.Machine(1000, 1e30, 1.0, 1e30)
    monkeypatch.setattr(referee, "MACHINES", {"slow": slow})
    sparsity = masks.pack([np.ones((16, 16), bool)], 8)
    plan = build_plan(sparsity, SHAPE, Cluster(2, 1), PlanConfig("static:contiguous"))
    sides = (measure(plan).forward, measure(plan).backward)
    busiest = sum(max(*side.sent_bytes, *side.received_bytes) for side in sides)
    assert judged(plan)["seconds"]["slow"] == pytest.approx(busiest)


def test_thread_blocks_go_longest_first_to_whoever_is_free(referee):
    assert referee._finish(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), 2) == 7.0
    assert referee._finish(np.full(12, 1.0), 2) == 6.0


def test_a_tile_that_is_computed_twice_or_never_is_named(judged, masks):
    plan = build_plan(masks.pack([masks.causal(64)], 8), SHAPE, Cluster(1, 2))
    kv = plan.tiles.kv_block.copy()
    kv[2] = kv[1]
    broken = replace(plan, tiles=replace(plan.tiles, kv_block=kv))
    assert "a tile is computed twice" in judged(broken)["errors"]
