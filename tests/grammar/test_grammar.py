"""The grammar: all specs parse, the formatter and the parser agree, the library is sound."""

import logging
import random
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_masks import MaskWriter

from dcp_dsl import SpecError, check, format_source, load
from dcp_dsl.syntax.mistakes import MISTAKES
from dcp_dsl.syntax.parser import parse, parse_expression
from dcp_dsl.syntax.tokens import scan
from dcp_dsl.syntax.trees import unparse
from dcp_grammar import GRAMMAR, MASKS

TESTS = Path(__file__).parents[1]
SPECS = sorted((TESTS / "fixtures" / "specs").glob("*.dcpm"))
LIBRARY = sorted(Path(str(MASKS)).glob("*.dcpm"))


quick = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: p.stem)
def test_a_library_file_defines_its_mask_cites_a_source_and_passes_its_checks(path):
    text = path.read_text(encoding="utf-8")
    spec = load(path)
    assert spec.masks == (path.stem,)
    assert "# Source: " in text
    assert "check " in text
    assert format_source(text) == text
    assert check(text) == ()


masks = st.integers(0, 2**32).map(lambda seed: MaskWriter(Random(seed)).mask(2))
# What separates tokens, for a text that keeps its meaning however it is spaced.
gaps = st.sampled_from(
    [" ", "  ", "\n", "\n\n\n", " # a comment\n", "\t", "\u00a0", "\n  # one\n# two\n\n"]
)


@quick
@given(text=masks, gap=gaps)
def test_formatting_a_random_mask_keeps_its_tree(text, gap):
    source = gap.join(["mask", "m", "=", *text.split(" ")]) + gap + f"check{gap}m total"
    once = format_source(source)
    assert parse(once) == parse(source)
    assert format_source(once) == once
    assert once.count("#") == source.count("#")


@quick
@given(text=masks)
@example("a and b minus c and d or not e per f")
@example("a minus (b minus c) minus d and (e and f)")
@example("(not a) per b or (a or b) per c")
@example("(q - k) - (q - 1) - -k < (2 + 3) * 4 // (5 * 6) // 7 % 2")
@example("not (not a)")
@example("(a and b) and c and (d or e)")
@example("f(p = (a or b), -3) and q.b.start in first(last(b, 2), 1)")
@example("{ a sees b causally within 3 + 4, self  c sees all }")
@example("+q < -(-k) and (q < k) == true")
def test_an_expression_written_out_parses_to_the_same_tree(text):
    try:
        tree = parse_expression(text)
    except SpecError:
        assert "== true" in text
        return
    assert parse_expression(unparse(tree)) == tree


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.code)
def test_every_example_of_a_mistake_gets_its_own_message(mistake):
    for text in mistake.examples:
        with pytest.raises(SpecError) as raised:
            parse(text)
        assert raised.value.diagnostics[0].code == mistake.code, text


def test_the_grammar_has_no_conflicts(caplog):
    lark = pytest.importorskip("lark")
    lark.logger.setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG, logger="lark"):
        lark.Lark(
            GRAMMAR.read_text(), parser="lalr", lexer="basic", debug=True,
            start=["start", "statement", "version", "expression"],
        )  # fmt: skip
    assert [r.message for r in caplog.records if "conflict" in r.message.lower()] == []


def test_the_grammar_is_strict():
    lark = pytest.importorskip("lark")
    pytest.importorskip("interegular", reason="Lark's strict mode needs interegular")
    parser = lark.Lark(
        GRAMMAR.read_text(), parser="lalr", lexer="basic", strict=True, start=["start"]
    )
    for path in SPECS:
        parser.parse(path.read_text(encoding="utf-8"))


# ---- the formatter on texts as untidy as they come -----------------------------------------------


FILES = [*SPECS, *LIBRARY, TESTS.parent / "examples" / "masks" / "train.dcpm"]


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
