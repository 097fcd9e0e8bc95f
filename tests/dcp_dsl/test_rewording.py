"""Texts are for people: other words in findings and refusals change nothing else."""

import pytest

from dcp_dsl import DatasetError, DCPError, Spec, SpecError
from dcp_dsl.checks import findings
from dcp_dsl.specs import spec
from dcp_dsl.specs.spec import check
from dcp_dsl.syntax.diagnostics import Diagnostic, Guess, fix_text

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
