"""Texts that nobody would write, and what must hold of each."""

import re
from pathlib import Path

from dcp_dsl import Spec, check, format_source
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS
from dcp_dsl.syntax.tokens import KEYWORDS, RESERVED, scan
from dcp_grammar import MASKS

FIXTURES = Path(__file__).parents[1] / "fixtures"
_, *parts = re.split(r"^=== (\w+)\n", (FIXTURES / "bad.txt").read_text("utf-8"), flags=re.M)
BAD = {name: text.rstrip("\n") + "\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}
GOOD, LIBRARY = (
    [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.dcpm"))]
    for folder in (FIXTURES / "specs", Path(str(MASKS)))
)
SPECS = [*GOOD, *BAD.values(), *LIBRARY]
WORDS = [
    *sorted(KEYWORDS | RESERVED), "ahead", "partial", "a", "b", "doc", "part", "tokens", "int",
    "causal", "sliding", "streaming", "document", "q - k", "q.doc", "k.doc.start", "0", "1", "3",
    "4k", "1M", "99999999999999", '"x.dcpm"', '"*"', '"my col"', '"größe"', "# note\n", "\n",
    "  ", "=", "==", "<=", "<",
    "+", "-", "*", "//", "%", "(", ")", "[", "]", "{", "}", ",", ":", ".", "..", "@", "&", "?", "é",
    "[doc_lens]*", "same(doc)", "every 4", "mask a =", "segment doc = [doc_lens]*", "check a total",
]  # fmt: skip


def soup(rng):
    """Join random words; more of them often begin a statement than chance would have it."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))


def mutated(rng, texts=SPECS):
    """Change a few words of a text: drop, double, swap, replace, or cut characters out."""
    text = rng.choice(texts)
    if rng.random() < 0.2:
        start = rng.randrange(len(text))
        text = text[:start] + text[start + rng.randint(1, 12) :]
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
    """Check a text, return its findings; without errors it loads and is formatted once for all."""
    found = check(text, "fuzz")
    assert len(found) <= 3 * MAX_FINDINGS
    for diagnostic in found:
        assert diagnostic.message
        assert len(diagnostic.render()) < 4000
        assert diagnostic.to_json()["line"] >= 1
        if diagnostic.fix is not None:
            assert all(0 <= e.start <= e.end <= len(text) for e in diagnostic.fix.edits)
    if any(d.severity == "error" and d.code[0] == "E" for d in found):
        return found
    Spec.from_text(text, "fuzz")
    formatted = format_source(text)
    assert format_source(formatted) == formatted
    again = check(formatted, "fuzz")
    assert sorted(d.code for d in again) == sorted(d.code for d in found)
    return found
