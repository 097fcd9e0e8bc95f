"""What a text derives: segments made of others, constants, powers."""

import numpy as np
import pytest
from second_oracle import dense

from dcp_dsl import (
    DatasetError,
    Sample,
    Spec,
    SpecError,
    check,
    check_report,
    dense_mask,
    load,
    token_paths,
)
from dcp_dsl.language_server.completion import complete_at
from dcp_dsl.language_server.document import Document
from dcp_dsl.language_server.names import rename
from dcp_dsl.syntax.diagnostics import fix_text

CHAT = """
segment chat = span[span_lens]*
column kind in span
segment image = span where kind == 1
segment sound = span where kind == 2
segment media = image or sound
"""
ONE = Sample({"span_lens": [2, 2, 3, 0, 1, 2], "kind": [1, 0, 2, 1, 0, 1]}, 10)


def seen(mask: str, text: str = CHAT, sample: Sample = ONE) -> np.ndarray:
    whole = f"{text} @ahead @partial mask a = {mask}"
    found = dense_mask(Spec.from_text(whole).mask("a"), sample)
    np.testing.assert_array_equal(found, dense(whole, sample.columns, sample.length))
    return found


def keys(mask: str) -> list[int]:
    return np.flatnonzero(seen(mask)[0]).tolist()


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("k in image", [0, 1, 8, 9]),
        ("k.image == 2", [8, 9]),  # the empty one in between is number 1
        ("k in first(image, 2)", [0, 1]),
        ("k.image.count == 3", [0, 1, 8, 9]),
        ("k in media", [0, 1, 4, 5, 6, 8, 9]),
        ("k.media == 1", [4, 5, 6]),
        ("k in last(media)", [8, 9]),
        ("k in (image or sound)", [0, 1, 4, 5, 6, 8, 9]),
        ("k not in (image or sound)", [2, 3, 7]),
        ("k.media.pos == 2", [6]),
        ("media.count == 4 and k == 0", [0]),
    ],
)
def test_numbers_borders_and_counts_are_those_of_the_chosen_instances(mask, expected):
    assert keys(mask) == expected


def test_a_condition_counts_in_the_whole_sample_and_is_cut_by_per():
    # per tile of 5: the sound [4, 7) is cut, so that each tile has some of it
    found = seen("(k.sound.len == 1) per tile", f"{CHAT} segment tile = every 5")
    assert np.flatnonzero(found[0]).tolist() == [4]


def test_division_by_a_zero_column_gives_nothing_and_large_products_stay_exact():
    sample = Sample({"span_lens": [1, 1, 1], "kind": [0, 2, 2**40]}, 3)
    text = "segment chat = span[span_lens]*  column kind in span  segment pick = span where "
    chosen = np.flatnonzero(seen("k in pick", text + "not 4 // kind == 2", sample)[0])
    assert chosen.tolist() == [0, 2]
    chosen = np.flatnonzero(seen("k in pick", text + "kind * kind * kind > 8", sample)[0])
    assert chosen.tolist() == [2]


def test_segments_with_common_tokens_are_one_for_in_and_refused_for_numbers():
    text = "segment pack = doc(head[h] body[b])*  segment either = doc or head"
    sample = Sample({"h": [1], "b": [2]}, 3)
    assert seen("k in either", text, sample).all()
    with pytest.raises(DatasetError, match="token 0 lies in two instances of `doc or head`"):
        dense_mask(Spec.from_text(f"{text} @partial mask a = k.either == 0").mask("a"), sample)


def test_in_a_or_b_is_put_into_brackets():
    text = f"{CHAT} mask a = causal and k not in image or sound"
    mended = fix_text(text, "<text>", check)
    assert "k not in (image or sound)" in mended.text
    assert not [d for d in check(mended.text) if d.severity == "error"]


def test_packed_equals_separate_is_known_for_chosen_branches():
    text = """segment part = question[n] branch answer[lens]*  column good in answer
    segment best = answer where good == 1
    mask a = paths and (k in question or k in best or q == k)"""
    found = {v.what: v.outcome for v in check_report(text).verdicts}
    assert found["mask a: every path sees what it would see alone"] == "proved"
    sample = Sample({"n": 1, "lens": [1, 2], "good": [0, 1]}, 4)
    assert token_paths(Spec.from_text(text).mask("a"), sample).num_paths.tolist() == [2, 1, 1, 1]


def test_subjects_that_share_a_rule_have_it_each():
    rules = "{ span sees span causally }"
    both = "{ image, sound see self  span sees span causally }"
    apart = "{ image sees self  sound sees self  span sees span causally }"
    np.testing.assert_array_equal(seen(both), seen(apart))
    assert (seen(both) != seen(rules)).any()


def test_an_editor_proposes_columns_in_conditions_and_segments_to_take_from():
    before = f"{CHAT} let few = 2 segment new = "
    text = before + "span where k"
    words = {p.text: p.detail for p in complete_at(text, len(text))}
    assert (words["kind"], words["few"]) == ("column of `span`", "constant")
    assert {"span", "image", "every"} <= {p.text for p in complete_at(before, len(before))}


# ---- `let name = value` --------------------------------------------------------------------------


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


def test_an_editor_renames_and_finds_them():
    document = Document(TEXT, "<text>", "utf-32")
    assert len(rename(document, TEXT.index("size"), "width")) == TEXT.count("size")


# ---- `exp2` and `log2`, of constants, of one token, of distances and of both tokens --------------


def test_distances_that_are_powers_are_bands_at_every_length():
    form = Spec.from_text("").mask("log_sparse").compile(Sample(length=2**22))
    n = 2**22
    assert form.form == "slabs"
    assert form.num_pairs == n + sum(n - 2**i for i in range(22))


def test_a_power_that_no_token_changes_must_exist():
    mask = Spec.from_text("mask a = causal and q - k < log2(row.reach)").mask("a")
    assert mask.bind(Sample({"reach": 8}, 5)).num_pairs == 12
    for columns in ({"reach": 0}, {"reach": -1}):
        with pytest.raises(SpecError, match="`log2` of"):
            mask.bind(Sample(columns, 5))
        with pytest.raises(SpecError, match="`log2` of"):
            dense_mask(mask, Sample(columns, 5))


def test_compressed_keys_end_before_their_queries():
    mask = Spec.from_text("").mask("nsa_compressed(4, 2)")
    found = dense_mask(mask, Sample({"num_blocks": 3}, 9))
    expected = [[2 * k + 3 <= q for k in range(3)] for q in range(9)]
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(SpecError, match="E126"):
        Spec.from_text("segment c = block[n]  @keys(c) @partial mask a = k <= q - 1").mask("a")
