"""The formatter on texts as untidy as they come: any spaces, line breaks and comments."""

import random
from pathlib import Path

import pytest

from dcp_dsl import SpecError, format_source
from dcp_dsl.syntax.parser import parse
from dcp_dsl.syntax.tokens import scan
from dcp_grammar import MASKS

TESTS = Path(__file__).parents[1]
FILES = [
    *sorted((TESTS / "fixtures" / "specs").glob("*.dcpm")),
    *sorted(Path(str(MASKS)).glob("*.dcpm")),
    TESTS.parent / "examples" / "masks" / "train.dcpm",
]


def mess_up(text, rng):
    """Write the tokens of a text anew with other spaces, line breaks and comments between them."""
    parts, comments = [], 0
    for token in scan(text):
        if token.kind == "comment":
            continue
        gap = rng.choice([" ", "  ", "\n", "\n\n\n", "\t", " \n "])
        if rng.random() < 0.1:
            gap = f" {rng.choice(['#', '# ', '#!'])}c{comments} \n"
            comments += 1
        parts += [token.text, gap]
    return "".join(parts), comments


def comments_of(text):
    return [token.text.lstrip("#! ").rstrip() for token in scan(text) if token.kind == "comment"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_untidy_texts_are_settled_after_one_pass_and_mean_the_same(path):
    text = path.read_text(encoding="utf-8")
    tree = parse(text)
    rng = random.Random(path.name)
    for _ in range(4):
        messy, comments = mess_up(text, rng)
        once = format_source(messy)
        assert parse(once) == tree
        assert format_source(once) == once
        assert comments_of(once) == comments_of(messy)
        assert len(comments_of(once)) == comments
        assert all(line == line.rstrip() for line in once.splitlines())
        assert "\t" not in once
        assert once.endswith("\n")
        assert "\n\n\n" not in once


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_prefix_of_a_file_is_formatted_or_refused(path):
    text = path.read_text(encoding="utf-8")
    rng = random.Random(path.name)
    for _ in range(10):
        cut = text[: rng.randrange(len(text))]
        try:
            once = format_source(cut)
        except SpecError:
            continue
        assert format_source(once) == once
