"""The demonstration's data set: layouts tile the files, batches are filled to the budget."""

from itertools import combinations, islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_dashboard.demo.pipeline import (
    MAX_TOKENS,
    choose_batch,
    read_documents,
    split_layout,
    write_datasets,
)


def test_header_and_definitions_tile_the_source():
    source = (
        b'"""Doc."""\nimport os\n\n@decorated\n@twice\ndef f():\n    pass\n\nclass A:\n    x = 1\n'
    )
    header, answers = split_layout(source)
    first, second = source.index(b"@decorated"), source.index(b"class A")
    assert (header, answers) == (first, (second - first, len(source) - second))


def test_source_without_definitions_is_all_header():
    assert split_layout(b"x = 1\r\ny = 2\r\n") == (14, ())


def test_definitions_after_windows_line_ends_and_wide_characters():
    source = "# ü\r\ndef f(): pass\r\n".encode()
    assert split_layout(source) == (6, (15,))


def test_broken_and_short_files_are_left_out_and_long_ones_cut(tmp_path: Path):
    (tmp_path / "broken.py").write_text("def (" * 40)
    (tmp_path / "short.py").write_text("x = 1\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "skipped.py").write_text("x = 1\n" * 40)
    (tmp_path / "long.py").write_text("x = 1\n" * 10 + "def f():\n" + "    pass\n" * MAX_TOKENS)
    (document,) = read_documents(tmp_path)
    assert document.path == "long.py"
    assert (document.header_len, document.answer_lens) == (60, (MAX_TOKENS - 60,))
    assert len(document.text) == MAX_TOKENS


def test_every_document_is_dealt_out_once(tmp_path: Path):
    documents = list(islice(read_documents(), 100))  # of the standard library
    assert len(documents) == 100
    assert all(d.header_len + sum(d.answer_lens) == len(d.text) <= MAX_TOKENS for d in documents)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    write_datasets(documents, paths, seed=1)
    dealt = [name for path in paths for name in pq.read_table(path)["path"].to_pylist()]
    assert sorted(dealt) == sorted(d.path for d in documents)
    assert sorted(tmp_path.iterdir()) == paths


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(1, 60))
def test_chosen_batch_never_exceeds_the_budget(lengths: list[int], budget: int):
    chosen = choose_batch(lengths, budget)
    assert len(set(chosen)) == len(chosen)
    assert sum(lengths[i] for i in chosen) <= budget


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(20, 40))
def test_rest_of_a_batch_is_filled_as_well_as_any_choice_could(lengths: list[int], budget: int):
    chosen = choose_batch(lengths, budget)
    head = 0
    taken = []
    while head < len(lengths) and budget - sum(lengths[i] for i in taken) > budget // 2:
        taken.append(head)  # every length is below half the budget, so each one fits
        head += 1
    used = sum(lengths[i] for i in taken)
    rest = [lengths[i] for i in range(head, len(lengths))]
    best = max(
        sum(choice)
        for size in range(len(rest) + 1)
        for choice in combinations(rest, size)
        if sum(choice) <= budget - used
    )
    assert sum(lengths[i] for i in chosen) == used + best


@pytest.mark.parametrize("tokens", [2048, 131_072])
def test_nothing_fits_gives_an_empty_batch(tokens: int):
    assert choose_batch([tokens + 1], tokens) == ()
