"""Masks that are no slabs, run and cut; tokens that see the one before them, in every form."""

import numpy as np
import pytest
import torch
from dense_blocks import runs_of, slabs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import Sample, Slabs, Spec, block_sparsity, dense_mask
from dcp_dsl.forms import Parts, PlacedForm, RegionPart, Rows
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, cut_blocks
from dcp_runtime.data.make_plans import hidden_and_seen, sees_neighbours, truncate
from dcp_runtime.plans.tile_pieces import Cells, PieceKind, _rasterise

FORMS_SPEC = Spec.from_text(
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
FORM_OF = {
    "causal": "slabs", "dropped": "cols", "branches": "cols", "dilated_window": "strided",
    "strides": "strided", "far_strides": "strided", "own_start": "rows", "products": "tiles",
}  # fmt: skip


def bind(name):
    mask = FORMS_SPEC.mask(name)
    sample = Sample({c: COLUMNS[c] for c in mask.columns}, LENGTH)
    return mask.compile(sample), dense_mask(mask, sample)


def test_the_masks_have_every_form():
    assert {name: bind(name)[0].form for name in FORM_OF} == FORM_OF


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (3, 1), (2, 2), (2, 4)])
def test_a_batch_of_every_form_is_exact(lab, ranks, groups):
    bound = [bind(name) for name in FORM_OF]
    sparsity = cut_blocks([form for form, _ in bound], 48)
    config = PlanConfig("native", head_groups=groups)
    plan = build_plan(sparsity, ModelShape(4, 2, 8, 4), Cluster(1, ranks), config)
    assert len(plan.forms) == len(FORM_OF) - 1
    dense = torch.block_diag(*[torch.tensor(mask) for _, mask in bound]).bool().numpy()
    lab.check_plan(plan, dense, ranks)


@pytest.mark.parametrize("name", FORM_OF)
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


@pytest.mark.parametrize("name", FORM_OF)
@pytest.mark.parametrize("keep", [0, 1, 7, 64, LENGTH])
def test_the_first_tokens_of_a_form_are_those_of_the_dense_mask(name, keep):
    form, dense = bind(name)
    short = truncate(form, keep)
    assert (short.form, short.num_tokens) == (FORM_OF[name], keep)
    assert np.array_equal(short.tile(0, keep, 0, keep), dense[:keep, :keep])
    assert block_sparsity([short], 16, 16).num_pairs == dense[:keep, :keep].sum()


N = 150  # more than two of the tiles that are looked at together
SPEC = Spec.from_text("""
segment doc = ids(doc_ids)
segment part = question[question_len] answer[answer_lens]*
token evict
mask band = causal and q - k < 7
mask shared = causal and (k in question or same(answer))
mask own = causal and same(doc)
@ahead mask whole = true
@ahead mask only_later = k >= q
mask far = causal and (k == q or q - k >= 2)
mask dilated = causal and (q - k) % 3 == 0
@partial mask comb = causal and (q - k) % 3 == 1
mask mixed = causal and ((q - k) % 3 == 0 or q - k < 2 and k > 10)
@partial mask cache = causal and q < k.evict
@partial mask product = causal and q * q % 7 > k % 5
""")
FORMS = {"cache": "cols", "dilated": "strided", "comb": "strided", "mixed": "strided"}


def sample_of(mask):
    rng = np.random.default_rng(0)
    columns = {
        "doc_ids": rng.integers(0, 4, N).tolist(),
        "question_len": 20,
        "answer_lens": [1, 40, 1, 1, 47, 40],
        "evict": (np.arange(N) + rng.integers(1, 30, N)).tolist(),
    }
    return Sample({name: columns[name] for name in mask.columns}, N)


def previous_of(dense):
    """Ask token by token if it sees the one before it."""
    return [q > 0 and bool(dense[q][q - 1]) for q in range(len(dense))]


def following_of(dense):
    """Ask token by token if it sees the next one."""
    return [q + 1 < len(dense) and bool(dense[q][q + 1]) for q in range(len(dense))]


def neighbours_of(dense):
    return [previous_of(dense), following_of(dense)]


def found_of(form):
    return [found.tolist() for found in sees_neighbours(form)]


def rows_of(dense):
    ranges = runs_of(dense)
    ptr = [sum(q < row for q, _, _ in ranges) for row in range(len(dense) + 1)]
    return Rows(len(dense), ptr, [a for _, a, _ in ranges], [b for _, _, b in ranges])


@pytest.mark.parametrize("name", SPEC.masks)
def test_the_diagonal_of_a_compiled_mask_is_that_of_its_dense_matrix(name):
    mask = SPEC.mask(name)
    form = mask.compile(sample_of(mask))
    assert form.form == FORMS.get(name, "tiles" if name == "product" else "slabs")
    assert found_of(form) == neighbours_of(dense_mask(mask, sample_of(mask)))


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 9), seed=st.integers(0, 2**20), density=st.floats(0, 1))
def test_rows_and_columns_give_the_same_diagonal(size, seed, density):
    dense = np.random.default_rng(seed).random((size, size)) < density
    wanted = neighbours_of(dense)
    for form in (
        slabs_of(dense),
        rows_of(dense),
        Parts.of_keys(slabs_of(dense.T)),
        Parts.of_keys(rows_of(dense.T)),
    ):
        assert found_of(form) == wanted, form.form


@settings(max_examples=60, deadline=None)
@given(
    first=st.integers(0, 5), rows=st.integers(1, 6), key=st.integers(0, 9), keys=st.integers(1, 6),
    slopes=st.tuples(st.integers(0, 1), st.integers(0, 1)), period=st.integers(2, 4),
)  # fmt: skip
def test_slabs_of_every_slope_cross_the_diagonal_where_their_pairs_do(
    first, rows, key, keys, slopes, period
):
    n, (a, b) = 24, slopes
    keys += a * rows  # never empty
    slab = Slabs(n, [first], [first + rows], [key], [key + keys], [a], [b])
    dense = np.zeros((n, n), bool)
    for q in range(first, first + rows):
        dense[q, key + a * (q - first) : key + keys + b * (q - first)] = True
    assert found_of(slab) == neighbours_of(dense)
    assert found_of(Parts.of_keys(slab)) == neighbours_of(dense.T)
    strided = Parts(n, (RegionPart(slab, False, period, np.array([1])),))
    aside = following_of(dense) if period == 2 else [False] * n  # -1 % 2 is 1 as well
    assert found_of(strided) == [previous_of(dense), aside]
    others = Parts(n, (RegionPart(slab, False, period, np.array([0])),))
    assert not any(map(any, found_of(others)))


def test_a_batch_gives_runs_of_tokens_that_are_hidden_in_every_layer():
    def own(*lengths):
        dense = np.zeros((sum(lengths),) * 2, bool)
        at = 0
        for length in lengths:
            dense[at : at + length, at : at + length] = np.tri(length, dtype=bool)
            at += length
        return slabs_of(dense)

    assert hidden_and_seen([[own(3)], [own(1)], [own(2, 2)], [own(1, 1, 1, 2)]]) == (
        ((5, 6), (8, 11)), (),
    )  # fmt: skip
    assert hidden_and_seen([[own(2, 3, 1), own(1, 4, 1)], [own(1)]]) == (((4, 5),), ())
    assert hidden_and_seen([]) == ((), ())
    whole = slabs_of(np.ones((3, 3), bool))
    seen = ((1, 3), (7, 9))  # not the first of a sequence
    assert hidden_and_seen([[whole], [own(1)], [own(2)], [own(3), whole]]) == ((), seen)


def test_a_mask_of_tiles_is_never_painted_whole(monkeypatch):
    mask = SPEC.mask("product")
    form, asked = mask.compile(sample_of(mask)), []
    tile = Parts.tile
    monkeypatch.setattr(Parts, "tile", lambda *args: asked.append(args[1:]) or tile(*args))
    sees_neighbours(form)
    assert sum((q1 - q0) * (k1 - k0) for q0, q1, k0, k1 in asked) < N * N / 2
