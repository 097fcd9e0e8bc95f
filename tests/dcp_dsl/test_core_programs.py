"""Core programs: what is left of a mask once names, calls, rules and parameters are written out."""

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, SpecError, check, dense_mask
from dcp_dsl.elaboration.programs import show_mask

TEXT = """
segment part = question[question_len] answer[answer_lens]*
segment doc = [doc_lens]*
segment tile = every 4
token evict = drops
mask twice(inner: mask) = inner and not inner
mask near(w: tokens, p: pos) = p - k < w where half = w // 2
mask below(p: pos) = (k <= p) per doc
mask again(p: pos) = below(p) per doc
mask short(w: tokens) = (q - k < w) per doc
mask shorter(w: tokens) = short(w) per doc
"""


@pytest.mark.parametrize(
    ("body", "program"),
    [
        ("causal", "k <= q"),
        ("sliding(4)", "and\n  k <= q\n  q - k < 4"),
        ("0 <= k <= q", "and\n  0 <= k\n  k <= q"),
        ("causal minus same(doc)", "and\n  k <= q\n  not\n    same(doc)"),
        ("q not in first(doc, 2)", "not\n  q in first(doc, 2)"),
        ("{ question sees self causally  answer sees all within 2 }",
         "or\n  and\n    q in question\n    and\n      same(question)\n      k <= q\n"
         "  and\n    q in answer\n    and\n      q - k < 2\n      k - q < 2"),
        ("near(len // 2, q)", "q - k < len // 2"),
        ("near(2, p = q + 1)", "q + 1 - k < 2"),
        ("below(q) per tile", "frame every(4)\n  frame doc\n    k <= q"),
        ("again(q) per tile", "frame every(4)\n  frame doc\n    frame doc\n      k <= q"),
        ("(short(len) per doc) per tile",
         "frame every(4)\n  frame doc\n    frame doc\n      q - k < out(1, len)"),
        ("shorter(len) per tile",
         "frame every(4)\n  frame doc\n    frame doc\n      q - k < out(2, len)"),
        ("q.doc.pos < k.evict", "q.doc.pos < k.evict"),
        ("abs(-q) < clamp(k, 1, 3)", "max(-1 * q, -1 * (-1 * q)) < min(max(k, 1), 3)"),
        ("doc.count * (q + 1) == row.n", "doc.count * (q + 1) == row.n"),
        ("true", "true"),
        # A binding is read in the coordinates of its use, a length in those of the call.
        ("(near_end and short(n)) per tile where near_end = q == len - 1, n = len",
         "frame every(4)\n  and\n    q == len - 1\n    frame doc\n      q - k < out(1, len)"),
        ("f(doc) and f(tile) where f(s) = same(s)", "and\n  same(doc)\n  same(every(4))"),
    ],
)  # fmt: skip
def test_a_mask_is_written_out(body, program):
    spec = Spec.from_text(f"{TEXT}\nmask m = {body}")
    assert show_mask(spec.mask("m").core) == program


def test_a_mask_given_as_an_argument_is_elaborated_once_and_shared():
    core = Spec.from_text(TEXT).mask("twice(causal)").core
    assert core.items[0] is core.items[1].item


@pytest.mark.parametrize(
    "masks",
    [
        "@ahead @partial mask f(t: pos) = (t in doc and t == 1) per doc"
        "  @ahead @partial mask a = f(k)",
        "@ahead @partial mask a = g(k) where g(t) = (t in doc and t == 1) per doc",
    ],
)
def test_a_position_given_as_an_argument_is_the_same_token_inside_per(masks):
    text = f"segment doc = [c]*  {masks}"
    found = dense_mask(Spec.from_text(text).mask("a"), Sample({"c": [3, 0, 4]}, 7))
    expected = np.zeros((7, 7), bool)
    expected[:3, 1] = expected[3:, 4] = True
    np.testing.assert_array_equal(found, expected)


def test_a_number_given_from_further_out_keeps_its_coordinates_where_lengths_differ():
    text = "segment outer = a[c]*\nsegment tile = every 3\n"
    text += "mask cut(w: tokens) = same(b) and q // w == k // w where b = every w\n"
    mask = Spec.from_text(text).mask("(cut(len // 2) per tile) per a")
    for lens in ([5, 8], [8, 8], [6, 12], [11, 5, 12]):
        sample = Sample({"c": lens}, sum(lens))
        expected = dense_mask(mask, sample)
        assert np.array_equal(mask.bind(sample).tile(0, sample.length, 0, sample.length), expected)


def test_a_size_given_from_further_out_may_differ_there():
    text = "segment outer = a[c]*\nsegment tile = every 3\n"
    text += "mask cut(w: tokens) = same(b) per tile where b = every w\n"
    mask = Spec.from_text(text).mask("cut(len // 2) per a")
    for lens in ([6, 4, 5], [4, 4, 2]):
        sample = Sample({"c": lens}, sum(lens))
        seen = mask.bind(sample).tile(0, sample.length, 0, sample.length)
        assert np.array_equal(seen, dense_mask(mask, sample))
        at = 0
        for size in lens:
            position = np.arange(size)
            name = 10 * (position // 3) + position % 3 // (size // 2)
            own = slice(at, at + size)
            assert np.array_equal(seen[own, own], name[:, None] == name[None, :])
            at += size


def test_errors_on_a_sample_name_the_place_that_the_node_comes_from():
    text = "segment a = [c]*\nmask m = same(b) per a\n  where b = every len - 2"
    with pytest.raises(SpecError) as raised:
        Spec.from_text(text).mask("m").bind(Sample({"c": [2, 4]}, 6))
    found = raised.value.diagnostics[0]
    assert (found.code, found.line, found.column) == ("E111", 3, 19)
    split = Spec.from_text("segment w = ids(d)\nmask m = causal per w").mask("m")
    with pytest.raises(DatasetError, match="`per w` needs instances of one stretch"):
        split.bind(Sample({"d": [0, 1, 0]}, 3))


def test_the_first_instances_of_a_tree_are_no_tree():
    found = check("segment s = a[c] branch b[d]*  mask m = paths(first(b))")
    assert [(d.code, d.message) for d in found] == [
        ("E125", "`first(b)` is no name of a layout with branches")
    ]


def test_a_name_lost_in_one_text_changes_no_mask_of_the_library():
    assert {d.code for d in check("token evict [ \n mask m = eviction")} >= {"E006"}
    mask = Spec.from_text("").mask("eviction")
    assert mask.compile(Sample({"evict": [2, 3, 3]}, 3)).num_pairs == 5


@pytest.mark.parametrize(("functions", "is_refused"), [(99, False), (120, True)])
def test_functions_that_call_each_other_too_often_are_refused(functions, is_refused):
    chain = ", ".join(f"f{i + 1}(t) = f{i}(t)" for i in range(functions))
    found = check(f"mask a = f{functions}(q) < 1 where f0(t) = t, {chain}")
    assert ("E116" in {d.code for d in found}) == is_refused


@pytest.mark.parametrize(
    "body",
    [
        "wide(q) and not wide(k)",  # one column, read for two tokens
        "v and ((not v) per answer) where v = k // 2 in q.chosen",  # one list, in two frames
    ],
)
def test_a_shared_node_is_another_unknown_of_another_token_or_frame(body):
    text = "segment s = answer[c]* rest[..]  column w in answer  token chosen[2]\n"
    text += "@partial @ahead mask wide(p: pos) = p.answer.w == p.answer.w\n"
    text += f"@partial @ahead mask m = {body}"
    assert "E122" not in {d.code for d in check(text)}
