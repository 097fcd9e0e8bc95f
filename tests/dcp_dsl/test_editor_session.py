"""A document followed over its versions says what a fresh check of each version says."""

import re
from pathlib import Path
from random import Random

import pytest

from dcp_dsl import check_report
from dcp_dsl.language_server import complete_at, describe_at
from dcp_dsl.language_server.completion import signature_at
from dcp_dsl.language_server.document import Checks, Document, Session
from dcp_dsl.language_server.names import RenameError, rename
from dcp_dsl.syntax.parser import parse_all
from dcp_dsl.syntax.trees import walk

FIFTY = Path(__file__).parents[2] / "dcp_dsl" / "benchmarks" / "data" / "fifty.dcpm"
TEXT = FIFTY.read_text(encoding="utf-8")
LISTS = "token sel[2]\n@partial mask m = k in q.sel and causal\ncheck m implies sliding(2)\n"
# What is replaced, by what: statements that others depend on, faults, new lines, and repairs.
EDITS = [
    ("causal and (k in question", "(k in question"),
    ("window: tokens = 4k)", "window: tokens = 2k)"),
    ("doc_lens = [5, 1, 7]", "doc_lens = [5, 2]"),
    ("token evict", "\n# moved\n\ntoken evict"),
    ("segment tile = every 256", "segment tile = every 128"),
    ("and q < k.evict", "and q < k.evict q"),
    ("check shared total\n", ""),
    ("same(group) and", "same(grop) and"),
    ("5 of sliding(1k)", "5 of full"),
    ("check kept total on cache", "check kept total on books"),
    ("@ahead mask grid", "mask grid"),
    ("answer_lens = [3, 3, 2]", "answer_lens = [3, 3, 2], reach = 3"),
]


def settled(session):
    checks = Checks(session)
    while not checks.is_done:
        checks.advance(1)
    if session.document.is_sound:
        checks.finish()
    return checks


def test_findings_are_those_of_a_fresh_check_after_every_edit():
    rng = Random(7)
    session = Session(TEXT, "<text>", "utf-16")
    text = TEXT
    settled(session)
    for _ in range(24):
        before, after = rng.choice(EDITS)
        if after and after in text:
            before, after = after, before
        text = text.replace(before, after)
        session.update(text)
        settled(session)
        assert session.findings == check_report(text).diagnostics, text


@pytest.mark.parametrize(
    ("text", "then"),
    [
        (TEXT, "# one line more\n" + TEXT.replace("local: int = 2", "local: int = 3")),
        (LISTS, f"{LISTS}sample tiny(sel = [[0, -1], [1, 0]], len = 2)"),  # it can be tested now
    ],
    ids=["parameter", "sample"],
)
def test_verdicts_of_what_is_repeated_are_those_of_a_fresh_check(text, then):
    session = Session(text, "<text>", "utf-16")
    settled(session)
    session.update(then)
    assert tuple(settled(session).testing.verdicts) == check_report(then).verdicts


@pytest.mark.parametrize(
    ("edit", "looked"),
    [
        (("local: int = 2", "local: int = 3"), {"mask anchors", "lint anchors"}),
        (("# A text", "\n# A text"), set()),
        (
            ("r: int = 2) =", "r: int = 3) ="), {"mask grid", "lint grid"},
        ),
        (
            ("mask rollouts = causal and", "mask rollouts = causal and q - k < 9 and"),
            {"mask rollouts", "lint rollouts", "claim check rollouts implies causal per group"},
        ),
    ],
)  # fmt: skip
def test_only_what_changed_and_what_depends_on_it_is_looked_at(edit, looked):
    session = Session(TEXT, "<text>", "utf-16")
    settled(session)
    session.update(TEXT.replace(*edit))
    checks = Checks(session)
    text = session.document.text
    run = {
        f"{step.kind} {getattr(step.statement, 'name', None) and step.statement.name.text}"
        if step.kind != "claim" else f"claim {step.statement.span.text(text)}"
        for step in checks.steps
        if not session.memory.run(step, checks.testing, checks.meanings) and step.statement
    }  # fmt: skip
    assert run == looked


def test_versions_that_went_by_are_not_looked_at():
    session = Session(TEXT, "<text>", "utf-16")
    settled(session)
    first = session.document
    session.update(TEXT + "#")
    passed = session.document
    session.update(TEXT + "# ")
    assert session.good is first
    assert not passed.is_checked


def test_statements_that_move_parse_as_those_of_the_new_text():
    known = {}
    parse_all(TEXT, known=known)
    text = "# more\n" + TEXT.replace("mask kept", "mask extra = causal\nmask kept")
    moved, fresh = parse_all(text, known=known), parse_all(text)
    assert moved == fresh
    places = [[n.span for n in walk(p.program.statements)] for p in (moved, fresh)]
    assert places[0] == places[1]


SMALL = """segment part = question[q_len] answer[a_lens]*
mask near(w: tokens = 4) = causal and q - k < w
mask shared(m: mask) = m and (k in question or same(answer)) where b(w) = w // 2
check near(w = 2) implies near(3)
sample tiny(q_len = 2, a_lens = [1, 2])
check near total on tiny
"""


def places(text, word, nth=0):
    return [match.start() for match in re.finditer(re.escape(word), text)][nth]


@pytest.mark.parametrize(
    ("word", "name", "why"),
    [
        ("near", "causal", "already means something"),
        ("near", "2x", "is no name"),
        ("total", "x", "no name stands here"),
    ],
)
def test_rename_refuses_what_would_change_a_meaning(word, name, why):
    with pytest.raises(RenameError, match=why):
        rename(Document(SMALL, "<text>"), places(SMALL, word), name)


def test_a_target_of_two_subjects_is_renamed_once():
    text = "segment part = a[n] b[m] c[..]\nmask two = { a, b see c  c sees c }\n"
    found = rename(Document(text, "<text>"), text.index("c["), "width")
    assert [text[span.start : span.end] for span in found] == ["c"] * 4
    assert len({span.start for span in found}) == 4


def test_a_segment_that_is_imported_alone_is_described_from_its_file(tmp_path):
    (tmp_path / "data.dcpm").write_text("# Documents.\n\nsegment doc = [doc_lens]*\n")
    (tmp_path / "more.dcpm").write_text('import doc from "data.dcpm"\n')
    text = 'import doc from "more.dcpm"\nmask packed = causal and same(doc)\n'
    said = describe_at(text, text.rindex("doc"), str(tmp_path / "mine.dcpm"))
    assert said == "```dcpm\nsegment doc = [doc_lens]*\n```\n\nlaid out by `doc_lens`"


def test_a_mask_that_hides_one_of_the_library_is_proposed_with_those_of_the_text():
    text = "mask full = causal\ncheck full implies "
    words = [(proposal.text, proposal.detail) for proposal in complete_at(text, len(text))]
    assert words.index(("full", "full")) < [word for word, _ in words].index("agent")


@pytest.mark.parametrize(
    ("call", "label", "active"),
    [
        ("mask a = near(|", "near(w: tokens = 4)", 0),
        ("mask a = streaming(4, |", "streaming(sink: tokens = 64, window: tokens = 4k)", 1),
        ("mask a = streaming(window = |", "streaming(sink: tokens = 64, window: tokens = 4k)", 1),
        ("mask a = abs(min(1, 2) - |", "abs(x)", 0),
        ("mask a = near(2) and |", None, 0),
        ("mask a = (q|", None, 0),
    ],
)
def test_signature_of_the_call_around_a_place(call, label, active):
    text = SMALL + call
    found = signature_at(Document(text.replace("|", ""), "<text>"), text.index("|"))
    assert (found and (found.label, found.active)) == (label and (label, active))
