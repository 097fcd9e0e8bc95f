import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, preset
from dcp_planner.model import tile_seconds
from dcp_planner.model.cost_model import link_seconds, reduction_seconds, workload_seconds
from dcp_planner.model.problem import build_workload

SHAPE = ModelShape(q_heads=2, kv_heads=1, head_dim=8, dtype_bytes=2)  # 64 FLOPs a pair


def visited_pairs(visible, tile):
    """Pairs of the kernel tiles that hold at least one visible pair, counted one by one."""
    rows, columns = visible.shape
    return sum(
        tile * tile
        for i in range(0, rows, tile)
        for j in range(0, columns, tile)
        if visible[i : i + tile, j : j + tile].any()
    )


def test_two_tiles_by_hand():
    cluster = Cluster(flops_per_s=1e9, backward_flops_per_s=5e8, kernel_tile=4)
    # Full, 8 x 8: 64 pairs x 64 FLOPs. Diagonal, 8 x 8: 36 visible and half a kernel tile a row.
    forward = tile_seconds([64, 36], [8, 8], [8, 8], SHAPE, cluster)
    assert forward.tolist() == pytest.approx([64 * 64 / 1e9, (36 + 16) * 64 / 1e9], rel=1e-12)
    backward = tile_seconds([64, 36], [8, 8], [8, 8], SHAPE, cluster, is_backward=True)
    assert backward.tolist() == pytest.approx((forward * 5).tolist(), rel=1e-12)


def test_the_border_of_a_wide_tile_is_paid_by_query_row():
    # 8 x 16 tokens, 40 visible pairs: half a kernel tile of 4 in vain for each of the 8 rows.
    (seconds,) = tile_seconds([40], [8], [16], SHAPE, Cluster(flops_per_s=64.0, kernel_tile=4))
    assert seconds == 40 + 8 * 2


@pytest.mark.parametrize(("tokens", "tile"), [(64, 16), (96, 32), (128, 8)])
def test_a_diagonal_costs_the_kernel_tiles_it_touches(tokens, tile):
    visible = np.tri(tokens, dtype=bool)
    counted = visited_pairs(visible, tile)
    cluster = Cluster(flops_per_s=64.0, kernel_tile=tile)
    (seconds,) = tile_seconds([visible.sum()], [tokens], [tokens], SHAPE, cluster)
    assert seconds == counted + tokens / 2  # the diagonal's own pairs count half


@given(
    q=st.integers(1, 300),
    kv=st.integers(1, 300),
    share=st.floats(0, 1),
    tile=st.sampled_from([1, 16, 64, 128]),
)
def test_a_tile_costs_its_visible_pairs_at_least_and_a_full_one_at_most(q, kv, share, tile):
    pairs = round(share * q * kv)
    cluster = Cluster(flops_per_s=64.0, kernel_tile=tile)
    (seconds,) = tile_seconds([pairs], [q], [kv], SHAPE, cluster)
    full = math.ceil(q / tile) * math.ceil(kv / tile) * tile * tile
    assert pairs <= seconds <= full
    assert (seconds == 0) == (pairs == 0)
    assert tile_seconds([q * kv], [q], [kv], SHAPE, cluster)[0] == (full if tile > 1 else q * kv)


def test_without_kernel_tiles_only_visible_pairs_cost(masks):
    workload = build_workload(masks.pack([masks.causal(40), masks.causal(25)], 16), SHAPE)
    cluster = Cluster(flops_per_s=1e12)
    assert workload_seconds(workload, cluster).sum() == pytest.approx(
        (40 * 41 + 25 * 26) / 2 * 64 / 1e12
    )
    np.testing.assert_allclose(
        workload_seconds(workload, cluster, is_backward=True),
        workload_seconds(workload, cluster) * 2.5,
        rtol=1e-15,
    )


def test_a_message_costs_launch_and_bytes_on_its_ports_and_latency_on_top():
    cluster = Cluster(
        2, 4, intra_bytes_per_s=1e9, inter_bytes_per_s=1e8, latency_s=1e-6, inter_latency_s=7e-6,
        devices_per_nic=2, message_launch_s=3e-6,
    )  # fmt: skip
    inside, between = cluster.link(is_inter=False), cluster.link(is_inter=True)
    assert inside.busy_s(1000.0) == pytest.approx(3e-6 + 1e-6)
    assert inside.latency_s == 1e-6
    assert between.busy_s(1000.0) == pytest.approx(3e-6 + 5e-6)  # two devices' share
    assert between.latency_s == 7e-6
    assert link_seconds([0, 1000], cluster, is_inter=True).tolist() == pytest.approx([3e-6, 8e-6])


@pytest.mark.parametrize(
    ("cluster", "ports"),
    [
        (Cluster(2, 3), [0, 1, 2, 3, 4, 5]),
        (Cluster(2, 3, devices_per_nic=2), [0, 0, 1, 2, 2, 3]),
        (Cluster(2, 3, devices_per_nic=8), [0, 0, 0, 1, 1, 1]),
    ],
)
def test_neighbouring_devices_share_a_network_port(cluster, ports):
    assert cluster.nic_of_device.tolist() == ports


def test_a_node_sends_no_more_than_its_devices_shares_together():
    cluster = Cluster(2, 4, inter_bytes_per_s=1e9, devices_per_nic=8)
    assert cluster.link(is_inter=True).bytes_per_s == 4e9


def test_a_reduction_reads_twice_and_writes_once():
    cluster = Cluster(copy_bytes_per_s=3e9)
    assert reduction_seconds([1000], cluster).tolist() == [1e-6]
    assert reduction_seconds([1000], Cluster()).tolist() == [0.0]


def test_presets_differ_where_their_machines_do():
    a100, h100, h200 = (preset(name, 4, 8) for name in ("a100-p4de", "h100-dgx", "h200-dgx"))
    assert a100.flops_per_s < h100.flops_per_s < h200.flops_per_s
    assert h100.memory_bytes < h200.memory_bytes
    assert a100.inter_bytes_per_s < h100.inter_bytes_per_s
