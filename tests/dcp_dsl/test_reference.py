"""`dense_mask` against an evaluator that reads the syntax tree and lays layouts out by itself."""

import importlib.util
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, SpecError, dense_mask

HERE = Path(__file__).parent


def load(name, path):
    """Import a module of this folder by its path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


written = load("random_masks_of_reference", HERE / "random_masks.py")
load("reference_oracle", HERE / "reference_oracle" / "__init__.py")
for part in ("layout", "numbers", "dense"):
    reference = load(f"reference_oracle.{part}", HERE / "reference_oracle" / f"{part}.py")

UNSUITED = {"E102", "E103", "E104", "E105", "E107", "E111", "E124"}  # units that do not fit
MASKS, SAMPLES = 150, 6


def outcome(run, *arguments):
    """Give what a call returns, or the kind of refusal."""
    try:
        return run(*arguments)
    except DatasetError:
        return "sample"
    except SpecError as error:
        return error.diagnostics[0].code


def random_masks(seed):
    """Give random masks whose units fit."""
    writer = written.MaskWriter(Random(seed))
    found = []
    while len(found) < MASKS:
        line = writer.statement("m")
        try:
            found.append((line, Spec.from_text(written.LAYOUTS + line).mask("m")))
        except SpecError as error:
            if {d.code for d in error.diagnostics} - UNSUITED:
                raise
    return found


@pytest.mark.parametrize("seed", range(2))
def test_random_masks_are_the_same_pair_by_pair(seed):
    rng = Random(seed)
    samples = [Sample(*written.write_sample(rng, longest)) for longest in (3, *[17] * SAMPLES)]
    compared = 0
    for line, mask in random_masks(seed):
        for sample in samples:
            expected = outcome(reference.dense_mask, mask, sample)
            got = outcome(dense_mask, mask, sample)
            if isinstance(expected, str) or isinstance(got, str):
                assert type(got) is type(expected), (line, sample, got, expected)
            else:
                assert np.array_equal(got, expected), (line, sample)
                compared += 1
    assert compared > MASKS * SAMPLES / 2
