"""The constant behind a run: runs are predictions of a cluster with one constant changed."""

import json
import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from click.testing import CliRunner
from recorded_runs import as_recorded

from dcp_dsl import Sample, Spec
from dcp_planner import (
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
from dcp_planner.causes.constants import compare_with_run
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.model.cluster import ModelShape
from dcp_planner.plan import file as plan_file
from dcp_planner.tables import Reduction

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
