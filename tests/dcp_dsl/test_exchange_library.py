"""Every mask of the standard library, in every format."""

import pytest

from dcp_dsl import ExchangeError, Spec, dense_mask, export_mask, import_mask
from dcp_dsl.checks.scope import library_names
from dcp_dsl.interchange import find_difference
from dcp_dsl.interchange.names import FORMATS, READABLE
from dcp_dsl.pictures.picture import preview_sample

ARGUMENTS = {"chunked": "chunked(5)", "local": "local(3)", "sliding": "sliding(4)"}
CROSS = ("cross", "flamingo", "nsa_compressed", "prefill")  # of two sequences: test_keys.py
CALLS = tuple(ARGUMENTS.get(name, name) for name in library_names() if name not in CROSS)
REFUSED = {
    ("dcp", "X302"): {
        "dilated",
        "eviction",
        "log_sparse",
        "qk_sparse",
        "rollout_tree",
        "tree",
    },  # bounded by key, striped, or on more runs of keys than it holds
    ("flashmask", "X301"): {"dilated", "log_sparse", "modality", "qk_sparse"},
}
"""What the formats cannot hold; everything else they do."""


@pytest.mark.parametrize("name", CALLS)
def test_library_masks_are_exported_and_come_back_the_same(name):
    mask = Spec.from_text("").mask(name)
    sample = preview_sample(mask)
    assert sample is not None
    form = mask.compile(sample)
    dense = export_mask(form, "dense")
    assert (dense.arrays["mask"] == dense_mask(mask, sample)).all()
    refused = set()
    for chosen in FORMATS:
        try:
            export = export_mask(form, chosen)
        except ExchangeError as error:
            refused.add((chosen, error.code))
            continue
        if chosen in READABLE:
            assert find_difference(import_mask(export), mask.bind(sample)) is None, chosen
    assert refused == {refusal for refusal, names in REFUSED.items() if name in names}
