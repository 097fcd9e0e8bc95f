from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.baselines import chunk_of_blocks, team_sizes, teams_of
from dcp_planner.model.problem import build_workload
from dcp_planner.search.partitioners import place


def owners(sparsity, devices, partitioner):
    workload = build_workload(sparsity, ModelShape())
    config = PlanConfig(partitioner=partitioner)
    return workload, place(workload, Cluster(1, devices), config)


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        ("static:contiguous", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("static:zigzag", [0, 1, 2, 3, 3, 2, 1, 0]),
        ("static:ring", [0, 1, 2, 3, 3, 2, 1, 0]),
        ("static:documents", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("static:grid", [0, 1, 2, 3, 0, 1, 2, 3]),
    ],
)
def test_eight_equal_blocks_lie_like_this(masks, partitioner, expected):
    _, found = owners(masks.pack([masks.causal(32)], 4), 4, partitioner)
    assert found.device_of_data.tolist() == expected


def test_a_tile_is_computed_by_the_owner_of_its_queries(masks):
    for partitioner in ("static:contiguous", "static:zigzag"):
        workload, found = owners(masks.pack([masks.causal(40)], 4), 3, partitioner)
        owner = found.device_of_data
        assert found.device_of_compute.tolist() == owner[workload.compute_q].tolist()


@given(st.data())
def test_every_chunk_border_is_the_nearest_block_border(strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    chunks = data.draw(st.integers(1, 12))
    chunk = chunk_of_blocks(workload, chunks)
    assert (np.diff(chunk) >= 0).all()
    bounds = [*workload.block_start.tolist(), int(workload.block_end[-1])]
    for number in range(1, chunks):
        ideal = number * bounds[-1] / chunks
        border = bounds[int((chunk < number).sum())]  # where the chunks below `number` end
        assert abs(border - ideal) == min(abs(b - ideal) for b in bounds)


def test_a_ring_cuts_every_sequence_and_documents_none(masks):
    sparsity = masks.pack([masks.causal(16), masks.causal(16)], 4)
    _, ring = owners(sparsity, 2, "static:ring")
    assert ring.device_of_data.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]
    _, documents = owners(sparsity, 2, "static:documents")
    assert documents.device_of_data.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_grid_keeps_rows_in_a_node_and_keys_on_a_device(masks):
    workload = build_workload(masks.pack([masks.causal(64)], 4), ModelShape())
    found = place(workload, Cluster(2, 4), PlanConfig(partitioner="static:grid"))
    node = found.device_of_compute // 4
    assert np.array_equal(node, found.device_of_data[workload.compute_q] // 4)
    assert np.array_equal(found.device_of_compute % 4, workload.compute_kv % 4)
    assert sorted(set(found.device_of_data.tolist())) == list(range(8))


TWO_RAILS = Cluster(4, 4, rails=2, spine_bytes_per_s=3e9, inter_bytes_per_s=5e9)


@pytest.mark.parametrize(
    "cluster",
    [
        TWO_RAILS, replace(TWO_RAILS, devices_per_nic=2), replace(TWO_RAILS, rails=3),
        replace(TWO_RAILS, rails=4, nodes_per_leaf=2), Cluster(4, 4, nodes_per_leaf=2),
        Cluster(4, 2, nodes_per_leaf=4, devices_per_nic=2, copy_bytes_per_s=1e12),
        Cluster(6, 2, nodes_per_leaf=3, backward_flops_per_s=1e11, spine_bytes_per_s=1e9),
    ],
)  # fmt: skip
def test_a_team_has_the_rates_and_the_ways_of_its_devices_together(cluster):
    for size in team_sizes(cluster):
        teams = teams_of(cluster, size)
        assert teams.num_devices == cluster.num_devices // size
        for name in ("flops_per_s", "backward_flops_per_s", "copy_bytes_per_s"):
            rate = getattr(cluster, name)
            assert getattr(teams, name) == (None if rate is None else rate * size)
        ports = [min(c.devices_per_nic, c.devices_per_node) for c in (cluster, teams)]
        for alone, together in zip(cluster.links[1:], teams.links[1:], strict=True):
            assert together.bytes_per_s / ports[1] == size * alone.bytes_per_s / ports[0]
        assert teams.links[0].bytes_per_s == size * cluster.links[0].bytes_per_s
        members = np.arange(cluster.num_devices).reshape(-1, size)
        for a, first in enumerate(members):
            for b, second in enumerate(members):
                (way,) = teams.link_class(np.array([a]), np.array([b]))
                ways = set(cluster.link_class(first, second).tolist())
                # Where teams lie across leaves, some of their devices' messages cross the spine.
                assert way in ways or teams.nodes_per_leaf == 1
