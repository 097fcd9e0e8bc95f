"""The demonstration's data set: layouts tile the files, batches are filled to the budget."""

from itertools import combinations, islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_dashboard.demo.pipeline import (
    MAX_TOKENS,
    MIN_TOKENS,
    choose_batch,
    read_documents,
    split_layout,
    write_datasets,
)

DECORATED = b"@decorated\n@twice\ndef f():\n    pass\n"


@pytest.mark.parametrize(
    ("header", "answers"),
    [
        (b'"""Doc."""\nimport os\n\n', (DECORATED + b"\n", b"class A:\n    x = 1\n")),
        (b"x = 1\n", (b"@a\n@b\nclass C:\n    pass\n", b"async def f(): pass\n")),
        (b"x = 1\r\ny = 2\r\n", ()),
        ("# ü\r\n".encode(), (b"def f(): pass\r\n",)),
    ],
)
def test_header_and_definitions_tile_the_source(header, answers):
    source = header + b"".join(answers)
    assert split_layout(source) == (len(header), tuple(map(len, answers)))


def test_broken_and_short_files_are_left_out_and_long_ones_cut(tmp_path: Path):
    for name, source in {
        "broken": "def (" * 40, "nul": "x = 1\n" * 20 + "\0", "test/skipped": "x = 1\n" * 40,
        "short": "#" * (MIN_TOKENS - 2) + "\n", "enough": "#" * (MIN_TOKENS - 1) + "\n",
        "late": "x = 1\n" * 12 + "async def f(): pass\n",
        "long": "x = 1\n" * 10 + "def f():\n" + "    pass\n" * MAX_TOKENS,
    }.items():  # fmt: skip
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    found = {d.path: (d.header_len, d.answer_lens, len(d.text)) for d in read_documents(tmp_path)}
    assert found == {
        "enough.py": (MIN_TOKENS, (), MIN_TOKENS), "late.py": (72, (20,), 92),
        "long.py": (60, (MAX_TOKENS - 60,), MAX_TOKENS),
    }  # fmt: skip


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
