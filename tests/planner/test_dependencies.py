"""Critical paths: on any plan they have no holes, and every moment is accounted for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import as_recorded

from dcp_planner import Cluster, ModelShape, PlanConfig, Trace, build_plan, simulate
from dcp_planner.causes import ACCOUNTS, STEPS, find_causes_of_run
from dcp_planner.causes.dependencies import Reason, find_dependencies
from dcp_planner.causes.path import account_for, critical_path
from dcp_planner.simulation.trace import EVENT_KINDS

TINY = ModelShape(q_heads=1, kv_heads=1, head_dim=1, dtype_bytes=1)
KINDS = {name: number for number, name in enumerate(EVENT_KINDS)}


@settings(max_examples=30)
@given(st.data())
def test_critical_path_dependencies_and_accounts_of_any_plan_agree(strategies, data):
    plan = data.draw(strategies.placed_plans())
    trace = simulate(plan)
    found = find_dependencies(plan, trace)
    check_the_critical_path_has_no_holes(trace, found)
    check_every_event_follows_what_ended_before_it(trace, found)
    check_the_time_of_every_device_is_accounted_for(plan, trace)


def check_the_critical_path_has_no_holes(trace, found):
    path = critical_path(trace, found)
    if trace.seconds() == 0:
        return
    assert (path.start_ns[0], path.end_ns[-1]) == (0, trace.end_ns.max())
    assert (path.start_ns[1:] == path.end_ns[:-1]).all()
    assert (path.step != STEPS.index("launches")).all()  # nothing begins later than it could
    assert sum(path.shares().values()) == pytest.approx(1)
    assert (path.start_ns >= found.begin_ns[path.event]).all()
    assert (path.end_ns <= trace.end_ns[path.event]).all()


@pytest.mark.parametrize("order", ["grouped", "fifo"])
@settings(max_examples=15)
@given(data=st.data())
def test_nor_has_it_holes_where_messages_travel_in_order(strategies, order, data):
    plan = data.draw(strategies.placed_plans())
    plan = replace(plan, cluster=replace(plan.cluster, message_order=order))
    trace = simulate(plan)
    path = critical_path(trace, find_dependencies(plan, trace))
    assert (path.step != STEPS.index("launches")).all()


def check_every_event_follows_what_ended_before_it(trace, found):
    known = np.flatnonzero(found.predecessor >= 0)
    before = found.predecessor[known]
    assert (found.end_ns[before] <= found.begin_ns[known]).all()
    # Without links only the first events of the run have nothing to wait for.
    first = np.setdiff1d(np.arange(len(trace)), known)
    assert (found.begin_ns[first] == 0).all()
    waits = trace.kind[known] == KINDS["wait"]
    assert (found.end_ns[before] == found.begin_ns[known])[waits].all()
    assert np.isin(found.reason[known][waits], [Reason.MESSAGE, Reason.BARRIER]).all()


def check_the_time_of_every_device_is_accounted_for(plan, trace):
    devices = plan.num_devices
    kind = trace.kind.copy()
    computes = np.flatnonzero(kind == KINDS["attention"])
    kind[computes[::2]] = KINDS["reduction"]  # the simulator makes none
    trace = replace(trace, kind=kind)
    spent = account_for(trace, find_dependencies(plan, trace), devices).spent_ns
    assert (spent >= 0).all()
    for backward in (False, True):
        here = trace.is_backward == backward
        if not here.any():
            assert not spent[int(backward)].any()
            continue
        length = trace.end_ns[here].max() - trace.start_ns[here].min()
        assert (spent[int(backward)].sum(axis=1) == length).all()
        for device in range(devices):
            mine = here & (trace.device == device)
            lasted = {
                name: int((trace.end_ns - trace.start_ns)[mine & (trace.kind == kind)].sum())
                for name, kind in KINDS.items()
            }
            found = dict(zip(ACCOUNTS, spent[int(backward), device].tolist(), strict=True))
            assert found["computing"] == lasted["attention"]
            assert found["reducing"] == lasted["reduction"]
            waited = sum(found[name] for name in ("links", "latency", "others"))
            assert waited == lasted["wait"]


def test_the_path_of_two_devices_is_this_one(masks):
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=1e-7, flops_per_s=1e9)
    plan = build_plan(masks.pack([masks.causal(8)], 4), TINY, cluster,
                      PlanConfig("static:contiguous"))  # fmt: skip
    trace = simulate(plan)
    found = find_dependencies(plan, trace)
    path = critical_path(trace, found)
    steps = [STEPS[step] for step in path.step]
    kinds = [EVENT_KINDS[trace.kind[event]] for event in path.event]
    spans = list(zip(path.start_ns.tolist(), path.end_ns.tolist(), strict=True))
    assert list(zip(kinds, steps, spans, strict=True)) == [
        ("send", "links", (0, 8)),
        ("receive", "latency", (8, 108)),
        ("attention", "computing", (108, 172)),
        ("send", "links", (172, 180)),
        ("receive", "latency", (180, 280)),
        ("attention", "computing", (280, 440)),
        ("send", "links", (440, 448)),
        ("receive", "latency", (448, 548)),
    ]
    spent = account_for(trace, found, 2).spent_ns
    # Device 1 of forward computes 40, waits 0 for bytes and 68 for latency, computes 64.
    assert spent[0].tolist() == [[40, 0, 0, 0, 0, 0, 132], [104, 0, 0, 68, 0, 0, 0]]
    # Device 0 of backward waits until 376: for kv to leave and arrive, the compute behind it, dkv.
    assert spent[1, 0].tolist() == [100, 0, 8, 108, 160, 0, 0]


def test_a_device_that_begins_backward_early_is_not_counted_twice(masks):
    plan = build_plan(masks.pack([masks.causal(8), masks.causal(8)], 8), TINY, Cluster(1, 2),
                      PlanConfig("static:contiguous"))  # fmt: skip
    # start, end, device, backward: device 1 is in forward until 14, and backs up behind it.
    events = [(0, 10, 0, 0), (0, 14, 1, 0), (10, 20, 0, 1), (15, 24, 1, 1)]
    rows = [(a, b, a, d, KINDS["attention"], back, 0, -1, 0, -1) for a, b, d, back in events]
    trace = Trace.of_rows("measured", np.array(rows), ["attention"] * 4)
    spent = account_for(trace, find_dependencies(plan, trace), 2).spent_ns
    assert spent.sum(axis=(0, 2)).tolist() == [24, 24]  # the length of the run, for each
    told = [dict(zip(ACCOUNTS, spent[:, device].T.tolist(), strict=True)) for device in (0, 1)]
    assert told[0]["computing"] == [10, 10]
    assert told[0]["idle"] == [0, 4]
    assert told[1]["computing"] == [14, 9]
    assert told[1]["idle"] == [0, 0]
    assert [one["launches"] for one in told] == [[0, 0], [0, 1]]  # the gap alone is the host's


@settings(max_examples=30)
@given(st.data())
def test_a_recording_lasts_as_long_as_it_did(strategies, data):
    plan = data.draw(strategies.placed_plans())
    trace = as_recorded(simulate(plan))
    why = find_causes_of_run(plan, trace)
    assert why.diagnosis.seconds == pytest.approx(trace.seconds(), abs=1e-12)
    if trace.seconds():
        assert sum(why.path.shares().values()) == pytest.approx(1)
        assert (why.path.start_ns[1:] == why.path.end_ns[:-1]).all()


def test_a_late_launch_of_a_run_is_found(masks):
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=0, flops_per_s=1e9)
    plan = build_plan(masks.pack([masks.causal(8)], 4), TINY, cluster,
                      PlanConfig("static:contiguous"))  # fmt: skip
    trace = simulate(plan)
    late = replace(
        trace,
        **{
            name: getattr(trace, name)
            + 300 * (trace.end_ns > 40) * (name != "start_ns")
            + 300 * (name == "start_ns") * (trace.start_ns >= 40)
            for name in ("start_ns", "end_ns", "ready_ns")
        },
    )
    why = find_causes_of_run(plan, as_recorded(late))
    assert why.diagnosis.causes[0].name == "launches"
    assert why.diagnosis.causes[0].saves_s == pytest.approx(300e-9, rel=0.2)
