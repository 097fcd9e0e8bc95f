"""Combining slabs one by one and in arrays: the same pairs, the same slabs in the same order."""

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, dense_mask
from dcp_dsl.symbolic import region
from dcp_dsl.symbolic.shortcuts import sweep_few

TEXT = """
segment part = question[question_len] answer[answer_lens]*
segment doc = [doc_lens]*
token evict
"""
MASKS = (
    "causal and (k in question or same(answer))", "streaming(3, 7)", "sliding(5) per doc",
    "causal and q < k.evict and k in answer", "not (sliding(4) and k in question) and q <= k + 9",
    "(causal or same(doc)) and not same(answer)", "abs(q - k) <= 6 and sliding(9) or k < 2",
)  # fmt: skip


@pytest.mark.parametrize("text", MASKS)
def test_slabs_combined_one_by_one_equal_those_combined_in_arrays(text, monkeypatch):
    rng = np.random.default_rng(5)
    mask = Spec.from_text(TEXT).mask(text)
    for _ in range(12):
        answers, documents = rng.integers(1, 9, 3).tolist(), rng.integers(1, 12, 3).tolist()
        length = max(sum(answers), sum(documents)) + 4
        columns = {
            "question_len": length - sum(answers), "answer_lens": answers,
            "doc_lens": [*documents, length - sum(documents)],
            "evict": rng.integers(0, length + 1, length).tolist(),
        }  # fmt: skip
        sample = Sample({c: columns[c] for c in mask.columns}, length)
        digests = set()
        for few in (0, 4, 12, 1000):
            monkeypatch.setattr(region, "FEW", few)
            digests.add(mask.compile(sample).digest)
        assert len(digests) == 1, sample


@pytest.mark.parametrize(
    "text",
    ["q >= 3 and q < 9 and k >= 2 and k < 7", "q > k - 5 and 2 * q <= 3 * k and q < 2 * k + 4",
     "k <= q and q < k.evict", "k.evict < q and q - 6 <= k.evict",
     "q.evict <= k and k < 9 + q // 2", "-k <= 4 - q and -k >= 0 - q",
     "k // 3 >= q // 3 - 1 and k // 3 <= q.evict // 3",
     "max(q - 2 * k, 2 * k - q) <= 3", "q % 5 - k % 5 <= 1 and q % 5 - k % 5 >= 0 - 2"],
)  # fmt: skip
def test_bounds_from_both_sides_are_exact_joined_or_not(text):
    mask = Spec.from_text(TEXT).mask(text)
    evict = np.random.default_rng(7).integers(0, 26, 23).tolist()
    sample = Sample({"evict": evict} if mask.columns else {}, 23)
    seen = mask.compile(sample).tile(0, 23, 0, 23)
    np.testing.assert_array_equal(seen, dense_mask(mask, sample))
    assert 0 < seen.sum() < seen.size


@pytest.mark.parametrize(
    ("slab", "is_empty"),
    [((0, 4, 3, 3, 0, 0), True), ((4, 4, 3, 6, 0, 0), True), ((0, 4, 3, 4, 0, 0), False),
     ((0, 4, 3, 3, 0, 1), False), ((0, 4, 3, 6, 1, 0), False)],
)  # fmt: skip
def test_slabs_without_pairs_are_left_out(slab, is_empty):
    assert (sweep_few([slab], [1], [False, True]) == []) == is_empty
