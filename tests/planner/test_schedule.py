import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.simulation import schedules
from dcp_planner.simulation.schedules import make_schedule


@given(st.data(), st.integers(2, 7))
@settings(max_examples=60)
def test_local_tiles_come_first_then_those_that_wait_for_keys_only_and_no_division_is_left_out(
    strategies, data, divisions
):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    cluster = data.draw(strategies.clusters())
    placed = data.draw(
        strategies.placements(workload.num_blocks, workload.num_tiles, cluster.num_devices)
    )
    schedule = make_schedule(workload, placed, cluster, PlanConfig(divisions=divisions))
    owner, device = placed.device_of_data, placed.device_of_compute
    needs_q = owner[workload.compute_q] != device
    is_local = ~needs_q & (owner[workload.compute_kv] == device)
    for division in (schedule.division, schedule.backward_division):
        assert ((division == 0) == is_local).all()
        assert division.max(initial=0) < divisions
        for at in {*device.tolist()}:
            found = {*division[device == at].tolist()} - {0}
            assert found == {*range(1, len(found) + 1)}
    for at in {*device.tolist()}:
        here = (device == at) & (schedule.division > 0)
        keys_only, rows = schedule.division[here & ~needs_q], schedule.division[here & needs_q]
        assert keys_only.max(initial=0) <= rows.min(initial=divisions)


@pytest.mark.parametrize(("launch_s", "parts"), [(1e-9, [1, 2, 4, 8]), (1.0, [1, 2])])
@pytest.mark.parametrize(("budget", "measures"), [("fast", 1), ("balanced", 2)])
def test_parts_become_finer_as_long_as_that_gains(
    masks, monkeypatch, budget, measures, launch_s, parts
):
    workload = build_workload(masks.pack([np.ones((24, 24), bool)], 2), ModelShape())
    placed = Placement(np.ones(workload.num_blocks, np.int32), np.zeros(workload.num_tiles, int))
    cluster = Cluster(1, 2, intra_bytes_per_s=1e6, flops_per_s=1e9, kernel_launch_s=launch_s)
    tried, cut = [], schedules.cut_divisions

    def note(*arguments):
        tried.append(arguments[3])
        return cut(*arguments)

    monkeypatch.setattr(schedules, "cut_divisions", note)
    make_schedule(workload, placed, cluster, PlanConfig(budget=budget))
    assert tried == 2 * (parts[:1] + measures * parts[1:])


def test_divisions_bring_equal_bytes(masks):
    # One device computes everything, the other owns everything: 12 key blocks arrive.
    workload = build_workload(masks.pack([np.ones((24, 24), bool)], 2), ModelShape())
    owner = np.ones(workload.num_blocks, np.int32)
    first_row = workload.compute_q == 0
    owner[0] = 0
    placed = Placement(owner, np.where(first_row, 0, 1))
    schedule = make_schedule(workload, placed, Cluster(1, 2), PlanConfig(divisions=4))
    arrivals = schedule.division[first_row & (workload.compute_kv > 0)]
    assert np.bincount(arrivals).tolist() in ([0, 4, 4, 3], [0, 4, 3, 4], [0, 3, 4, 4])
