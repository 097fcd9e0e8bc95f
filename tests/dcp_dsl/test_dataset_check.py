"""`dcpm check --dataset`: every row is decided as the dense oracle decides it, alone."""

import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import DatasetError, Mask, Sample, Spec, dense_mask, read_dataset
from dcp_dsl.commands import texts
from dcp_dsl.commands.texts import check
from dcp_dsl.coverage import dataset_checker
from dcp_dsl.coverage.dataset_checker import Distribution, check_dataset
from dcp_dsl.data.dataset import DataFile
from dcp_dsl.data.nesting import column_depth, flatten_column, measure_layout
from dcp_dsl.data.sources import find_sources

SHARED = """
segment part = question[q] answer[a]*
mask shared = causal and (k in question or same(answer))
for "*" use shared
"""
GROUPS = """
segment grp = group(prompt[p] rollout[r]*)*
mask grp_mask = causal and same(group) and (k in prompt or same(rollout))
for "*" use grp_mask
"""
EVICTION = """
token evict = e
mask kept = k <= q and q < k.evict
for "*" use kept
"""
REST = """
segment part = head[q] body[..]
mask prefix = causal and (k in head or same(body))
for "*" use prefix
"""
ARITHMETIC = """
segment part = noisy[len // 2] clean[q]
mask halves = causal and same(part) or q == k
for "*" use halves
"""

WINDOW = """
mask near = causal and q - k < row.w
for "*" use near
"""

KEYS = """
segment cache = past[p] chunk[c]
@keys(cache, bottom_right) mask m = {}
for "*" use m
"""

ints = st.integers(-1, 4)
ROWS = {
    SHARED: st.fixed_dictionaries({"q": st.none() | ints, "a": st.lists(ints, max_size=3)}),
    GROUPS: st.fixed_dictionaries({
        "p": st.lists(ints, max_size=3),
        "r": st.lists(st.lists(ints, max_size=2), max_size=3),
    }),
    EVICTION: st.fixed_dictionaries({"e": st.lists(st.integers(0, 6), max_size=5)}),
    WINDOW: st.fixed_dictionaries({"w": st.integers(-1, 9)}),
    REST: st.fixed_dictionaries({"q": ints}),
    ARITHMETIC: st.fixed_dictionaries({"q": ints}),
}  # fmt: skip


def total(value):
    return sum(map(total, value)) if isinstance(value, list) else value or 0


@st.composite
def tables(draw):
    text = draw(st.sampled_from(list(ROWS)))
    rows = draw(st.lists(ROWS[text], min_size=1, max_size=30))
    for row in rows:
        length = len(row["e"]) if "e" in row else total(list(row.values()))
        row["len"] = max(1, length + draw(st.sampled_from([0, 0, 0, 1, -1, 2])))
    return text, rows


def is_good(spec, row):
    """Decide one row the slow way: bind it alone to the dense mask and look at every pair."""
    (name,) = spec.masks
    mask = spec.mask(name)
    columns = {column: row[column] for column in mask.columns}
    if any(v is None for v in columns.values()):
        return False
    try:
        dense = dense_mask(mask, Sample(columns, row["len"]))
    except DatasetError:
        return False
    return not np.triu(dense, 1).any() and bool(dense.any(axis=1).all())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.mark.parametrize("mask", ["causal", "causal and k in chunk", "true"])  # proved, open, leaks
def test_every_row_of_a_mask_with_keys_of_another_sequence_is_refused(tmp_path, mask):
    (tmp_path / "m.dcpm").write_text(KEYS.format(mask).replace("@keys", "@ahead @keys"))
    (tmp_path / "rows.jsonl").write_text('{"len": 2, "p": 1, "c": 2}\n{"len": 1, "p": 0, "c": 2}')
    run = CliRunner().invoke(
        check, [str(tmp_path / "m.dcpm"), "--dataset", str(tmp_path / "rows.jsonl")]
    )
    assert run.exit_code == 1
    assert run.output.count("mask `m` looks at keys of `cache`: expected a mask of one seq") == 2
    assert "0 of 2 rows accepted" in run.output


@settings(max_examples=80)
@given(drawn=tables())
def test_rows_are_accepted_exactly_if_the_oracle_finds_nothing_wrong(folder, drawn):
    text, rows = drawn
    spec, path = Spec.from_text(text), folder / "rows.parquet"
    kinds = {"q": pa.int64(), "a": pa.list_(pa.int32()), "p": pa.list_(pa.int16()),
             "r": pa.large_list(pa.list_(pa.uint8()) if not any(
                 v < 0 for row in rows for each in row.get("r", []) for v in each
             ) else pa.list_(pa.int8())), "e": pa.list_(pa.int64()),
             "w": pa.int8(), "len": pa.int32()}  # fmt: skip
    schema = pa.schema([(name, kinds[name]) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    coverage = check_dataset(spec, str(path))
    (statement,) = coverage.statements
    expected = [i for i, row in enumerate(rows) if not is_good(spec, row)]
    assert [refused.row for refused in statement.refused] == expected
    assert statement.num_refused == coverage.num_refused == len(expected)
    assert statement.lengths.count == len(rows) - len(expected)
    good = [rows[i]["len"] for i in range(len(rows)) if i not in expected]
    assert statement.lengths.total == sum(good)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_statements_take_files_by_pattern_and_columns(tmp_path):
    write(tmp_path / "chat" / "a.parquet", [{"q": 2, "a": [1, 3]}, {"q": 1, "a": [4, 4]}])
    write(tmp_path / "chat" / "b.jsonl", [{"len": 7}])
    write(tmp_path / "web" / "c.jsonl", [{"len": 5}, {"len": 6}])
    write(tmp_path / ".hidden" / "d.jsonl", [{"len": 5}])
    spec = Spec.from_text(SHARED.replace('for "*"', 'for "chat/*" having q') +
                          'for "web/*" use causal\n')  # fmt: skip
    coverage = check_dataset(spec, str(tmp_path))
    first, second = coverage.statements
    assert (first.masks, first.num_rows, first.lengths.total) == (("shared",), 2, 15)
    assert (second.masks, second.num_rows, second.lengths.total) == (("causal",), 2, 11)
    assert [(name, rows) for name, rows, _ in coverage.unmatched] == [
        (str(tmp_path / "chat" / "b.jsonl"), 1)
    ]
    assert (coverage.num_rows, coverage.num_refused) == (5, 1)


def test_renamed_columns_are_read_and_shown_by_the_names_of_the_data(tmp_path):
    rows = [{"prompt": 2, "a": [1], "length": 3}, {"prompt": 2, "a": [1], "length": 4}]
    path = write(tmp_path / "a.parquet", rows)
    spec = Spec.from_text(SHARED.replace("use shared", "use shared with q = prompt"))
    (statement,) = check_dataset(spec, path).statements
    (refused,) = statement.refused
    assert (refused.row, refused.columns) == (1, {"prompt": 2, "a": [1]})
    assert "`length` says 4, the layout of `part` adds up to 3" in refused.reason


def test_the_length_comes_from_tokens_too(tmp_path):
    rows = [{"q": 2, "a": [1], "input_ids": [5, 6, 7]}, {"q": 2, "a": [1], "input_ids": [5]}]
    (statement,) = check_dataset(
        Spec.from_text(SHARED), write(tmp_path / "a.parquet", rows)
    ).statements
    assert "`input_ids` says 1, the layout" in statement.refused[0].reason
    assert statement.lengths.total == 3
    assert read_dataset(tmp_path / "a.parquet").lengths.tolist() == [3, 1]


def test_leaking_rows_are_refused_with_their_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"e": [3, 3, 3], "len": 3}, {"e": [3, 1, 0], "len": 3}])
    spec = Spec.from_text('token e\n@partial mask m = q >= k.e\nfor "*" use m')
    (statement,) = check_dataset(spec, path).statements
    assert (statement.is_causal_proved, statement.is_total_proved) == (False, True)
    (refused,) = statement.refused
    assert (refused.row, refused.columns) == (1, {"e": [3, 1, 0]})
    assert "token 0 sees the later token 2" in refused.reason


def test_equal_rows_are_decided_once(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", [{"e": [3, 3, 3], "len": 3}] * 50)
    bound = []
    real = Mask.compile
    monkeypatch.setattr(Mask, "compile", lambda self, sample: bound.append(1) or real(self, sample))
    monkeypatch.setattr(dataset_checker, "DENSITY_ROWS", 1)
    check_dataset(Spec.from_text(EVICTION), path)
    assert len(bound) <= 3


def test_rows_are_proved_together_with_what_their_columns_say(tmp_path, monkeypatch):
    rows = [{"w": 1 + i % 9, "len": 50 + i} for i in range(1000)]
    rows[137]["w"], rows[600]["w"] = 0, -3
    bound = []
    real = Mask.compile
    monkeypatch.setattr(Mask, "compile", lambda self, sample: bound.append(1) or real(self, sample))
    monkeypatch.setattr(dataset_checker, "DENSITY_ROWS", 1)
    (statement,) = check_dataset(
        Spec.from_text(WINDOW), write(tmp_path / "a.parquet", rows)
    ).statements
    assert [refused.row for refused in statement.refused] == [137, 600]
    assert not statement.is_total_proved
    assert len(bound) < 40


def test_tokens_that_live_long_enough_are_proved_together(tmp_path, monkeypatch):
    rows = [{"e": [t + 1 + (t + i) % 5 for t in range(20)], "len": 20} for i in range(40)]
    rows[3]["e"] = [1, 1, *rows[3]["e"][2:]]
    monkeypatch.setattr(dataset_checker, "DENSITY_ROWS", 1)
    spec = Spec.from_text(EVICTION)
    (statement,) = check_dataset(spec, write(tmp_path / "a.jsonl", rows)).statements
    expected = [i for i, row in enumerate(rows) if not is_good(spec, row)]
    assert len(expected) == 1
    assert [refused.row for refused in statement.refused] == expected


def test_columns_that_spell_out_segments_are_bound(tmp_path):
    text = 'segment role = ids(r) as a, b\nmask m = causal and (k in a or q == k)\nfor "*" use m'
    rows = [{"r": [0, 0, 1], "len": 3}, {"r": [0, 0], "len": 3}]
    (statement,) = check_dataset(Spec.from_text(text), write(tmp_path / "a.jsonl", rows)).statements
    assert 1 in [refused.row for refused in statement.refused]


def test_columns_of_another_shape_refuse_the_whole_file(tmp_path):
    path = write(tmp_path / "a.parquet", [{"q": 2, "a": 5, "len": 7}])
    coverage = check_dataset(Spec.from_text(SHARED), path)
    (problem,) = coverage.statements[0].problems
    assert "column `a` holds int64, but segment `part` reads a list of integers per row" in problem
    assert coverage.num_refused == 1
    path = write(tmp_path / "b.parquet", [{"q": "x", "a": [5]}])
    assert "column `q` holds string" in check_dataset(
        Spec.from_text(SHARED), path).statements[0].problems[0]  # fmt: skip
    path = write(tmp_path / "c.parquet", [{"qq": 1, "a": [5]}])
    assert "did you mean `qq`" in check_dataset(
        Spec.from_text(SHARED), path).statements[0].problems[0]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_rows_without_any_length_are_refused_one_by_one(tmp_path, name):
    path = write(tmp_path / name, [{"text": "abc"}] * 3)
    (statement,) = check_dataset(Spec.from_text('for "*" use causal'), path).statements
    assert "nothing says how many tokens" in statement.refused[0].reason
    assert statement.num_refused == 3


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
    real = pa.json.read_json
    monkeypatch.setattr(pa.json, "read_json", lambda *a, **b: reads.append(a) or real(*a, **b))
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    texts._check_rows(Spec.from_text('for "*" use causal'), path)
    assert terminal.getvalue().count("4096/5000") == 1
    assert len(reads) == 1


def test_only_the_needed_columns_are_read(tmp_path, monkeypatch):
    rows = [{"q": 1, "a": [2], "text": "long"}] * 5
    path = write(tmp_path / "a.parquet", rows)
    asked = []
    real = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches",
        lambda self, size, columns: asked.append(columns) or real(self, size, columns=columns),
    )  # fmt: skip
    check_dataset(Spec.from_text(SHARED), path)
    assert asked == [["q", "a"]]
    assert read_dataset(path, ["a"]).columns == ("a",)


def test_stacks_measure_each_of_their_masks(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"len": 8}, {"len": 4}])
    spec = Spec.from_text('stack s = 2 of sliding(2), causal\nfor "*" use s')
    (statement,) = check_dataset(spec, path).statements
    assert set(statement.densities) == set(statement.masks) == {"sliding(window = 2)", "causal"}
    assert statement.densities["causal"].largest == 10 / 16


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


def test_a_negative_length_among_others_is_refused():
    file = DataFile("a", pa.table({"len": [8, -1, 4]}))
    with pytest.raises(DatasetError, match="has the negative length -1"):
        file.stated_lengths()


def test_distributions_count_every_value_once():
    values = np.random.default_rng(0).integers(1, 10**6, 1000)
    for is_logarithmic in (False, True):
        spread = Distribution.of(values, is_logarithmic=is_logarithmic)
        assert sum(spread.bins) == 1000
        assert len(spread.bars()) == len(spread.bins) == len(spread.edges) - 1
        assert (spread.smallest, spread.largest) == (values.min(), values.max())
    assert Distribution.of(np.array([5, 5])).bins[0] == 2
    assert Distribution.of(np.array([])).bars() == ""


# ---- Hugging Face --------------------------------------------------------------------------------


def test_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["len", "len"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match="two columns have the same name: `len`, `len`"):
        check_dataset(Spec.from_text(SHARED), str(tmp_path))


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


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    spec = tmp_path / "a.dcpm"
    spec.write_text(SHARED)
    return lambda *arguments: CliRunner().invoke(check, [str(spec), *map(str, arguments)])


REPORT = """\
{path}: 21 rows

line 4: for "*" use shared
  rows     21 of 1 source, 12 refused
  lengths  36 tokens; 4 to 4, median 4  █
  density  56.2 % to 56.2 %, median 56.2 % in 9 rows  █  shared
  checked  no look-ahead (proved), every token sees something (proved), layouts fill every row
{refused}
           and 2 more rows
"""
REFUSED = """\
  refused  row {row} of {path}: its length is not clear: `len` says 4, the layout of `part` adds \
up to 3 tokens
           with a = [1], q = 2"""


def test_the_report_names_statement_rows_lengths_and_refusals(run, tmp_path):
    rows = [{"q": 2, "a": [1, 1], "len": 4}] * 9 + [{"q": 2, "a": [1], "len": 4}] * 12
    path = write(tmp_path / "rows.jsonl", rows)
    result = run("--dataset", path)
    refused = "\n".join(REFUSED.format(row=row, path=path) for row in range(9, 19))
    assert (result.exit_code, result.stderr) == (1, "9 of 21 rows accepted\n")
    assert result.stdout == REPORT.format(path=path, refused=refused)


def test_the_document_holds_everything(run, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"q": 2, "a": [1, 1]}] * 3)
    result = run("--dataset", path, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (document["schema"], document["rows"], document["refused"]) == ("dcp.dataset/1", 3, 0)
    (statement,) = document["statements"]
    dense = dense_mask(Spec.from_text(SHARED).mask("shared"), Sample({"q": 2, "a": [1, 1]}, 4))
    assert statement["densities"]["shared"]["mean"] == dense.mean()
    assert statement["proved"] == {"causal": True, "total": True}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dataset", "missing"], "no such file or folder; expected a .parquet or .jsonl file"),
        (["b.dcpm", "--dataset", "x"], "takes one spec"),
    ],
)
def test_what_cannot_be_checked_is_one_message(run, arguments, says):
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.stderr + str(result.exception)


def test_a_spec_without_statements_says_which_one_to_add(tmp_path):
    spec = tmp_path / "a.dcpm"
    spec.write_text("mask a = causal")
    result = CliRunner().invoke(check, [str(spec), "--dataset", "x"])
    assert 'add `for "*" use MASK` (masks: a)' in result.stderr


def test_a_long_row_of_a_strided_mask_is_accepted(tmp_path):
    (tmp_path / "m.dcpm").write_text(
        "segment doc = ids(d)\n"
        "mask comb = same(doc) and sliding(4k) and (q - k) % 2 == 0\n"
        'for "*" use comb\n'
    )
    row = {"d": [0] * 3000 + [1] * 3000, "length": 6000}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    arguments = [str(tmp_path / "m.dcpm"), "--dataset", str(tmp_path / "rows.jsonl")]
    result = CliRunner().invoke(check, arguments)
    assert result.exit_code == 0, result.output
