from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import Cluster, ModelShape, PlanConfig, Trace, build_plan, measure, simulate
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.report.figures import figures_of
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.simulation.trace import measure_trace


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
