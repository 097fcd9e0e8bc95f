"""Every form of a mask against the dense oracle, taken apart into integers, combined in any way."""

import tracemalloc
from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest
import random_masks as written

from dcp_dsl import DatasetError, Form, Sample, Slabs, Spec, SpecError, block_sparsity, dense_mask
from dcp_dsl.core import per_token as dense_module
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms import (
    Parts,
    PlacedForm,
    RegionPart,
    Rows,
    as_slabs,
    compare_masks,
    form_of,
    is_equal,
    items_of,
)
from dcp_dsl.forms import slabs as slabs_module
from dcp_dsl.forms.algebra import is_empty, subtract
from dcp_dsl.interchange import build_block_tables
from dcp_dsl.symbolic import region
from dcp_dsl.symbolic.shortcuts import sweep_few

BATCHES, MASKS, SAMPLES = 9, 140, 4


def outcome(run):
    """Return what a call returns, or the kind of refusal."""
    try:
        return run()
    except DatasetError:
        return "sample"
    except SpecError as error:
        return error.diagnostics[0].code


def check_form(form: Form, dense):
    """Compare everything a form can say about itself with the dense mask."""
    n = len(dense)
    assert np.array_equal(form.tile(0, n, 0, n), dense)
    assert form.num_pairs == dense.sum()
    if isinstance(form, Slabs):
        order = np.lexsort((form.kv_start, form.q_start))
        assert np.array_equal(order, np.arange(len(form)))
    row_ptr, starts, ends = form.row_ranges(0, n)
    steps = np.diff(dense.astype(np.int8), axis=1, prepend=0, append=0)
    rows, begins = np.nonzero(steps == 1)
    assert np.array_equal(np.repeat(np.arange(n), np.diff(row_ptr)), rows)
    assert np.array_equal(starts, begins)
    assert np.array_equal(ends, np.nonzero(steps == -1)[1])


def check_blocks(forms, denses, block_q, block_kv):
    """Compare a block table with brute force, block by block."""
    blocks = block_sparsity(forms, block_q, block_kv)
    assert blocks.batch.num_sequences == len(forms)
    total = sum(map(len, denses))
    dense = np.zeros((total, total), bool)
    at = 0
    for own in denses:
        dense[at : at + len(own), at : at + len(own)] = own
        at += len(own)
    borders = blocks.q_bounds.tolist(), blocks.kv_bounds.tolist()
    assert all((np.diff(b) > 0).all() and b[0] == 0 and b[-1] == total for b in borders)
    assert np.diff(borders[0]).max(initial=0) <= block_q
    assert np.diff(borders[1]).max(initial=0) <= block_kv
    if not total:
        assert blocks.num_blocks == 0
        return
    counts = dense.astype(np.int64)
    for axis in (0, 1):
        counts = np.add.reduceat(counts, borders[axis][:-1], axis=axis)
    rows, cols = np.nonzero(counts)
    assert np.array_equal(blocks.row_idx, rows)
    assert np.array_equal(blocks.col_idx, cols)
    assert np.array_equal(blocks.pairs, counts[rows, cols])
    areas = np.outer(np.diff(borders[0]), np.diff(borders[1]))
    assert np.array_equal(blocks.kind == 2, (counts == areas)[rows, cols])
    for block in range(0, len(rows), 7):
        i, j = rows[block], cols[block]
        part = dense[borders[0][i] : borders[0][i + 1], borders[1][j] : borders[1][j + 1]]
        assert np.array_equal(blocks.tile(block), part), (i, j)


@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, BATCHES))]
)
def test_random_masks_equal_the_dense_oracle_in_every_form_and_block(batch):
    rng = Random(1000 + batch)
    forms: Counter[str] = Counter()
    cases = 0
    for text, mask in written.draw_masks(batch, MASKS):
        kept = []
        for _ in range(SAMPLES):
            columns, length = written.write_sample(rng)
            sample = Sample({c: columns[c] for c in mask.columns}, length)
            dense = outcome(lambda m=mask, s=sample: dense_mask(m, s))
            form = outcome(lambda m=mask, s=sample: m.compile(s))
            if isinstance(dense, str) or isinstance(form, str):
                assert isinstance(form, str), (text, sample, dense)
                assert form == dense, (text, sample)
                cases += 1
                continue
            try:
                check_form(form, dense)
            except AssertionError:
                raise AssertionError(f"{text}\n{sample!r}\n{form.form}") from None
            forms[form.form] += 1
            kept.append((form, dense))
        for index, (form, dense) in enumerate(kept):
            sizes = rng.randint(1, 9), rng.randint(1, 9)
            check_blocks([form], [dense], sizes[0], sizes[index % 2])  # squares, and others
            cases += 1
            if index % 4 == 3:
                four = kept[index - 3 : index + 1]
                check_blocks([f for f, _ in four], [d for _, d in four], *sizes)
    assert cases >= 500
    assert sum(forms.values()) > 0.8 * MASKS * SAMPLES, "most samples fit"
    assert min(forms[name] for name in ("slabs", "strided", "tiles")) >= 3, forms


DIRECTED = {
    "slabs": ("causal", "streaming(3, 7) per doc", "k in last(body) and causal"),
    "cols": ("causal and q < k.evict", "k <= q and q - k < k.weight", "(q < k.evict) per doc"),
    "strided": ("causal and (q - k) % 3 == 0", "sliding(9) and q % 4 != k % 4"),
    "rows": ("k < q.evict", "q.weight * 3 < k and k % 7 < q.weight"),
    "tiles": (
        "q * k % 5 < 2 and causal",
        "abs(q - k) % 3 == 1",
        "same(word) and q.weight < k.evict * q",
    ),
}


@pytest.mark.parametrize("name", DIRECTED)
def test_every_form_is_chosen_where_it_is_the_shortest(name, monkeypatch):
    monkeypatch.setattr(slabs_module, "MANY", 3)  # blocks are found as those of many tokens
    rng = Random(7)
    for text in DIRECTED[name]:
        mask = Spec.from_text(written.LAYOUTS).mask(text)
        bound = []
        while len(bound) < 4:
            columns, length = written.write_sample(rng, 160)
            if length < 120:
                continue
            sample = Sample({c: columns[c] for c in mask.columns}, length)
            form, dense = mask.compile(sample), dense_mask(mask, sample)
            assert form.form == name, text
            check_form(form, dense)
            assert np.array_equal(as_slabs(form).tile(0, length, 0, length), dense)
            assert form.digest == mask.compile(sample).digest
            bound.append((form, dense))
        for sizes in ((16, 16), (23, 41), (500, 500)):
            check_blocks([f for f, _ in bound], [d for _, d in bound], *sizes)


def test_masks_of_all_forms_are_subtracted_and_compared_exactly():
    rng = Random(3)
    columns, length = written.write_sample(rng, 90)
    spec = Spec.from_text(written.LAYOUTS)
    bound = []
    for text in [text for texts in DIRECTED.values() for text in texts]:
        mask = spec.mask(text)
        sample = Sample({c: columns[c] for c in mask.columns}, length)
        bound.append((mask.compile(sample), dense_mask(mask, sample)))
        form, _ = bound[-1]
        assert is_equal(form, Rows(length, *form.row_ranges(0, length)))  # whose digest differs
    for (a, left), (b, right) in product(bound, bound):
        check_form(subtract(a, b), left & ~right)
        assert is_empty(subtract(a, b)) == (not (left & ~right).any())
        assert is_equal(a, b) == np.array_equal(left, right)
        found = compare_masks(a, b)
        wrong = np.argwhere(left != right)
        assert (found.only_left, found.only_right) == ((left & ~right).sum(), (right & ~left).sum())
        assert found.first == (tuple(wrong[0]) if len(wrong) else None)
    keys = np.arange(2**15 + 1)  # too many to compare pairs, and too many slabs from the queries
    ends = np.random.default_rng(1).integers(keys, len(keys)) + 1
    rows = (Rows(len(keys), np.arange(len(keys) + 1), keys, end) for end in (ends, keys + 1))
    assert subtract(*map(Parts.of_keys, rows)).num_pairs == (ends - keys - 1).sum()


def test_equal_masks_have_equal_digests_however_they_are_written():
    spec = Spec.from_text("segment doc = [doc_lens]*")
    sample = Sample({"doc_lens": [9, 0, 4, 17]}, 30)
    pairs = (
        ("causal per doc", "causal and same(doc)"),
        ("sliding(5)", "k <= q and k > q - 5"),
        ("q % 3 == k % 3 and causal", "causal and not ((q - k) % 3 > 0)"),
        ("(q - k) % 6 % 3 == 0", "q % 3 == k % 3"),
    )
    for left, right in pairs:
        a, b = (spec.mask(text) for text in (left, right))
        forms = [m.compile(Sample({c: sample.columns[c] for c in m.columns}, 30)) for m in (a, b)]
        assert forms[0].digest == forms[1].digest, left
    assert isinstance(spec.mask("causal").compile(Sample(length=9)), Slabs)


def test_a_million_tokens_cost_no_memory_per_token():
    slabs = Spec.from_text("").mask("streaming").bind(Sample(length=1_000_000))
    assert len(slabs) == 3
    window, sink, n = 4096, 64, 1_000_000
    q = np.arange(n, dtype=np.int64)
    expected = np.minimum(q + 1, window) + np.clip(q + 1 - window, 0, sink)
    assert slabs.num_pairs == expected.sum()


def test_ranges_of_a_row_stand_in_order_where_slabs_of_one_row_do_not():
    spec = Spec.from_text(
        "@ahead mask near = abs(z(q) - z(k)) <= 1 and abs(y(q) - y(k)) <= 1"
        " and abs(x(q) - x(k)) <= 1"
        " where z(t) = t // 15, y(t) = t % 15 // 3, x(t) = t % 3"
    )
    sample = Sample(length=61)
    form = spec.mask("near").compile(sample)
    assert form.form == "rows"
    check_form(form, dense_mask(spec.mask("near"), sample))


@pytest.mark.parametrize("ranges", [([0, 1, 2], [0, 1], [1, 1]), ([0, 1, 1], [0, 0], [1, 1])])
def test_rows_that_are_none_are_refused(ranges):
    with pytest.raises(ValueError, match="non-empty ranges, as many as row_ptr says"):
        Rows(2, *ranges)


def test_rows_of_more_blocks_than_are_counted_at_once_are_counted_one_by_one(monkeypatch):
    monkeypatch.setattr(slabs_module, "ROW_CELLS_AT_ONCE", 3)
    kept = [(5 * i * i + 3 * i) % 29 + 1 for i in range(30)]  # keys that each row sees
    form = Rows(30, list(range(31)), [0] * 30, kept)
    check_blocks([form], [np.arange(30) < np.array(kept)[:, None]], 4, 5)


def test_the_dense_mask_takes_memory_for_a_bunch_of_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(dense_module, "PAIRS_AT_ONCE", 2**12)
    mask = Spec.from_text("").mask("causal and (q - k) % 3 == 0")
    dense_mask(mask, Sample(length=8))  # what is loaded on use is no memory of a bunch
    tracemalloc.start()
    found = dense_mask(mask, Sample(length=512))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * found.nbytes


@pytest.mark.parametrize(("block_q", "block_kv"), [(0, 1), (1, 0), (-3, 2)])
def test_a_block_without_tokens_is_refused(block_q, block_kv):
    slabs = Spec.from_text("").mask("full").bind(Sample(length=4))
    with pytest.raises(ValueError, match="at least 1 token"):
        block_sparsity([slabs], block_q, block_kv)
    with pytest.raises(ExchangeError, match=f"at least 1 token, got {block_q} x {block_kv}"):
        build_block_tables(slabs, block_q, block_kv)


def test_a_batch_of_no_sequences_has_no_blocks():
    blocks = block_sparsity([], 4, 4)
    assert (blocks.num_blocks, blocks.batch.num_tokens) == (0, 0)


# ---- combining slabs one by one and in arrays ----------------------------------------------------


LAYOUTS = """
segment part = question[question_len] answer[answer_lens]*
segment doc = [doc_lens]*
token evict
"""
COMBINED = (
    "causal and (k in question or same(answer))", "streaming(3, 7)", "sliding(5) per doc",
    "causal and q < k.evict and k in answer", "not (sliding(4) and k in question) and q <= k + 9",
    "(causal or same(doc)) and not same(answer)", "abs(q - k) <= 6 and sliding(9) or k < 2",
)  # fmt: skip


@pytest.mark.parametrize("text", COMBINED)
def test_slabs_combined_one_by_one_equal_those_combined_in_arrays(text, monkeypatch):
    rng = np.random.default_rng(5)
    mask = Spec.from_text(LAYOUTS).mask(text)
    for _ in range(12):
        answers, documents = rng.integers(1, 9, 3).tolist(), rng.integers(1, 12, 3).tolist()
        length = max(sum(answers), sum(documents)) + 4
        columns = {
            "question_len": length - sum(answers), "answer_lens": answers,
            "doc_lens": [*documents, length - sum(documents)],
            "evict": rng.integers(0, length + 1, length).tolist(),
        }  # fmt: skip
        sample = Sample({c: columns[c] for c in mask.columns}, length)
        digests = set()
        for few in (0, 4, 12, 1000):
            monkeypatch.setattr(region, "FEW", few)
            digests.add(mask.compile(sample).digest)
        assert len(digests) == 1, sample


@pytest.mark.parametrize(
    "text",
    ["q >= 3 and q < 9 and k >= 2 and k < 7", "q > k - 5 and 2 * q <= 3 * k and q < 2 * k + 4",
     "k <= q and q < k.evict", "k.evict < q and q - 6 <= k.evict",
     "q.evict <= k and k < 9 + q // 2", "-k <= 4 - q and -k >= 0 - q",
     "k // 3 >= q // 3 - 1 and k // 3 <= q.evict // 3",
     "max(q - 2 * k, 2 * k - q) <= 3", "q % 5 - k % 5 <= 1 and q % 5 - k % 5 >= 0 - 2"],
)  # fmt: skip
def test_bounds_from_both_sides_are_exact_joined_or_not(text):
    mask = Spec.from_text(LAYOUTS).mask(text)
    evict = np.random.default_rng(7).integers(0, 26, 23).tolist()
    sample = Sample({"evict": evict} if mask.columns else {}, 23)
    seen = mask.compile(sample).tile(0, 23, 0, 23)
    np.testing.assert_array_equal(seen, dense_mask(mask, sample))
    assert 0 < seen.sum() < seen.size


@pytest.mark.parametrize(
    ("slab", "is_empty"),
    [((0, 4, 3, 3, 0, 0), True), ((4, 4, 3, 6, 0, 0), True), ((0, 4, 3, 4, 0, 0), False),
     ((0, 4, 3, 3, 0, 1), False), ((0, 4, 3, 6, 1, 0), False)],
)  # fmt: skip
def test_slabs_without_pairs_are_left_out(slab, is_empty):
    assert (sweep_few([slab], [1], [False, True]) == []) == is_empty


# ---- forms taken apart into integers and made again; integers that are no form are refused -------


SLABS = Slabs(6, [0, 4], [4, 6], [0, 1], [1, 3], [0, 1], [1, 0])
ROWS = Rows(6, [0, 1, 1, 3, 3, 3, 4], [0, 1, 3, 5], [2, 2, 6, 6])
STRIDED = Parts(6, (RegionPart(SLABS, False, 3, [0, 2]), RegionPart(SLABS, False, 3, [1])))
FORMS = [SLABS, ROWS, Parts.of_keys(SLABS), Parts.of_keys(ROWS), STRIDED]
NAMES = ["slabs", "rows", "cols of slabs", "cols of rows", "strided"]


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_form_is_made_again_from_its_integers(form):
    kind, items = items_of(form)
    found = form_of(kind, 6, items)
    assert type(found) is type(form)
    assert found.digest == form.digest
    assert np.array_equal(found.tile(0, 6, 0, 6), form.tile(0, 6, 0, 6))


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_integers_at_random_are_a_form_or_refused(form):
    rng = np.random.default_rng(0)
    kind, items = items_of(form)
    for _ in range(300):
        broken = items.copy()
        for at in rng.integers(len(items), size=rng.integers(1, 3)):
            broken[at] = rng.choice([-1, 0, 1, 2, 5, 6, 7, 2**40])
        broken = broken[: rng.integers(max(0, len(items) - 2), len(items) + 1)]
        try:
            found = form_of(kind, 6, broken)
        except ValueError:
            continue
        assert found.tile(0, 6, 0, 6).shape == (6, 6)


@pytest.mark.parametrize(
    ("kind", "items", "message"),
    [
        ("cols:strided", [2], "expected a kind among slabs, rows"),
        ("bits", [], "expected a kind among slabs, rows"),
        pytest.param("cols:" * 5000 + "slabs", [], "expected a kind among", id="cols of cols of"),
        ("slabs", [0, 4], "expected six integers a slab, got 2 in all"),
        ("slabs", [0, 4, 0, 7, 0, 0], "inside 6 tokens"),
        ("slabs", [0, 4, 0, 1, 0, 2], "slopes 0 or 1"),
        ("rows", [1, 0, 0, 0, 0], "expected the ranges of 6 rows"),
        ("rows", [2, 0, 0, 0, 0, 0, 0, 2, 3, 4], "expected rising ranges apart"),
        ("rows", [2, 0, 0, 0, 0, 0, 0, 2, 2, 4], "expected rising ranges apart"),
        ("rows", [2, 2, 0, 0, 0, 0, 0, 2, 0, 2, 2, 4, 1, 3], "expected rising ranges apart"),
        ("rows", [3, 0, 0, 0, 0, 0, 0, 2, 4, 1, 4, 6], "expected rising ranges apart"),
        ("rows", [1, 0, 0, 0, 0, 0, 0, 7], "inside 6 tokens"),
        ("rows", [2, 0, 0, 0, 0, 0, -1, 2, 1, 3], "inside 6 tokens"),
        ("rows", [2, 0, 0, 0, 0, 0, 0, 2, 1, 7], "inside 6 tokens"),
        ("strided", [], "expected a period of 2 to 65536, got 0"),
        ("strided", [1 << 40], "expected a period of 2 to 65536"),
        ("strided", [3, 1, 5, 0], "expected a part at 1, got"),
        ("strided", [3, 1, 0, 2, 1, 0, 2], "expected every remainder once"),
    ],
)
def test_integers_that_are_no_form_are_refused(kind, items, message):
    with pytest.raises(ValueError, match=message):
        form_of(kind, 6, np.array(items, np.int64))


def test_a_stride_without_parts_sees_nothing():
    assert form_of("strided", 6, np.array([2])).num_pairs == 0


@pytest.mark.parametrize(
    "part", [(SLABS, True, 3, [1]), (ROWS, False, 3, [1]), (SLABS, False, 3, [3])]
)
def test_remainders_are_those_of_slabs_seen_from_the_queries(part):
    with pytest.raises(ValueError, match="remainders"):
        RegionPart(*part)


def test_a_form_of_tiles_cannot_be_taken_apart():
    form = Spec.from_text("mask products = causal and q * k % 7 < 3").mask("products")
    tiles = form.compile(Sample(length=20))
    assert tiles.form == "tiles"
    with pytest.raises(DatasetError, match="`tiles` on 20 tokens cannot be kept in a file"):
        items_of(tiles)


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_placed_form_is_the_form_at_its_place(form):
    whole = np.zeros((20, 20), bool)
    whole[3:9, 10:16] = form.tile(0, 6, 0, 6)
    placed = PlacedForm(form, 3, 10)
    for window in [(0, 20, 0, 20), (4, 8, 9, 12), (0, 3, 0, 20), (8, 20, 15, 20)]:
        q0, q1, k0, k1 = window
        assert np.array_equal(placed.tile(*window), whole[q0:q1, k0:k1])
    q_bounds, kv_bounds = np.array([0, 3, 5, 9, 20]), np.array([0, 2, 10, 13, 14, 16])
    found = placed.count_blocks(q_bounds, kv_bounds)
    counts = np.zeros((4, 5), int)
    counts[found.row, found.col] = found.pairs
    sums = np.add.reduceat(whole[:, :16].astype(int), q_bounds[:-1], 0)
    assert np.array_equal(counts, np.add.reduceat(sums, kv_bounds[:-1], 1))
