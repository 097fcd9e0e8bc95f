"""Hostile texts and samples end in a diagnostic, not in a crash and not in a long wait."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from dcp_dsl import (
    DatasetError,
    Sample,
    Spec,
    SpecError,
    block_sparsity,
    check,
    dense_mask,
)
from dcp_dsl.forms import is_equal
from dcp_dsl.forms.labels import LabelledPart
from dcp_dsl.forms.parts import Parts, RegionPart
from dcp_dsl.forms.slabs import Rows, Slabs
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.terms import MAX_PERIOD, Cyclic
from dcp_dsl.syntax.parser import MAX_CHARACTERS

LONGEST = 2**31 - 1


def fill(line, head="", share=4):
    """Repeat a line, with its number in place of `#`, to a share of the longest text that is read.

    A quarter is enough where the work would grow with the square of the length.
    """
    size = MAX_CHARACTERS // share - len(head) - 100
    lines, used = [head], 0
    while used < size:
        lines.append(line.replace("#", str(len(lines))))
        used += len(lines[-1]) + 1
    return "\n".join(lines[:-1])


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (fill("mask a = b"), {"E108"}),
        (fill("mask abcdefghijkl# = abcdefghijklm#"), {"E101"}),
        (fill("check causal total"), set()),
        (fill("check document total"), set()),
        (fill("check sliding(2) implies q // 2 - k // 2 < 2", share=2), {"W291"}),
        (fill("check full lookback", share=1), {"C404", "W291"}),
        (fill("sample s#(lens = [4], len = 3)", "segment d = [lens]*"), {"W292"}),
        (fill("segment s# = [c]*", "sample s(c = [1])"), set()),
        (f"segment s = {'a[c] ' * 4000}\nmask m = same(s)\ncheck m total", {"E108"}),
        ("mask a = b2000(q) < 0 where b0(t) = t, "
         + ", ".join(f"b{i + 1}(t) = b{i}(t)" for i in range(2000)), {"E116"}),
        ("mask a = q < b0 where b3000 = 1, "
         + ", ".join(f"b{i} = b{i + 1}" for i in range(3000)), {"E116"}),
        ("mask a = " + " or ".join(["same(s)"] * 500)
         + "\nsegment s = x[c]*\n" + "check a total\n" * 100, {"E120"}),
    ],
    ids=range(12),
)  # fmt: skip
@pytest.mark.timeout(15)  # each takes a second at most; without limits they took minutes
def test_a_long_text_is_checked_in_bounded_time_and_with_few_findings(text, codes):
    found = check(text)
    assert {d.code for d in found} == codes
    assert len(found) <= 200


@pytest.mark.parametrize(
    ("text", "columns", "length"),
    [
        ("mask a = q // 2 == k // 2", {}, LONGEST),
        ("mask a = q % 2 == 1", {}, LONGEST),
        ("mask a = q % 2 == k % 2 and q * k % 7 < 3", {}, 1_000_000),
        ("segment s = x[c]*\nmask a = (q % 2 == 1) per x", {"c": [LONGEST]}, LONGEST),
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_a_mask_of_too_many_pieces_is_refused_before_memory_runs_out(text, columns, length):
    with pytest.raises(SpecError) as raised:
        Spec.from_text(text).mask("a").bind(Sample(columns, length))
    assert raised.value.diagnostics[0].code == "E191"


def test_documents_of_very_many_lengths_cost_no_more_than_their_number():
    lengths = list(range(1, 6000))
    mask = Spec.from_text("mask a = streaming(4, 8) per x\nsegment s = x[c]*").mask("a")
    slabs = mask.bind(Sample({"c": lengths}, sum(lengths)))
    assert len(slabs) < 4 * len(lengths)
    q = np.arange(max(lengths))
    seen = np.minimum(q + 1, 8 + np.clip(q - 7, 0, 4))  # keys of a token of any document
    assert slabs.num_pairs == np.cumsum(np.cumsum(seen))[-1]


def test_work_beyond_the_budget_is_refused(monkeypatch):
    monkeypatch.setattr("dcp_dsl.core.binding.MAX_STEPS", 2**12)
    monkeypatch.setattr("dcp_dsl.core.binding.MAX_PART_STEPS", 2**12)
    monkeypatch.setattr("dcp_dsl.core.binding.MOST_TOKENS", 0)
    mask = Spec.from_text("segment s = every 2\nmask a = causal and same(s)").mask("a")
    with pytest.raises(SpecError) as raised:
        mask.bind(Sample(length=12_000))
    assert raised.value.diagnostics[0].code == "E191"


@pytest.mark.parametrize("count", [0, 1, 2, 5, 100, 4096, 4097, 20_000, 300_000])
def test_any_number_of_short_documents_is_bound_per_document_as_with_same(count):
    lengths = np.random.default_rng(count).integers(0, 9, count).tolist()
    sample = Sample({"lens": lengths}, sum(lengths))
    spec = Spec.from_text(
        "segment d = doc[lens]*\nmask one = causal per doc\nmask two = causal and same(doc)"
    )
    one, two = (spec.mask(name).bind(sample) for name in ("one", "two"))
    assert np.array_equal(one.table(), two.table())
    assert one.num_pairs == two.num_pairs == sum(n * (n + 1) // 2 for n in lengths)
    blocks = [block_sparsity([form], 256, 512) for form in (one, two)]
    for column in ("row_idx", "col_idx", "pairs"):
        assert np.array_equal(*(getattr(found, column) for found in blocks))
    assert int(blocks[0].pairs.sum()) == one.num_pairs


BY_DOCUMENT = """
segment d = doc[lens]*
segment b = branch leaf[lens]*
segment p = turn(ask[halves] say[rests]*)*
segment s = spans(ranges)
column w in doc
mask m = """


@pytest.mark.parametrize(
    "text",
    [
        "sliding(3) per doc", "streaming(1, 2) per doc", "causal per doc or (k < 4 and causal)",
        "not same(doc) and causal", "q.doc >= k.doc", "causal and q.doc - k.doc <= 1",
        "causal and (same(doc) or k.doc == 0)",
        "causal and same(doc) and q.doc.pos - k.doc.pos < 3",
        "causal per doc and not (sliding(2) per doc)", "paths and q.path - k.path < 3",
        "causal and same(doc) and q - k < q.doc.w", "causal and same(s) or q == k",
        "causal and same(turn) and (k in ask or same(say))",
        "(causal and k in ask or q == k) per turn",
    ],
)  # fmt: skip
def test_pieces_that_the_instances_of_a_sample_need_meet_no_limit(monkeypatch, text):
    lengths = np.random.default_rng(0).integers(2, 9, 1000).tolist()
    ends = np.cumsum(lengths).tolist()
    columns = {
        "lens": lengths, "w": lengths, "halves": [1] * 1000, "rests": [[n - 1] for n in lengths],
        "ranges": [[end - n, end] for n, end in zip(lengths, ends, strict=True)],
    }  # fmt: skip
    mask = Spec.from_text(BY_DOCUMENT + text).mask("m")
    sample = Sample.of({**columns, "len": ends[-1]}, mask)
    monkeypatch.setattr("dcp_dsl.core.binding.MAX_LENGTHS", 0)  # keep no slabs
    free = mask.compile(sample)
    assert free.form != "tiles"
    for name in ("core.lowering.MAX_JOBS", "symbolic.comparison.MAX_JOBS", "core.binding.MAX_STEPS",
                 "symbolic.region.MAX_CELLS", "symbolic.region.MAX_PAIRS"):  # fmt: skip
        monkeypatch.setattr(f"dcp_dsl.{name}", 1000)
    bound = mask.compile(sample)
    assert bound.form != "tiles"
    assert is_equal(bound, free)


@pytest.mark.parametrize(
    "text",
    ["mask a = q // row.c < 2", "mask a = q % row.c < 2", "mask a = q < row.c",
     "mask a = q - k < -row.c", "segment b = every row.c\nmask a = same(b)",
     "mask a = k in first(b, row.c) where b = every 2", "token e = t\nmask a = q < k.e"],
)  # fmt: skip
@pytest.mark.parametrize(
    "value", [2**51, 2**63 - 1, 2**63, -(2**63), pytest.param(10**400, id="400")]
)
def test_a_number_beyond_the_range_is_refused(text, value):
    mask = Spec.from_text(text).mask("a")
    with pytest.raises((DatasetError, SpecError), match=r"beyond|does not fit into int64"):
        mask.bind(Sample({"c": value, "t": [value, 1, 1]}, 3))


def test_remainders_that_repeat_too_late_together_are_not_added():
    two = Cyclic(np.arange(256)) + Cyclic(np.arange(MAX_PERIOD))
    assert len(two.values) == MAX_PERIOD
    with pytest.raises(TooManyPieces, match="67_591 remainders of a distance, at most 65_536"):
        Cyclic(np.arange(257)) + Cyclic(np.arange(263))
    mask = Spec.from_text("@ahead mask a = (q - k) % 257 < 2 and (q - k) % 263 < 2").mask("a")
    assert mask.compile(Sample(length=300)).form == "tiles"


def test_a_slope_that_overflows_is_refused_instead_of_wrapping_round():
    with pytest.raises(SpecError, match="grows beyond"):
        Spec.from_text("mask a = 1_000_000_000_000 * q < k").mask("a").bind(
            Sample(length=2**26)  # the product is 0 modulo 2**38
        )


def test_a_constant_length_in_a_group_cannot_overflow_the_sum():
    parts = " ".join(f"a{i}[1_000_000_000_000]" for i in range(10))
    spec = Spec.from_text(f"segment s = ({parts} b[c])*\nmask m = same(b)")
    with pytest.raises(DatasetError, match="a part would have 1000000000000 tokens"):
        spec.mask("m").bind(Sample({"c": [0] * 1_000_000}, 15))
    assert spec.mask("m").bind(Sample({"c": []}, 0)).num_pairs == 0


def test_very_many_nested_groups_are_refused():
    spec = Spec.from_text("segment s = d(h[c] b[e]*)*\nmask m = same(d)")
    with pytest.raises(DatasetError, match="nested groups repeat more than"):
        spec.mask("m").bind(Sample({"c": [1] * 100_000, "e": [[1]] * 100_000}, 200_000))


def test_a_dense_mask_too_large_for_memory_is_refused():
    with pytest.raises(DatasetError, match=r"expected at most 32_768.*mask\.bind"):
        dense_mask(Spec.from_text("").mask("causal"), Sample(length=200_000))


@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("sliding(-5)", {}), ("sliding(0)", {}), ("sliding(1M)", {}), ("streaming(0, 0)", {}),
        ("streaming(1M, 1M)", {}), ("local(-3)", {}), ("chunked(1M)", {}),
        ("wide(0)", {}), ("wide(3 - 5)", {}), ("wide(1M)", {}),
        ("same(x)", {"c": [0, 0]}), ("same(y)", {"c": []}), ("q in x or k in last(x)", {"c": [0]}),
        ("first_of(-3)", {}), ("last_of(-3)", {}), ("last_of(0)", {}),
        ("last_of(1_000_000_000_000)", {}), ("tiles(1_000_000_000_000)", {}),
        ("q // 1_000_000_000_000 == k", {}), ("(k - 5) // 3 <= q % 4 - 7", {}),
        ("(5 - k) // 3 <= (7 - 2 * q) % 4", {}), ("q < x.count", {"c": [0, 0]}),
        ("causal per x or causal per y", {"c": [0, 0]}), ("max(q, -k) - min(k, 3) < 2", {}),
    ],
)  # fmt: skip
def test_extreme_arguments_mean_the_same_in_both_forms(text, columns, length, paint):
    spec = Spec.from_text(
        "segment s = x[c]* y[..]\n"
        "mask wide(w: int) = { x sees all within w  y sees all within w }\n"
        "mask first_of(m: int) = k in first(b, m) where b = every 2\n"
        "mask last_of(m: int) = k in last(b, m) where b = every 2\n"
        "mask tiles(m: tokens) = same(b) where b = every m\n"
    )
    mask = spec.mask(text)
    sample = Sample(columns or {"c": []}, length)
    assert np.array_equal(paint(mask.bind(sample)), dense_mask(mask, sample))


@pytest.mark.timeout(60)
def test_a_deep_recursion_of_parameters_is_refused_or_bound():
    layers = "\n".join(
        f"mask b{i}(m: mask) = a(a(m)) or {f'b{i - 1}(m)' if i else 'm'}" for i in range(30)
    )
    text = f"mask a(m: mask) = m or m\n{layers}\ncheck b29(causal) total"
    assert {d.code for d in check(text)} == {"E116"}


@pytest.mark.parametrize(
    "text",
    ["mask a = causal", "mask a = causal and (q - k) % 3 == 0", "token t  mask a = k <= q < k.t"],
)
def test_more_blocks_than_memory_holds_are_refused_before_they_are_made(text):
    n = 2**14
    sample = Sample({"t": [n] * n} if "token" in text else {}, n)
    form = Spec.from_text(text).mask("a").compile(sample)
    with pytest.raises(DatasetError, match="take larger blocks"):
        block_sparsity([form], 1, 1)


def test_more_pieces_of_slabs_than_memory_holds_are_refused_before_they_are_made(monkeypatch):
    made = []
    monkeypatch.setattr("dcp_dsl.forms.slabs.expand", lambda *arrays: made.append(arrays))
    monkeypatch.setattr("dcp_dsl.forms.form.MAX_BLOCKS", 100)
    slabs = Spec.from_text("mask local = causal and q - k < 2").mask("local").bind(Sample({}, 200))
    with pytest.raises(DatasetError, match=r"expected at most 100 blocks.*take larger blocks"):
        slabs.count_blocks(np.arange(201), np.arange(201))
    assert made == []


def pairs_of_slab(slab, period, remainders):
    """Count the pairs of one slab whose distance has some remainders, in Python integers.

    Rows `period` apart see keys in the same places, and their number grows by a constant.
    """
    q0, q1, k0, k1, low, high = slab
    total = 0
    for q in range(q0, min(q0 + period, q1)):
        times = (q1 - 1 - q) // period + 1
        start, end = k0 + low * (q - q0), k1 + high * (q - q0)
        for remainder in remainders:
            # keys k with k = q - remainder (mod period), from start up to end
            place = (q - remainder) % period
            first = (end - 1 - place) // period - (start - 1 - place) // period
            total += times * first + (high - low) * times * (times - 1) // 2
    return total


def random_slabs(rng, n):
    """Return disjoint slabs over all rows, with ends as far apart as they may be, or at random."""
    cuts = sorted({0, n, *(rng.randrange(1, n) for _ in range(rng.randrange(4)))})
    found = []
    for q0, q1 in pairwise(cuts):
        rows, low, high = q1 - q0, rng.randrange(2), rng.randrange(2)
        k0 = rng.choice([0, rng.randrange(n - low * (rows - 1))])
        least, most = k0 + 1 + max(0, low - high) * (rows - 1), n - high * (rows - 1)
        if least <= most:
            found.append((q0, q1, k0, rng.choice([most, rng.randint(least, most)]), low, high))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_exact_up_to_the_longest_sample(seed):
    rng = Random(seed)
    n = rng.choice([LONGEST, LONGEST - rng.randrange(1000), 94_906_267 + rng.randrange(1000)])
    slabs = random_slabs(rng, n)
    columns = np.array(slabs, np.int64).reshape(-1, 6).T
    table = Slabs(n, *columns[:4], *columns[4:].astype(np.uint8))
    period = rng.choice([2, 3, 64, 128])
    some = sorted(rng.sample(range(period), rng.randint(1, period)))
    bounds = np.array(sorted({0, n, *(rng.randrange(1, n) for _ in range(rng.randrange(3)))}))
    every = sum(pairs_of_slab(slab, 1, [0]) for slab in slabs)
    chosen = sum(pairs_of_slab(slab, period, some) for slab in slabs)
    strided = RegionPart(table, period=period, remainders=np.array(some))
    whole = Slabs(n, [0], [n], [0], [n], [0], [0])
    forms = [
        (table, every),
        (Parts(n, (RegionPart(table),)), every),
        (Parts.of_keys(table), every),
        (Parts(n, (strided,)), chosen),
    ]
    if seed % 2:
        forms.append((Parts(n, (RegionPart(whole),)), n * n))
    for form, expected in forms:
        assert form.num_pairs == expected
        assert sum(form.count_blocks(bounds, bounds).pairs.tolist()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@ahead @partial mask m = k // 2 == 0 or true", lambda n: n * n),
        # at every distance d lie n - d pairs
        ("mask m = strided(128)", lambda n: sum(n - d for d in range(128))
         + (n - 1) // 128 * n - 128 * ((n - 1) // 128) * ((n - 1) // 128 + 1) // 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [94_906_267, LONGEST])
def test_masks_of_texts_are_counted_exactly_at_every_length(text, expected, n):
    assert Spec.from_text(text).mask("m").compile(Sample(length=n)).num_pairs == expected(n)


def test_rows_are_counted_exactly_in_blocks_of_any_size():
    rows = 2**20
    form = Rows(rows, np.arange(rows + 1), np.zeros(rows, np.int64), np.arange(1, rows + 1))
    bounds = np.array([0, rows])
    assert form.count_blocks(bounds, bounds).pairs.tolist() == [rows * (rows + 1) // 2]


def test_labels_are_for_so_many_tokens_only_as_float64_counts_exactly():
    n = 2**22
    labels = np.zeros(n, np.int64)
    full = Slabs(n, [0], [n], [0], [n], [0], [0])
    assert Parts(n, (LabelledPart(full, labels, labels),)).num_pairs == n * n
    longer = Slabs(n + 1, [0], [n + 1], [0], [n + 1], [0], [0])
    with pytest.raises(ValueError, match="expected at most 4194304 tokens, got 4194305"):
        LabelledPart(longer, np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64))


@pytest.mark.parametrize("n", [2**18 + 1, 2**19])
def test_a_piece_for_every_token_meets_no_limit(n):
    """Key k is seen by the queries from k up to its limit: one subtraction each."""
    limits = np.minimum(np.arange(n) + 1 + (np.arange(n) * 7919) % 1000, n)
    found = Spec.from_text("token evict  mask m = causal and q < k.evict").mask("m")
    form = found.compile(Sample({"evict": limits.tolist()}, n))
    assert (form.form, form.num_pairs) == ("cols", int((limits - np.arange(n)).sum()))


def test_neighbourhoods_of_a_canvas_are_bound_behind_its_end():
    # behind the canvas of 64 x 2,048 tokens no row of the image is near
    n, found = 2**19, Spec.from_text("").mask("natten(64, 2048, 6)")
    assert found.compile(Sample(length=n)).tile(0, 1, 0, 64 * 13).sum() == 13 * 13


def test_nodes_of_a_tree_in_any_order_are_bound_with_a_piece_for_each_ancestor():
    rng, m, n = np.random.default_rng(0), 1000, 131_072
    cuts = np.sort(rng.choice(np.arange(1, n), m - 1, replace=False))
    lengths = np.diff(np.concatenate([[0], cuts, [n]]))
    parents = [-1, *(int(rng.integers(-1, i)) for i in range(1, m))]
    above = [0] * m  # tokens in front of a node on its path
    for node, parent in enumerate(parents):
        above[node] = above[parent] + int(lengths[parent]) if parent >= 0 else 0
    expected = sum(
        length * before + length * (length + 1) // 2
        for length, before in zip(lengths.tolist(), above, strict=True)
    )
    text = "segment t = branch node[l]* from p  mask m = paths"
    sample = Sample({"l": lengths.tolist(), "p": parents}, n)
    assert Spec.from_text(text).mask("m").compile(sample).num_pairs == expected
    # the same from the keys, where another bound has a piece for every token
    both = "token evict  segment t = branch node[l]* from p  mask m = paths and q < k.evict"
    own = Sample({**sample.columns, "evict": [n] * n}, n)
    assert Spec.from_text(both).mask("m").compile(own).num_pairs == expected
