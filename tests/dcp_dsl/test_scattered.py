"""Masks of scattered flags and ids: exact in each block, where each pair has its own range."""

from dataclasses import replace

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, SpecError, block_sparsity
from dcp_dsl.core import factors
from dcp_dsl.forms import Parts, Rows, as_rows, as_slabs

TEXT = """
segment asking = flags(fq)
segment kept = flags(fk)
segment doc = ids(ids)
segment turn = ids(turns)
token a = ca
token b = cb
mask sparse = causal and q in asking and k in kept
mask globals = local(3) or q in asking or k in kept
mask by_id = causal and same(doc)
mask other_id = not same(doc) minus (k in kept)
mask by_value = (causal or q in asking) and (q.a == k.b or not (k in kept))
mask unlike = not (q.a == k.b) and sliding(5)
mask twice = causal and same(turn) and same(doc)
mask limits = q.a < 2 and k.b > 1 or same(doc) and q - k < 4
mask inside = (causal and k in kept) per doc or q in asking
"""


def expected(name, c, n):
    """Return the masks of `TEXT` pair by pair, as their lines say it."""
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    causal = k <= q
    asking, kept = np.array(c["fq"])[:, None] == 1, np.array(c["fk"])[None, :] == 1
    ids = np.array(c["ids"])
    same = (ids[:, None] == ids) & (ids[:, None] >= 0)
    equal = np.array(c["ca"])[:, None] == np.array(c["cb"])
    return {
        "sparse": causal & asking & kept,
        "globals": (abs(q - k) < 3) | asking | kept,
        "by_id": causal & same,
        "other_id": ~same & ~kept,
        "by_value": (causal | asking) & (equal | ~kept),
        "unlike": ~equal & causal & (q - k < 5),
        "twice": causal & same & (np.array(c["turns"])[:, None] == c["turns"]),
        "limits": (np.array(c["ca"])[:, None] < 2) & (np.array(c["cb"]) > 1) | same & (q - k < 4),
    }[name]


def columns(rng, n):
    drawn = {"fq": rng.random(n) < 0.5, "fk": rng.random(n) < 0.6, "ids": rng.integers(-1, 4, n),
             "ca": rng.integers(0, 4, n), "cb": rng.integers(0, 4, n)}  # fmt: skip
    drawn["turns"] = np.arange(n) // 8 % 2  # of few stretches: not taken out
    return {name: values.astype(int).tolist() for name, values in drawn.items()}


def assert_blocks(form, dense, block_q, block_kv):
    blocks = block_sparsity([form], block_q, block_kv)
    counts = np.zeros((len(blocks.q_bounds) - 1, len(blocks.kv_bounds) - 1), np.int64)
    counts[blocks.row_idx, blocks.col_idx] = blocks.pairs
    rows = np.add.reduceat(dense.astype(np.int64), blocks.q_bounds[:-1], axis=0)
    np.testing.assert_array_equal(counts, np.add.reduceat(rows, blocks.kv_bounds[:-1], axis=1))


MASKS = ("sparse", "globals", "by_id", "other_id", "by_value", "unlike", "twice", "limits")


@pytest.fixture
def scattered(monkeypatch):
    """Take conditions out of small samples too, and find no other form."""
    monkeypatch.setattr(factors, "MIN_STRETCHES", 1)
    for limit in ("region.MAX_CELLS", "region.MAX_PAIRS", "comparison.MAX_JOBS"):
        monkeypatch.setattr(f"dcp_dsl.symbolic.{limit}", 48)
    monkeypatch.setattr("dcp_dsl.symbolic.region.CELLS_PER_SLAB", 0)
    monkeypatch.setattr("dcp_dsl.core.lowering.MAX_NARROW_JOBS", 4)


@pytest.mark.parametrize("name", MASKS)
def test_every_block_of_a_scattered_mask_is_counted_exactly(name, scattered):
    rng = np.random.default_rng(5)
    mask = Spec.from_text(TEXT).mask(name)
    labelled = 0
    for n in (1, 2, 3, *rng.integers(10, 90, 30).tolist()):
        drawn = columns(rng, n)
        form = mask.compile(Sample({c: drawn[c] for c in mask.columns}, n))
        dense = expected(name, drawn, n)
        np.testing.assert_array_equal(form.tile(0, n, 0, n), dense)
        assert form.num_pairs == dense.sum()
        assert_blocks(form, dense, *rng.integers(1, 9, 2).tolist())
        if form.form == "tiles" and not hasattr(form.parts[0], "predicate"):
            labelled += 1
            shorter = replace(form, num_tokens=n - 2)
            assert_blocks(shorter, dense[: n - 2, : n - 2], 5, 7)
            assert np.array_equal(as_rows(form).tile(0, n, 0, n), dense)
            assert np.array_equal(as_slabs(form).tile(0, n, 0, n), dense)
    assert labelled >= 15


def test_random_flags_of_131_072_tokens_are_counted_by_their_sums():
    n, rng = 131_072, np.random.default_rng(1)
    flags = (rng.random((2, n)) < 0.7).astype(int)
    mask = Spec.from_text("").mask("qk_sparse")
    form = mask.compile(Sample({"keep_q": flags[0].tolist(), "keep_k": flags[1].tolist()}, n))
    before = np.cumsum(flags[1])
    assert form.num_pairs == before[flags[0] == 1].sum()
    blocks = block_sparsity([form], 512, 512)
    sums = flags.reshape(2, -1, 512).sum(axis=2)
    below = blocks.row_idx > blocks.col_idx
    row, col = blocks.row_idx[below], blocks.col_idx[below]
    assert np.array_equal(blocks.pairs[below], sums[0][row] * sums[1][col])


def test_thousand_random_ids_of_131_072_tokens_are_counted():
    n, rng = 131_072, np.random.default_rng(2)
    ids = rng.integers(0, 1000, n)
    mask = Spec.from_text("segment doc = ids(d)\nmask a = causal and same(doc)").mask("a")
    counts = np.bincount(ids)
    form = mask.compile(Sample({"d": ids.tolist()}, n))
    assert form.num_pairs == (counts * (counts + 1) // 2).sum()
    assert np.array_equal(form.tile(700, 720, 0, 720), (ids[700:720, None] == ids[:720])
                          & (np.arange(700, 720)[:, None] >= np.arange(720)))  # fmt: skip


def test_fixed_of_131_072_tokens_is_found_from_the_keys():
    form = Spec.from_text("").mask("fixed").compile(Sample(length=131_072))
    inside = 1024 * (128 * 129 // 2)  # of each stride, causal
    earlier = 128 * 8 * (1024 * 1023 // 2)  # summaries of the strides before
    assert form.form == "cols"
    assert form.num_pairs == inside + earlier


def ranges_of(dense):
    edges = np.diff(dense.astype(np.int8), axis=1, prepend=0, append=0)
    return int((edges == 1).sum())


@pytest.mark.parametrize(
    "call", ["fixed(8, 2)", "strided(7)", "dilated(30, 3)", "eviction", "tree", "qk_sparse"]
)
def test_a_refusal_names_the_ranges_that_there_are(call):
    n, rng = 120, np.random.default_rng(3)
    drawn = {
        "evict": np.arange(n) + rng.integers(1, 30, n), "keep_q": rng.integers(0, 2, n),
        "subtree_end": np.minimum(n, np.arange(n) + rng.integers(1, 9, n)),
        "keep_k": rng.integers(0, 2, n),
    }  # fmt: skip
    mask = Spec.from_text("").mask(call)
    form = mask.compile(Sample({c: drawn[c].tolist() for c in mask.columns}, n))
    if form.form == "slabs":
        form = Parts.of_keys(Rows(n, *_rows_of(form.tile(0, n, 0, n).T)))
    dense = form.tile(0, n, 0, n)
    count = ranges_of(dense)
    assert np.array_equal(as_rows(form, count).tile(0, n, 0, n), dense)
    with pytest.raises(
        DatasetError, match=f"has {count:_} key ranges of rows, at most {count - 1:_}"
    ):
        as_rows(form, count - 1)


def _rows_of(dense):
    edges = np.diff(dense.astype(np.int8), axis=1, prepend=0, append=0)
    row, start = np.nonzero(edges == 1)
    return np.searchsorted(row, np.arange(len(dense) + 1)), start, np.nonzero(edges == -1)[1]


def test_ranges_of_a_mask_seen_from_the_keys_are_found_without_its_pairs():
    rng = np.random.default_rng(4)
    for _ in range(100):
        n = int(rng.integers(1, 30))
        dense = rng.random((n, n)) < rng.random()
        seen = as_rows(Parts.of_keys(Rows(n, *_rows_of(dense.T))))
        assert np.array_equal(seen.tile(0, n, 0, n), dense)
        assert len(seen.kv_start) == ranges_of(dense)


def test_a_refusal_names_its_limit():
    with pytest.raises(SpecError, match=r"17_179_869_184 pairs to look at one by one, at most"):
        Spec.from_text("mask a = q * k % 7 < 3").mask("a").compile(Sample(length=131_072))
    n = 131_072
    flags = np.random.default_rng(0).integers(0, 2, n).tolist()
    mask = Spec.from_text("").mask("qk_sparse")
    with pytest.raises(DatasetError, match=r"judged by 64 of them, at most 4_194_304"):
        mask.bind(Sample({"keep_q": flags, "keep_k": flags}, n))


def test_a_product_of_positions_is_counted_or_refused_by_its_budget():
    mask = Spec.from_text("mask a = k * q <= k + 2").mask("a")
    q, k = np.ogrid[:3000, :3000]
    assert mask.compile(Sample(length=3000)).num_pairs == int((k * q <= k + 2).sum())
    with pytest.raises(SpecError, match=r"3_905_932_668 pairs to look at one by one, at most"):
        mask.compile(Sample(length=1_000_000))
    form = mask.compile(Sample(length=200_000))
    with pytest.raises(DatasetError, match=r"blocks to look at, got 156_250_000; take larger"):
        block_sparsity([form], 16, 16)


def test_the_more_a_predicate_computes_the_fewer_pairs_it_may_leave_open():
    once, often = (
        Spec.from_text(f"mask a = {text}").mask("a")
        for text in ("q * k % 7 < 3", " or ".join(f"q * k % {n} == 1" for n in range(5, 15)))
    )
    assert once.compile(Sample(length=8192)).form == "tiles"
    with pytest.raises(SpecError, match=r"67_108_864 pairs .* at most \d+_\d+_\d+ are handled"):
        often.compile(Sample(length=8192))


@pytest.mark.parametrize("block", [7, 64, 500, 3000])
def test_blocks_of_any_size_count_the_pairs_of_a_product(block):
    form = Spec.from_text("mask a = k * q % 5 < k - 9").mask("a").compile(Sample(length=1000))
    q, k = np.ogrid[:1000, :1000]
    seen = k * q % 5 < k - 9
    cuts = np.arange(0, 1000, block)
    found = block_sparsity([form], block, block)
    dense = np.add.reduceat(np.add.reduceat(seen, cuts, 0, dtype=int), cuts, 1)
    assert np.array_equal(dense[dense > 0], found.pairs)
    assert form.num_pairs == seen.sum()
