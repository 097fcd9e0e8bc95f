"""Compiled masks equal a second oracle, written from docs/language, on random texts and samples."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from second_oracle import NUMBER_FUNCTIONS, dense
from second_oracle_crosses import AlignedText, CrossText
from second_oracle_texts import Text

import dcp_dsl
from dcp_dsl import DCPError, Form, Mask, Sample, Spec, SpecError, block_sparsity, dense_mask
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS

SAMPLES = 2  # of each text


def assert_blocks_count_the_pairs(form: Form, expected: np.ndarray, block_q: int, block_kv: int):
    blocks = block_sparsity([form], block_q, block_kv)
    counts = np.zeros((len(blocks.q_bounds) - 1, len(blocks.kv_bounds) - 1), np.int64)
    counts[blocks.row_idx, blocks.col_idx] = blocks.pairs
    rows = np.add.reduceat(expected, blocks.q_bounds[:-1], axis=0, dtype=np.int64)
    np.testing.assert_array_equal(
        counts, np.add.reduceat(rows, blocks.kv_bounds[:-1], axis=1), strict=True
    )


def assert_equal(form: Form, expected: np.ndarray, rng: Random):
    n, keys = expected.shape
    np.testing.assert_array_equal(form.tile(0, n, 0, keys), expected, strict=True)
    assert form.num_pairs == expected.sum()
    ptr, starts, ends = form.row_ranges(0, n)
    painted = np.zeros((n, keys), bool)
    for q in range(n):
        for start, end in zip(starts[ptr[q] : ptr[q + 1]], ends[ptr[q] : ptr[q + 1]], strict=True):
            painted[q, start:end] = True
    np.testing.assert_array_equal(painted, expected)
    if n and keys:
        assert_blocks_count_the_pairs(form, expected, rng.randint(1, 6), rng.randint(1, 6))


def checked(text, folder: Path) -> Mask | None:
    try:
        if not text.imported:
            return Spec.from_text(text.source).mask("a")
        (folder / "lib.dcpm").write_text(text.imported)
        (folder / "main.dcpm").write_text(text.source)
        return dcp_dsl.load(folder / "main.dcpm").mask("a")
    except SpecError:
        return None


def compare_all(seeds: range, folder: Path, kind: type = Text) -> tuple[int, int, int]:
    """Compare every case of these seeds; return the cases, those refused, those that see a pair."""
    cases = refused = visible = 0
    for seed in seeds:
        rng = Random(seed)
        text = kind(rng)
        mask = checked(text, folder)
        for _ in range(SAMPLES):
            columns, n = text.sample()
            cases += 1
            if mask is None:
                refused += 1
                continue
            try:
                form = mask.compile(Sample(columns, n), may_cross=True)
            except DCPError:
                refused += 1
                continue
            expected = dense(text.source, columns, n, text.imported)
            visible += bool(expected.any() and not expected.all())
            try:
                assert_equal(form, expected, rng)
                np.testing.assert_array_equal(dense_mask(mask, Sample(columns, n)), expected)
            except AssertionError as error:
                message = (
                    f"seed {seed}\n{text.imported}\n{text.source}\n{columns}, {n} tokens\n{error}"
                )
                raise AssertionError(message) from error
    return cases, refused, visible


def assert_engine_equals_oracle(seeds: range, folder: Path):
    cases, refused, visible = compare_all(seeds, folder)
    assert cases == SAMPLES * len(seeds)
    assert refused <= cases // 20
    assert visible >= cases // 4  # the others see every pair or none


@pytest.mark.parametrize("part", range(2))
def test_500_random_masks_equal_the_second_oracle(part, tmp_path):
    assert_engine_equals_oracle(range(part * 125, part * 125 + 125), tmp_path)


def assert_crosses_equal_oracle(kind: type, seeds: range, folder: Path, refused_most: float):
    cases, refused, visible = compare_all(seeds, folder, kind)
    assert refused <= cases * refused_most
    assert visible >= cases // 6


def test_100_random_masks_with_keys_of_another_sequence_equal_the_second_oracle(tmp_path):
    assert_crosses_equal_oracle(CrossText, range(50), tmp_path, 0.1)


def test_100_random_masks_whose_queries_are_keys_too_equal_the_second_oracle(tmp_path):
    assert_crosses_equal_oracle(AlignedText, range(50), tmp_path, 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_20000_random_masks_equal_the_second_oracle(part, tmp_path):
    assert_engine_equals_oracle(range(250 + part * 500, 750 + part * 500), tmp_path)


@pytest.mark.parametrize("name", RISING_FUNCTIONS)
def test_a_rising_function_is_that_of_the_oracle_one_by_one_and_all_at_once(name):
    rising = RISING_FUNCTIONS[name]
    # No number of a mask reaches 2**62; a function that is defined so far has no end of its own.
    edges = {rising.most - 1, rising.most} | ({rising.most + 1} if rising.most < 2**62 else set())
    values = sorted({*range(-3, 3000), *edges})
    found = [rising.at(value) for value in values]
    assert found == [NUMBER_FUNCTIONS[name](value) for value in values]
    inside = [value for value in values if rising.least <= value <= rising.most]
    at_once = rising.of_all(np.array(inside, np.int64))
    assert at_once.tolist() == [value for value in found if value is not None]
    assert (np.diff(at_once) >= 0).all()
    assert at_once[-1] < 2**62  # bounds of other numbers stay apart from it
