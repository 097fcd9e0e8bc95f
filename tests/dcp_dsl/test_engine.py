"""Laws of slabs: one canonical list for each set of pairs, `per` as a frame, causal triangles."""

import mask_strategies as drawn
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec, SpecError, block_sparsity, dense_mask

# Each example parses, checks and binds a mask; deadlines would only measure the machine.
brief = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
few = settings(brief, max_examples=30)


def bound(text, columns, length):
    """Bind a random mask whose units fit."""
    try:
        mask = Spec.from_text(f"{drawn.LAYOUTS}\nmask m = {text}").mask("m")
    except SpecError:  # kinds are left to chance
        assume(False)
    sample = Sample({name: columns[name] for name in mask.columns}, length)
    return mask, sample, mask.bind(sample)


@few
@given(text=drawn.masks, sample=drawn.samples())
def test_slabs_are_sorted_and_depend_on_the_set_of_pairs_only(text, sample, paint):
    mask, values, slabs = bound(text, *sample)
    assert np.array_equal(paint(slabs), dense_mask(mask, values))
    order = np.lexsort((slabs.kv_start, slabs.q_start))
    assert np.array_equal(order, np.arange(len(slabs)))
    twice = Spec.from_text(f"{drawn.LAYOUTS}\nmask m = not (not ({text}) or false)").mask("m")
    assert np.array_equal(twice.bind(values).table(), slabs.table())
    by_rows = mask_by_rows(dense_mask(mask, values)).bind(Sample(length=values.length))
    assert np.array_equal(by_rows.table(), slabs.table())


def mask_by_rows(dense):
    """Write a dense mask as a text that lists its pairs one by one."""
    pairs = [f"q == {q} and k == {k}" for q, k in np.argwhere(dense).tolist()]
    tree = pairs or ["false"]
    while len(tree) > 1:  # joined in bunches: nesting and length of a statement are limited
        tree = [" or ".join(f"({t})" for t in tree[i : i + 8]) for i in range(0, len(tree), 8)]
    return Spec.from_text(f"mask m = {tree[0]}").mask("m")


@brief
@given(
    text=st.sampled_from(
        ["causal", "streaming(1, 2)", "sliding(2)", "same(b) where b = every 2", "q in last(b) "
         "where b = every 3", "len - q < 3 and causal", "not causal"]
    ),
    name=st.sampled_from(["answer", "doc", "body", "part", "tile"]),
    sample=drawn.samples(),
)  # fmt: skip
def test_per_evaluates_in_the_coordinates_of_each_instance(text, name, sample, paint):
    columns, length = sample
    spec = Spec.from_text(f"{drawn.LAYOUTS}\nmask m = {text}\nmask p = m per {name}")
    inner, outer = spec.mask("m"), spec.mask("p")
    own = spec.mask(f"same({name})")
    values = Sample({c: columns[c] for c in outer.columns}, length)
    same = dense_mask(own, Sample({c: columns[c] for c in own.columns}, length))
    expected = np.zeros((length, length), bool)
    at = 0
    while at < length:  # each run of equal rows of `same` is an instance; others see nothing
        size = int(same[at].sum())
        if size:
            part = dense_mask(inner, Sample(length=size))
            expected[at : at + size, at : at + size] = part
        at += max(size, 1)
    assert np.array_equal(paint(outer.bind(values)), expected)
    assert np.array_equal(dense_mask(outer, values), expected)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("block", [1, 2, 3, 64, 1000])
def test_causal_blocks_are_a_triangle(length, block, unpack):
    mask = Spec.from_text("").mask("causal")
    counts = unpack(block_sparsity([mask.bind(Sample(length=length))], block, block))
    q, k = np.arange(length)[:, None], np.arange(length)[None, :]
    expected = np.zeros_like(counts)
    np.add.at(expected, (q // block, k // block), (k <= q).astype(int))
    assert np.array_equal(counts, expected)


def test_a_million_tokens_cost_no_memory_per_token():
    mask = Spec.from_text("").mask("streaming")
    slabs = mask.bind(Sample(length=1_000_000))
    assert len(slabs) == 3
    window, sink, n = 4096, 64, 1_000_000
    q = np.arange(n, dtype=np.int64)
    expected = np.minimum(q + 1, window) + np.clip(q + 1 - window, 0, sink)
    assert slabs.num_pairs == expected.sum()


@pytest.mark.parametrize(("block_q", "block_kv"), [(0, 1), (1, 0), (-3, 2)])
def test_a_block_without_tokens_is_refused(block_q, block_kv):
    slabs = Spec.from_text("").mask("full").bind(Sample(length=4))
    with pytest.raises(ValueError, match="at least 1 token"):
        block_sparsity([slabs], block_q, block_kv)


def test_a_batch_of_no_sequences_has_no_blocks():
    blocks = block_sparsity([], 4, 4)
    assert (blocks.num_blocks, blocks.batch.num_tokens) == (0, 0)
