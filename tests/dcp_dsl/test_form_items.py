"""Forms taken apart into integers and made again; integers that are no form are refused."""

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Slabs, Spec
from dcp_dsl.forms import Parts, PlacedForm, RegionPart, Rows, form_of, items_of

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
