"""Combining slabs one by one and in arrays: the same pairs, the same slabs in the same order."""

import numpy as np
import pytest

from dcp_dsl import Sample, Spec
from dcp_dsl.symbolic import region

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
    for _ in range(20):
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
