"""Segments made of others: instances with some columns, and those of several segments."""

import numpy as np
import pytest
from second_oracle import dense

from dcp_dsl import DatasetError, Sample, Spec, check, check_report, dense_mask, token_paths
from dcp_dsl.language_server.completion import complete_at
from dcp_dsl.syntax.diagnostics import fix_text
from dcp_dsl.syntax.source import format_source

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


def test_columns_of_chosen_instances_have_a_value_for_each_of_them():
    text = f"{CHAT} column width in image"
    sample = Sample({**ONE.columns, "width": [7, 8, 9]}, 10)
    assert np.flatnonzero(seen("k.image.width == 9", text, sample)[0]).tolist() == [8, 9]


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


@pytest.mark.parametrize(
    ("statement", "code", "hint"),
    [
        ("segment b = span where knd == 1", "E102", "did you mean `kind`?"),
        ("segment b = span where width == 1", "E102", "declare it: `column width in span`"),
        ("segment b = span where k.span.kind == 1", "E102",
         "a condition reads columns of an instance by their names: `kind == 1`"),
        ("segment b = span where same(span)", "E103", "compare columns of its instances"),
        ("segment b = span where q in span", "E103",
         "compare columns: `segment image = span where kind == 1`"),
        ("segment b = b or span", "E110", ""),
        ("segment b = c where kind == 1 segment c = b or span", "E110", ""),
        ("segment r = ids(roles) segment b = r or span", "E103",
         "name the ids and take these: `segment r = ids(column) as user, tool`"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_a_way_out(statement, code, hint):
    found = [d for d in check(f"{CHAT} {statement}") if d.code == code]
    assert found
    assert hint in [d.hint for d in found]


def test_in_a_or_b_is_put_into_brackets():
    text = f"{CHAT} mask a = causal and k not in image or sound"
    mended = fix_text(text, "<text>", check)
    assert "k not in (image or sound)" in mended.text
    assert not [d for d in check(mended.text) if d.severity == "error"]


def test_what_is_chosen_is_proved():
    text = (
        CHAT + "@ahead(media) mask a = causal or same(media)  check same(image) implies same(span)"
    )
    text += (
        "  check k in image implies k in media  check same(image) equals same(span) and k in image"
    )
    outcomes = {v.what: v.outcome for v in check_report(text).verdicts}
    assert outcomes["mask a: no look-ahead outside `media`"] == "proved"
    assert outcomes["same(image) implies same(span)"] == "proved"
    assert outcomes["k in image implies k in media"] == "proved"


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


def test_the_formatter_leaves_brackets_around_several_segments_and_conditions():
    text = "segment s=span where(kind+1)*2>3 or not(kind==1)\nmask a=k in(s or span)\n"
    wanted = (
        "segment s = span where (kind + 1) * 2 > 3 or not (kind == 1)\nmask a = k in (s or span)\n"
    )
    assert format_source(text) == wanted
