"""Figures of plans and traces by hand, bounds that nothing is below, Pareto fronts."""

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
    Trace,
    build_front,
    build_plan,
    measure,
    predict,
    simulate,
)
from dcp_planner.commands.tables import HEIGHT, WIDTH, draw
from dcp_planner.model.config import OBJECTIVES
from dcp_planner.model.problem import Placement, build_workload, caps_of
from dcp_planner.report import bound_ratios
from dcp_planner.report.bounds import _least_of_one
from dcp_planner.report.figures import figures_of
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.native import ladder
from dcp_planner.search.partitioners import weigh
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.simulation.trace import measure_trace
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes


@pytest.fixture
def by_hand(masks):
    """Three devices on three nodes own a block each; device 0 computes the causal tile (2, 1)."""
    workload = build_workload(masks.pack([masks.causal(12)], 4), ModelShape(2, 1, 4, 2))
    cluster = Cluster(nodes=3, devices_per_node=1)
    # The tiles are 00, 10, 11, 20, 21 and 22.
    placed = Placement(np.array([0, 1, 2]), np.array([0, 1, 1, 2, 0, 2]))
    schedule = make_schedule(workload, placed, cluster, PlanConfig())
    return assemble(workload, cluster, placed, schedule, "by hand")


def test_bytes_of_a_plan_by_hand(by_hand):
    # Bytes of a token: q 16, out 16, lse 8, kv 16; backward bundle 48, dq 16, dkv 16; blocks of 4.
    found = measure(by_hand)
    forward = {"kv": 3 * 64, "q": 64, "out": 96}  # kv 0 to 1 and 2, kv 1 to 0; q 2 to 0; out 2 home
    backward = {"kv": 3 * 64, "q": 192, "dq": 64, "dkv": 3 * 64}
    assert found.forward.bytes_by_kind == forward
    assert found.backward.bytes_by_kind == backward
    assert found.forward.total_bytes == found.forward.inter_node_bytes == sum(forward.values())
    assert found.forward.sent_bytes == (64 + 64 + 96, 64, 64)
    assert found.forward.received_bytes == (64 + 64, 64, 64 + 96)
    # kv 1 and q 2; kv 0; kv 0, out
    assert found.forward.peak_buffer_bytes == (64 + 64, 64, 64 + 96)


def test_the_figures_of_a_batch_name_its_fullest_buffer(by_hand):
    found = measure(by_hand)
    peaks = (*found.forward.peak_buffer_bytes, *found.backward.peak_buffer_bytes)
    assert figures_of(by_hand).peak_buffer_bytes == sorted(peaks)[-1]
    assert len({*found.backward.peak_buffer_bytes}) > 1


def test_balance_and_density_of_a_plan_by_hand(by_hand):
    found = measure(by_hand)
    pairs = [10 + 16, 16 + 10, 16 + 10]
    assert found.pairs == sum(pairs) == 78
    assert found.flops == tuple(n * 4 * 2 * 4 for n in pairs)
    assert found.owned_tokens == (4, 4, 4)
    assert (found.compute_imbalance, found.token_imbalance) == (1.0, 1.0)
    assert found.density == 1.0
    assert found.full_density == 78 / 144


def test_only_what_crosses_nodes_counts_as_between_nodes(by_hand):
    found = measure(replace(by_hand, cluster=Cluster(nodes=1, devices_per_node=3)))
    assert found.forward.total_bytes == measure(by_hand).forward.total_bytes
    assert found.forward.inter_node_bytes == found.backward.inter_node_bytes == 0


def test_a_batch_that_sees_nothing_or_gives_one_device_nothing_has_figures(masks):
    nothing, one = (masks.pack([dense], 4) for dense in (np.zeros((8, 8), bool), masks.causal(4)))
    config = PlanConfig("static:ring")
    plans = [build_plan(s, ModelShape(), Cluster(1, 2), config) for s in (nothing, one)]
    assert [measure(plan).compute_imbalance for plan in plans] == [1.0, 2.0]
    assert measure(plans[0]).density == 0.0
    assert measure_trace(simulate(plans[0]), 2).overlap == 1.0


def trace_of(*events):
    """Build a trace from (device, lane, start, end), in nanoseconds."""
    device, lane, start, end = np.array(events, np.int64).T
    kind, none = np.array([0, 3, 4, 5])[lane], np.full(len(events), -1)
    table = [start, end, start, device, kind, 0 * none, 0 * none, none, 0 * none, none]
    return Trace.of_rows("measured", np.column_stack(table), ["event"] * len(events))


def test_overlap_is_the_covered_part_of_the_message_time():
    compute, send, receive, wait = range(4)
    timings = measure_trace(
        trace_of(
            (0, compute, 0, 10), (0, compute, 20, 30), (0, send, 5, 15), (0, receive, 8, 25),
            (0, wait, 10, 20), (1, compute, 0, 4), (1, receive, 4, 9),
            (2, send, 0, 20), (2, receive, 5, 10), (2, receive, 12, 25),
        ),
        3,
    )  # fmt: skip
    assert timings.compute_s == pytest.approx((20e-9, 4e-9, 0.0))
    assert timings.message_s == pytest.approx((20e-9, 5e-9, 25e-9))  # 5 to 25, 0 to 25 counted once
    assert timings.hidden_s == pytest.approx((10e-9, 0.0, 0.0))  # 5 to 10 and 20 to 25
    assert timings.wait_s == pytest.approx((10e-9, 0.0, 0.0))
    assert timings.overlap == pytest.approx(10 / 50)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_plan_is_below_the_bounds_at_its_own_balance(strategies, data):
    plan = data.draw(strategies.placed_plans())
    ratios = bound_ratios(plan)
    assert all(ratio >= 1 - 1e-9 for ratio in ratios.values())


def test_one_long_document_is_planned_within_a_factor_of_the_bound(masks):
    sparsity = masks.pack([masks.causal(512)], 8)
    plan = build_plan(sparsity, ModelShape(), Cluster(1, 16), PlanConfig(partitioner="native"))
    assert bound_ratios(plan)["forward_bytes"] < 3


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (4, 2)])
def test_nothing_to_compute_is_bounded_by_nothing(masks, shape):
    empty = masks.pack([np.zeros((9, 9), bool)], 4)
    plan = build_plan(empty, ModelShape(), Cluster(*shape), PlanConfig())
    assert list(bound_ratios(plan, (1.0, 1.0))) == ["compute"]


def test_the_last_port_of_a_node_carries_its_whole_rate(masks):
    """Three devices of a node share two ports; each carries what two devices send."""
    cluster = Cluster(2, 3, inter_bytes_per_s=1e6, devices_per_nic=2)
    full = masks.pack([np.ones((96, 96), bool)], 8)
    plan = build_plan(full, ModelShape(), cluster, PlanConfig("static:contiguous"))
    ratios = bound_ratios(plan, (1.0, 1.0))
    least = measure(plan).forward.inter_node_bytes / ratios["forward_inter_bytes"]
    assert 1 / ratios["forward_time"] == pytest.approx(least / (4 * 2e6))


def test_a_part_may_be_square():
    """64 pairs of 64 keys and rows that see each other: 8 of each are the fewest tokens."""
    curve = np.array([0.0, 1.0, 64.0]), np.array([0.0, 64.0, 4096.0])
    assert 15 < _least_of_one(64.0, (curve, curve), 0, 1, 1) <= 16


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
