"""Dividing by a number of the token: rows and columns of patches in images of many sizes."""

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, dense_mask
from dcp_dsl.symbolic.piecewise import Piecewise, _largest

TEXT = """
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
    spec, sample = Spec.from_text(TEXT), Sample(columns, 26)
    for name in ("patches", "rows"):
        mask = spec.mask(name)
        found = mask.compile(Sample({c: columns[c] for c in mask.columns}, 26))
        np.testing.assert_array_equal(found.tile(0, 26, 0, 26), dense_mask(mask, sample))
        assert found.form in ("slabs", "cols")


def test_patches_mean_rows_and_columns_of_their_own_image():
    mask = Spec.from_text(TEXT).mask("patches")
    sample = Sample({"text_lens": [1, 0], "image_lens": [4, 6], "width": [2, 3]}, 11)
    dense = dense_mask(mask, sample)
    place = [None, *[(0, i // 2, i % 2) for i in range(4)], *[(1, i // 3, i % 3) for i in range(6)]]
    for q, a in enumerate(place):
        for k, b in enumerate(place):
            near = a and b and a[0] == b[0] and max(abs(a[1] - b[1]), abs(a[2] - b[2])) <= 1
            assert dense[q, k] == bool(near)


def test_a_divisor_per_token_may_be_anything():
    mask = Spec.from_text(TEXT).mask("steps")
    sample = Sample({"step": [0, 1, -2, 3, 3, 0, 2, 7]}, 8)
    np.testing.assert_array_equal(mask.compile(sample).tile(0, 8, 0, 8), dense_mask(mask, sample))


def test_a_window_in_256_images_of_four_widths_has_a_short_form():
    widths = [16, 32, 64, 8] * 64
    columns = {"text_lens": [0] * 256, "image_lens": [512] * 256, "width": widths}
    form = Spec.from_text(TEXT).mask("patches").compile(Sample(columns, 131_072))
    assert form.form == "slabs"
    pairs = 0
    for width in widths:
        rows = 512 // width
        pairs += (3 * rows - 2) * (3 * width - 2)
    assert form.num_pairs == pairs
