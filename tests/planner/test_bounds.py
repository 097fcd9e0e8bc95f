"""No placement whatsoever is below the bounds; good ones come close."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, measure
from dcp_planner.report import bound_ratios
from dcp_planner.report.bounds import _least_of_one


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


def test_whole_documents_need_no_bytes(masks):
    sparsity = masks.pack([masks.causal(32)] * 8, 8)
    plan = build_plan(sparsity, ModelShape(), Cluster(4, 2), PlanConfig("static:documents"))
    assert not [name for name in bound_ratios(plan) if name.endswith("_inter_bytes")]


def test_backward_computes_two_and_a_half_times_as_long(masks):
    sparsity = masks.pack([masks.causal(32)], 8)
    plan = build_plan(sparsity, ModelShape(), Cluster(1, 4), PlanConfig("static:zigzag"))
    ratios = bound_ratios(plan, (1.0, 1.0))
    assert ratios["forward_time"] == pytest.approx(2.5 * ratios["backward_time"])
    exact = 32 * 33 // 2 * ModelShape().flops_per_pair / (4 * Cluster().flops_per_s)
    assert 1 / ratios["forward_time"] == pytest.approx(exact)


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
