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


BIAS = torch.tensor([0, 0, 3])
BY_HEAD = {
    "a table": (lambda b, h, q, k: (q >= k) & (k >= BIAS[h]), (0, 2), {"heads": 3}),
    "a condition": (lambda b, h, q, k: (q >= k) | ((b == 1) & (k == 3)), (1, 0), {"batches": 2}),
    "both": (
        lambda b, h, q, k: torch.stack([q >= k, b + h < 3]).all(0), (1, 2),
        {"batches": 2, "heads": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HEAD)
def test_a_mask_mod_of_one_head_or_row_is_told_whichever_that_is(name):
    """A mask is one for all heads; a predicate that reads the head may have several."""
    mask_mod, (batch, head), counts = BY_HEAD[name]
    missing = "batches" if "batches" in counts else "heads"
    with pytest.raises(ExchangeError, match=f"reads the index of the .* give {missing}=, how many"):
        check_mask_mod(SPEC.mask("causal"), lambda s: mask_mod)
    found = check_mask_mod(SPEC.mask("causal"), lambda s: mask_mod, **counts)
    assert (found.batch, found.head, found.is_seen) == (batch, head, name == "a condition")
    # Those that do not differ are equal.
    fewer = dict.fromkeys(counts, 1) | ({"heads": 2} if name == "a table" else {})
    assert check_mask_mod(SPEC.mask("causal"), lambda s: mask_mod, **fewer) is None


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ExchangeError, match=r"needs the columns \['lens'\].* got none"):
        check_mask_mod(SPEC.mask("same(d)"), lambda s: None)
    with pytest.raises(ExchangeError, match="at most 32_768 tokens"):
        import_mask_mod(lambda b, h, q, k: q >= k, 2**15 + 1)
