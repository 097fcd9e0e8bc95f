"""`exp2` and `log2`, of constants, of one token, of distances and of both tokens."""

import numpy as np
import pytest
from second_oracle import dense

from dcp_dsl import Sample, Spec, SpecError, check_report, dense_mask

MASKS = [
    "q == k or q - k == exp2(log2(q - k))",
    "log2(q - k + 1) < log2(len)",
    "not log2(k - q) == 1",
    "exp2(q - k) < 2 * (q - k) + 3",
    "log2(q) == log2(k + 1)",
    "log2(q * k) < 3",
    "k // exp2(log2(q // 2 - k // 3)) % 2 == 0",
    "(q - k == exp2(log2(q - k))) per doc",
    "(log2(q - k + 1) < log2(len)) per doc",
    "same(tile)",
]


@pytest.mark.parametrize("mask", MASKS)
def test_powers_mean_what_the_oracle_reads(mask):
    text = "segment doc = [lens]*  segment tile = every exp2(log2(5))\n"
    text += f"@ahead @partial mask a = {mask}"
    sample = Sample({"lens": [7, 1, 5]}, 13)
    expected = dense(text, sample.columns, 13)
    own = Spec.from_text(text).mask("a")
    np.testing.assert_array_equal(dense_mask(own, sample), expected)
    np.testing.assert_array_equal(own.compile(sample).tile(0, 13, 0, 13), expected)
    slabs = own.bind(sample)
    assert slabs.num_pairs == expected.sum()


def test_distances_that_are_powers_are_bands_at_every_length():
    form = Spec.from_text("").mask("log_sparse").compile(Sample(length=2**22))
    n = 2**22
    assert form.form == "slabs"
    assert form.num_pairs == n + sum(n - 2**i for i in range(22))


def test_a_power_that_no_token_changes_must_exist():
    mask = Spec.from_text("mask a = causal and q - k < log2(row.reach)").mask("a")
    assert mask.bind(Sample({"reach": 8}, 5)).num_pairs == 12
    for columns in ({"reach": 0}, {"reach": -1}):
        with pytest.raises(SpecError, match="`log2` of"):
            mask.bind(Sample(columns, 5))
        with pytest.raises(SpecError, match="`log2` of"):
            dense_mask(mask, Sample(columns, 5))


def test_a_logarithm_of_a_distance_is_proved_causal():
    text = "@partial mask a = log2(q - k) < 4  mask b = q == k or q - k == exp2(log2(q - k))"
    assert all(v.outcome == "proved" for v in check_report(text).verdicts)


def test_compressed_keys_end_before_their_queries():
    mask = Spec.from_text("").mask("nsa_compressed(4, 2)")
    found = dense_mask(mask, Sample({"num_blocks": 3}, 9))
    expected = [[2 * k + 3 <= q for k in range(3)] for q in range(9)]
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(SpecError, match="E126"):
        Spec.from_text("segment c = block[n]  @keys(c) @partial mask a = k <= q - 1").mask("a")
