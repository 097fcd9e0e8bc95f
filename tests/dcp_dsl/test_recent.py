"""Masks bound to shapes seen lately: the same value, at any change of the sample another one."""

import pytest

from dcp_dsl import DatasetError, Sample, Spec, dense_mask
from dcp_dsl.core import binding

TEXT = """
segment doc = x[a]*
segment pair = (p[b] r[c]*)*
mask docs = causal and same(x)
mask pairs = causal and same(r) or k in p
"""


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(binding, "_kept", type(binding._kept)())


def test_an_equal_sample_gets_the_same_form():
    mask = Spec.from_text(TEXT).mask("docs")
    first = mask.compile(Sample({"a": [3, 4]}, 7))
    assert mask.compile(Sample({"a": [3, 4], "unread": [1]}, 7)) is first
    assert Spec.from_text(TEXT).mask("docs").compile(Sample({"a": [3, 4]}, 7)) is not first


def test_a_sample_that_differs_anywhere_gets_its_own_form():
    spec = Spec.from_text(TEXT)
    nested = [{"b": [1, 2], "c": [[1, 1], [2]]}, {"b": [1, 2], "c": [[1], [1, 2]]},
              {"b": [2, 1], "c": [[1, 1], [2]]}, {"b": [1, 2], "c": [[2], [2]]}]  # fmt: skip
    flat = [{"a": [3, 4]}, {"a": [4, 3]}, {"a": [7]}, {"a": [0, 7]}]
    for name, samples in (("docs", flat), ("pairs", nested)):
        mask = spec.mask(name)
        for columns in samples * 2:
            sample = Sample(columns, 7)
            assert (mask.compile(sample).tile(0, 7, 0, 7) == dense_mask(mask, sample)).all()


def test_a_length_that_does_not_fit_is_refused_though_its_columns_are_known():
    mask = Spec.from_text(TEXT).mask("docs")
    mask.compile(Sample({"a": [3, 4]}, 7))
    with pytest.raises(DatasetError, match="add up"):
        mask.compile(Sample({"a": [3, 4]}, 8))


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(binding, "MAX_KEPT", 3)
    monkeypatch.setattr(binding, "MAX_SLABS", 8)
    mask = Spec.from_text(TEXT).mask("docs")
    forms = [mask.compile(Sample({"a": [n]}, n)) for n in range(1, 7)]
    assert len(binding._kept) == 3
    assert mask.compile(Sample({"a": [6]}, 6)) is forms[-1]
    assert mask.compile(Sample({"a": [1]}, 1)) is not forms[0]
    many = Sample({"a": [2] * 9}, 18)
    assert mask.compile(many) is not mask.compile(many)
