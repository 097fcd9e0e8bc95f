"""Wrong specs (`fixtures/bad.txt`), each with the codes it raises in its first line."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from fuzz_texts import BAD, FIXTURES

from dcp_dsl.commands.texts import check


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
