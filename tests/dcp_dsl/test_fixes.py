"""Fixes and hints: what they mend is gone, and other words change nothing else."""

import logging
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, DCPError, Spec, SpecError, check
from dcp_dsl.checks import findings
from dcp_dsl.commands.texts import check as check_command
from dcp_dsl.specs import spec
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostic_formats import format_github, format_sarif
from dcp_dsl.syntax.diagnostics import (
    MAX_PASSES,
    Diagnostic,
    Edit,
    Fix,
    Guess,
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
    result = CliRunner().invoke(check_command, ["--fix", str(path)])
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
    mended = fix_text(text, "<text>", check)
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
    mended = fix_text(text, "<text>", check)
    assert not {d.code for d in mended.fixed} & {d.code for d in mended.remaining}
    assert (mended.text == text) == (not mended.fixed)


# ---- habits of other languages -------------------------------------------------------------------


DOC = "segment doc = [doc_lens]*\n"
PARTS = "segment part = a[x] b[y] c[z]\n"
ROOT = Path(__file__).parents[2]
BAD = re.compile(r"```dcpm (?:bad|finds=\w+)\n(.*?)```", re.DOTALL)

# what was written; a word of the hint; what the person writes after reading it
HABITS = [
    ("mask a = sliding 128", "`sliding(128)`", "mask a = sliding(128)"),
    ("mask a = causal if q < 4 else full", "(c and a) or (not c and b)",
     "@ahead mask a = (q < 4 and causal) or (not q < 4 and full)"),
    ("mask a = lambda b, h, q, kv: q >= kv", "behind `lambda",
     "mask a = q >= k"),
    ("mask a = q is k or causal", "`==`", "mask a = q == k or causal"),
    ("mask a = causal and (q - k) mod 2 == 0", "`%`", "mask a = causal and (q - k) % 2 == 0"),
    ("@ahead mask a = True", "`true`", "@ahead mask a = true"),
    ("mask a = causal or False", "`false`", "mask a = causal or false"),
    ("mask a = causal and q != None", "no `None`", "mask a = causal"),
    (DOC + "mask a = causal and q.doc.pos < len(doc)", "`q.doc.len`",
     DOC + "mask a = causal and q.doc.pos < q.doc.len"),
    ("mask a = q == k or causal and q <> k", "`!=`", "mask a = q == k or causal and q != k"),
    ("segment part = question[n], answer[m]\nmask a = causal", "without commas",
     "segment part = question[n] answer[m]\nmask a = causal and (same(part) or k in answer)"),
    ("token chosen\nmask a = causal and (q == k or k // 64 in q.chosen)", "`token chosen[3]`",
     "token chosen[3]\nmask a = causal and (q == k or k // 64 in q.chosen)"),
    ("token chosen = [3, 4]\nmask a = causal", "`token name[3]`",
     "token chosen[2]\nmask a = causal and (q == k or k in q.chosen)"),
    ("stack s = 5 * sliding(4), causal", "`5 of sliding(4k)`", "stack s = 5 of sliding(4), causal"),
    (DOC + "mask a = per doc causal", "`causal per doc`", DOC + "mask a = causal per doc"),
    ("mask a = where b = every 4 causal and same(b)", "behind the mask",
     "mask a = causal and same(b) where b = every 4"),
    ("mask a = causal and (q == k or q.pos > 3)", "`q` is the position",
     "mask a = causal and (q == k or q > 3)"),
    ("// my mask\nmask a = causal", "`#`", "# my mask\nmask a = causal"),
    ("mask a = causal // note\nmask b = full", "`#`", "mask a = causal # note"),
    (DOC + "mask a = causal and doc(q) == doc(k)", "`same(doc)`",
     DOC + "mask a = causal and same(doc)"),
    (DOC + "mask a = causal and same(q.doc, k.doc)", "`same(doc)`",
     DOC + "mask a = causal and same(doc)"),
    ("segment doc = [3, 4, 5]\nmask a = causal and same(doc)", "`segment doc = [doc_lens]*`",
     DOC + "mask a = causal and same(doc)"),
    ("segment role = ids(roles, system, user)\nmask a = causal", "`as`",
     "segment role = ids(roles) as system, user\nmask a = causal and (q == k or k in user)"),
    ("mask a(flag: bool = 1) = causal and (flag or q == k)", "`true`",
     "mask a(flag: bool = true) = causal and (flag or q == k)"),
    ("mask a = causal within 4", "`causal and q - k < 4`", "mask a = causal and q - k < 4"),
    ("mask a = sliding(window_size = (4096, 0))", "`fa_window(",
     "mask a = fa_window(left = 4095, right = 0)"),
    ("mask a = sliding(window: 4)", "`window = ...`", "mask a = sliding(window = 4)"),
    ("segment src = [lens]*\nmask cross = @keys(src) k in src", "in front of `mask`",
     "segment src = [lens]*\n@keys(src) @partial mask cross = k in src"),
    ("segment s = sys[sys_len = 0] body[..]\nmask m = causal", "no default",
     "segment s = sys[sys_len] body[..]\nmask m = causal and (k in sys or same(body))"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word", "after"), HABITS)
def test_the_first_message_says_what_to_write_and_that_has_no_error(text, word, after):
    first = check(text)[0]
    assert word in first.hint
    assert [d.message for d in check(after) if d.severity == "error"] == []


def texts():
    yield from (text for text, _, _ in HABITS)
    for container in ("{%s}", "[%s]", "(%s)"):
        for items in ("a, b", "a, 3", "3, 4", "a, b, 4"):
            for word in ("in", "not in"):
                yield f"{PARTS}@ahead @partial mask m = k {word} {container % items}"
    yield from (
        "token t = = c", "sample s(a = b = 3)", "segment s = a[b = 2]*", "stack s = a = b",
        "check causal = full", 'for "x" having a = b use causal', "mask a = q - k = 4",
        "mask a(w: tokens = 4 = 5) = causal",
    )  # fmt: skip
    for page in sorted((ROOT / "docs").glob("diagnostics-*.md")):
        yield from BAD.findall(page.read_text("utf-8"))


@pytest.mark.parametrize("text", list(dict.fromkeys(texts())))
def test_every_fix_that_is_offered_mends_its_finding_and_breaks_nothing(text):
    before = check(text)
    for finding in before:
        if finding.fix is None:
            continue
        after = check(apply_edits(text, finding.fix.edits))
        assert (finding.code, finding.message, finding.start) not in {
            (d.code, d.message, d.start) for d in after
        }
        # errors of checks may come to light once the syntax is right; a fix makes none of syntax
        syntax = [d for d in after if d.code.startswith("E0")]
        assert len(syntax) <= len([d for d in before if d.code.startswith("E0")])
        if finding.code == "E026":
            assert [d.message for d in after if d.severity == "error"] == []


def test_a_refused_request_leaves_no_traceback_on_the_error_stream(caplog):
    from pygls.exceptions import JsonRpcInvalidParams

    from dcp_dsl.language_server.server import make_server

    make_server()
    logger = logging.getLogger("pygls.protocol.json_rpc")
    for error in (JsonRpcInvalidParams("no name stands here"), RuntimeError("a bug")):
        logger.error("Exception occurred for message", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError]


# ---- other words change nothing else -------------------------------------------------------------


TEXT = """segment doc = [doc_lens]*
mask near = q in dco
mask far = nothing_like_it
mask joined = and_masks(causal, same(doc))
@ahed mask ahead = casual(2)
mask typed(w: tokns) = true
sample tiny(doc_lens = [1, 2])
check near on tinny
"""
RIGHT = Spec.from_text("mask own = causal  sample odd(len = 3_000_000_000)", "own.dcpm")


def everything():
    """All that findings and refusals carry but words."""
    mended = fix_text(TEXT, "<text>", check)
    calls = {}
    for call in ("casual", "nothing_like_it", "and_masks(causal, full)", "same(dco)", "1 +"):
        with pytest.raises(SpecError) as caught:
            RIGHT.mask(call)
        hints = [d.hint for d in caught.value.diagnostics]
        calls[call] = ["own.dcpm: own" in hint for hint in hints], ["sliding" in h for h in hints]
    return {
        "found": [(d.code, d.start, d.end, d.fix) for d in check(TEXT)],
        "mended": (mended.text, [d.code for d in mended.fixed]),
        "calls": calls,
    }


def test_other_words_change_nothing_but_words(monkeypatch):
    before = everything()
    assert before["mended"][1] == ["E101", "E101", "E101", "E118"]
    assert [own for own, _ in before["calls"].values()] == [[True]] * 3 + [[False]] * 2
    assert before["calls"]["nothing_like_it"][1] == [True]
    make, guess = Diagnostic.__init__, Guess.__new__

    def other_words(cls, word):
        made = str.__new__(cls, "other words")
        made.word = guess(cls, word).word
        return made

    monkeypatch.setattr(Guess, "__new__", other_words)
    monkeypatch.setattr(
        Diagnostic, "__init__", lambda self, **fields: make(self, **fields | {"message": "~"})
    )
    for module in (findings, spec):
        monkeypatch.setattr(module, "UNKNOWN_HINT", "other help")
    assert everything() == before


def test_a_refused_sample_is_called_by_its_name_in_any_words(monkeypatch):
    refuse = DCPError.__init__

    def other_words(self, reason, where=""):
        refuse(self, "other words" if where == "sample" else reason, where and f"~{where}")

    monkeypatch.setattr(DCPError, "__init__", other_words)
    with pytest.raises(DatasetError, match=r"~sample `odd`: other words$"):
        RIGHT.sample("odd")
