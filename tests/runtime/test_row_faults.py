"""Whatever one row does wrong: under every policy, from every kind of data set."""

import json
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loader_options import Stream, make_loader
from target_rows import ONE, OPTIONS

from dcp_dsl import DatasetError, Spec, read_dataset

MASK = Spec.from_text("segment doc = [lens]*  mask docs = causal per doc").mask("docs")
RULES = {
    "loss_column": "counted", "position_column": "at", "extra_columns": ("x", "n"),
    "hidden_targets": "leave_out",
}  # fmt: skip


def good(first):
    return {
        "input_ids": [first, first + 1, first + 2], "lens": [2, 1], "at": [0, 1, 0],
        "labels": [first, first + 1, -100], "counted": [1, 1, 0], "x": [0.5, 1.0, 2.0],
        "n": [1, 2, 3], "length": 3,
    }  # fmt: skip


def changed(**columns):
    return {**good(20), **columns}


def without(*names):
    return {name: value for name, value in good(20).items() if name not in names}


LONG = [*range(300)]  # longer than all budgets here
TABLES = {"jsonl", "parquet", "hugging face", "hugging face, streamed"}
FAULTS = {  # the row, the reason, where it cannot occur
    "a row that is None": (None, "unfit", TABLES),
    "a row without names": ([1, 2], "unfit", TABLES),
    "no column of tokens": (without("input_ids"), "unfit", TABLES),
    "tokens that are None": (changed(input_ids=None), "unfit", ()),
    "tokens that hold None": (changed(input_ids=[1, None, 2]), "unfit", ()),
    "tokens that are a text": (changed(input_ids="abc"), "unfit", TABLES),
    "tokens that are floats": (changed(input_ids=[1.5, 2.5, 3.0]), "unfit", TABLES),
    "tokens of unequal lists": (changed(input_ids=[[1], [2, 3]]), "unfit", TABLES),
    "one token": (changed(input_ids=5), "unfit", TABLES),
    "a negative token": (changed(input_ids=[1, -1, 2]), "unfit", ()),
    "a token beyond int64": (changed(input_ids=[1, 2**63, 2]), "unfit", TABLES),
    "an unsigned token beyond int64": (
        changed(input_ids=np.array([1, 2**63, 2], np.uint64)), "unfit", TABLES,
    ),
    "no tokens": (changed(input_ids=[], length=0), "empty", ()),
    "too many tokens": (
        changed(
            input_ids=LONG, lens=[300], at=LONG, labels=LONG, counted=[1] * 300, x=[0.5] * 300,
            n=LONG, length=300,
        ), "too_long", (),
    ),
    "two columns of tokens": (changed(tokens=[7, 8]), "unfit", TABLES),
    "two columns of as many tokens": (changed(tokens=[7, 8, 9]), "unfit", TABLES),
    "another length": (changed(length=4), "unfit", ()),
    "labels of None": (changed(labels=None), "unfit", ()),
    "labels that hold None": (changed(labels=[1, None, 2]), "unfit", ()),
    "few labels": (changed(labels=[1, 2]), "unfit", ()),
    "labels below 0": (changed(labels=[1, -1, -100]), "unfit", ()),
    "labels and loss that contradict each other": (changed(labels=[1, 2, 3]), "unfit", ()),
    "a loss of None": (changed(counted=None), "unfit", ()),
    "a loss of other numbers": (changed(counted=[1, 2, 0]), "unfit", ()),
    "no column of the loss": (without("counted"), "unfit", TABLES),
    "positions that hold None": (changed(at=[0, None, 0]), "unfit", ()),
    "positions below 0": (changed(at=[0, -1, 0]), "unfit", ()),
    "an extra column of None": (changed(x=None), "unfit", ()),
    "an extra column that holds None": (changed(x=[0.5, None, 1.0]), "unfit", ()),
    "a short extra column": (changed(x=[0.5]), "unfit", ()),
    "an extra number beyond float32": (changed(x=[0.5, 1e300, 1.0]), "unfit", ()),
    "an extra integer beyond int64": (changed(n=[1, 2**63, 2]), "unfit", TABLES),
    "an extra integer that float32 changes": (changed(x=[0.5, 2**24 + 1, 2]), "unfit", TABLES),
    "no extra column": (without("x"), "unfit", TABLES),
    "a mask's column of None": (changed(lens=None), "unfit", ()),
    "a mask's column that holds None": (changed(lens=[2, None]), "unfit", ()),
    "lengths of another sum": (changed(lens=[2, 2]), "unfit", ()),
    "lengths below 0": (changed(lens=[4, -1]), "unfit", ()),
    "no column of the mask": (without("lens"), "unfit", TABLES),
}  # fmt: skip
KINDS = ("list", "stream", "jsonl", "parquet", "hugging face", "hugging face, streamed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def opened(rows, kind, path):
    if kind == "list":
        return rows
    if kind == "stream":
        return Stream(rows)
    if kind == "jsonl":
        path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_dataset(path.with_suffix(".jsonl"))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
        return read_dataset(path.with_suffix(".parquet"))
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    found = datasets.Dataset.from_list(rows)
    return found.to_iterable_dataset() if "streamed" in kind else found


def run(dataset, policy, token_budget=16):
    options = {**OPTIONS, "cluster": ONE, **RULES, "token_budget": token_budget}
    loader = make_loader(dataset, MASK, **options, policy=policy)
    tokens = [token for data, _ in loader for token in data.tokens.tolist()]
    return tokens, loader.screening.counts


@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_are_left_out_and_counted_by_reason(kind, folder):
    rows, wanted = [], []
    faults = [fault for fault in FAULTS.values() if kind not in fault[2]]
    for number, (bad, _, _) in enumerate(faults):
        first = 100 + 10 * number
        rows += [good(first), bad]
        wanted += [first, first + 1, first + 2]
    dataset = opened(rows, kind, folder / "all")
    counts = dict(Counter(reason for _, reason, _ in faults))
    assert run(dataset, "skip", token_budget=16 * 16) == (wanted, counts)
    alone = opened([bad for bad, _, _ in faults], kind, folder / "bad")
    says = rf"policy='skip' left out {len(faults)} of {len(faults)} rows; the first: row 0\b|row 0 "
    with pytest.raises(DatasetError, match=says):  # a fault of all rows is never swallowed
        run(alone, "skip")


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_row_is_named_under_other_policies(kind, folder):
    for title, (bad, reason, impossible) in FAULTS.items():
        if kind in impossible:
            continue
        dataset = opened([good(10), bad, good(30)], kind, folder / "rows")
        for policy in ("error", "truncate") if kind == "list" else ("error",):
            if (policy, reason) == ("truncate", "too_long"):
                cut = [10, 11, 12, *LONG[:16], 30, 31, 32]
                assert run(dataset, policy, token_budget=16) == (cut, {"too_long": 1})
                continue
            with pytest.raises(DatasetError) as caught:
                run(dataset, policy)
            assert re.search(r"row 1\b.*policy='skip'", str(caught.value)), title
