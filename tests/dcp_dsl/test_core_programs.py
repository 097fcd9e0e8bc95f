"""Core programs: what is left of a mask once names, calls, rules and parameters are written out."""

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, SpecError, check, dense_mask

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


def test_a_mask_given_as_an_argument_is_elaborated_once_and_shared():
    core = Spec.from_text(TEXT).mask("twice(causal)").core
    assert core.items[0] is core.items[1].item


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


def test_a_name_lost_in_one_text_changes_no_mask_of_the_library():
    assert {d.code for d in check("token evict [ \n mask m = eviction")} >= {"E006"}
    mask = Spec.from_text("").mask("eviction")
    assert mask.compile(Sample({"evict": [2, 3, 3]}, 3)).num_pairs == 5


@pytest.mark.parametrize(("functions", "is_refused"), [(99, False), (120, True)])
def test_functions_that_call_each_other_too_often_are_refused(functions, is_refused):
    chain = ", ".join(f"f{i + 1}(t) = f{i}(t)" for i in range(functions))
    found = check(f"mask a = f{functions}(q) < 1 where f0(t) = t, {chain}")
    assert ("E116" in {d.code for d in found}) == is_refused
