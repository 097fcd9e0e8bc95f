"""Every form of a mask against the dense oracle: random texts with every construct, all blocks."""

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
from dcp_dsl.forms import Parts, Rows, as_slabs, compare_masks, is_equal
from dcp_dsl.forms import slabs as slabs_module
from dcp_dsl.forms.algebra import is_empty, subtract
from dcp_dsl.interchange import build_block_tables

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
            check_blocks([form], [dense], *sizes)
            check_blocks([form], [dense], sizes[0], sizes[0])
            cases += 2
            if index % 4 == 3:
                four = kept[index - 3 : index + 1]
                check_blocks([f for f, _ in four], [d for _, d in four], *sizes)
    assert cases >= 1000
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
