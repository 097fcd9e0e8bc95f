"""Machines whose nodes, devices or networks are not equal."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import (
    Cluster,
    ClusterError,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    find_cluster,
    measure,
    validate,
    write_cluster,
)
from dcp_planner.baselines import groups_worth_trying
from dcp_planner.model.cluster_file import read_cluster
from dcp_planner.search.native import device_tree

SHAPE = ModelShape(4, 4, 64, 2)
CONFIG = PlanConfig(partitioner="native", budget="fast", compute_tolerance=0.01)
SEVEN_AND_EIGHT = Cluster(2, 8, devices=((1.0,) * 7, (1.0,) * 8))
SLOW = Cluster(2, 4, devices=((1, 1, 1, 0.8), (1, 1, 1, 1)))


@pytest.fixture(scope="module")
def sparsity(masks):
    return masks.pack([masks.causal(n) for n in (4096, 2048, 1024, 1024)], 64)


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


def test_the_border_between_unequal_nodes_is_where_bytes_cross(sparsity):
    plan = build_plan(sparsity, SHAPE, SEVEN_AND_EIGHT, CONFIG)
    table = plan.transfers
    forward = ~table.is_backward
    crosses = (table.source < 7) != (table.target < 7)
    expected = int(table.size_bytes[forward & crosses].sum())
    assert measure(plan).forward.inter_node_bytes == expected > 0


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


def test_a_message_across_rails_or_leaves_takes_the_spine():
    cluster = Cluster(
        4, 2, intra_bytes_per_s=8e9, inter_bytes_per_s=4e9, rails=2, nodes_per_leaf=2,
        spine_bytes_per_s=1e9,
    )  # fmt: skip
    target = np.arange(8)
    # From device 0: itself, its node, the same rail next door, the other rail, other leaves.
    expected = [0, 0, 1, 2, 2, 2, 2, 2]
    assert cluster.link_class(np.zeros(8, np.int64), target).tolist() == expected
    assert [link.bytes_per_s for link in cluster.links] == [8e9, 4e9, 1e9]


TEXT = """nodes = 2
flops_per_s = 1e12
intra_bytes_per_s = 2e9
inter_bytes_per_s = 1e9
latency_s = 1e-6
memory_bytes = 1_000_000
devices = [[1, 1, 1], [1, 0.8]]
"""


def test_a_file_lists_devices_instead_of_counting_them(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(TEXT.replace("nodes = 2\n", ""))
    found = read_cluster(path).cluster
    assert found.devices == ((1, 1, 1), (1, 0.8))
    assert (found.nodes, found.devices_per_node, found.num_devices) == (2, 3, 5)
    write_cluster(tmp_path / "d.toml", found, {})
    assert read_cluster(tmp_path / "d.toml").cluster == found
    with pytest.raises(ClusterError, match="its size cannot be changed"):
        find_cluster(f"{path}:2x3")


def test_a_cluster_may_be_json(tmp_path):
    values = {**replace(SLOW, name="c").to_json(), "sources": {"flops_per_s": "measured by hand"}}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values))
    assert find_cluster(str(path)) == replace(SLOW, name="c")
    path.write_text("[1]")
    with pytest.raises(ClusterError, match="expected a JSON object"):
        read_cluster(path)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("3", "expected for each node a list"),
        ("[[1], [1], [1]]", "has 3 nodes of at most 1 devices"),
    ],
)
def test_bad_devices_are_refused_by_line(tmp_path, new, message):
    path = tmp_path / "c.toml"
    path.write_text(TEXT.replace("[[1, 1, 1], [1, 0.8]]", new))
    with pytest.raises(ClusterError, match=f":7: Cluster.devices: {message}"):
        read_cluster(path)
