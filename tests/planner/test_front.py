"""The Pareto front of a batch: nothing on it is beaten, caps hold, everybody finds the same."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    build_front,
    build_plan,
    measure,
    predict,
)
from dcp_planner.commands.tables import HEIGHT, WIDTH, draw
from dcp_planner.model.config import OBJECTIVES
from dcp_planner.model.problem import build_workload, caps_of
from dcp_planner.search.native import ladder
from dcp_planner.search.partitioners import weigh
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes

NAMES = ("seconds", "compute", "tokens", "forward_inter", "backward_inter", "memory_bytes")
FAST = PlanConfig(budget="fast", partials="input")


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_point_is_beaten_and_all_hold_the_caps(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    front = build_front(sparsity, ModelShape(), cluster, FAST)
    rows = [[getattr(point, name) for name in NAMES] for point in front]
    assert rows
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    for at, row in enumerate(rows):
        for other in rows[:at] + rows[at + 1 :]:
            assert any(theirs > ours for ours, theirs in zip(row, other, strict=True))
    workload = build_workload(sparsity, ModelShape())
    caps = caps_of(workload, cluster.num_devices, FAST)
    mean = int(workload.compute_pairs.sum()) / cluster.num_devices
    tokens = int(workload.block_tokens.sum()) / cluster.num_devices
    for point in front:
        assert point.compute * mean <= caps.pairs * (1 + 1e-9)
        assert point.tokens * tokens <= caps.tokens * (1 + 1e-9)


@pytest.fixture
def packed(masks):
    return masks.pack([masks.causal(160), masks.causal(70), masks.sliding_window(90, 20)], 8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_plan_for_an_objective_has_the_least_of_it_on_the_front(packed, objective):
    cluster = Cluster(2, 4)
    front = build_front(packed, ModelShape(), cluster, FAST)
    plan = build_plan(packed, ModelShape(), cluster, replace(FAST, objective=objective))
    found = measure(plan)
    least = {
        "time": (predict(plan).seconds, [p.seconds for p in front]),
        "bytes": (
            found.forward.inter_node_bytes + found.backward.inter_node_bytes,
            [p.forward_inter + p.backward_inter for p in front],
        ),
        "balance": (
            max(found.compute_imbalance, found.token_imbalance),
            [max(p.compute, p.tokens) for p in front],
        ),
        "memory": (
            (receive_buffer_bytes(plan) + accumulator_bytes(plan)).max(),
            [p.memory_bytes for p in front],
        ),
    }[objective]
    assert least[0] == pytest.approx(min(least[1]))


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_for_time_is_as_fast_as_anything_that_the_search_finds(seed):
    mask = Spec.from_text("mask local = causal and q - k < 700").mask("local")
    lengths = np.random.default_rng(seed).integers(60, 2000, 6)
    sparsity = block_sparsity([mask.bind(Sample({}, int(n))) for n in lengths], 64, 64)
    cluster = Cluster(2, 4)
    found = [point.seconds for point in build_front(sparsity, ModelShape(), cluster, FAST)]
    workload = build_workload(sparsity, ModelShape())
    found += [
        weigh(one, workload, cluster, FAST).seconds for one in ladder(workload, cluster, FAST)
    ]
    plan = build_plan(sparsity, ModelShape(), cluster, FAST)
    assert predict(plan).seconds == pytest.approx(min(found), rel=1e-9)


def figures():
    text = "mask local = causal and q - k < 70"
    mask = Spec.from_text(text).mask("local")
    sparsity = block_sparsity([mask.bind(Sample({}, n)) for n in (160, 70, 90)], 8, 8)
    front = build_front(sparsity, ModelShape(), Cluster(2, 4), FAST)
    return [list(point.figures().values()) for point in front]


def test_threads_and_processes_find_the_same_front(start_python, tmp_path):
    found = {}
    threads = [
        threading.Thread(target=lambda at=at: found.__setitem__(at, figures())) for at in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = start_python(__file__, folder=tmp_path)
    assert other.wait(100) == 0, other.err.read_text()
    assert found[0] == found[1] == json.loads(other.out.read_text())
    assert len(found[0]) > 1


def test_points_are_drawn_where_they_are():
    lines = draw([(1e-3, 3e6), (2e-3, 2e6), (3e-3, 1e6)])
    marks = {line[-1]: len(line) for line in lines[:11] if line[-1] != "|"}
    assert list(marks) == ["a", "b", "c"]
    assert marks["c"] - marks["b"] == marks["b"] - marks["a"] == WIDTH // 2
    assert (lines[0][-1], lines[HEIGHT // 2][-1], lines[HEIGHT][-1]) == ("a", "b", "c")


if __name__ == "__main__":
    print(json.dumps(figures()))
