"""Files that once ended the process, or passed for what they are not; see `fixtures/hostile`."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, Sample, Spec, SpecError, load, read_dataset
from dcp_dsl.commands.texts import check
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_dsl.forms import is_equal

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
