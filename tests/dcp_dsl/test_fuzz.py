"""Whatever is typed ends in a checked text or in diagnostics, never in another exception.

Three kinds of texts: soups of words of the language, specs with some words changed, and arbitrary
characters. Each is checked whole: syntax, names, proofs, tests of claims, lints.
"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import Spec, check, format_source
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS
from dcp_dsl.syntax.tokens import KEYWORDS, RESERVED, scan
from dcp_grammar import MASKS

FIXTURES = Path(__file__).parents[1] / "fixtures"
SPECS = [
    path.read_text(encoding="utf-8")
    for folder in (FIXTURES / "specs", FIXTURES / "bad", Path(str(MASKS)))
    for path in sorted(folder.glob("*.dcpm"))
]
WORDS = [
    *sorted(KEYWORDS | RESERVED), "ahead", "partial", "a", "b", "doc", "part", "tokens", "int",
    "causal", "sliding", "streaming", "document", "q - k", "q.doc", "k.doc.start", "0", "1", "3",
    "4k", "1M", "99999999999999", '"x.dcpm"', '"*"', "# note\n", "\n", "  ", "=", "==", "<=", "<",
    "+", "-", "*", "//", "%", "(", ")", "[", "]", "{", "}", ",", ":", ".", "..", "@", "&", "é",
    "[doc_lens]*", "same(doc)", "every 4", "mask a =", "segment doc = [doc_lens]*", "check a total",
]  # fmt: skip


def soup(rng):
    """Join random words; more of them often begin a statement than chance would have it."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))


def mutated(rng):
    """Change a few words of a spec: drop, double, swap, replace, or cut characters out."""
    text = rng.choice(SPECS)
    for _ in range(rng.randint(1, 4)):
        spans = [token.span for token in scan(text)]
        if not spans:
            break
        span = rng.choice(spans)
        word = span.text(text)
        other = rng.choice(spans).text(text)
        new = rng.choice(["", f"{word} {word}", other, rng.choice(WORDS), word[:-1], word + word])
        text = text[: span.start] + new + text[span.end :]
    return text


def assert_ends_well(text):
    """Check a text; if it has no errors, it loads and can be formatted too."""
    found = check(text, "fuzz")
    assert len(found) <= 3 * MAX_FINDINGS
    for diagnostic in found:
        assert diagnostic.message
        assert len(diagnostic.render()) < 4000
        assert diagnostic.to_json()["line"] >= 1
        if diagnostic.fix is not None:
            assert all(0 <= e.start <= e.end <= len(text) for e in diagnostic.fix.edits)
    if any(d.severity == "error" and d.code[0] == "E" for d in found):
        return
    Spec.from_text(text, "fuzz")
    format_source(text)


@pytest.mark.parametrize("seed", range(20))
def test_soups_of_words_end_in_diagnostics(seed):
    rng = random.Random(seed)
    for _ in range(100):
        assert_ends_well(soup(rng))


@pytest.mark.parametrize("seed", range(20))
def test_specs_with_changed_words_end_in_diagnostics(seed):
    rng = random.Random(1000 + seed)
    for _ in range(100):
        assert_ends_well(mutated(rng))


@settings(max_examples=200, deadline=None, derandomize=True)
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
