"""Critical paths and accounts of plans and runs, and the constant behind a run."""

import json
import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import as_recorded

from dcp_dsl import Sample, Spec
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    Trace,
    build_plan,
    cut_blocks,
    find_cluster,
    read_plan,
    simulate,
    write_plan,
)
from dcp_planner.causes import ACCOUNTS, STEPS, find_causes_of_run
from dcp_planner.causes.constants import compare_with_run
from dcp_planner.causes.dependencies import Reason, find_dependencies
from dcp_planner.causes.path import account_for, critical_path
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.plan import file as plan_file
from dcp_planner.simulation.trace import EVENT_KINDS
from dcp_planner.tables import Reduction

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


def test_the_path_of_two_devices_is_this_one(two_blocks):
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=1e-7, flops_per_s=1e9)
    plan = two_blocks(cluster)
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


def test_a_late_launch_of_a_run_is_found(two_blocks):
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=0, flops_per_s=1e9)
    plan = two_blocks(cluster)
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


PLANTED = [
    ("flops_per_s", 0.5, "attention forward"),
    ("backward_flops_per_s", 2.0, "attention backward"),
    ("kernel_launch_s", 8.0, "attention forward"),
    ("kernel_launch_s", 8.0, "attention backward"),
    ("copy_bytes_per_s", 0.05, "reductions"),
    ("pass_s", 3.0, "host"),
    ("host_message_s", 5.0, "host"),
    ("inter_bytes_per_s", 0.4, "messages between nodes, larger"),
    ("intra_bytes_per_s", 0.1, "messages inside nodes, up to 1 MiB"),
    ("inter_latency_s", 20.0, "messages between nodes, larger"),
]


@pytest.fixture(scope="module")
def plan():
    causal = Spec.from_text("mask m = causal").mask("m")
    forms = [causal.bind(Sample(length=n)) for n in (9_000, 5_000, 2_300, 30_000)]
    sparsity = cut_blocks(forms, 1024)
    config = PlanConfig(partitioner="native", budget="fast")
    # On a machine whose hosts do not run ahead every constant shows in the timeline.
    cluster = find_cluster("a100-p4de:2x4")
    cluster = replace(cluster, host_runs_ahead=False, kernel_launch_s=40e-6)
    return build_plan(sparsity, ModelShape(8, 2, 128, 2), cluster, config)


@pytest.mark.parametrize(("constant", "factor", "shown_by"), PLANTED)
def test_the_constant_that_was_changed_is_named_with_its_value(plan, constant, factor, shown_by):
    true = getattr(plan.cluster, constant) * factor
    run = as_recorded(simulate(replace(plan, cluster=replace(plan.cluster, **{constant: true}))))
    found = compare_with_run(plan, run)
    shown = {one.name: one for one in found.classes}[shown_by]
    assert shown.constant == constant
    assert shown.set_to == pytest.approx(true, rel=0.1)
    assert {one.constant for one in found.classes} == {None, constant}
    assert found.fitted_s == pytest.approx(found.measured_s, rel=0.03)


def test_a_run_as_predicted_needs_no_constant(plan):
    found = compare_with_run(plan, as_recorded(simulate(plan)))
    assert {one.constant for one in found.classes} == {None}
    assert found.cluster == plan.cluster
    assert found.predicted_s == found.fitted_s == pytest.approx(found.measured_s)
    pieces = {one.name: one.pieces for one in found.classes}
    assert sum(pieces[name] for name in pieces if "messages" in name) == len(plan.transfers)
    programs = chain(plan.programs("forward"), plan.programs("backward"))
    steps = [step for program in programs for step in program.instructions]
    assert pieces["reductions"] == sum(isinstance(step, Reduction) for step in steps)


def test_the_command_prints_the_constant_and_refuses_runs_of_other_plans(
    plan, tmp_path, monkeypatch
):
    file, trace = str(tmp_path / "a.dcpplan"), str(tmp_path / "run.dcpplan")
    true = plan.cluster.inter_bytes_per_s / 4
    slow = replace(plan, cluster=replace(plan.cluster, inter_bytes_per_s=true))
    write_plan(file, plan, [])
    write_plan(trace, plan, [as_recorded(simulate(slow))])
    asked = [file, "--measured", trace]
    read = []
    monkeypatch.setattr(plan_file, "read_plan", lambda path: read.append(path) or read_plan(path))
    printed = CliRunner().invoke(simulate_command, asked).stdout
    assert read == [file, trace]
    assert re.search(r"inter_bytes_per_s = 1\.\de\+09 .* in messages between nodes\n", printed)
    assert re.search(r" ms +[1-9]\.\d\d +inter_bytes_per_s", printed)
    measured = json.loads(CliRunner().invoke(simulate_command, [*asked, "--json"]).stdout)[
        "measured"
    ]
    assert measured["fitted_cluster"]["inter_bytes_per_s"] == pytest.approx(true, rel=0.1)
    write_plan(trace, slow, [as_recorded(simulate(slow))])
    assert "another plan" in str(CliRunner().invoke(simulate_command, asked).exception)
    assert "holds no run" in str(
        CliRunner().invoke(simulate_command, [file, "--measured", file]).exception
    )


def test_the_trace_of_another_plan_is_refused(plan):
    empty = Trace.of_rows("measured", np.zeros((0, 10), np.int64), [])
    with pytest.raises(PlanError, match="no whole direction"):
        compare_with_run(plan, empty)
