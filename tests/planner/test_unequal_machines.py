"""Machines whose nodes, devices, networks or network ports are not equal."""

from dataclasses import replace

import numpy as np
import pytest
from command_runs import run
from dense_blocks import causal_of

from dcp_dsl import block_sparsity
from dcp_dsl.cli import dcpm
from dcp_planner import (
    LANES,
    Cluster,
    ClusterError,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    cut_blocks,
    digest,
    find_cluster,
    measure,
    predict,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.baselines import groups_worth_trying
from dcp_planner.model.cluster_file import format_cluster, parse_cluster
from dcp_planner.search.native import device_tree

SHAPE = ModelShape(4, 4, 64, 2)
CONFIG = PlanConfig(partitioner="native", budget="fast", compute_tolerance=0.01)
SEVEN_AND_EIGHT = Cluster(2, 8, devices=((1.0,) * 7, (1.0,) * 8))
SLOW = Cluster(2, 4, devices=((1, 1, 1, 0.8), (1, 1, 1, 1)))


@pytest.fixture(scope="module")
def sparsity():
    return block_sparsity([*map(causal_of, (4096, 2048, 1024, 1024))], 64, 64)


def work_of(plan):
    return np.bincount(plan.tiles.device, plan.tiles.pairs, plan.num_devices)


@pytest.mark.parametrize("slow", [0, 2, 6])
def test_a_device_at_four_fifths_gets_four_fifths_of_the_work(sparsity, slow):
    speeds = [1.0] * 8
    speeds[slow] = 0.8
    cluster = Cluster(2, 4, devices=(tuple(speeds[:4]), tuple(speeds[4:])))
    plan, blind = (build_plan(sparsity, SHAPE, c, CONFIG) for c in (cluster, Cluster(2, 4)))
    shares = [work_of(p)[slow] / np.delete(work_of(p), slow).mean() for p in (plan, blind)]
    assert shares[0] == pytest.approx(0.8, abs=0.08)  # others may have 1 % more
    assert shares[1] > 0.9  # a planner that does not know gives it as much as the others
    assert measure(plan).compute_imbalance <= 1.01 + 1e-9


def test_nodes_of_seven_and_eight_devices_are_all_used(sparsity):
    plan = build_plan(sparsity, SHAPE, SEVEN_AND_EIGHT, CONFIG)
    validate(plan)
    work = work_of(plan)
    assert len(work) == 15
    assert work.max() <= 1.011 * work.mean()
    tokens = np.bincount(plan.blocks.owner, plan.blocks.num_tokens, 15)
    assert tokens.max() <= 1.11 * tokens.mean()
    table = plan.transfers
    crosses = ~table.is_backward & ((table.source < 7) != (table.target < 7))
    assert measure(plan).forward.inter_node_bytes == table.size_bytes[crosses].sum() > 0


@pytest.mark.parametrize("partitioner", ["portfolio", "static:grid", "static:zigzag"])
def test_other_partitioners_plan_for_unequal_nodes(sparsity, partitioner):
    validate(build_plan(sparsity, SHAPE, SEVEN_AND_EIGHT, replace(CONFIG, partitioner=partitioner)))


def test_what_needs_equal_devices_says_so(sparsity):
    assert groups_worth_trying(SHAPE, SLOW) == ()
    for partitioner in ("static:heads", "static:heads_context"):
        with pytest.raises(PlanError, match="not equal"):
            build_plan(sparsity, SHAPE, SLOW, replace(CONFIG, partitioner=partitioner))


def test_the_tree_of_unequal_nodes_keeps_nodes_together():
    assert device_tree(Cluster(2, 3, devices=((1, 1), (1, 1, 1)))) == ((0, 1), (2, 3, 4))
    assert device_tree(Cluster(2, 2, devices=((1,), (1, 1)))) == (0, (1, 2))


BATCH = [*map(causal_of, (16_000, 6_000, 3_000))]
PORT_SHAPE = ModelShape(8, 2, 128)
HEALTHY = find_cluster("a100-p4de:2x4")
SLOW_PORT = replace(HEALTHY, slow_ports=((3, 0.25),))


def test_bytes_take_longer_through_the_slower_of_both_ports() -> None:
    plan = build_plan(cut_blocks(BATCH, 1024), PORT_SHAPE, HEALTHY, PlanConfig("static:zigzag"))
    took = []
    for cluster in (HEALTHY, SLOW_PORT):
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
    cut = cut_blocks(BATCH, 1024)
    unaware, aware = (build_plan(cut, PORT_SHAPE, cluster) for cluster in (HEALTHY, SLOW_PORT))
    assert predict(aware).seconds < 0.97 * predict(replace(unaware, cluster=SLOW_PORT)).seconds


def test_files_keep_it(tmp_path) -> None:
    cut = cut_blocks([causal_of(3_000)], 512)
    for cluster in (SLOW_PORT, replace(HEALTHY, port_sharing="fair")):
        plan = build_plan(cut, PORT_SHAPE, cluster)
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


def test_every_way_to_place_takes_it() -> None:
    for config in (
        PlanConfig("kahypar"), PlanConfig("native", head_groups=2, budget="fast"),
        PlanConfig("static:heads"), PlanConfig(objective="bytes", budget="fast"),
    ):  # fmt: skip
        plan = build_plan(cut_blocks(BATCH, 2048), PORT_SHAPE, SLOW_PORT, config)
        validate(plan)
        assert plan.cluster.slow_ports == SLOW_PORT.slow_ports


def test_a_step_refuses_it_and_runs_without(tmp_path) -> None:
    spec, rows, named = (tmp_path / name for name in ("a.dcpm", "rows.jsonl", "c.toml"))
    rows.write_text('{"len": 3000}\n' * 8)
    spec.write_text("")
    options = ("--mask", "causal", "--mesh", "2x4", "--tokens", "4096", "--cluster", named)
    for cluster, code in ((SLOW_PORT, 2), (HEALTHY, 0)):
        named.write_text(format_cluster(cluster, {}))
        done = run(dcpm, "step", spec, "--dataset", rows, *options)
        assert done.exit_code == code, done.output
        assert ("expected nodes that are alike, got slow_ports" in done.output) == (code == 2)


def test_its_size_cannot_be_changed(tmp_path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text(format_cluster(SLOW_PORT, {}))
    with pytest.raises(ClusterError, match="names slow ports by device"):
        find_cluster(f"{file}:4x8")
    assert find_cluster(str(file)).slow_ports == SLOW_PORT.slow_ports
