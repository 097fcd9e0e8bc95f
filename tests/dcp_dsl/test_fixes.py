"""`dcpm check --fix`, `--diff` and the formats for other tools."""

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


def fake(start, end, text, code="E004", name="<text>"):
    fix = Fix("mend", (Edit(start, end, text),))
    return make_diagnostic(code, "bad", "x" * 20, Span(start, end), name=name, fix=fix)


def test_a_file_that_fix_cannot_write_is_named_and_stays(tmp_path, monkeypatch):
    path = tmp_path / "bad.dcpm"
    path.write_text("mask a = casual")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only")))
    result = CliRunner().invoke(check, ["--fix", str(path)])
    assert (result.exit_code, path.read_text()) == (2, "mask a = casual")
    assert "cannot be written" in result.stderr


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


def test_github_lines_are_escaped():
    shown = make_diagnostic(
        "E101", "50 % of a\nb", "mask a = b", Span(9, 10), name="a,b:c.dcpm", hint="no"
    )
    assert format_github(shown) == (
        "::error title=dcpm E101,file=a%2Cb%3Ac.dcpm,line=1,endLine=1,col=10,endColumn=11"
        "::E101 50 %25 of a%0Ab%0Ano"
    )


@pytest.mark.parametrize(
    ("name", "uri"), [("x y.dcpm", "x%20y.dcpm"), ("/x y.dcpm", "file:///x%20y.dcpm")]
)
def test_sarif_fixes_name_the_place_they_replace(name, uri):
    text = "mask a = full\nmask b = casual\n"
    found = make_diagnostic(
        "E101", "m", text, Span(23, 29), name=name, fix=Fix("t", (Edit(23, 29, "causal"),))
    )
    log = format_sarif([found], {name: text}, "1")
    (result,) = log["runs"][0]["results"]
    change = result["fixes"][0]["artifactChanges"][0]
    assert change["artifactLocation"]["uri"] == uri
    assert change["replacements"] == [{
        "deletedRegion": {"startLine": 2, "startColumn": 10, "endLine": 2, "endColumn": 16},
        "insertedContent": {"text": "causal"},
    }]  # fmt: skip


PAGES = sorted((Path(__file__).parents[2] / "docs").glob("diagnostics-*.md"))
EXAMPLES = [
    text
    for page in PAGES
    for text in re.findall(r"```dcpm bad\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_what_is_mended_is_gone(text):
    mended = fix_text(text, "<text>", check_text)
    assert not {d.code for d in mended.fixed} & {d.code for d in mended.remaining}
    assert (mended.text == text) == (not mended.fixed)
