"""Cuts of batches into blocks and the length of blocks, against dense masks and predicted time."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from dense_blocks import causal_of
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import Slabs, block_sparsity
from dcp_dsl.forms import BlockKind, Parts
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    cut_stack,
    fastest_block_size,
    find_cluster,
    predict,
    validate,
)
from dcp_planner.model.cuts import choose_block_size, count_pairs, find_overlap, level_block_sizes
from dcp_planner.model.problem import build_workload
from dcp_planner.plan import block_size


def times_seen(slabs: Slabs) -> np.ndarray:
    """Count how often slabs cover each pair."""
    dense = np.zeros((slabs.num_tokens, slabs.num_tokens), int)
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] += 1
    return dense


@given(st.data(), st.integers(1, 12))
def test_cut_blocks_count_every_pair_of_the_dense_mask(strategies, masks, data, block):
    sparsity = data.draw(strategies.sparsities())
    cu = sparsity.batch.cu_seqlens.tolist()
    dense = times_seen(sparsity.slabs) > 0
    sequences = [masks.slabs(dense[a:b, a:b]) for a, b in pairwise(cu)]
    cut = cut_blocks(sequences, block)
    bounds = cut.q_bounds.tolist()
    assert bounds == cut.kv_bounds.tolist()
    assert set(cu) <= set(bounds)
    assert max(np.diff(bounds)) <= block
    found = dict(
        zip(
            zip(cut.row_idx.tolist(), cut.col_idx.tolist(), strict=True),
            zip(cut.pairs.tolist(), cut.kind.tolist(), strict=True),
            strict=True,
        )
    )
    expected = {}
    for i, (q0, q1) in enumerate(pairwise(bounds)):
        for j, (k0, k1) in enumerate(pairwise(bounds)):
            part = dense[q0:q1, k0:k1]
            if part.any():
                kind = BlockKind.FULL if part.all() else BlockKind.PARTIAL
                expected[i, j] = (int(part.sum()), int(kind))
    assert found == expected
    build_workload(cut, ModelShape())


def test_a_sink_becomes_a_block_of_its_own():
    length, sink, window = 4096, 64, 1024
    rows = [
        (0, sink + window, 0, 1, 0, 1),
        (sink + window, length, 0, sink, 0, 0),
        (sink + window, length, sink + 1, sink + window + 1, 1, 1),
    ]
    cut = cut_blocks([Slabs(length, *np.array(rows).T)], 512)
    assert cut.q_bounds[:2].tolist() == [0, sink]


def test_breakpoints_too_close_to_stronger_ones_are_left_out():
    # Rows 100 and 101 both begin something; 512 // 16 = 32 tokens have to lie between borders.
    slabs = Slabs(
        1024, [0, 100, 101], [100, 101, 1024], [0, 0, 0], [1, 50, 102], [0] * 3, [1, 0, 1]
    )
    bounds = cut_blocks([slabs], 512).q_bounds
    assert np.diff(bounds).min() >= 32


def test_a_block_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="block: expected at least 1 token, got 0"):
        cut_blocks([], 0)


def test_masks_that_are_no_slabs_are_planned_exactly():
    causal = causal_of(96)
    forms = [Parts.of_keys(causal), causal]  # keys see queries, then queries see keys
    for sparsity in (block_sparsity(forms, 16, 16), cut_blocks(forms, 16)):
        plan = build_plan(sparsity, ModelShape(), Cluster(2, 2), PlanConfig("static:zigzag"))
        validate(plan)
        assert plan.tiles.pairs.sum() == 96 * 97
        own = np.tri(96, dtype=bool)
        dense = np.block([[own.T, np.zeros_like(own)], [np.zeros_like(own), own]])
        assert np.array_equal(plan.mask_tile(0, 192, 0, 192), dense)


def test_few_tokens_on_thousands_of_devices_are_not_cut_into_single_pairs():
    sequences = [causal_of(1942)]
    cut = cut_blocks(sequences, choose_block_size(sequences, Cluster(1, 4096)))
    assert cut.num_blocks < 8000
    assert np.diff(cut.q_bounds).min() >= 15


@pytest.mark.parametrize("devices", [256, 4096])
def test_no_cut_is_tried_that_is_finer_than_the_shortest_block(monkeypatch, devices):
    tried = []

    def counted(slabs, bounds, forms):
        tried.append(int(np.diff(bounds).min()))
        return count_pairs(slabs, bounds, forms)

    monkeypatch.setattr("dcp_planner.model.cuts.count_pairs", counted)
    choose_block_size([causal_of(2048)], Cluster(1, devices))
    assert min(tried) == 16


@st.composite
def one_slab(draw: st.DrawFn, tokens: int) -> tuple[int, ...]:
    q0 = draw(st.integers(0, tokens - 1))
    a, b = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    k0 = draw(st.integers(0, tokens - 1))
    k1 = draw(st.integers(k0 + 1, tokens))
    rows = tokens - q0
    if b:
        rows = min(rows, tokens - k1 + 1)
    if a and not b:
        rows = min(rows, k1 - k0)
    return (q0, q0 + draw(st.integers(1, rows)), k0, k1, a, b)


@given(st.data())
def test_pairs_and_overlaps_of_any_slabs_are_those_of_the_dense_mask(data):
    tokens = data.draw(st.integers(1, 30))
    rows = data.draw(st.lists(one_slab(tokens), max_size=4))
    slabs = Slabs(tokens, *np.array(sorted(rows), np.int64).reshape(-1, 6).T)
    cuts = data.draw(st.sets(st.integers(1, max(1, tokens - 1)), max_size=6))
    bounds = np.array(sorted({0, tokens} | {c for c in cuts if c < tokens}))
    dense = times_seen(slabs)
    expected = {
        (i, j): int(dense[bounds[i] : bounds[i + 1], bounds[j] : bounds[j + 1]].sum())
        for i in range(len(bounds) - 1)
        for j in range(len(bounds) - 1)
    }
    q, kv, pairs = count_pairs(slabs, bounds)
    found = dict(zip(zip(q.tolist(), kv.tolist(), strict=True), pairs.tolist(), strict=True))
    assert found == {tile: n for tile, n in expected.items() if n}
    assert (find_overlap(slabs) is not None) == bool((dense > 1).any())


def test_slabs_that_cross_after_their_first_row_overlap():
    # A diagonal from key 0 runs into the column of key 2 at row 2.
    slabs = Slabs(4, [0, 0], [4, 4], [0, 2], [1, 3], [1, 0], [1, 0])
    assert (times_seen(slabs) > 1).sum() == 1
    assert find_overlap(slabs) == 1


SHAPE = ModelShape(8, 2, 128)
CLUSTER = find_cluster("h100-dgx:2x4")


BATCHES = {
    "one document": [causal_of(32_768)],
    "a long one and short ones": [*map(causal_of, (24_000, *range(300, 2_700, 300)))],
    "a prefix": [
        Slabs(16_000, [0], [16_000], [0], [4_000], [0], [0]), causal_of(8_000)
    ],
}  # fmt: skip


def test_a_chosen_length_packs_evenly_and_is_no_slower_than_the_usual_one() -> None:
    changed = 0
    for batch in BATCHES.values():
        usual = choose_block_size(batch, CLUSTER)
        block = fastest_block_size([batch], SHAPE, CLUSTER)
        assert block in {usual, *level_block_sizes(batch, CLUSTER, PlanConfig())}
        plan, other = (build_plan(cut_blocks(batch, b), SHAPE, CLUSTER) for b in (block, usual))
        assert predict(plan).seconds <= predict(other).seconds
        assert plan.warnings == ()
        tokens = np.bincount(plan.blocks.owner, plan.blocks.num_tokens, 8)
        assert tokens.max() <= 1.1 * tokens.mean()
        changed += block != usual
    assert changed, "some batch is faster with another length"


def test_dear_messages_make_blocks_longer() -> None:
    batch = BATCHES["a long one and short ones"]
    dear = replace(CLUSTER, message_launch_s=20e-6, inter_latency_s=60e-6)
    cheap = replace(CLUSTER, message_launch_s=0.0, latency_s=0.0, inter_latency_s=0.0)
    lengths = [fastest_block_size([batch], SHAPE, one) for one in (cheap, dear)]
    assert lengths[0] < lengths[1]


def test_one_long_document_is_no_slower_than_the_best_layout_in_blocks_of_the_usual_length() -> (
    None
):
    batch, cluster = [causal_of(1 << 20)], find_cluster("a100-p4de:4x8")
    config = PlanConfig(partials="input")
    ours = fastest_block_size([batch], SHAPE, cluster, config)
    plan = build_plan(cut_blocks(batch, ours), SHAPE, cluster, config)
    layout = cut_blocks(batch, choose_block_size(batch, cluster))
    zigzag = build_plan(layout, SHAPE, cluster, replace(config, partitioner="static:zigzag"))
    assert predict(plan).seconds <= predict(zigzag).seconds


@pytest.mark.parametrize(
    "config",
    [
        PlanConfig(budget="fast"),
        PlanConfig("static:zigzag"),
        PlanConfig("kahypar"),
        PlanConfig(objective="bytes"),
        PlanConfig(memory_limit_bytes=1 << 30),
    ],
)
def test_nothing_is_tried_where_time_alone_does_not_decide(config: PlanConfig) -> None:
    batch = BATCHES["a long one and short ones"]
    usual = choose_block_size(batch, CLUSTER, config)
    assert fastest_block_size([batch], SHAPE, CLUSTER, config) == usual


def test_large_and_settled_batches_take_the_usual_length(monkeypatch: pytest.MonkeyPatch) -> None:
    level = [causal_of(1_000)] * 64  # whole documents leave nothing to search for
    usual = choose_block_size(level, CLUSTER)

    def fail(*_: object, **__: object) -> None:
        pytest.fail("a length was tried")

    monkeypatch.setattr(block_size, "quick_seconds", fail)
    assert fastest_block_size([level], SHAPE, CLUSTER) == usual
    batch = BATCHES["one document"]
    monkeypatch.setattr(block_size, "MOST_WORK", 1)
    assert fastest_block_size([batch], SHAPE, CLUSTER) == choose_block_size(batch, CLUSTER)


def test_masks_of_a_stack_share_a_length_and_weigh_by_their_layers() -> None:
    batch = BATCHES["a long one and short ones"]
    masks = [batch, [causal_of(s.num_tokens) for s in batch]]
    block = fastest_block_size(masks, SHAPE, CLUSTER, layers=[1, 5])
    assert block == fastest_block_size([batch], SHAPE, CLUSTER)  # both masks are causal
    cuts = cut_stack(masks, block)
    assert np.array_equal(cuts[0].q_bounds, cuts[1].q_bounds)
