"""A `mask_mod` read back is the mask, and where it differs the smallest sample says so."""

import numpy as np
import pytest
import torch

from dcp_dsl import ExchangeError, Sample, Spec, dense_mask
from dcp_runtime import check_mask_mod, flex_mask_mod, import_mask_mod

SPEC = Spec.from_text("segment d = [lens]*  segment odd = flags(is_odd)")
MASKS = ("causal", "causal per d", "streaming(2, 5)", "causal and k in odd", "false", "full")


def sample_of(mask, length=70):
    columns = {"lens": [20, 1, 49], "is_odd": [i * i % 3 % 2 for i in range(length)]}
    return Sample({name: columns[name] for name in mask.columns}, length)


@pytest.mark.parametrize("call", MASKS)
def test_a_mask_written_as_a_mask_mod_is_read_back(call):
    mask = SPEC.mask(call)
    sample = sample_of(mask)
    found = import_mask_mod(flex_mask_mod(mask.bind(sample)), sample.length)
    assert np.array_equal(found.tile(0, 70, 0, 70), dense_mask(mask, sample))
    assert check_mask_mod(mask, lambda s: flex_mask_mod(mask.bind(s)), [sample]) is None


def test_chunks_of_rows_make_the_whole_mask(monkeypatch):
    monkeypatch.setattr("dcp_runtime.adapters.flex_mask.ROWS_AT_ONCE", 2)
    found = import_mask_mod(lambda b, h, q, k: (q >= k) & (k != 1), 8)
    assert np.array_equal(found.tile(0, 8, 0, 8), np.tril(np.ones((8, 8))) * (np.arange(8) != 1))


def test_batch_and_head_choose_the_mask():
    found = import_mask_mod(lambda b, h, q, k: (q >= k) & (k >= b + h), 4, batch=1, head=2)
    assert found.num_pairs == 1


def test_documents_that_are_off_by_one_are_found_on_the_shortest_sample():
    def packed(sample):
        ends = torch.tensor(np.cumsum(sample.columns["lens"]))

        def mask_mod(b, h, q, k):
            return (q >= k) & (torch.bucketize(q, ends) == torch.bucketize(k, ends))

        return mask_mod  # right=True is missing: a document begins one token late

    samples = [Sample({"lens": lens}, sum(lens)) for lens in ([5, 3], [9], [2, 2], [1])]
    found = check_mask_mod(SPEC.mask("causal per d"), packed, samples)
    assert found.sample.columns["lens"] == [2, 2]
    assert (found.query, found.key, found.is_seen, found.pairs) == (2, 0, True, 3)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ExchangeError, match=r"needs the columns \['lens'\].* got none"):
        check_mask_mod(SPEC.mask("same(d)"), lambda s: None)
    with pytest.raises(ExchangeError, match="at most 32_768 tokens"):
        import_mask_mod(lambda b, h, q, k: q >= k, 2**15 + 1)
