"""Masks of columns: lists, numbers to divide by, rows solved one by one; exact, or refused."""

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, SpecError, block_sparsity, dense_mask
from dcp_dsl.symbolic.piecewise import Piecewise, _largest

FOUR_LISTS = "expected 4 lists of 3 integers, one per token, got"


def test_a_million_tokens_with_sixteen_blocks_per_64_queries():
    n, size, block = 2**20, 64, 4096
    runs = np.arange(n // size)
    rng = np.random.default_rng(3)
    chosen = (rng.random((len(runs), 16)) * (runs[:, None] + 1)).astype(np.int64)
    text = "segment s = every 64 column chosen[16] in s mask a = causal and k // 64 in q.s.chosen"
    form = Spec.from_text(text).mask("a").compile(Sample({"chosen": chosen}, n))
    found = block_sparsity([form], block, block)
    chosen = np.sort(chosen, axis=1)
    pairs = np.where(chosen == runs[:, None], size * (size + 1) // 2, size * size)
    pairs[:, 1:][chosen[:, 1:] == chosen[:, :-1]] = 0  # twice in a list counts once
    row, col = np.broadcast_to(runs[:, None], chosen.shape) * size // block, chosen * size // block
    wide = n // block
    counts = np.bincount((row * wide + col).ravel(), pairs.ravel(), wide * wide)
    at = np.flatnonzero(counts)
    np.testing.assert_array_equal(found.row_idx * wide + found.col_idx, at)
    np.testing.assert_array_equal(found.pairs, counts[at])


def test_nested_columns_are_those_of_the_instances_in_order():
    text = (
        "segment s = book(doc(img[lens]*)*)* column w in img column near[2] in img "
        "mask a = (q.img.w > 5 or k in q.img.near) and k <= q"
    )
    mask = Spec.from_text(text).mask("a")
    lens, near = [[[]], [[1, 2], [], [0, 1]]], [[0, 3], [1, 1], [2, 2], [0, 3]]
    flat = Sample({"lens": lens, "w": [9, 1, 9, 7], "near": near}, 4)
    values = {"w": [[[]], [[9, 1], [], [9, 7]]], "near": [[[]], [near[:2], [], near[2:]]]}
    nested = Sample({"lens": lens, **values}, 4)
    assert mask.bind(nested).digest == mask.bind(flat).digest
    assert [int(row.sum()) for row in dense_mask(mask, nested)] == [1, 1, 1, 4]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "needs the column `chosen`; the sample has no columns"),
        ({"chosen": [[0, 1, 1]] * 3}, f"{FOUR_LISTS} an array of shape (3, 3)"),
        ({"chosen": [[0, 1]] * 4}, f"{FOUR_LISTS} an array of shape (4, 2)"),
        ({"chosen": [[0, 1, 1]] * 3 + [[0]]}, f"{FOUR_LISTS} something else"),
        ({"chosen": [[0, 1, -2]] * 4}, "expected numbers from 0, or -1 for none, got -2"),
        ({"chosen": [[0, 1, 4]] * 4}, "column `chosen`: expected numbers below 4"),
    ],
)  # fmt: skip
def test_columns_of_lists_that_cannot_be_are_refused(columns, message):
    mask = Spec.from_text("token chosen[3]").mask("causal and k // 2 in q.chosen")
    for use in (mask.compile, lambda sample: dense_mask(mask, sample)):
        with pytest.raises(DatasetError) as caught:
            use(Sample(columns, 4))
        assert message in str(caught.value)


# ---- dividing by a number of the token -----------------------------------------------------------


PATCHES = """
segment seq = (text[text_lens] image[image_lens])*
column width in image
token step
@ahead @partial mask patches = same(image) and abs(y(q) - y(k)) <= 1 and abs(x(q) - x(k)) <= 1
  where y(t) = t.image.pos // t.image.width, x(t) = t.image.pos % t.image.width
@ahead @partial mask rows = q.image.pos // q.image.width == k.image.pos // k.image.width
@ahead @partial mask steps = 7 // q.step < k % 3 or k // q.step == 1
"""


def test_the_largest_number_may_be_negative():
    assert _largest(np.array([-(2**63), 2**63 - 1])) == 2**63
    assert (_largest(np.array([-7])), _largest(np.array([3, -7]))) == (7, 7)


def piecewise(rng, size, slopes) -> Piecewise:
    starts = np.append(0, np.flatnonzero(rng.random(size - 1) < 0.3) + 1)
    draw = lambda low, high: rng.integers(low, high, len(starts))  # noqa: E731
    return Piecewise(size, starts, draw(-9, 10), draw(*slopes), rng.random(len(starts)) < 0.8)


@pytest.mark.parametrize("seed", range(200))
def test_a_function_divided_by_a_flat_one_is_that_at_every_position(seed):
    rng = np.random.default_rng(seed)
    number, divisor = piecewise(rng, 30, (-3, 4)), piecewise(rng, 30, (0, 1))
    (a, a_known), (b, b_known) = (each.at(np.arange(30)) for each in (number, divisor))
    assert number.cut(np.arange(30)).joined().is_same(number.joined())
    known = a_known & b_known & (b != 0)
    for op, wanted in (("//", np.floor_divide), ("%", np.remainder)):
        values, is_defined = number.divide(op, divisor).at(np.arange(30))
        np.testing.assert_array_equal(is_defined, known)
        np.testing.assert_array_equal(values[known], wanted(a[known], b[known]))


@pytest.mark.parametrize("seed", range(200))
def test_a_function_of_a_function_has_its_values_and_pieces_that_rise_from_0(seed):
    """Also where the inner one leaves the positions, at either end."""
    rng = np.random.default_rng(seed)
    outer, inner = piecewise(rng, rng.integers(1, 9), (-3, 4)), piecewise(rng, 30, (-2, 3))
    found = outer.compose(inner)
    assert found.starts[0] == 0
    assert (found.lengths > 0).all()
    at, known = inner.at(np.arange(30))
    known &= (at >= 0) & (at < outer.num_tokens)
    wanted, is_defined = outer.at(np.where(known, at, 0))
    known &= is_defined
    values, is_defined = found.at(np.arange(30))
    np.testing.assert_array_equal(is_defined, known)
    np.testing.assert_array_equal(values[known], wanted[known])


def test_a_token_behind_the_last_one_is_nothing_in_a_mask_that_is_decided_by_tiles():
    text = "segment s = part[lens]* token d  @ahead @partial mask a = "
    mask = Spec.from_text(f"{text}(q + 3).part.len * k % k.d == 1 or q * k % 3 == 1").mask("a")
    sample = Sample({"lens": [1, 1], "d": [3, 3]}, 2)
    np.testing.assert_array_equal(mask.compile(sample).tile(0, 2, 0, 2), [[0, 0], [0, 1]])


@pytest.mark.parametrize("widths", [[2, 3, 4], [3, 3, 3], [0, -2, 5], [1, 100, 2]])
def test_patches_of_images_of_many_widths_are_exact(widths):
    columns = {"text_lens": [2, 0, 1], "image_lens": [6, 9, 8], "width": widths}
    spec, sample = Spec.from_text(PATCHES), Sample(columns, 26)
    for name in ("patches", "rows"):
        mask = spec.mask(name)
        found = mask.compile(Sample({c: columns[c] for c in mask.columns}, 26))
        np.testing.assert_array_equal(found.tile(0, 26, 0, 26), dense_mask(mask, sample))
        assert found.form in ("slabs", "cols")


def test_a_window_in_256_images_of_four_widths_has_a_short_form():
    widths = [16, 32, 64, 8] * 64
    columns = {"text_lens": [0] * 256, "image_lens": [512] * 256, "width": widths}
    form = Spec.from_text(PATCHES).mask("patches").compile(Sample(columns, 131_072))
    assert form.form == "slabs"
    pairs = 0
    for width in widths:
        rows = 512 // width
        pairs += (3 * rows - 2) * (3 * width - 2)
    assert form.num_pairs == pairs


# ---- rows solved one by one, and counts in bunches -----------------------------------------------


LIMITS = {
    "symbolic.comparison.MIN_ROWS": 0, "symbolic.shortcuts.ROWS_AT_ONCE": 5,
    "symbolic.region.FEW": 0, "symbolic.region.GLUED_AT_ONCE": range(0),
    "forms.slabs.SLABS_AT_ONCE": 3, "forms.slabs.MANY": 0, "forms.slabs.CELLS_AT_ONCE": 8,
}  # fmt: skip
HEAD = "token e  token c[3]  segment doc = [lens]*  @ahead @partial mask m = "


def named(number, lists):
    """Return which numbers ``[1, K]`` stand in the list of each row, bool ``[Q, K]``."""
    return (number[..., None] == lists[:, None, :]).any(axis=2)


# of q ``[n, 1]`` and k ``[1, n]``, with columns as arrays and the document of each token
MASKS = {
    "causal and q < k.e": lambda q, k, s: (k <= q) & (q < s["e"][k]),
    "k <= q.e": lambda q, k, s: k <= s["e"][q],
    "k >= q.e": lambda q, k, s: k >= s["e"][q],
    "q - k < 5 and k <= q.e": lambda q, k, s: (q - k < 5) & (k <= s["e"][q]),
    "causal and q < k.e and same(doc)": lambda q, k, s: (
        (k <= q) & (q < s["e"][k]) & (s["doc"][q] == s["doc"][k])
    ),
    "causal and q < k.e or q - k < 3 and causal": lambda q, k, s: (
        (k <= q) & ((q < s["e"][k]) | (q - k < 3))
    ),
    "not (causal and q < k.e)": lambda q, k, s: ~((k <= q) & (q < s["e"][k])),
    "causal and (q // 4 == k // 4 or k // 4 in q.c)": lambda q, k, s: (
        (k <= q) & ((q // 4 == k // 4) | named(k // 4, s["c"]))
    ),
    "k // 4 in q.c or same(doc)": lambda q, k, s: (
        named(k // 4, s["c"]) | (s["doc"][q] == s["doc"][k])
    ),
    "k in q.c and same(doc)": lambda q, k, s: named(k, s["c"]) & (s["doc"][q] == s["doc"][k]),
    "causal and not (k // 4 in q.c)": lambda q, k, s: (k <= q) & ~named(k // 4, s["c"]),
    "causal and ((q - k) % 3 == 0 or q - k < 4)": lambda q, k, s: (
        (k <= q) & (((q - k) % 3 == 0) | (q - k < 4))
    ),
    "(q - k) % 5 != 1 and same(doc)": lambda q, k, s: (
        ((q - k) % 5 != 1) & (s["doc"][q] == s["doc"][k])
    ),
    "q // 6 >= k // 3 - 1": lambda q, k, s: q // 6 >= k // 3 - 1,
}


def drawn(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 45))
    cuts = np.sort(rng.integers(0, n + 1, 3))
    lens = np.diff(np.concatenate([[0], cuts, [n]]))
    columns = {"e": rng.integers(0, n + 4, n), "c": rng.integers(-1, n, (n, 3))}
    if seed % 3 == 0:  # neighbours that share a number, or a list
        columns = {name: column[np.arange(n) // 2] for name, column in columns.items()}
    return n, columns | {"doc": np.repeat(np.arange(4), lens)}, lens


@pytest.mark.parametrize("text", MASKS)
@pytest.mark.parametrize("seed", range(7))
def test_rows_solved_one_by_one_hold_the_same_pairs(monkeypatch, text, seed):
    n, arrays, lens = drawn(seed)
    mask = Spec.from_text(HEAD + text).mask("m")
    columns = {"lens": lens.tolist(), "e": arrays["e"].tolist(), "c": arrays["c"].tolist()}
    sample = Sample(columns, n)
    monkeypatch.setattr("dcp_dsl.core.binding.MAX_LENGTHS", 0)  # keep no slabs
    monkeypatch.setattr("dcp_dsl.forms.conversion.MIN_ROWS_SLABS", 2)
    before = mask.compile(sample)
    for name, value in LIMITS.items():
        monkeypatch.setattr(f"dcp_dsl.{name}", value)
    form = mask.compile(sample)
    # equal masks have equal arrays, whichever way they are found
    assert (before.form, before.digest) == (form.form, form.digest)
    q, k = np.ogrid[:n, :n]
    expected = MASKS[text](q, k, arrays)
    np.testing.assert_array_equal(form.tile(0, n, 0, n), expected)
    assert form.num_pairs == expected.sum()
    for sizes in ((4, 4), (3, 5), (n, 1)):
        blocks = block_sparsity([form, form], *sizes)
        found = np.zeros((len(blocks.q_bounds) - 1, len(blocks.kv_bounds) - 1), np.int64)
        found[blocks.row_idx, blocks.col_idx] = blocks.pairs
        twice = np.kron(np.eye(2, dtype=np.int64), expected)
        rows = np.add.reduceat(twice, blocks.q_bounds[:-1], axis=0)
        np.testing.assert_array_equal(
            found, np.add.reduceat(rows, blocks.kv_bounds[:-1], axis=1)
        )  # fmt: skip
        assert (blocks.pairs > 0).all()


FLAGS = "segment a = flags(x)  segment b = flags(y)  segment t = every 5  @ahead @partial mask m = "


@pytest.mark.parametrize("text", [
    "q in a and k in b", "causal and q in a and k in b",
    "q - k < 4 and causal and k in b and q in a", "k in b and q in a and causal",
    "q < 9 and q in a and k in b", "q - k < 4 and q in a and k in b",
    "q - k == 2 and q in a and k in b", "(q in a and k in b) per t",
])  # fmt: skip
@pytest.mark.parametrize("most", [10, 30, 100])
def test_a_product_of_stretches_is_refused_early_only_if_it_is_refused_anyway(
    monkeypatch, text, most
):
    """The form tells: a mask that is refused as a region becomes tiles."""
    n = 40
    flags = np.random.default_rng(most).integers(0, 2, (2, n)).tolist()
    sample = Sample({"x": flags[0], "y": flags[1]}, n)
    mask = Spec.from_text(FLAGS + text).mask("m")
    for name in ("core.lowering.MAX_PAIRS", "symbolic.region.MAX_PAIRS"):
        monkeypatch.setattr(f"dcp_dsl.{name}", most)
    for name in ("core.lowering.CELLS_PER_SLAB", "symbolic.region.CELLS_PER_SLAB"):
        monkeypatch.setattr(f"dcp_dsl.{name}", 0)
    monkeypatch.setattr("dcp_dsl.symbolic.region.FEW", 0)
    monkeypatch.setattr("dcp_dsl.core.binding.MAX_LENGTHS", 0)
    early = mask.compile(sample)
    monkeypatch.setattr("dcp_dsl.core.lowering.Lowering.refuse_products", lambda *_: None)
    late = mask.compile(sample)
    assert early.form == late.form
    np.testing.assert_array_equal(early.tile(0, n, 0, n), late.tile(0, n, 0, n))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("e", [True, False, True]), ("e", [1, 2.5, 1]), ("e", [1, 2]), ("e", [1, [2], 1]),
        ("e", [1, 2**63, 1]), ("e", [0, 300, 2**51]), ("e", [1, None, 1]), ("e", ["1", "2", "3"]),
        ("e", []), ("c", [[1, 2, 3], [1, 2], [1, 2, 3]]), ("c", [[1, 2, 3], [1, 2, 3]]),
        ("c", [[True, False, True]] * 3), ("c", [1, 2, 3]), ("c", [[1, 2, 2**63]] * 3),
        ("c", [[1, 2, [3]]] * 3), ("c", [[1, 2, -2]] * 3), ("c", [[], [], []]),
    ],
)  # fmt: skip
def test_columns_of_something_else_are_refused(column, value):
    text = {"e": "q < k.e", "c": "k in q.c"}[column]
    with pytest.raises((DatasetError, SpecError)):
        Spec.from_text(HEAD + text).mask("m").compile(Sample({column: value}, 3))


@pytest.mark.parametrize("value", [[0, 2, 1], [255, 256, 0], [-1, 3, 2**40]])
def test_numbers_of_every_size_are_read(value):
    form = Spec.from_text(HEAD + "q < k.e").mask("m").compile(Sample({"e": value}, 3))
    q, k = np.ogrid[:3, :3]
    np.testing.assert_array_equal(form.tile(0, 3, 0, 3), q < np.array(value, np.int64)[k])
