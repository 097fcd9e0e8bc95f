"""What a reader returns is what the file says: the oracle is the Python value that was written."""

import io
import json
import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
import value_cases
from click.testing import CliRunner

from dcp_dsl import DatasetError, read_dataset
from dcp_dsl.commands.texts import check
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_dsl.data import dataset as dataset_module
from dcp_dsl.data import json_lines
from dcp_dsl.data.sources import Source, find_sources
from dcp_dsl.specs.spec import Spec

HAS_LEN = Spec.from_text('mask m = causal and q - k < row.len  for "*" use m')


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def rows_of(path):
    return [{name: plain(v) for name, v in row.items()} for row in read_dataset(path)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder"])
def test_random_tables_are_read_as_they_were_written_or_refused_where_they_have_to_be(
    tmp_path, kind
):
    taken = 0
    for seed in range(15):
        name, data, read = value_cases.DRAWS[kind](random.Random(f"{kind} {seed}"))
        (tmp_path / name).write_bytes(data)
        try:
            read(tmp_path / name)
            taken += 1
        except DatasetError:
            pass
    assert taken > 5


LINES = {
    "nulls first": '{"a": [null, 1]}\n{"a": [2]}',
    "nulls first, deeper": '{"a": {"b": [[null, null, 1.5], [null]]}}\n{"a": {"b": [[2.5]]}}',
    "a block of nulls": '{"a": [null, null]}\n{"a": null}\n{"a": [[1]]}',
    "lists of nulls beside a late column": '{"a": [null, null]}\n{"b": 1}',
    "floats later": '{"a": 1}\n{"a": 2}\n{"a": 0.5}',
    "unsigned later": '{"a": 1}\n{"a": 18446744073709551615}',
    "large": '{"a": [9223372036854775807, -9223372036854775808]}',
    "dates": '{"a": "2020-01-01"}\n{"a": "2020-01-02 10:00:00"}',
    "not numbers": '{"a": [NaN, Infinity, -Infinity]}',
    "CRLF": '{"a": "x\\r\\n"}\r\n\r\n{"a": "y"}\r\n',
    "no columns": "{}\n{}",
    "odd names": '{"": 1, "a.b": [2], "größe": {"": [3]}}',
    "an empty object": '{"a": {}}\n{"a": {"b": {}}}',
}


@pytest.mark.parametrize("text", LINES.values(), ids=LINES)
@pytest.mark.parametrize("block", [0, 1 << 20])
def test_values_are_those_of_pythons_json(tmp_path, monkeypatch, text, block):
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", block)
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode())
    expected = value_cases.Expected([json.loads(line) for line in text.split("\n") if line.strip()])
    found = read_dataset(path)
    assert len(found) == len(expected.rows)
    for number, row in enumerate(expected.rows):
        expected.same(row, found[number], (), f"row {number}")


REFUSED = {
    "beyond uint64": ('{"a": 18446744073709551616}', "line 1: column `a` is uint64, which cannot"),
    "beyond int64": ('{"a": -9223372036854775809}', "line 1: column `a` is int64, which cannot"),
    "signs": ('{"a": [-1]}\n{"a": [9223372036854775808]}', r"line 1: .* uint64>, which .* \[-1\]"),
    "no float": ('{"a": 9007199254740993}\n{"a": 0.5}', "line 1: .* double, which .* 90071992547"),
    "a bool, then a float": ('{"a": [true]}\n{"a": [0.5]}', "line 2: column `a\\[\\]` is a number"),
    "a float and a bool": ('{"a": [0.5, true]}', "line 1: column `a\\[\\]` is a bool, but a numb"),
    "an int, then a bool": (
        '{"a": {"b": 1}}\n{"a": {"b": true}}',
        "line 2: column `a.b` is a bool",
    ),
    "a doubled name": ('{"a": 1, "b": {"c": 1, "c": 2}}', "line 1: `c` is given twice"),
    "half a character": ('{"a": "\\ud800"}', "line 1: column `a` is string, which cannot hold"),
    "half a character as a name": ('{"\\ud800": 1}', "line 1: .* surrogates not allowed"),
    "thousands of digits": ('{"a": ' + "9" * 5000 + "}", "line 1: expected .* limit"),
    "deep": ('{"a": ' + "[" * 101 + "]" * 101 + "}", "line 1: the values are nested too deeply"),
}


@pytest.mark.parametrize(("text", "says"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("block", [0, 1 << 20])
def test_what_no_column_holds_is_refused_by_line(tmp_path, monkeypatch, text, says, block):
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", block)
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DatasetError, match=rf"a\.jsonl: {says}"):
        read_dataset(tmp_path / "a.jsonl")


def test_large_numbers_written_as_texts_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": -1}\n{"a": 9223372036854775808}')
    with pytest.raises(DatasetError, match="or write all numbers of this column as texts"):
        read_dataset(path)
    path.write_text('{"a": "-1"}\n{"a": "9223372036854775808"}')
    assert [int(row["a"]) for row in read_dataset(path)] == [-1, 2**63]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_the_checker_refuses_rows_with_missing_values_and_no_others(tmp_path, name):
    rows = [{"len": 3, "evict": [None, 3, 3]}, {"len": 3, "evict": [1, 2, 3]}]
    if name == "rows.jsonl":
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    (tmp_path / "m.dcpm").write_text(
        'token evict\n@partial mask kept = causal and q < k.evict\nfor "*" use kept\n'
    )
    done = CliRunner().invoke(check, [str(tmp_path / "m.dcpm"), "--dataset", str(tmp_path / name)])
    assert "1 of 2 rows accepted" in done.output
    assert "row 0 of" in done.output
    assert "with evict = [null, 3, 3]" in done.output
    assert rows_of(tmp_path / name) == rows


# ---- Parquet, and tables of `datasets` -----------------------------------------------------------


def test_a_file_of_which_arrow_leaves_out_rows_is_refused_until_it_has_larger_pages(tmp_path):
    path = tmp_path / "a.parquet"
    lists = pa.table({"len": [2, 1, 3], "a": [[1, 2], [], [3]]})
    pq.write_table(lists, path, data_page_size=1, row_group_size=1)
    assert pq.read_table(path, columns=["a"]).num_rows == 0, "Arrow reads it now; drop the check"
    with pytest.raises(DatasetError, match="expected 3 rows, as the file says, but Arrow reads 0"):
        read_dataset(path, ["a"])
    with pytest.raises(DatasetError, match="write the file anew, with larger pages or row groups"):
        list(find_sources(str(path))[0].batches(["a"]))
    with pytest.raises(DatasetError, match="cannot be read"):
        read_dataset(path)
    pq.write_table(lists, path, row_group_size=1)
    assert rows_of(path) == lists.to_pylist()


def write_other(path):
    pq.write_table(pa.table({"other": ["x"] * 9000}), path)


def test_a_parquet_file_that_is_replaced_during_the_check_is_refused_until_it_is_complete(tmp_path):
    path = tmp_path / "a.parquet"
    for moment in (1, 2):
        pq.write_table(pa.table({"len": [3] * 9000}), path)
        calls = []

        def replace(_, done, calls=calls, moment=moment):
            calls.append(done)
            if len(calls) == moment:
                write_other(tmp_path / "new")
                (tmp_path / "new").replace(path)

        with pytest.raises(DatasetError, match=r"a\.parquet: expected the file to stay as it was"):
            check_dataset(HAS_LEN, str(path), replace)
    (source,) = find_sources(str(path))
    pq.write_table(pa.table({"len": [3] * 9}), path)
    for read in (source.read, lambda: list(source.batches(["other"]))):
        with pytest.raises(DatasetError, match="run the command again when it is complete"):
            read()
    assert check_dataset(HAS_LEN, str(path)).num_refused == 0


def test_a_page_whose_bytes_changed_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    numbers = list(range(1000, 1300))
    pq.write_table(
        pa.table({"len": numbers}), path, write_page_checksum=True, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    data = path.read_bytes()
    place = data.index((1100).to_bytes(8, "little"))
    path.write_bytes(data[:place] + b"\0" + data[place + 1 :])
    with pytest.raises(DatasetError, match=r"a\.parquet: cannot be read: .*checksum"):
        read_dataset(path)


def test_texts_that_are_no_utf8_are_refused_by_row_and_column_and_the_others_are_read(tmp_path):
    texts = pa.array([b"a", b"b", b"\xff", b"c"]).cast(pa.string(), safe=False)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"len": [1, 2, 3, 4], "t": texts}), path, row_group_size=2)
    with pytest.raises(DatasetError, match=r"a\.parquet: row 2, column `t`: expected string, got"):
        read_dataset(path)
    with pytest.raises(DatasetError, match="row 2, column `t`"):
        list(find_sources(str(path))[0].batches(["t"]))
    assert read_dataset(path, ["len"]).lengths.tolist() == [1, 2, 3, 4]


def invalid_source():
    """Return a table that Arrow's JSON reader spoils; `datasets` keeps such tables."""
    text = b'{"len": 2, "a": [null, 1]}\n{"len": 1, "a": [2]}\n{"len": 1, "a": [3]}'
    table = pa.json.read_json(io.BytesIO(text))
    with pytest.raises(pa.ArrowInvalid):
        table.validate(full=True)
    return Source.of("hf:odd", table.schema, 3, table)


def test_tables_with_shifted_lists_are_refused(monkeypatch):
    monkeypatch.setattr(dataset_module, "find_sources", lambda _: [invalid_source()])
    with pytest.raises(
        DatasetError, match=r"hf:odd: row 2, column `a`: expected list<item: int64>"
    ):
        read_dataset("hf:odd")
    with pytest.raises(DatasetError, match="rows before it may hold wrong values, too"):
        list(invalid_source().batches(["a"]))
    assert read_dataset("hf:odd", ["len"]).lengths.tolist() == [2, 1, 1]


def test_more_list_items_than_a_chunk_holds_are_read(monkeypatch):
    size = 2**30
    lists = pa.ListArray.from_arrays(pa.array([0, size], pa.int32()), pa.nulls(size))
    table = pa.concat_tables([pa.table({"len": [n], "a": lists}) for n in range(3)])
    source = Source.of("hf:long", table.schema, 3, table)
    monkeypatch.setattr(dataset_module, "find_sources", lambda _: [source])
    dataset = read_dataset("hf:long")
    assert dataset.lengths.tolist() == [0, 1, 2]
    assert len(dataset.parts[0].table.column("a")[2]) == size


def test_saved_data_sets_are_read_as_they_were_written(tmp_path):
    pytest.importorskip("datasets", exc_type=ImportError)
    for seed in range(4):
        value_cases.draw_saved(random.Random(seed))[2](tmp_path / "none")


@pytest.mark.parametrize("state", ["{}", "[]", '{"_data_files": [{"name": "x"}]}', "null", "{"])
def test_a_saved_data_set_whose_state_is_damaged_is_one_message(tmp_path, state):
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    datasets.Dataset.from_list([{"len": 3}]).save_to_disk(str(tmp_path / "d"))
    (tmp_path / "d" / "state.json").write_text(state)
    with pytest.raises(DatasetError, match=r"d: `datasets` cannot load it: \w+"):
        read_dataset(tmp_path / "d")


def test_the_cases_find_a_wrong_value():
    expected = value_cases.Expected([{"a": [1, None, {"b": 0.5}]}, {"a": None, "c": 2}])
    right = {"a": [1, None, {"b": 0.5}], "c": None}
    expected.same(expected.rows[0], right, (), "row")
    for wrong in ([1, None, {"b": 0.25}], [1, None, {}], [True, None, {"b": 0.5}], [1, None], None,
                  [1.0, None, {"b": 0.5}], [None, 1, {"b": 0.5}]):  # fmt: skip
        with pytest.raises(value_cases.WrongValueError, match=re.escape("row")):
            expected.same(expected.rows[0], {**right, "a": wrong}, (), "row")
