"""`let name = value`: constants of a text, wherever an expression stands."""

import numpy as np
import pytest
from second_oracle import dense

from dcp_dsl import Sample, Spec, check, dense_mask, load
from dcp_dsl.language_server.document import Document
from dcp_dsl.language_server.names import rename
from dcp_dsl.syntax.source import format_source

TEXT = """let window = size * 2 - 1
let size = 3 - 1
segment part = head[size] body[lens]*
segment tile = every size in part
mask near(w: tokens = window) = causal and q - k < w
mask a = near and (same(tile) or near(size)) or q == k and k < -least
let least = -3
stack two = 2 of near(size), causal
"""


def test_constants_stand_in_layouts_tiles_defaults_and_arguments():
    sample = Sample({"lens": [2, 3]}, 7)
    found = dense_mask(Spec.from_text(TEXT).mask("a"), sample)
    plain = TEXT.replace("window = size * 2 - 1", "gone = 1").replace("size]", "2]")
    plain = plain.replace("every size", "every 2").replace("window", "3").replace("(size)", "(2)")
    plain = plain.replace("-least", "3")
    np.testing.assert_array_equal(found, dense_mask(Spec.from_text(plain).mask("a"), sample))
    np.testing.assert_array_equal(found, dense(TEXT, sample.columns, 7))


def test_a_call_from_outside_and_a_stack_know_them():
    spec = Spec.from_text(TEXT)
    assert spec.mask("near(window)").bind(Sample({"lens": [2, 3]}, 7)).num_pairs == 18
    assert [mask.call for mask in spec.stack("two").masks] == ["near(w = 2)", "causal"]


def test_a_name_in_quotes_is_a_column_all_the_same():
    mask = Spec.from_text('let n = 3 segment part = doc["n"] tail[n]  mask a = q in doc').mask("a")
    assert mask.columns == {"n"}
    assert mask.bind(Sample({"n": 1}, 4)).num_pairs == 4


def test_constants_are_imported(tmp_path):
    (tmp_path / "lib.dcpm").write_text("let half = whole // 2  let whole = 4")
    (tmp_path / "main.dcpm").write_text(
        'import half from "lib.dcpm"  let twice = half * 2  mask a = causal and q - k < twice'
    )
    assert load(tmp_path / "main.dcpm").mask("a").bind(Sample(length=9)).num_pairs == 30


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("let a = b let b = a", "E110"),
        ("let a = row.x", "E107"),
        ("let a = len", "E107"),
        ("let a = 1 // 0", "E111"),
        ("let a = 1M * 1M * 4", "E111"),
        ("let a = 1 let a = 2", "E108"),
        ("let q = 1", "E109"),
        ("let w = 3 mask m(w: int) = causal and q - k < w", "E119"),
        ("let w = 3 mask m = causal and f(1) where f(w) = q - k < w", "E119"),
        ("let w = 3 mask m = w == 3 and causal where w = 2", "E119"),
        ('let w = 3 for "*" having w use sliding(w)', "E119"),
        ("let w = 0 mask m = causal and q // w == 0", "E111"),
        ("let w = 3 mask m = causal and w", "E103"),
    ],
)
def test_what_is_no_constant_is_refused(text, code):
    assert code in {found.code for found in check(text)}


def test_an_editor_renames_formats_and_finds_them():
    document = Document(TEXT, "<text>", "utf-32")
    assert len(rename(document, TEXT.index("size"), "width")) == TEXT.count("size")
    assert format_source("let a=-( 2+1 )\nlet b=a") == "let a = -(2 + 1)\nlet b = a\n"
