"""The pages of the language: every example checks as it says, every Python example runs."""

import doctest
import re
from itertools import product
from pathlib import Path

import pytest
from numpy.testing import assert_array_equal
from second_oracle import dense

from dcp_dsl import Spec, SpecError, check
from dcp_dsl.syntax.tokens import STATEMENT_KEYWORDS

FOLDER = Path(__file__).parents[2] / "docs" / "language"
PAGES = sorted(FOLDER.glob("*.md"))
BLOCK = re.compile(r"^```dcpm([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples():
    for page in PAGES:
        for number, (options, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            codes = options.strip().removeprefix("finds=").split(",") if options.strip() else []
            yield pytest.param(text, codes, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("text", "codes"), list(examples()))
def test_an_example_finds_exactly_what_its_page_says(text, codes):
    assert [d.code for d in check(text)] == codes, [d.render() for d in check(text)]


def masks_on_samples():
    for text, codes in (parameters.values for parameters in examples()):
        spec = Spec.from_text(text) if not codes else Spec.from_text("")
        for mask, sample in product(spec.masks, spec.samples):
            try:
                yield text, mask, spec.sample(sample), spec.mask(mask)
            except SpecError as error:
                if [d.code for d in error.diagnostics] != ["E106"]:  # a parameter without a value
                    raise


def test_masks_of_the_pages_on_their_samples_equal_the_second_oracle():
    compared = 0
    for text, name, sample, mask in masks_on_samples():
        form = mask.compile(sample, may_cross=True)
        expected = dense(text, dict(sample.columns), form.num_tokens, mask=name)
        assert_array_equal(form.tile(0, len(expected), 0, len(expected[0])), expected)
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_python_on_a_page_runs(page):
    text = page.read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_every_statement_and_every_page_is_listed():
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = " ".join(re.findall(r"^\| (.*)$", index, re.MULTILINE))
    assert [word for word in STATEMENT_KEYWORDS - {"dcpm"} if f"`{word} " not in listed] == []
    names = {page.name for page in PAGES} - {"README.md"}
    assert [name for name in names if f"({name})" not in index] == []
