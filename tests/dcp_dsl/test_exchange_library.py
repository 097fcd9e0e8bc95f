"""Every mask of the standard library, in every format."""

import pytest

from dcp_dsl import ExchangeError, Spec, dense_mask, export_mask, import_mask
from dcp_dsl.checks.scope import library_names
from dcp_dsl.interchange import find_difference
from dcp_dsl.interchange.export import FORMATS
from dcp_dsl.interchange.formats import READERS
from dcp_dsl.pictures.picture import preview_sample

# What the formats cannot hold; everything else they do.
REFUSED = {
    "dcp": {"X302"},
    "flashmask": {"X301"},
}


ARGUMENTS = {"chunked": "chunked(5)", "local": "local(3)", "sliding": "sliding(4)"}
CROSS = ("cross", "flamingo", "prefill")  # of two sequences: test_keys.py
CALLS = tuple(ARGUMENTS.get(name, name) for name in library_names() if name not in CROSS)


@pytest.mark.parametrize("name", CALLS)
def test_library_masks_are_exported_and_come_back_the_same(name):
    mask = Spec.from_text("").mask(name)
    sample = preview_sample(mask)
    assert sample is not None
    form = mask.compile(sample)
    dense = export_mask(form, "dense")
    assert (dense.arrays["mask"] == dense_mask(mask, sample)).all()
    for chosen in FORMATS:
        try:
            export = export_mask(form, chosen)
        except ExchangeError as error:
            assert error.code in REFUSED.get(chosen, ()), chosen  # noqa: PT017
            continue
        if chosen in READERS:
            assert find_difference(import_mask(export), mask.bind(sample)) is None, chosen


def test_only_few_library_masks_are_refused_and_these_are_they():
    refused = {"dcp": set(), "flashmask": set()}
    for name in CALLS:
        mask = Spec.from_text("").mask(name)
        form = mask.compile(preview_sample(mask))
        for chosen, names in refused.items():
            try:
                export_mask(form, chosen)
            except ExchangeError:
                names.add(name)
    assert refused == {
        "dcp": {"dilated", "eviction", "qk_sparse", "tree"},  # bounded by key, or striped
        "flashmask": {"dilated", "modality"},
    }
