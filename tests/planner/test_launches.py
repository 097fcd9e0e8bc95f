"""Launches priced by their CTAs, against a machine that runs them one by one."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, preset
from dcp_planner.model.cost_model import KernelWork

SHAPE = ModelShape(q_heads=2, kv_heads=1, head_dim=16)
FLOPS = 4 * 2 * 16  # of a pair, both heads
MACHINE = Cluster(1, 1, flops_per_s=1e9, kernel_tile=4, sms=3)


def price(tiles, tokens, cluster, *, is_backward=False):
    """Price one launch of all tiles, each (query block, key block, pairs)."""
    q, kv, pairs = (np.array(column) for column in zip(*tiles, strict=True))
    work = KernelWork.of(
        (q.astype(np.int32), kv.astype(np.int32), pairs.astype(np.int64)),
        np.array(tokens), SHAPE, cluster, is_backward=is_backward,
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
    rate = cluster.flops_per_s / cluster.sms / SHAPE.q_heads
    fixed = cluster.cta_keys * cluster.kernel_tile * 4 * SHAPE.head_dim / rate / SHAPE.q_heads
    lengths = []
    for block in dict.fromkeys(tile[0] for tile in tiles):
        rows = -(-tokens[block] // cluster.kernel_tile)
        keys = sum(
            -(-tokens[kv] // cluster.kernel_tile) * cluster.kernel_tile
            for q, kv, _ in tiles if q == block
        )  # fmt: skip
        pairs = cluster.kernel_tile * keys
        lengths += [pairs * 4 * SHAPE.head_dim / rate / SHAPE.q_heads + fixed] * (
            rows * SHAPE.q_heads
        )
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
    merge = 4 * 8 * SHAPE.q_heads * SHAPE.head_dim / 1e6
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
