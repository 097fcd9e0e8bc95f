"""Masks of a number or a list per token, and counts in bunches, equal plain comparisons of pairs.

Limits that choose between ways of working are set so low that samples of some tokens take them all.
"""

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, SpecError, block_sparsity

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
