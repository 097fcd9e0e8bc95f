"""The examples of both READMEs run."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["dcp_dsl/README.md", "grammar/README.md"])
def test_the_examples_of_the_readme_run(name):
    flags = doctest.NORMALIZE_WHITESPACE
    results = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=flags)
    assert results.attempted > 0
    assert results.failed == 0
