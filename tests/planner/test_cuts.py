"""Cuts of batches into blocks, against dense masks."""

from itertools import pairwise

import numpy as np
import pytest
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
    validate,
)
from dcp_planner.model.cuts import choose_block_size, count_pairs
from dcp_planner.model.problem import build_workload, loads_of, pack_largest_first


def dense_of(slabs):
    dense = np.zeros((slabs.num_tokens, slabs.num_tokens), bool)
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True
    return dense


@given(st.data(), st.integers(1, 12))
def test_cut_blocks_count_every_pair_of_the_dense_mask(strategies, masks, data, block):
    sparsity = data.draw(strategies.sparsities())
    cu = sparsity.batch.cu_seqlens.tolist()
    dense = dense_of(sparsity.slabs)
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


@pytest.mark.parametrize(
    "lengths", [[131_072], [65_536, 40_000, 20_000, 5_000, 500, 7], [1000] * 60]
)
def test_the_chosen_blocks_pack_within_the_token_tolerance(lengths):
    sequences = [Slabs(n, [0], [n], [0], [1], [0], [1]) for n in lengths]
    cluster = Cluster(4, 8)
    cut = cut_blocks(sequences, choose_block_size(sequences, cluster))
    tokens = np.diff(cut.q_bounds)
    load = loads_of(pack_largest_first(tokens, 32), tokens, 32)
    assert load.max() <= 1.1 * load.mean()
    assert len(tokens) / 32 >= 2
    assert cut.num_blocks <= 150 * 32


@pytest.mark.parametrize("lengths", [[], [1], [3, 1]])
def test_more_devices_than_tokens_get_blocks_of_one_token(lengths):
    sequences = [Slabs(n, [0], [n], [0], [1], [0], [1]) for n in lengths]
    block = choose_block_size(sequences, Cluster(2, 8))
    assert block == 1
    assert cut_blocks(sequences, block).q_bounds.tolist() == list(range(sum(lengths) + 1))


def test_a_block_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="block: expected at least 1 token, got 0"):
        cut_blocks([], 0)


def test_masks_that_are_no_slabs_are_planned_exactly():
    causal = Slabs(96, [0], [96], [0], [1], [0], [1])
    forms = [Parts.of_keys(causal), causal]  # keys see queries, then queries see keys
    for sparsity in (block_sparsity(forms, 16, 16), cut_blocks(forms, 16)):
        plan = build_plan(sparsity, ModelShape(), Cluster(2, 2), PlanConfig("static:zigzag"))
        validate(plan)
        assert plan.tiles.pairs.sum() == 96 * 97
        own = np.tri(96, dtype=bool)
        dense = np.block([[own.T, np.zeros_like(own)], [np.zeros_like(own), own]])
        assert np.array_equal(plan.mask_tile(0, 192, 0, 192), dense)


def test_few_tokens_on_thousands_of_devices_are_not_cut_into_single_pairs():
    sequences = [Slabs(1942, [0], [1942], [0], [1], [0], [1])]
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
    choose_block_size([Slabs(2048, [0], [2048], [0], [1], [0], [1])], Cluster(1, devices))
    assert min(tried) == 16
