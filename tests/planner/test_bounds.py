"""No placement whatsoever is below the bounds; good ones come close."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, measure, simulate
from dcp_planner.model.workload import build_workload
from dcp_planner.report import bound_ratios
from dcp_planner.report.bounds import _least_of_one, bounds


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_plan_is_below_the_bounds_at_its_own_balance(strategies, data):
    plan = data.draw(strategies.placed_plans())
    ratios = bound_ratios(plan)
    assert all(ratio >= 1 - 1e-9 for ratio in ratios.values())


def test_no_plan_within_the_tolerances_is_below_the_bounds(masks):
    sparsity = masks.pack([masks.causal(256), masks.causal(90)], 8)
    cluster, config = Cluster(2, 2), PlanConfig(partitioner="native")
    plan = build_plan(sparsity, ModelShape(), cluster, config)
    least, found = bounds(build_workload(sparsity, ModelShape()), cluster, config), measure(plan)
    assert 0 < least["forward"].total_bytes <= found.forward.total_bytes
    assert 0 < least["backward"].total_bytes <= found.backward.total_bytes
    assert least["forward"].inter_node_bytes <= found.forward.inter_node_bytes
    assert least["backward"].inter_node_bytes <= found.backward.inter_node_bytes
    assert least["forward"].seconds + least["backward"].seconds <= simulate(plan).seconds()


def test_one_long_document_is_planned_within_a_factor_of_the_bound(masks):
    sparsity = masks.pack([masks.causal(512)], 8)
    plan = build_plan(sparsity, ModelShape(), Cluster(1, 16), PlanConfig(partitioner="native"))
    assert bound_ratios(plan)["forward_bytes"] < 3


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (4, 2)])
def test_nothing_to_compute_and_one_device_are_bounded_by_nothing(masks, shape):
    empty = build_workload(masks.pack([np.zeros((9, 9), bool)], 4), ModelShape())
    least = bounds(empty, Cluster(*shape))
    assert (least["forward"].total_bytes, least["backward"].seconds) == (0, 0)


def test_whole_documents_need_no_bytes(masks):
    workload = build_workload(masks.pack([masks.causal(32)] * 8, 8), ModelShape())
    assert bounds(workload, Cluster(4, 2))["forward"].inter_node_bytes == 0


def test_backward_computes_two_and_a_half_times_as_long(masks):
    workload = build_workload(masks.pack([masks.causal(32)], 8), ModelShape())
    least = bounds(workload, Cluster(1, 4))
    assert least["backward"].compute_s == pytest.approx(2.5 * least["forward"].compute_s)
    pairs = 32 * 33 // 2
    exact = pairs * ModelShape().flops_per_pair / (4 * Cluster().flops_per_s)
    assert least["forward"].compute_s == pytest.approx(exact)


def test_a_part_may_be_square():
    """64 pairs of 64 keys and rows that see each other: 8 of each are the fewest tokens."""
    curve = np.array([0.0, 1.0, 64.0]), np.array([0.0, 64.0, 4096.0])
    assert 15 < _least_of_one(64.0, (curve, curve), 0, 1, 1) <= 16
