"""Texts of every kind: wrong specs raise exactly their codes, and whatever is typed ends well."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from fuzz_texts import BAD, FIXTURES, assert_ends_well, mutated, soup
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl.commands.texts import check


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


# ---- wrong specs (`fixtures/bad.txt`), each with the codes it raises in its first line -----------


def expected(text):
    first, *_ = text.splitlines()
    return Counter(first.removeprefix("# expects:").split())


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixtures")
    shutil.copytree(FIXTURES / "specs", folder / "specs")  # one text wants a file outside its own
    (folder / "bad").mkdir()
    paths = [folder / "bad" / f"{name}.dcpm" for name in BAD]
    for path in paths:
        path.write_text(BAD[path.stem], encoding="utf-8")
    result = CliRunner().invoke(check, [*map(str, paths), "--json"])
    assert result.exit_code == 1
    found = {name: [] for name in BAD}
    for finding in json.loads(result.stdout)["findings"]:
        found[Path(finding["file"]).stem].append(finding)
    return found


@pytest.mark.parametrize("name", BAD)
def test_a_bad_spec_gives_exactly_its_codes_each_at_a_place_in_the_text(name, findings):
    text = BAD[name]
    assert Counter(f["code"] for f in findings[name]) == expected(text)
    lines = text.splitlines()
    for finding in findings[name]:
        assert finding["message"]
        assert 1 <= finding["line"] <= len(lines)
        assert 1 <= finding["column"] < finding["end_column"] <= len(lines[finding["line"] - 1]) + 2
