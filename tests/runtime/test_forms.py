"""Masks that are no slabs, run and cut: pieces of bits, ranges of few, truncated rows."""

import numpy as np
import pytest
import torch

from dcp_dsl import Sample, Spec, block_sparsity, dense_mask
from dcp_dsl.forms import PlacedForm
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, cut_blocks
from dcp_runtime.data.make_plans import truncate
from dcp_runtime.plans.tile_pieces import Cells, PieceKind, _rasterise

SPEC = Spec.from_text(
    """
token evict
token subtree_end
token first_key
mask dropped = causal and q < k.evict
mask branches = k <= q < k.subtree_end
mask dilated_window = sliding(60) and (q - k) % 3 == 0
mask strides = causal and (q - k < 8 or (q - k) % 8 == 0)
mask far_strides = (100 <= q - k < 104 or 0 <= q - k < 4) and (q - k) % 64 == 1
mask own_start = q.first_key <= k <= q
@partial mask products = causal and q * k % 7 < 3
"""
)
RNG = np.random.default_rng(0)
LENGTH = 150
COLUMNS = {
    "evict": (np.arange(LENGTH) + RNG.integers(1, 40, LENGTH)).tolist(),
    "subtree_end": [10 * (i // 10 + 1) for i in range(LENGTH)],
    "first_key": np.maximum(np.arange(LENGTH) - RNG.integers(0, 50, LENGTH), 0).tolist(),
}
FORMS = {
    "causal": "slabs", "dropped": "cols", "branches": "cols", "dilated_window": "strided",
    "strides": "strided", "far_strides": "strided", "own_start": "rows", "products": "tiles",
}  # fmt: skip


def bind(name):
    mask = SPEC.mask(name)
    sample = Sample({c: COLUMNS[c] for c in mask.columns}, LENGTH)
    return mask.compile(sample), dense_mask(mask, sample)


def test_the_masks_have_every_form():
    assert {name: bind(name)[0].form for name in FORMS} == FORMS


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (3, 1), (2, 2), (2, 4)])
def test_a_batch_of_every_form_is_exact(lab, ranks, groups):
    bound = [bind(name) for name in FORMS]
    sparsity = cut_blocks([form for form, _ in bound], 48)
    config = PlanConfig("native", head_groups=groups)
    plan = build_plan(sparsity, ModelShape(4, 2, 8, 4), Cluster(1, ranks), config)
    assert len(plan.forms) == len(FORMS) - 1
    dense = torch.block_diag(*[torch.tensor(mask) for _, mask in bound]).bool().numpy()
    qkv = lab.random_qkv(ranks, plan.num_tokens, 4, 2, 8, torch.float32)
    got, _ = lab.run_in_threads(plan, *qkv)
    lab.assert_as_exact_as_eager(got, *qkv, dense)


@pytest.mark.parametrize("name", FORMS)
def test_a_painted_rectangle_is_the_mask_in_it(name):
    form, dense = bind(name)
    placed = PlacedForm(form, 20, 30)
    for q0, q1, k0, k1 in [(0, 16, 0, 150), (64, 80, 32, 96), (140, 150, 140, 150), (3, 4, 90, 99)]:
        cells = Cells(*np.array([[0, 20 + q0, 20 + q1, 30 + k0, 30 + k1]]).T)
        found, own = _rasterise(cells, [placed]), dense[q0:q1, k0:k1]
        if not own.any():
            assert not len(found.tile)
            continue
        seen = np.zeros_like(own)
        low = found.kv_start[0] - 30 - k0
        high = low + found.kv_len[0]
        if found.kind[0] == PieceKind.BITS:
            rows = found.masks.bits.reshape(q1 - q0, -1)
            seen[:, low:high] = np.unpackbits(rows, axis=1, count=high - low)
        elif found.kind[0] == PieceKind.RANGES:
            for starts, ends in zip(found.masks.row_lo, found.masks.row_hi, strict=True):
                for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
                    seen[row, low + start : low + end] = True
        else:
            seen[:, low:high] = True
        assert np.array_equal(seen, own)
        assert found.pairs[0] == own.sum()
        assert own[:, [low, high - 1]].any(0).all()


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("keep", [0, 1, 7, 64, LENGTH])
def test_the_first_tokens_of_a_form_are_those_of_the_dense_mask(name, keep):
    form, dense = bind(name)
    short = truncate(form, keep)
    assert (short.form, short.num_tokens) == (FORMS[name], keep)
    assert np.array_equal(short.tile(0, keep, 0, keep), dense[:keep, :keep])
    assert block_sparsity([short], 16, 16).num_pairs == dense[:keep, :keep].sum()
