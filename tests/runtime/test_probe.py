"""Planted errors of masks are found, named by layer and pair; right models raise no alarm."""

import numpy as np
import pytest
import torch
from planted_masks import COLUMNS, PLANTED, SPEC, TOKENS

from dcp_dsl import Sample, Spec
from dcp_runtime import probe

OFF = ~np.eye(TOKENS, dtype=bool)
QUICK = [
    "window one too narrow", "state crosses documents", "a layer's own code",
    "a kernel without gradients",
]  # fmt: skip


def found_in(planted):
    stack = Spec.from_text(f"{SPEC}stack s = {planted.text}").stack("s")
    torch.manual_seed(0)
    model = planted.model()
    row = Sample({name: COLUMNS[name] for name in stack.columns}, TOKENS)
    ids = torch.randint(50, (1, TOKENS))
    return probe(model, {"input_ids": ids}, stack, row, **planted.options)


def check(name):
    planted = PLANTED[name]
    report = found_in(planted)
    wrong = {layer.layer: layer for layer in report.layers if layer.first}
    assert wrong.keys() == planted.wrong.keys()
    assert report.first_wrong is wrong[min(wrong, key=lambda n: -1 if n is None else n)]
    for number, sees in planted.wrong.items():
        if planted.is_exact:
            assert np.array_equal(wrong[number].sees[OFF], sees[OFF]), f"layer {number}"
        else:
            assert wrong[number].leaks.any()
            assert not (wrong[number].sees & ~sees).any()


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_error_is_found_and_named(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANTED.keys() - set(QUICK)))
def test_every_planted_error_is_found_and_named(name):
    check(name)
