import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import Slabs
from dcp_planner.model.cuts import count_pairs, find_overlap


def to_dense(slabs: Slabs) -> np.ndarray:
    dense = np.zeros((slabs.num_tokens, slabs.num_tokens), int)
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] += 1
    return dense


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
def test_pairs_of_any_slabs_match_the_dense_mask(data):
    tokens = data.draw(st.integers(1, 30))
    rows = data.draw(st.lists(one_slab(tokens), max_size=4))
    slabs = Slabs(tokens, *np.array(sorted(rows), np.int64).reshape(-1, 6).T)
    cuts = data.draw(st.sets(st.integers(1, max(1, tokens - 1)), max_size=6))
    bounds = np.array(sorted({0, tokens} | {c for c in cuts if c < tokens}))
    dense = to_dense(slabs)
    expected = {
        (i, j): int(dense[bounds[i] : bounds[i + 1], bounds[j] : bounds[j + 1]].sum())
        for i in range(len(bounds) - 1)
        for j in range(len(bounds) - 1)
    }
    q, kv, pairs = count_pairs(slabs, bounds)
    found = dict(zip(zip(q.tolist(), kv.tolist(), strict=True), pairs.tolist(), strict=True))
    assert found == {tile: n for tile, n in expected.items() if n}


@given(st.data())
def test_an_overlap_is_found_if_and_only_if_a_pair_is_covered_twice(data):
    tokens = data.draw(st.integers(1, 12))
    rows = data.draw(st.lists(one_slab(tokens), max_size=4))
    slabs = Slabs(tokens, *np.array(sorted(rows), np.int64).reshape(-1, 6).T)
    assert (find_overlap(slabs) is not None) == bool((to_dense(slabs) > 1).any())


def test_slabs_that_cross_after_their_first_row_overlap():
    # A diagonal from key 0 runs into the column of key 2 at row 2.
    slabs = Slabs(4, [0, 0], [4, 4], [0, 2], [1, 3], [1, 0], [1, 0])
    assert (to_dense(slabs) > 1).sum() == 1
    assert find_overlap(slabs) == 1
