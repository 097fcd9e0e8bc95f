"""Masks in practice against formulas and published definitions, written down with plain numpy."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, block_sparsity, dense_mask, load
from dcp_dsl.core import binding

SPECS = Path(__file__).parents[1] / "fixtures" / "specs"


def from_ranges(length, ranges_of):
    """Build a dense mask from the half-open key ranges of each row."""
    dense = np.zeros((length, length), bool)
    for i in range(length):
        for start, end in ranges_of(i):
            dense[i, start:end] = True
    return dense


def causal(i):
    return [(0, i + 1)]


def lambda_(i, sinks=64, window=4096):
    return [(0, min(sinks, i + 1)), (max(0, i - window + 1), i + 1)]


def blockwise(i, length, size=256, local=2):
    block, count = i // size, -(-length // size)
    if block == 0:
        return [(0, i + 1)]
    if block == count - 1:
        return [(0, (block - 1) * size), ((block - 1) * size, i + 1)]
    return [(0, size), (max(size, i - local * size), i + 1)]


def shared_question(i, length, answers=4):
    question = int(length * 0.2)
    size = (length - question) // answers
    if i < question:
        return [(0, i + 1)]
    start = question + min((i - question) // size, answers - 1) * size
    return [(0, question), (start, i + 1)]


def question_columns(length, answers=4):
    question = int(length * 0.2)
    size = (length - question) // answers
    lens = [size] * (answers - 1)
    return {"question_len": question, "answer_lens": [*lens, length - question - sum(lens)]}


@pytest.fixture(scope="module")
def paper():
    return load(SPECS / "00_paper4.dcpm")


@pytest.mark.parametrize("length", [5, 255, 256, 257, 513, 1500])
def test_the_four_masks_of_the_paper_are_bit_exact(paper, paint, length):
    columns = question_columns(length)
    masks = {
        "dcp_causal": causal,
        "dcp_blockwise": lambda i: blockwise(i, length),
        "dcp_shared_question": lambda i: shared_question(i, length),
    }
    for name, ranges in masks.items():
        mask = paper.mask(name)
        slabs = mask.bind(Sample({c: columns[c] for c in mask.columns}, length))
        assert np.array_equal(paint(slabs), from_ranges(length, ranges)), name
    small = paper.mask("streaming(sink = 7, window = 100)").bind(Sample(length=length))
    assert np.array_equal(paint(small), from_ranges(length, lambda i: lambda_(i, 7, 100)))


def test_the_masks_of_the_paper_bind_at_full_length(paper):
    length, block = 131_072, 512
    columns = question_columns(length)
    for name in ("dcp_causal", "dcp_lambda", "dcp_blockwise", "dcp_shared_question"):
        mask = paper.mask(name)
        slabs = mask.bind(Sample({c: columns[c] for c in mask.columns}, length))
        blocks = block_sparsity([slabs], block, block)
        assert blocks.num_pairs == slabs.num_pairs
        assert len(slabs) < 20, "the normal form grows with segments, not with tokens"


def test_grpo_rollouts_see_their_own_prompt_only(paint):
    mask = load(SPECS / "12_grpo.dcpm").mask("grpo")
    slabs = mask.bind(Sample({"prompt_lens": [2, 1], "rollout_lens": [[2, 1], [3]]}, 9))
    picture = """
    1.........
    11.......
    111......
    1111.....
    11..1....
    .....1...
    .....11..
    .....111.
    .....1111
    """
    expected = np.array([[c == "1" for c in line[:9]] for line in picture.split()])
    assert np.array_equal(paint(slabs), expected)


@pytest.mark.parametrize(
    ("columns", "length", "says"),
    [
        ({"question_len": 4}, 4, "needs the column `answer_lens`"),
        ({"question_len": 4, "answer_lens": [3]}, 8, "the layout has 7 tokens, the sample 8"),
        ({"question_len": [4], "answer_lens": [3]}, 7, "`question_len` to be one integer"),
        ({"question_len": 4, "answer_lens": 3}, 7, "expected column `answer_lens` to be a list"),
        ({"question_len": 4, "answer_lens": [-1, 4]}, 7, "negative length -1"),
        ({"question_len": 4, "answer_lens": [1, 9]}, 7, "a part of 9 tokens, the sample only 7"),
        ({"question_len": -4, "answer_lens": [11]}, 7, "-4 tokens; expected at least 0"),
        ({"question_len": 4, "answer_lens": [[3]]}, 7, "to be a list of integers"),
        ({"question_len": 2**40, "answer_lens": [3]}, 7, r"7 \(question_len = 1099511627776\)$"),
        # The other length hides it: their sum is right.
        ({"question_len": 9, "answer_lens": [-2]}, 7, "`answer_lens` has the negative length -2"),
    ],
)  # fmt: skip
def test_a_sample_that_does_not_fit_the_layout_is_refused(paper, columns, length, says):
    with pytest.raises(DatasetError, match=says):
        paper.mask("dcp_shared_question").bind(Sample(columns, length))
    with pytest.raises(DatasetError):
        dense_mask(paper.mask("dcp_shared_question"), Sample(columns, length))


def test_the_last_repetition_of_a_group_may_lack_its_last_parts(paint):
    mask = load(SPECS / "11_multimodal.dcpm").mask("multimodal")
    short = Sample({"text_lens": [2, 1], "image_lens": [2]}, 5)
    same = Sample({"text_lens": [2, 1], "image_lens": [2, 0]}, 5)
    assert np.array_equal(paint(mask.bind(short)), paint(mask.bind(same)))
    assert np.array_equal(paint(mask.bind(short)), dense_mask(mask, short))
    spec = Spec.from_text("segment g = turn(ask[a] say[b])*\nmask m = k in last(say)")
    assert spec.mask("m").bind(Sample({"a": [1, 1], "b": [1]}, 3)).num_pairs == 3


def test_remaining_tokens_can_be_none_but_not_fewer():
    mask = load(SPECS / "09_prefix_lm.dcpm").mask("prefix_lm")
    assert mask.bind(Sample({"prefix_len": 4}, 4)).num_pairs == 16
    with pytest.raises(DatasetError, match="a part would have 5 tokens, the sample has 4"):
        mask.bind(Sample({"prefix_len": 5}, 4))


def test_the_call_of_a_mask_gives_the_same_mask_again(paper):
    for call in ("causal", "dcp_blockwise(128)", "streaming(window = 8, sink = 2)", "not causal",
                 "dcp_lambda and (q - k < 4k or k in question)", "sliding(4k)"):  # fmt: skip
        mask = paper.mask(call)
        again = paper.mask(mask.call)
        assert (again.name, again.call, again.columns) == (mask.name, mask.call, mask.columns)
    assert paper.mask("dcp_blockwise(local = 2, block = 4k)").call == "dcp_blockwise(block = 4k)"
    assert paper.mask("streaming(64, 4096)").call == "streaming"


def test_a_position_from_outside_is_the_same_token_inside_per(paint):
    spec = Spec.from_text(
        "segment doc = [doc_lens]*\nmask low(p: pos) = (p < 2) per doc\nmask a = low(q)\n"
        "mask b = f(q) where f(t) = (t < 2) per doc"
    )
    sample = Sample({"doc_lens": [3, 3]}, 6)
    expected = np.zeros((6, 6), bool)
    expected[:2, :3] = expected[3:5, 3:] = True  # tokens count from the first of their document
    for name in ("a", "b"):
        assert np.array_equal(paint(spec.mask(name).bind(sample)), expected)
        assert np.array_equal(dense_mask(spec.mask(name), sample), expected)


@pytest.mark.parametrize(
    "condition",
    ["k // (1 + min(k, 3)) <= 1", "q % (2 + max(q - 5, 0)) < 2", "q // max(1, 3 - q) == k"],
)
def test_divisors_that_grow_for_some_tokens_divide_each_by_its_own(condition, paint):
    spec = Spec.from_text(f"@partial mask m = causal and {condition}")
    sample = Sample(length=14)
    wanted = dense_mask(spec.mask("m"), sample)
    assert 0 < wanted.sum() < 105
    assert np.array_equal(paint(spec.mask("m").bind(sample)), wanted)


def test_a_number_is_a_position():
    spec = Spec.from_text("mask at(p: pos) = k <= p and causal  mask third = at(2)")
    wanted = np.tri(5, dtype=bool) & (np.arange(5) <= 2)
    assert np.array_equal(dense_mask(spec.mask("third"), Sample(length=5)), wanted)


@pytest.mark.parametrize("call", ["near", "given(2)", "chosen(-3)"])
def test_a_minus_before_a_number_or_a_parameter_negates_it(call, paint):
    text = "@ahead mask near = q - k > -3  @ahead mask given(w: int) = q - k >= -w"
    spec = Spec.from_text(f"{text}  @ahead mask chosen(w: int) = q - k > w")
    wanted = np.subtract.outer(np.arange(9), np.arange(9)) > -3
    assert np.array_equal(paint(spec.mask(call).bind(Sample(length=9))), wanted)


def test_lengths_that_differ_divide_in_each_instance_as_slabs():
    spec = Spec.from_text(
        "segment doc = [doc_lens]*\nmask halves = 2 * q // len == 2 * k // len per doc"
    )
    mask, sample = spec.mask("halves"), Sample({"doc_lens": [4, 7, 6]}, 17)
    form = mask.compile(sample)
    assert form.form == "slabs"
    assert form.table()[:, :4].tolist() == [
        [0, 2, 0, 2], [2, 4, 2, 4], [4, 8, 4, 8], [8, 11, 8, 11], [11, 14, 11, 14],
        [14, 17, 14, 17],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "says"),
    [("[a] b[b_len]", "the lengths in `a`, `b_len` must add up"),
     ("x[3] y[5]", "the lengths in the layout must add up")],
)  # fmt: skip
def test_lengths_that_do_not_add_up_are_named(layout, says):
    mask = Spec.from_text(f"segment part = {layout}\nmask own = same(part)").mask("own")
    with pytest.raises(DatasetError, match=says):
        mask.bind(Sample({"a": 2, "b_len": 3} if mask.columns else {}, 6))


def test_the_form_bound_longest_ago_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(binding, "MAX_KEPT", 2)
    mask = Spec.from_text("").mask("causal")
    kept = mask.compile(Sample(length=11))
    for other in (12, 13):
        mask.compile(Sample(length=other))
        assert mask.compile(Sample(length=11)) is kept


def test_forms_of_samples_with_many_integers_are_not_kept(monkeypatch):
    monkeypatch.setattr(binding, "MAX_LENGTHS", 4)
    mask = Spec.from_text("").mask("grpo")
    for rollouts, is_kept in (([1, 1], True), ([1, 1, 1, 1], False)):
        sample = Sample({"prompt_lens": [1], "rollout_lens": [rollouts]}, 1 + len(rollouts))
        assert (mask.compile(sample) is mask.compile(sample)) == is_kept


def test_the_largest_masks_that_check_also_bind():
    chain = (
        "\n".join(f"mask m{i} = not (m{i + 1} and causal)" for i in range(24)) + "\nmask m24 = full"
    )
    nested = f"mask deep = {'not (' * 28}causal{')' * 28}"
    spec = Spec.from_text(f"{chain}\n{nested}")
    for name in ("m0", "deep"):
        mask = spec.mask(name)
        assert mask.bind(Sample(length=9)).num_pairs == dense_mask(mask, Sample(length=9)).sum()


# ---- published definitions, ported pair by pair, over random sizes -------------------------------


SPEC = Spec.from_text("""
segment word = ids(sequence_ids)
segment image = ids(image_ids)
segment half = noisy[len // 2] clean[..]
mask hf_sliding(w: tokens) = causal and k > q - w
mask hf_chunked(c: tokens) = causal and q // c == k // c
mask hf_packed = causal and same(word)
mask hf_images = causal or same(image)
mask bd3(b: tokens) =
  same(t) or (q in noisy and k in clean and k.t < q.t) or (q in clean and k in clean and k.t <= q.t)
  where t = every b in half
mask strided(s: tokens) = causal and (q - k < s or (q - k) % s == 0)
""")


def bd3(q, k, n, b):
    half = n // 2
    x0_q, x0_k = q >= half, k >= half
    block_q, block_k = (np.where(x, t - half, t) // b for x, t in ((x0_q, q), (x0_k, k)))
    diagonal = (block_q == block_k) & (x0_q == x0_k)
    offset = (block_q > block_k) & x0_k & ~x0_q
    return diagonal | offset | ((block_q >= block_k) & x0_k & x0_q)


def runs(rng, length, largest):
    found = []
    while len(found) < length:
        found += [rng.randint(-1, largest)] * rng.randint(1, 7)
    return found[:length]


def draw(rng):
    """Return (call, length, columns, the published rule) of every mask at random sizes."""
    n, c = rng.randint(1, 90), rng.randint(1, 20)
    ids = sorted(runs(rng, n, 4))
    images = np.array(runs(rng, n, 3))
    same_word = np.array([i if i >= 0 else -2 - t for t, i in enumerate(ids)])
    yield f"hf_sliding({c})", n, {}, lambda q, k: (k <= q) & (k > q - c)
    yield f"hf_chunked({c})", n, {}, lambda q, k: (k <= q) & (k // c == q // c)
    yield (
        "hf_packed", n, {"sequence_ids": ids},
        lambda q, k: (k <= q) & (same_word[q] == same_word[k]) & (same_word[q] >= 0),
    )  # fmt: skip
    yield (
        "hf_images", n, {"image_ids": images.tolist()},
        lambda q, k: (k <= q) | ((images[q] == images[k]) & (images[q] >= 0)),
    )  # fmt: skip
    yield f"bd3({c})", 2 * n, {}, lambda q, k: bd3(q, k, 2 * n, c)
    yield f"strided({c})", n, {}, lambda q, k: (k <= q) & ((q - k < c) | ((q - k) % c == 0))


@pytest.mark.parametrize("seed", range(25))
def test_masks_equal_their_published_definitions(seed):
    for call, length, columns, rule in draw(Random(seed)):
        q, k = np.arange(length)[:, None], np.arange(length)[None, :]
        form = SPEC.mask(call).compile(Sample(columns, length))
        expected = np.broadcast_to(rule(q, k), (length, length))
        assert np.array_equal(form.tile(0, length, 0, length), expected), (call, length)
        assert form.num_pairs == expected.sum()


# ---- masks bound to shapes seen lately -----------------------------------------------------------


TEXT = """
segment doc = x[a]*
segment pair = (p[b] r[c]*)*
mask docs = causal and same(x)
mask pairs = causal and same(r) or k in p
"""


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(binding, "_kept", type(binding._kept)())


def test_an_equal_sample_gets_the_same_form():
    mask = Spec.from_text(TEXT).mask("docs")
    first = mask.compile(Sample({"a": [3, 4]}, 7))
    assert mask.compile(Sample({"a": [3, 4], "unread": [1]}, 7)) is first
    assert Spec.from_text(TEXT).mask("docs").compile(Sample({"a": [3, 4]}, 7)) is not first


def test_a_sample_that_differs_anywhere_gets_its_own_form():
    spec = Spec.from_text(TEXT)
    nested = [{"b": [1, 2], "c": [[1, 1], [2]]}, {"b": [1, 2], "c": [[1], [1, 2]]},
              {"b": [2, 1], "c": [[1, 1], [2]]}, {"b": [1, 2], "c": [[2], [2]]}]  # fmt: skip
    flat = [{"a": [3, 4]}, {"a": [4, 3]}, {"a": [7]}, {"a": [0, 7]}]
    for name, samples in (("docs", flat), ("pairs", nested)):
        mask = spec.mask(name)
        for columns in samples * 2:
            sample = Sample(columns, 7)
            assert (mask.compile(sample).tile(0, 7, 0, 7) == dense_mask(mask, sample)).all()


def test_a_length_that_does_not_fit_is_refused_though_its_columns_are_known():
    mask = Spec.from_text(TEXT).mask("docs")
    mask.compile(Sample({"a": [3, 4]}, 7))
    with pytest.raises(DatasetError, match="add up"):
        mask.compile(Sample({"a": [3, 4]}, 8))


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(binding, "MAX_KEPT", 3)
    monkeypatch.setattr(binding, "MAX_SLABS", 8)
    mask = Spec.from_text(TEXT).mask("docs")
    forms = [mask.compile(Sample({"a": [n]}, n)) for n in range(1, 7)]
    assert len(binding._kept) == 3
    assert mask.compile(Sample({"a": [6]}, 6)) is forms[-1]
    assert mask.compile(Sample({"a": [1]}, 1)) is not forms[0]
    many = Sample({"a": [2] * 9}, 18)
    assert mask.compile(many) is not mask.compile(many)
