"""`dcpm check --dataset`: rows decided together, and only what is needed read, bound and proved."""

import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp_dsl import DatasetError, Mask, Spec, read_dataset
from dcp_dsl.commands import texts
from dcp_dsl.coverage import dataset_checker
from dcp_dsl.coverage.dataset_checker import Distribution, check_dataset
from dcp_dsl.data import sources
from dcp_dsl.data.nesting import column_depth, flatten_column, measure_layout
from dcp_dsl.data.sources import find_sources

SHARED = """
segment part = question[q] answer[a]*
mask shared = causal and (k in question or same(answer))
for "*" use shared
"""
EVICTION = """
token evict = e
mask kept = k <= q and q < k.evict
for "*" use kept
"""

WINDOW = """
mask near = causal and q - k < row.w
for "*" use near
"""


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def checked(text, path, rows):
    """Check rows in a file; return what is said of the only statement of a text."""
    (statement,) = check_dataset(Spec.from_text(text), write(path, rows)).statements
    return statement


@pytest.fixture
def bound(monkeypatch):
    """What masks are bound to; the density is measured on one row."""
    samples = []
    real = Mask.compile
    monkeypatch.setattr(Mask, "compile", lambda mask, x: samples.append(x) or real(mask, x))
    monkeypatch.setattr(dataset_checker, "DENSITY_ROWS", 1)
    return samples


@pytest.mark.parametrize("mask", ["causal", "causal and k in chunk", "true"])  # proved, open, leaks
def test_every_row_of_a_mask_with_keys_of_another_sequence_is_refused(tmp_path, mask):
    text = "segment cache = past[p] chunk[c]  @ahead @keys(cache, bottom_right) mask m = "
    rows = [{"len": 2, "p": 1, "c": 2}, {"len": 1, "p": 0, "c": 2}]
    statement = checked(f'{text}{mask} for "*" use m', tmp_path / "a.jsonl", rows)
    told = "mask `m` looks at keys of `cache`: expected a mask of one sequence"
    assert [told in refused.reason for refused in statement.refused] == [True, True]


def test_a_long_row_of_a_strided_mask_is_accepted(tmp_path):
    text = "segment doc = ids(d)  mask comb = same(doc) and sliding(4k) and (q - k) % 2 == 0"
    rows = [{"d": [0] * 3000 + [1] * 3000, "length": 6000}]
    assert checked(f'{text} for "*" use comb', tmp_path / "a.jsonl", rows).num_refused == 0


def test_equal_rows_are_decided_once(tmp_path, bound):
    checked(EVICTION, tmp_path / "a.jsonl", [{"e": [3, 3, 3], "len": 3}] * 50)
    assert len(bound) <= 3


def test_rows_are_proved_together_with_what_their_columns_say(tmp_path, bound):
    rows = [{"w": 1 + i % 9, "len": 50 + i} for i in range(1000)]
    rows[137]["w"], rows[600]["w"] = 0, -3
    statement = checked(WINDOW, tmp_path / "a.parquet", rows)
    assert [refused.row for refused in statement.refused] == [137, 600]
    assert not statement.is_total_proved
    assert len(bound) < 40


def test_tokens_that_live_long_enough_are_proved_together(tmp_path, bound):
    rows = [{"e": [t + 1 + (t + i) % 5 for t in range(20)], "len": 20} for i in range(40)]
    rows[3]["e"] = [1, 1, *rows[3]["e"][2:]]
    statement = checked(EVICTION, tmp_path / "a.jsonl", rows)
    assert [refused.row for refused in statement.refused] == [3]
    assert len(bound) < len(rows)


def test_progress_tells_all_rows_before_the_first_and_each_once(tmp_path):
    write(tmp_path / "a" / "1.jsonl", [{"len": 3}] * 5000)
    write(tmp_path / "a" / "2.parquet", [{"len": 3}] * 7)
    write(tmp_path / "b" / "refused.jsonl", [{"len": 3}] * 2)
    write(tmp_path / "c" / "unmatched.jsonl", [{"len": 3}])
    spec = Spec.from_text(
        'mask near = causal and q - k < row.w  for "a/*" use causal  for "b/*" use near with w = x'
    )
    calls = []
    check_dataset(spec, str(tmp_path), lambda *call: calls.append(call))
    assert calls == [(5009, 4096), (5009, 904), (5009, 7), (5009, 2)]


def test_a_terminal_shows_the_progress_of_a_file_that_is_read_once(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", [{"len": 3}] * 5000)
    reads = []
    readers, real = sources.TABLE_READERS, sources.TABLE_READERS[".jsonl"]
    monkeypatch.setitem(readers, ".jsonl", lambda path: reads.append(path) or real(path))
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    texts._check_rows(Spec.from_text('for "*" use causal'), path)
    assert terminal.getvalue().count("4096/5000") == 1
    assert len(reads) == 1


def test_only_the_needed_columns_are_read(tmp_path, monkeypatch):
    rows = [{"q": 1, "a": [2], "text": "long", "others": [2]}] * 5
    path = write(tmp_path / "a.parquet", rows)
    asked = []
    real = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches",
        lambda self, size, columns: asked.append(columns) or real(self, size, columns=columns),
    )  # fmt: skip
    check_dataset(Spec.from_text(SHARED), path)
    # Numbers of the first rows, for parts that nothing reads; then what the mask reads.
    assert asked == [["q", "a", "others"], ["q", "a"]]
    assert read_dataset(path, ["a"]).columns == ("a",)


def test_a_nested_column_is_taken_apart_and_put_together_again():
    rows = [[[1, 2], []], [], None, [[3], None], [[4, 5, 6]]]
    column = pa.chunked_array(
        [pa.array([[[9]], *rows], pa.list_(pa.large_list(pa.int8()))).slice(1)]
    )
    flat = flatten_column(column)
    assert flat.has_null.tolist() == [False, False, True, True, False]
    assert [flat.row_lists(i) for i in (0, 1, 4)] == [rows[0], rows[1], rows[4]]
    assert flat.row_sums(flat.values).tolist() == [3, 0, 0, 3, 15]
    assert column_depth(column.type) == 2
    assert column_depth(pa.list_(pa.float32())) is None


def test_a_missing_boolean_is_a_missing_value():
    flat = flatten_column(pa.chunked_array([[[True, None], [False], [True]]]))
    assert flat.has_null.tolist() == [True, False, False]
    assert flat.values.tolist() == [1, 0, 0, 1]


def test_rows_are_measured_without_binding_where_their_sizes_leave_no_doubt():
    spec = Spec.from_text("segment s = a[x] b[y]*")
    (layout,) = (layout for _, layout in spec.scope.layouts())
    rows = {"x": [3, 0, -1, 5, None], "y": [[2, 0], [], [1], [-2, 2], [1]]}
    columns = {
        name: flatten_column(pa.chunked_array([pa.array(values)])) for name, values in rows.items()
    }
    totals = measure_layout(layout, columns, 5)
    assert totals.tokens[:2].tolist() == [5, 0]
    assert totals.is_certain.tolist() == [True, True, False, False, False]
    assert not totals.takes_rest


def test_distributions_count_every_value_once():
    values = np.random.default_rng(0).integers(1, 10**6, 1000)
    for is_logarithmic in (False, True):
        spread = Distribution.of(values, is_logarithmic=is_logarithmic)
        assert sum(spread.bins) == 1000
        assert len(spread.bars()) == len(spread.bins) == len(spread.edges) - 1
        assert (spread.smallest, spread.largest) == (values.min(), values.max())
    assert Distribution.of(np.array([5, 5])).bins[0] == 2
    assert Distribution.of(np.array([])).bars() == ""


def test_saved_data_sets_are_read_with_their_splits_and_indices(tmp_path):
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    rows = datasets.Dataset.from_list([{"q": i, "a": [i, 1], "t": "x"} for i in range(4)])
    rows.select([3, 1]).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(
        str(tmp_path / "two")
    )
    (statement,) = check_dataset(Spec.from_text(SHARED), str(tmp_path / "one")).statements
    assert (statement.lengths.total, statement.num_refused) == (7 + 3, 0)
    assert [(s.name, s.num_rows) for s in find_sources(str(tmp_path / "two"))] == [
        (f"{tmp_path}/two/train", 4), (f"{tmp_path}/two/test", 1),
    ]  # fmt: skip
    dataset = read_dataset(tmp_path / "one", ["q"])
    assert [dataset[i]["q"] for i in range(2)] == [3, 1]


def test_data_sets_of_the_hub_are_loaded_by_name_and_split(monkeypatch):
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    rows = datasets.Dataset.from_list([{"len": 4}])
    calls = []

    def load(name, split):
        calls.append((name, split))
        if name == "no/such":
            raise FileNotFoundError("Dataset 'no/such' doesn't exist on the Hub")
        return rows if split else datasets.DatasetDict({"train": rows, "test": rows})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert [s.name for s in find_sources("hf:a/b")] == ["hf:a/b/train", "hf:a/b/test"]
    assert [s.name for s in find_sources("hf:a/b:train")] == ["hf:a/b:train"]
    assert calls == [("a/b", None), ("a/b", "train")]
    with pytest.raises(DatasetError, match=r"hf:no/such: `datasets` cannot load it: Dataset 'no"):
        find_sources("hf:no/such")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DatasetError, match=r"pip install 'dcp-dsl\[hf\]'"):
        find_sources("hf:a/b")


def test_a_missing_value_is_shown_as_it_is(tmp_path):
    rows = ['{"q": 2, "a": null}', '{"q": null, "a": [1]}', '{"q": 1, "a": [1, null]}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    report = check_dataset(Spec.from_text(SHARED), str(tmp_path))
    (statement,) = report.statements
    assert [row.columns for row in statement.refused] == [json.loads(row) for row in rows]
    for words in ("a = null, q = 2", "a = [1], q = null", "a = [1, null], q = 1"):
        assert f"with {words}" in report.text()
