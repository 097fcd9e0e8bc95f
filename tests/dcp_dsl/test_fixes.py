"""`dcpm check --fix`, `--diff` and the formats for other tools."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl import check as check_text
from dcp_dsl.commands.texts import check
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostic_formats import format_github, format_sarif
from dcp_dsl.syntax.diagnostics import (
    MAX_PASSES,
    Diagnostic,
    Edit,
    Fix,
    apply_edits,
    choose_fixes,
    fix_text,
    make_diagnostic,
)

BAD = "mask a = casual and q = k  # ünï\nmask b = a & full\nmask c = a and unheard_of\n"
FIXED = "mask a = causal and q == k  # ünï\nmask b = a and full\nmask c = a and unheard_of\n"


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "bad.dcpm"
    path.write_text(BAD)
    runner = CliRunner()
    return (lambda *a, **more: runner.invoke(check, [*map(str, a)], **more)), path


def fake(start, end, text, code="E004", name="<text>"):
    fix = Fix("mend", (Edit(start, end, text),))
    return make_diagnostic(code, "bad", "x" * 20, Span(start, end), name=name, fix=fix)


def test_fix_mends_what_is_certain_and_reports_the_rest(run):
    invoke, path = run
    result = invoke("--fix", path, "--output-format", "concise")
    assert path.read_text() == FIXED
    assert result.stdout == f"{path}:3:16: E101 unknown name `unheard_of`\n"
    assert "1 error, 0 warnings, 3 fixed" in result.stderr
    assert result.exit_code == 1


def test_diff_shows_the_changes_and_writes_nothing(run):
    invoke, path = run
    result = invoke("--diff", path)
    assert path.read_text() == BAD
    assert "\n-mask b = a & full\n" in result.stdout
    assert "\n+mask b = a and full\n" in result.stdout
    assert (result.exit_code, "3 would be fixed" in result.stderr) == (1, True)
    path.write_text("mask a = causal\n")
    assert invoke("--diff", path).exit_code == 0


def test_fix_of_standard_input_goes_to_standard_output(run):
    invoke, _ = run
    result = invoke("--fix", "-", input=BAD)
    assert result.stdout == FIXED
    assert "unheard_of" in result.stderr


def test_fix_keeps_line_ends_and_names_a_file_it_cannot_write(run, monkeypatch):
    invoke, path = run
    path.write_bytes(b"mask a = casual\r\nmask b = a\r\n")
    assert invoke("--fix", path).exit_code == 0
    assert path.read_bytes() == b"mask a = causal\r\nmask b = a\r\n"
    path.write_text(BAD)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only")))
    result = invoke("--fix", path)
    assert (result.exit_code, path.read_text()) == (2, BAD)
    assert "cannot be written" in result.stderr


def test_json_says_what_was_fixed_and_how(run):
    invoke, path = run
    document = json.loads(invoke("--json", path).stdout)
    fixes = [f["fix"] for f in document["findings"] if f["fix"]]
    edits = [Edit(**edit) for fix in fixes for edit in fix["edits"]]
    assert apply_edits(BAD, edits).startswith("mask a = casual and q == k")
    document = json.loads(invoke("--json", "--fix", path).stdout)
    assert sorted(f["code"] for f in document["fixed"]) == ["E003", "E004", "E101"]
    assert [f["code"] for f in document["findings"]] == ["E101"]


def test_overlapping_fixes_wait_for_the_next_pass_and_other_files_are_left_alone():
    found = [fake(3, 6, "a"), fake(0, 4, "b"), fake(6, 7, "c"), fake(9, 9, "d", name="lib.dcpm")]
    assert [d.start for d in choose_fixes(found, "<text>")] == [0, 6]


def test_a_fix_that_mends_nothing_is_taken_back():
    def found(text: str, name: str) -> tuple[Diagnostic, ...]:
        return (fake(0, 1, text[0] * 2),)

    mended = fix_text("ab", "<text>", found)
    assert (mended.text, mended.fixed, len(mended.remaining)) == ("ab", (), 1)


def test_fixes_end_even_if_they_turn_in_circles():
    def found(text: str, name: str) -> tuple[Diagnostic, ...]:
        return (fake(0, 1, "ba"["ab".index(text[0])], code={"a": "E003", "b": "E004"}[text[0]]),)

    assert len(fix_text("a", "<text>", found).fixed) == MAX_PASSES


def test_all_mistakes_of_a_kind_are_mended_though_a_statement_tells_one_at_a_time():
    text = "mask a = q >= k & k > 3 & q < 9 | k == 0\nmask b = !causal & !a"
    mended = fix_text(text, "<text>", check_text)
    assert mended.text == (
        "mask a = q >= k and k > 3 and q < 9 or k == 0\nmask b = not causal and not a"
    )
    assert len(mended.fixed) == 6


def test_edits_apply_from_the_back():
    assert apply_edits("abcdef", [Edit(0, 1, "xyz"), Edit(4, 4, "-"), Edit(2, 3, "")]) == "xyzbd-ef"


# ---- GitHub and SARIF ----------------------------------------------------------------------------


def test_github_lines_are_escaped():
    shown = make_diagnostic(
        "E101", "50 % of a\nb", "mask a = b", Span(9, 10), name="a,b:c.dcpm", hint="no"
    )
    assert format_github(shown) == (
        "::error title=dcpm E101,file=a%2Cb%3Ac.dcpm,line=1,endLine=1,col=10,endColumn=11"
        "::E101 50 %25 of a%0Ab%0Ano"
    )


def test_github_format_prints_one_line_per_finding(run):
    invoke, path = run
    lines = invoke("--output-format", "github", path).stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error"] * len(check_text(BAD))
    assert len(lines) == 3


def test_sarif_holds_places_rules_and_fixes(run):
    invoke, path = run
    log = json.loads(invoke("--output-format", "sarif", path).stdout)
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    (only,) = log["runs"]
    rules = only["tool"]["driver"]["rules"]
    for result in only["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        region = result["locations"][0]["physicalLocation"]["region"]
        line = BAD.splitlines()[region["startLine"] - 1]
        shown = line[region["startColumn"] - 1 : region["endColumn"] - 1]
        assert shown in ("=", "&", "unheard_of")
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == path.as_uri()
    assert all(rule["shortDescription"]["text"] and rule["help"]["markdown"] for rule in rules)


def test_sarif_fixes_name_the_place_they_replace():
    text = "mask a = full\nmask b = casual\n"
    found = make_diagnostic(
        "E101", "m", text, Span(23, 29), name="x y.dcpm", fix=Fix("t", (Edit(23, 29, "causal"),))
    )
    log = format_sarif([found], {"x y.dcpm": text}, "1")
    (result,) = log["runs"][0]["results"]
    change = result["fixes"][0]["artifactChanges"][0]
    assert change["artifactLocation"]["uri"] == "x%20y.dcpm"
    assert change["replacements"] == [{
        "deletedRegion": {"startLine": 2, "startColumn": 10, "endLine": 2, "endColumn": 16},
        "insertedContent": {"text": "causal"},
    }]  # fmt: skip


PAGE = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
EXAMPLES = re.findall(r"```dcpm bad\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_what_is_mended_is_gone(text):
    mended = fix_text(text, "<text>", check_text)
    assert not {d.code for d in mended.fixed} & {d.code for d in mended.remaining}
    assert (mended.text == text) == (not mended.fixed)
