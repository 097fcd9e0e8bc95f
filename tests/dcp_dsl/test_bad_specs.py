"""A folder of wrong specs, each with the codes it raises in its first line."""

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl.commands.texts import check

BAD = sorted((Path(__file__).parents[1] / "fixtures" / "bad").glob("*.dcpm"))


def expected(path):
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    return Counter(first.removeprefix("# expects:").split())


@pytest.fixture(scope="module")
def findings():
    result = CliRunner().invoke(check, [*map(str, BAD), "--json"])
    assert result.exit_code == 1
    found = {str(path): [] for path in BAD}
    for finding in json.loads(result.stdout)["findings"]:
        found[finding["file"]].append(finding)
    return found


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_a_bad_spec_gives_exactly_its_codes_each_at_a_place_in_the_text(path, findings):
    assert Counter(f["code"] for f in findings[str(path)]) == expected(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    for finding in findings[str(path)]:
        assert finding["message"]
        assert 1 <= finding["line"] <= len(lines)
        assert 1 <= finding["column"] < finding["end_column"] <= len(lines[finding["line"] - 1]) + 2
