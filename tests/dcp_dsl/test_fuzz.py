"""Whatever is typed ends in a checked text or in diagnostics, never in another exception.

Three kinds of texts: soups of words of the language, specs with some words changed, and arbitrary
characters. Each is checked whole: syntax, names, proofs, tests of claims, lints.
"""

import random

import pytest
from fuzz_texts import assert_ends_well, mutated, soup
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("write", [soup, mutated])
def test_soups_of_words_and_specs_with_changed_words_end_in_diagnostics(write, seed):
    rng = random.Random(seed)
    for _ in range(100):
        assert_ends_well(write(rng))


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_arbitrary_characters_end_in_diagnostics(text):
    assert_ends_well(text)
    assert_ends_well(f"mask a = {text}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(50))
def test_a_thousand_more_texts_end_in_diagnostics(seed):
    rng = random.Random(10_000 + seed)
    for _ in range(500):
        assert_ends_well(soup(rng))
        assert_ends_well(mutated(rng))
