"""Prices of tiles, launches, messages and reductions: by hand, and CTA by CTA."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, preset, simulate
from dcp_planner.model import tile_seconds
from dcp_planner.model.cluster import CONSTANTS_OF_WORK, OVERHEADS, RATES
from dcp_planner.model.cost_model import KernelWork, link_seconds, workload_seconds
from dcp_planner.model.problem import build_workload
from dcp_planner.simulation.trace import EVENT_KINDS

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


def test_a_node_sends_no_more_than_its_devices_shares_together():
    cluster = Cluster(2, 4, inter_bytes_per_s=1e9, devices_per_nic=8)
    assert cluster.link(is_inter=True).bytes_per_s == 4e9


LAUNCHES = {"kernel_launch_s": 4.5e-9}  # times are rounded up
SLOW_FIRST = {"devices": ((0.5, 1.0),)}


@pytest.mark.parametrize(("kind", "constants", "lasted"), [
    ("attention", {}, [40, 100, 40, 64, 100, 160]),  # 4 FLOPs a pair, 2.5 times those in backward
    ("attention", LAUNCHES, [45, 105, 45, 69, 105, 165]),
    ("attention", LAUNCHES | SLOW_FIRST, [85, 205, 45, 69, 105, 165]),  # launches are no slower
    ("reduction", {}, []),
    ("reduction", {"copy_bytes_per_s": 3e9}, [8]),  # 8 bytes: two reads and one write
    ("reduction", {"copy_bytes_per_s": 3e9} | LAUNCHES | SLOW_FIRST, [21]),
    ("send", {"message_launch_s": 2.5e-9}, [11, 11, 11]),
    ("copy", {"pass_s": 7e-9}, [7, 7, 7, 7]),
    ("copy", {"host_kernel_s": 2e-9}, [2, 4, 4, 4]),
    ("copy", {"host_message_s": 3e-9}, [3, 6, 3, 6]),
])  # fmt: skip
def test_pieces_of_work_last_these_nanoseconds(two_blocks, kind, constants, lasted):
    trace = simulate(two_blocks(Cluster(1, 2, 1e9, latency_s=0, flops_per_s=1e9, **constants)))
    events = trace.kind == EVENT_KINDS.index(kind)
    assert (trace.end_ns - trace.start_ns)[events].tolist() == lasted


def test_every_constant_of_time_explains_some_work():
    assert {*RATES, *OVERHEADS} == {name for of in CONSTANTS_OF_WORK.values() for name in of}


LAUNCH_SHAPE = ModelShape(q_heads=2, kv_heads=1, head_dim=16)
FLOPS = 4 * 2 * 16  # of a pair, both heads
MACHINE = Cluster(1, 1, flops_per_s=1e9, kernel_tile=4, sms=3)


def price(tiles, tokens, cluster, *, is_backward=False):
    """Price one launch of all tiles, each (query block, key block, pairs)."""
    q, kv, pairs = (np.array(column) for column in zip(*tiles, strict=True))
    work = KernelWork.of(
        (q.astype(np.int32), kv.astype(np.int32), pairs.astype(np.int64)),
        np.array(tokens), LAUNCH_SHAPE, cluster, is_backward=is_backward,
    )  # fmt: skip
    items, ptr = np.arange(len(q), dtype=np.int32), np.array([0, len(q)])
    return float(work.launch_seconds(np.array([0]), ptr, items)[0])


def run_one_by_one(lengths, sms):
    """Start each CTA on the multiprocessor that is free first."""
    free = [0.0] * sms
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def lengths_of(tiles, tokens, cluster):
    """Length of every CTA on one multiprocessor, full tiles only, in the order of the launch."""
    tile, lengths = cluster.kernel_tile, []
    for block in dict.fromkeys(q for q, _, _ in tiles):
        rows = -(-tokens[block] // tile)
        keys = sum(-(-tokens[kv] // tile) * tile for q, kv, _ in tiles if q == block)
        flops = 4 * LAUNCH_SHAPE.head_dim * tile * (keys + cluster.cta_keys)
        seconds = flops / (cluster.flops_per_s / cluster.sms)
        lengths += [seconds] * (rows * LAUNCH_SHAPE.q_heads)
    return lengths


def full(pairs_of, tokens):
    return [(q, kv, tokens[q] * tokens[kv]) for q, kv in pairs_of]


@given(
    tokens=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    chosen=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20),
    sms=st.integers(2, 9),
    keys=st.integers(0, 20),
)
def test_a_launch_takes_as_long_as_its_ctas_one_by_one(tokens, chosen, sms, keys):
    pairs_of = sorted((q % len(tokens), kv % len(tokens)) for q, kv in chosen)
    tiles = full(dict.fromkeys(pairs_of), tokens)
    cluster = replace(MACHINE, sms=sms, cta_keys=keys)
    expected = run_one_by_one(lengths_of(tiles, tokens, cluster), sms)
    assert price(tiles, tokens, cluster) == pytest.approx(expected, rel=1e-9)


def test_waves_by_hand():
    # 2 heads x 2 row tiles = 4 CTAs on 3 multiprocessors: two waves, 1.5 times the even share.
    tiles = full([(0, 0)], [8])
    even = 64 * FLOPS / 1e9
    assert price(tiles, [8], replace(MACHINE, sms=1)) == pytest.approx(even)
    assert price(tiles, [8], MACHINE) == pytest.approx(even * 1.5)
    assert price(tiles, [8], replace(MACHINE, kernel_schedule="persistent")) == pytest.approx(even)
    assert price(tiles, [8], replace(MACHINE, sms=8)) == pytest.approx(even * 2)  # four are idle


def test_split_keys_keep_everybody_at_work_and_pay_a_merge():
    tokens, tiles = [4, 4, 4], full([(0, 0), (0, 1), (0, 2)], [4, 4, 4])  # 2 CTAs
    listed = price(tiles, tokens, replace(MACHINE, sms=4))
    split = replace(MACHINE, sms=4, kernel_schedule="split", copy_bytes_per_s=1e6)
    merge = 4 * 8 * LAUNCH_SHAPE.q_heads * LAUNCH_SHAPE.head_dim / 1e6
    assert price(tiles, tokens, split) == pytest.approx(listed / 2 + merge)


def test_backward_is_a_kernel_of_rows_and_a_kernel_of_keys():
    # One row block of 2 CTAs, three key blocks of 2 CTAs each, on 6 multiprocessors.
    tokens, tiles = [4, 4, 4], full([(0, 0), (0, 1), (0, 2)], [4, 4, 4])
    cluster = replace(MACHINE, sms=6)
    even = 48 * FLOPS * 2.5 / 1e9
    expected = even * (3 / 7 * 3 + 4 / 7)
    assert price(tiles, tokens, cluster, is_backward=True) == pytest.approx(expected)


@pytest.mark.parametrize(("tokens", "measured"), [(1024, 511), (4096, 690), (16_384, 690)])
def test_the_h200_reproduces_what_was_published_within_a_tenth(tokens, measured):
    """TFLOP/s of one causal batch of 16,384 tokens, as benchmarks count them."""
    cluster = replace(preset("h200-dgx"), kernel_schedule="persistent")
    shape, count = ModelShape(16, 16, 128), 16_384 // tokens
    blocks = np.arange(count, dtype=np.int32)
    pairs = np.full(count, tokens * (tokens + 1) // 2)
    work = KernelWork.of(
        (blocks, blocks, pairs), np.full(count, tokens), shape, cluster, is_backward=False
    )
    seconds = work.launch_seconds(np.array([0]), np.array([0, count]), blocks)[0]
    found = 4 * 128 * 16 * count * tokens**2 / 2 / seconds / 1e12
    assert found == pytest.approx(measured, rel=0.1)
