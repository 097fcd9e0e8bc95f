"""Every code: documented, and raised by exactly its own bad example."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dcp_dsl import ExchangeError, Sample, Spec, SpecError, check, export_mask, import_mask
from dcp_dsl.interchange import Export
from dcp_dsl.syntax.diagnostic_formats import FAMILIES
from dcp_dsl.syntax.parser import parse

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / "docs" / f"diagnostics-{name}.md").read_text("utf-8") for name in FAMILIES]
SECTIONS = [part for page in PAGES for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]]
BLOCK = re.compile(r"```dcpm (bad|good)([^\n]*)\n(.*?)```", re.DOTALL)


FILE = re.compile(r"```dcpm file=(\S+)\n(.*?)```", re.DOTALL)


def examples(kind):
    for section in SECTIONS:
        code = section.split()[0]
        files = dict(FILE.findall(section))
        for found, options, text in BLOCK.findall(section):
            if found == kind:
                chosen = dict(option.split("=") for option in options.split())
                repeated = text * int(chosen.get("times", 1))
                yield pytest.param(code, chosen, repeated, files, id=code)


def check_example(text, options, files, folder):
    """Check a text, as a file beside the other files of its section if it has a name."""
    if "main" not in options:
        return check(text)
    for name, other in files.items():
        (folder / name).write_text(other)
    main = folder / options["main"]
    main.write_text(text)
    return check(text, str(main))


@pytest.mark.parametrize(("code", "options", "text", "files"), list(examples("bad")))
def test_the_bad_example_raises_exactly_its_code(code, options, text, files, tmp_path):
    found = check_example(text, options, files, tmp_path)
    if "bind" in options:
        assert all(d.severity == "warning" for d in found)
        mask = Spec.from_text(text).mask("a")
        with pytest.raises(SpecError) as raised:
            mask.bind(Sample(length=int(options["bind"])))
        found = raised.value.diagnostics
    if "len" in options:
        assert not any(d.severity == "error" for d in found)
        with pytest.raises(ExchangeError) as refused:
            exchange(text, options)
        found = (refused.value,)
    assert {d.code for d in found} == {code}


def exchange(text, options):
    """Export mask `a`, or import the joined exports of `a` and `b`."""
    length = int(options["len"])
    bound = {m: Spec.from_text(text).mask(m) for m in ("a", "b") if f"mask {m} " in text}
    bound = {name: mask.bind(Sample(length=length)) for name, mask in bound.items()}
    if "export" in options:
        return export_mask(bound["a"], options["export"])
    parts = [export_mask(slabs, options["join"]) for slabs in bound.values()]
    names = parts[0].arrays
    joined = {name: np.concatenate([part.arrays[name] for part in parts]) for name in names}
    return import_mask(Export(options["join"], length, joined))


@pytest.mark.parametrize(("code", "options", "text", "files"), list(examples("good")))
def test_the_good_example_has_no_errors(code, options, text, files, tmp_path):
    found = check_example(text, options, files, tmp_path)
    assert [d.render() for d in found if d.severity == "error"] == []
    if "len" in options:
        exchange(text, options)


def test_every_code_in_the_source_has_a_section_with_both_examples():
    source = "".join(p.read_text() for p in (ROOT / "dcp_dsl" / "dcp_dsl").rglob("*.py"))
    used = set(re.findall(r'"([EWCX]\d{3})"', source))
    documented = {s.split()[0] for s in SECTIONS}
    assert used == documented
    for section in SECTIONS:
        assert {kind for kind, _, _ in BLOCK.findall(section)} == {"bad", "good"}, section[:40]


DOUBLED = ", ".join(f"x{i + 1} = x{i} + x{i}" for i in range(40))
CALLED_TWICE = ", ".join(f"x{i + 1}(t) = x{i}(t) - x{i}(t)" for i in range(40))


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("mask a = casual\nmask b = q <\nsegment s = [..]*\nmask c = a and b and unknown",
         [(1, "E101"), (2, "E005"), (3, "E113"), (4, "E101")]),
        ("mask a = q <\nmask b = a and causal", [(1, "E005")]),  # `a` is not unknown
        ("segment d = [c]*  mask m = q in first(d, q + k)", [(1, "E105"), (1, "E107")]),
        ("mask a(w: int, w: int) = k < w  @partial mask b = a(1, 2)", [(1, "E108"), (1, "E106")]),
        (f"mask a = x40(q) < 3 where x0(t) = t, {CALLED_TWICE}", [(1, "E116")]),
        (f"mask a = x40 < 3 where x0 = q - k, {DOUBLED}", [(1, "E116")]),
    ],
    ids=range(6),
)  # fmt: skip
def test_all_errors_of_a_file_are_found_in_one_pass(text, codes):
    assert [(d.line, d.code) for d in check(text)] == codes


def test_a_mistake_far_to_the_right_is_shown_in_a_window():
    (found,) = check("mask a = " + "causal and " * 100 + "casual")
    caret = found.render().splitlines()[-2]
    shown = found.render().splitlines()[-3]
    assert max(len(shown), len(caret)) < 140
    assert shown[caret.index("^") : caret.rindex("^") + 1] == "casual"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "mask a = " + "(" * 9_000 + "q" + ")" * 9_000,
        "mask a = " + "not " * 30_000,
        "mask a = " + "q - " * 30_000 + "k < 1",
        "mask a = " + "-" * 100_000,
        "\x00\x01",
        "\ufeff",
        "é" * 9,
        "mask a = " + "9" * 100_000,
        "mask " * 20_000,
        "segment a = " + "b(" * 40_000,
        '"' * 1001,
        "mask a = q" + ".b" * 50_000,
        "sample s(a = " + "[" * 20_000,
        "@a " * 40_000,
        "check " * 20_000,
    ],
    ids=range(16),
)
def test_a_hostile_text_ends_in_a_diagnostic(text):
    found = check(text)
    assert found or text == "\ufeff"
    for diagnostic in found:
        assert len(diagnostic.render()) < 2000
        json.dumps(diagnostic.to_json())


@pytest.mark.parametrize("last", ["full", "m0"])
def test_a_chain_or_ring_of_masks_too_deep_to_write_out_is_refused(last):
    chain = "\n".join(f"mask m{i} = m{i + 1} and causal" for i in range(1500))
    codes = {d.code for d in check(f"{chain}\nmask m1500 = {last}")}
    assert {"E116"} <= codes <= {"E110", "E116"}


def test_parse_raises_with_every_syntax_error():
    with pytest.raises(SpecError) as raised:
        parse("mask a = q <\nmask b = causal full\n", "two.dcpm")
    assert [d.code for d in raised.value.diagnostics] == ["E005", "E009"]
    assert "two.dcpm:2:17" in str(raised.value)


def test_masks_that_double_their_argument_are_evaluated_once():
    text = f"mask twice(m: mask) = m or m\nmask a = {'twice(' * 18}causal{')' * 18}"
    assert Spec.from_text(text).mask("a").bind(Sample(length=4)).num_pairs == 10
    found = check(f"{text}\ncheck a equals causal")
    assert [(d.code, d.line, d.column) for d in found] == [("W206", 1, 23)]  # the first `m`
