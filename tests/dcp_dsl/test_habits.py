"""Habits of other languages: the first message says how it is written here, and that works."""

import logging
import re
from pathlib import Path

import pytest

from dcp_dsl import check
from dcp_dsl.syntax.diagnostics import apply_edits

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
