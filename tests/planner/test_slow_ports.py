"""A network port that carries less: messages take longer, the search relieves its device."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl import Slabs
from dcp_dsl.cli import dcpm
from dcp_planner import (
    LANES,
    Cluster,
    ClusterError,
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    digest,
    find_cluster,
    predict,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.model.cluster_file import format_cluster, parse_cluster

SHAPE = ModelShape(8, 2, 128)
HEALTHY = find_cluster("a100-p4de:2x4")
SLOW = replace(HEALTHY, slow_ports=((3, 0.25),))


def batch() -> list[Slabs]:
    return [Slabs(n, [0], [n], [0], [1], [0], [1]) for n in (16_000, 6_000, 3_000)]


def test_bytes_take_longer_through_the_slower_of_both_ports() -> None:
    plan = build_plan(cut_blocks(batch(), 1024), SHAPE, HEALTHY, PlanConfig("static:zigzag"))
    took = []
    for cluster in (HEALTHY, SLOW):
        trace = simulate(replace(plan, cluster=replace(cluster, message_launch_s=0.0)))
        sends = np.flatnonzero(trace.lane == LANES.index("send"))
        took.append(np.zeros(len(plan.transfers)))
        took[-1][trace.transfer[sends]] = (trace.end_ns - trace.start_ns)[sends]
    source, target = plan.transfers.source, plan.transfers.target
    is_between = HEALTHY.node_of_device[source] != HEALTHY.node_of_device[target]
    is_slow = is_between & ((source == 3) | (target == 3))
    assert is_slow.any()
    assert (is_between & ~is_slow).any()
    assert took[1] == pytest.approx(np.where(is_slow, 4, 1) * took[0], rel=1e-3, abs=4)


def test_a_plan_made_for_it_is_faster_there_than_one_that_does_not_know() -> None:
    cut = cut_blocks(batch(), 1024)
    unaware, aware = (build_plan(cut, SHAPE, cluster) for cluster in (HEALTHY, SLOW))
    assert predict(aware).seconds < 0.97 * predict(replace(unaware, cluster=SLOW)).seconds


def test_files_keep_it(tmp_path) -> None:
    cut = cut_blocks(batch()[2:], 512)
    for cluster in (SLOW, replace(HEALTHY, port_sharing="fair")):
        plan = build_plan(cut, SHAPE, cluster)
        write_plan(tmp_path / "a.dcpplan", plan)
        found = read_plan(tmp_path / "a.dcpplan").plan
        assert found.cluster == cluster
        assert digest(found) == digest(plan)
        assert parse_cluster(format_cluster(cluster, {}), "x").cluster == cluster
    assert Cluster(1, 2, slow_ports=((1, 1),)).slow_ports == ()  # as fast as all


@pytest.mark.parametrize(
    "wrong", ["3", [[1]], [["a", 0.5]], [[9, 0.5]], [[1, 2.0]], [[1, 0]], [[1, 0.5], [1, 0.6]]]
)
def test_what_is_no_port_is_refused(wrong: object) -> None:
    with pytest.raises(ClusterError, match=r"slow_ports: expected pairs of a device, 0 to 7"):
        replace(HEALTHY, slow_ports=wrong)


@pytest.mark.parametrize(
    "config",
    [
        PlanConfig("kahypar"),
        PlanConfig("native", head_groups=2, budget="fast"),
        PlanConfig("static:heads"),
        PlanConfig(objective="bytes", budget="fast"),
    ],
    ids=["kahypar", "teams", "heads", "bytes"],
)
def test_every_way_to_place_takes_it(config: PlanConfig) -> None:
    plan = build_plan(cut_blocks(batch(), 2048), SHAPE, SLOW, config)
    validate(plan)
    assert plan.cluster.slow_ports == SLOW.slow_ports


def test_a_step_refuses_it_and_runs_without(tmp_path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"len": 3000}\n' * 8)
    (tmp_path / "a.dcpm").write_text("")
    for cluster, code in ((SLOW, 2), (HEALTHY, 0)):
        (tmp_path / "c.toml").write_text(format_cluster(cluster, {}))
        command = ["step", str(tmp_path / "a.dcpm"), "--dataset", str(tmp_path / "rows.jsonl"),
                   "--mask", "causal", "--mesh", "2x4", "--tokens", "4096",
                   "--cluster", str(tmp_path / "c.toml")]  # fmt: skip
        done = CliRunner().invoke(dcpm, command)
        assert done.exit_code == code, done.output
        assert ("expected nodes that are alike, got slow_ports" in done.output) == (code == 2)


def test_its_size_cannot_be_changed(tmp_path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text(format_cluster(SLOW, {}))
    with pytest.raises(ClusterError, match="names slow ports by device"):
        find_cluster(f"{file}:4x8")
    assert find_cluster(str(file)).slow_ports == SLOW.slow_ports
