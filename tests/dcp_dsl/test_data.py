"""Reading data sets, also those that once ended the process, and packing samples into batches."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import DatasetError, Sample, Spec, SpecError, load, pack, read_dataset
from dcp_dsl.commands.texts import check
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_dsl.data.sums import Cut
from dcp_dsl.forms import is_equal

ROWS = [
    {"len": 3, "answer_lens": [1, 2], "tokens": [5, 6, 7]},
    {"len": 0, "answer_lens": [], "tokens": []},
    {"len": 2, "answer_lens": [2], "tokens": [8, 9]},
]


@pytest.fixture(params=["parquet", "jsonl", "folder"])
def stored(request, tmp_path):
    if request.param == "jsonl":
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
        return path
    if request.param == "parquet":
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    pq.write_table(pa.Table.from_pylist(ROWS[:2]), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(json.dumps(ROWS[2]))
    (tmp_path / "README.md").write_text("not data")
    return tmp_path


def plain(row):
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in row.items()}


def test_rows_lengths_and_tokens_are_read(stored):
    dataset = read_dataset(stored)
    assert (len(dataset), set(dataset.columns)) == (3, {"len", "answer_lens", "tokens"})
    assert [plain(dataset[i]) for i in range(3)] == ROWS
    assert plain(dataset[-1]) == ROWS[2]
    assert dataset.lengths.tolist() == [3, 0, 2]
    assert dataset.tokens(2).tolist() == [8, 9]
    with pytest.raises(IndexError):
        dataset[3]


def test_a_row_longer_than_a_block_of_the_reader_is_read(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"tokens": [7] * 1_000_000}) + "\n" + json.dumps({"tokens": [1]}))
    assert read_dataset(path).lengths.tolist() == [1_000_000, 1]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}', "line 2: expected UTF-8, got invalid start"),
        ("a.jsonl", b"{}\n{]", "line 2: expected a JSON object of columns, got no JSON"),
        ("a.jsonl", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 1: the JSON is nest"),
        ("a.parquet", b"PAR1 and then nothing", "cannot be read"),
        ("a.parquet", b"", "cannot be read"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_clear_message(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=says) as raised:
        read_dataset(path)
    assert str(path) in str(raised.value)


def test_list_columns_are_arrays_and_other_values_stay_what_they_are(tmp_path):
    row = {"tokens": [1, 2, 3], "lens": [[1], [2]], "raw": b"ab", "text": "x", "n": 3,
           "empty": [], "holes": [1, None], "none": None}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    got = read_dataset(tmp_path / "a.parquet")[0]
    assert {name for name in got if isinstance(got[name], np.ndarray)} == {"tokens", "empty"}
    assert plain(got) == row
    mask = Spec.from_text("segment d = [tokens]*").mask("same(d)")
    assert Sample.of(got | {"len": 3}, mask).columns == {"tokens": [1, 2, 3]}


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 2)], ids=str
)
def test_every_kind_of_list_is_read(tmp_path, kind):
    pq.write_table(pa.table({"tokens": pa.array([[1, 2], [3, 4]], kind)}), tmp_path / "a.parquet")
    dataset = read_dataset(tmp_path / "a.parquet")
    assert (dataset.lengths.tolist(), dataset.tokens(1).tolist()) == ([2, 2], [3, 4])
    assert isinstance(dataset[0]["tokens"], np.ndarray)


def test_a_parquet_file_with_any_byte_changed_is_read_or_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tokens": [[1, 2], [3]] * 50, "naïve": ["é", "x"] * 50}), path)
    whole, rng, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.1 else damaged)
        try:
            dataset = read_dataset(path)
            _ = dataset.lengths, dataset[0], dataset.tokens(0)
        except DatasetError:
            refused += 1
    assert refused > 50


def test_paths_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    for name, says in (("pipe.jsonl", "got a pipe"), ("loop.jsonl", "no such file"),
                       ("x" * 300 + ".jsonl", "File name too long")):  # fmt: skip
        with pytest.raises(DatasetError, match=says):
            read_dataset(tmp_path / name)


def test_a_sample_of_endless_lists_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(DatasetError, match="expected integers or lists"):
        Sample({"a": endless}, 3)


def test_files_of_a_folder_may_have_different_columns(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"len": 1}\n{"len": 4}')
    (tmp_path / "b.jsonl").write_text('{"length": 2, "tokens": [7, 8]}')
    (tmp_path / "c.jsonl").write_text('{"text": "abc"}')
    dataset = read_dataset(tmp_path)
    assert dataset.columns == ("len", "length", "tokens", "text")
    assert [plain(dataset[row]) for row in range(-4, 4)] == 2 * [
        {"len": 1}, {"len": 4}, {"length": 2, "tokens": [7, 8]}, {"text": "abc"},
    ]  # fmt: skip
    assert [dataset.part_of(row) for row in range(4)] == [0, 0, 1, 2]
    assert dataset.tokens(2).tolist() == [7, 8]
    with pytest.raises(DatasetError, match=r"a\.jsonl has no column `tokens`"):
        dataset.tokens(1)
    with pytest.raises(DatasetError, match=r"c\.jsonl: rows need their length: .* has `text`"):
        _ = dataset.lengths
    (tmp_path / "c.jsonl").unlink()
    assert read_dataset(tmp_path).lengths.tolist() == [1, 4, 2]


@settings(deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 20), max_size=30),
    budget=st.integers(20, 60),
    order=st.sampled_from(["in_order", "decreasing"]),
)
def test_every_sample_lands_in_exactly_one_batch_within_the_budget(lengths, budget, order):
    batches = pack(lengths, budget, order=order)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(batch for batch in batches)
    assert all(sum(lengths[i] for i in batch) <= budget for batch in batches)
    if order == "in_order":
        assert [i for batch in batches for i in batch] == list(range(len(lengths)))
    elif lengths:
        taken = [tuple(sorted(batch, key=lambda i: (-lengths[i], i))) for batch in batches]
        assert list(batches) == taken, "the longest first, of equal ones the first"
        half_full = [b for b in batches if 2 * sum(lengths[i] for i in b) <= budget]
        assert len(half_full) <= 1, "first fit leaves at most one batch half empty"


def test_a_sample_longer_than_the_budget_is_refused():
    with pytest.raises(DatasetError, match="sample 1 has 9 tokens, the token budget is 8"):
        pack(np.array([3, 9]), 8)


def test_a_folder_holds_its_files_at_any_depth_each_matched_by_its_own_path(tmp_path):
    for name in ("b", "a/x", ".hidden/y"):
        file = tmp_path / "d" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"len": 3}')
    dataset = read_dataset(tmp_path / "d")
    assert dataset.files == tuple(str(tmp_path / "d" / name) for name in ("a/x.jsonl", "b.jsonl"))
    assert len(dataset) == 2
    assert Spec.from_text('for "d/*" use causal').attachment_of(dataset).mask.call == "causal"
    with pytest.raises(DatasetError, match=r"no `for` .*a/x\.jsonl \(and 1 more file\)"):
        Spec.from_text('for "z/*" use causal').attachment_of(dataset)


def test_every_file_is_attached_by_its_own_path_and_columns(tmp_path):
    for name, row in (
        ("rl/a", {"question_len": 2, "answer_lens": [1, 2], "length": 5}),
        ("sft/a", {"tokens": [1, 2, 3], "reach": 2}),
        ("sft/b", {"tokens": [1, 2, 3]}),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    spec = Spec.from_text(
        'for "*" having answer_lens use shared_question\n'
        'for "sft/*" having reach use sliding(window = reach)\n'
        'for "sft/*" use causal\n',
        "mix.dcpm",
    )
    dataset = read_dataset(tmp_path)
    found = spec.attachments_of(dataset)
    assert [one.where for one in found] == ["mix.dcpm:1", "mix.dcpm:2", "mix.dcpm:3"]
    assert found[1].sample(dataset[1]) == Sample({"reach": 2}, 3)
    with pytest.raises(DatasetError, match=r"in line 2 matches .*sft/a.*DCPDataloader"):
        spec.attachment_of(dataset)
    with pytest.raises(DatasetError, match=r"needs the column `reach`, which .*sft/b\.jsonl does"):
        Spec.from_text(
            'for "rl/*" use causal for "*" use local mask local = q - k < row.reach and causal'
        ).attachments_of(dataset)


@pytest.mark.parametrize(
    ("layout", "rows", "lengths"),
    [
        ("doc[lens]*", [{"lens": [3, 4]}, {"lens": []}, {"lens": [5]}], [7, 0, 5]),
        ("a[x] b[8]", [{"x": 3}, {"x": 0}], [11, 8]),
        ("a[x + 2] b[x * 2]", [{"x": 3}, {"x": 1}], [11, 5]),
        (
            "turn(user[u] bot[b]*)*",
            [{"u": [1, 2], "b": [[3], [4, 5]]}, {"u": [7], "b": [[1]]}],
            [15, 8],
        ),
    ],
)
def test_a_layout_that_fixes_the_length_of_a_row_needs_no_other(tmp_path, layout, rows, lengths):
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    spec = Spec.from_text(f'segment p = {layout} mask m = causal and same(p) for "*" use m')
    dataset = read_dataset(tmp_path / "a.parquet")
    attached = spec.attachment_of(dataset)
    assert attached.lengths(dataset.parts[0]).tolist() == lengths
    samples = [attached.sample(dataset[row]) for row in range(len(dataset))]
    assert [sample.length for sample in samples] == lengths
    assert all(attached.mask.bind(sample).num_tokens == sample.length for sample in samples)
    assert Sample.of({**dataset[0], "len": lengths[0]}, attached.mask) == samples[0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"lens": [3, -1]}, r"a\.jsonl: row 1: segment `p`"),
        ({"lens": None}, r"a\.jsonl: row 1 has no value in column `lens`"),
    ],
)
def test_rows_whose_layout_has_no_sum_are_named(tmp_path, row, says):
    (tmp_path / "a.jsonl").write_text(json.dumps({"lens": [1]}) + "\n" + json.dumps(row))
    spec = Spec.from_text('segment p = doc[lens]* mask m = same(p) for "*" use m')
    dataset = read_dataset(tmp_path / "a.jsonl")
    with pytest.raises(DatasetError, match=says):
        spec.attachment_of(dataset).lengths(dataset.parts[0])


@pytest.mark.parametrize(
    ("lengths", "begins"),
    [({"a": [], "b": []}, []), ({"a": 0, "b": [0]}, []), ({"a": 2, "b": [0, 3, 1]}, [2, 5])],
)
def test_parts_begin_inside_a_row(lengths, begins):
    assert Cut(lengths, "", are_forks=False).begins().tolist() == begins


def test_what_states_no_length_is_refused_with_a_way_out(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"lens": 4, "size": [1]}))
    dataset = read_dataset(tmp_path / "a.jsonl")

    def lengths(text):
        return Spec.from_text(text).attachment_of(dataset).lengths(dataset.parts[0])

    with pytest.raises(DatasetError, match=r"rows need their length: .* or a mask with a layout"):
        lengths('for "*" use causal')
    with pytest.raises(DatasetError, match=r"a mask with a layout that adds up to it"):
        lengths('segment p = a[lens] tail[..] mask m = same(p) for "*" use m')
    with pytest.raises(
        DatasetError, match=r"column `lens` holds int64, but segment `p` reads a li"
    ):
        lengths('segment p = doc[lens]* mask m = same(p) for "*" use m')
    with pytest.raises(DatasetError, match="needs its length"):
        Spec.from_text('for "*" use causal').attachment("a", ["lens"]).sample({"lens": 4})


# ---- files that once ended the process (`fixtures/hostile`) --------------------------------------


HOSTILE = Path(__file__).parents[1] / "fixtures" / "hostile"


def checked(path):
    """Check a data set of the corpus or a path, by the statement of `s.dcpm`."""
    (statement,) = check_dataset(load(HOSTILE / "s.dcpm"), str(HOSTILE / path)).statements
    return statement


def write(path, rows):
    pq.write_table(pa.table(rows), path)
    return path


def test_a_line_that_is_null_is_refused():  # Arrow's parser dies of it
    with pytest.raises(DatasetError, match=r"null.jsonl: line 1: expected a JSON object"):
        read_dataset(HOSTILE / "null.jsonl")


def test_lengths_whose_sum_is_beyond_int64_are_refused():
    (refused,) = checked("wrap.parquet").refused
    assert refused.row == 0
    assert "a part would have 4611686018427387904 tokens, the sample has 10" in refused.reason


def test_a_row_of_too_many_tokens_is_named_and_the_others_are_kept():
    (refused,) = checked("big.parquet").refused
    assert refused.row == 100
    assert "2147483648 tokens" in refused.reason


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(DatasetError, match=r"dup.parquet: two columns have the same name"):
        read_dataset(HOSTILE / "dup.parquet")


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_an_integer_beyond_int64_is_not_read_as_a_negative_one(tmp_path, value):
    lens = {"question_len": pa.array([3, value], pa.uint64()), "answer_lens": [[1], [1]]}
    path = write(tmp_path / "a.parquet", {**lens, "length": [4, 4]})
    (refused,) = checked(path).refused
    assert (refused.row, "beyond int64" in refused.reason) == (1, True)
    dataset = read_dataset(path)
    with pytest.raises(DatasetError, match=r"`question_len`: .* does not fit into int64"):
        load(HOSTILE / "s.dcpm").attachment_of(dataset).sample(dataset[1])


@pytest.mark.parametrize("value", [2**50 + 1, -(2**63)])
def test_a_number_that_no_mask_is_bound_to_is_refused_although_the_mask_is_proved(tmp_path, value):
    spec = Spec.from_text('token id  mask m = causal and q.id == k.id  for "*" use m')
    rows = {"id": [[2**50, -(2**50)], [1, value]], "length": [2, 2]}
    (statement,) = check_dataset(spec, str(write(tmp_path / "a.parquet", rows))).statements
    (refused,) = statement.refused
    told = f"token column `id`: values beyond {2**50:_} "
    assert (refused.row, refused.reason.split("are")[0]) == (1, told)
    assert statement.is_total_proved


@pytest.mark.parametrize("path", ["", " ", "hf:", "hf::train", "hf:/"])
def test_a_path_that_names_nothing_is_refused(path):
    with pytest.raises(DatasetError, match="expected the path or hf:NAME of a data set, got"):
        read_dataset(path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("crash1.dcpm", "token column `c`: expected 2 integers, one per token, got something else"),
        ("crash2.dcpm", "segment `d`, column `c`: expected a list of [start, end] pairs, got [5]"),
    ],
)
def test_samples_of_the_wrong_shape_are_findings(name, shape):
    result = CliRunner().invoke(check, [str(HOSTILE / name)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert f"warning[W292]: {shape}\n  --> {HOSTILE / name}:3:1" in result.output


def test_a_spec_brings_its_imports_along():
    spec = load(HOSTILE / "imp.dcpm")
    assert dict(spec.files) == {"lib.dcpm": (HOSTILE / "lib.dcpm").read_text()}
    again = Spec.from_text(spec.source, "<plan>", spec.files)
    sample = Sample({"doc_lens": [3, 4]}, 7)
    forms = [each.mask("mine").compile(sample) for each in (spec, again)]
    assert is_equal(*forms)
    assert dict(again.files) == dict(spec.files)


def test_imports_of_a_held_text_are_never_read_from_disk(tmp_path):
    (tmp_path / "other.dcpm").write_text("mask base = causal")
    text = 'import base from "other.dcpm"'
    with pytest.raises(SpecError, match=r"other\.dcpm"):
        Spec.from_text(text, str(tmp_path / "a.dcpm"), {"lib.dcpm": ""})
    assert Spec.from_text(text, "<plan>", {"other.dcpm": "mask base = causal"}).mask("base")
    with pytest.raises(SpecError, match="lies outside"):
        Spec.from_text(
            'import base from "../a.dcpm"', "<plan>", {"../a.dcpm": "mask base = causal"}
        )


def test_sums_of_a_long_column_do_not_wrap(tmp_path):
    lengths = [2**62, 2**62, 2**62, 2**62 + 5]  # 5 in int64
    assert int(np.array(lengths).sum()) == 5
    rows = {"question_len": [0], "answer_lens": [lengths], "length": [5]}
    assert checked(write(tmp_path / "a.parquet", rows)).num_refused == 1


@pytest.mark.parametrize("name", ["length", "tokens"])
@pytest.mark.parametrize("column", [[2.5, 3.0], ["2", "3"], [True, False], [None, None]])
def test_a_column_that_can_hold_no_lengths_is_refused_by_name(tmp_path, name, column):
    lens = {"question_len": [1, 2], "answer_lens": [[1], [1]]}
    path = write(tmp_path / "a.parquet", {**lens, name: column})
    assert f"expected column `{name}` to hold" in checked(path).problems[0]
    with pytest.raises(DatasetError, match=f"expected column `{name}` to hold"):
        _ = read_dataset(path).lengths


@pytest.mark.parametrize("length", [-1, -5, 2**31, 2**63, 2**64 - 1])
def test_a_stated_length_out_of_range_refuses_its_row(tmp_path, length):
    lens = {"question_len": [1, 1], "answer_lens": [[1], [1]]}
    stated = pa.array([length, 2], pa.uint64() if length > 2**62 else pa.int64())
    path = write(tmp_path / "a.parquet", {**lens, "length": stated})
    assert [refused.row for refused in checked(path).refused] == [0]
    dataset = read_dataset(path)
    with pytest.raises(DatasetError, match=r"expected a length between|does not fit into int64"):
        load(HOSTILE / "s.dcpm").attachment_of(dataset).sample(dataset[0])
