"""`DCPDataloader`: data sets of every kind, rows that are skipped, epochs without a batch."""

import json
import re
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from loader_options import ONE, OPTIONS, Stream, make_loader, rows_of

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_planner import Cluster, ModelShape, digest
from dcp_runtime import DCPDataloader, RunError
from dcp_runtime.data.rows import IndexedRows

SPEC = Spec.from_text("mask band(w: tokens = 20) = causal and q - k < w\nmask whole = causal")
DOCS = Spec.from_text("segment d = doc[doc_lens]*\nmask own = causal per doc")


def test_mask_may_depend_on_the_row():
    masks = {"band": SPEC.mask("band(w = 2)"), "all": SPEC.mask("whole")}
    rows = [{"tokens": list(range(30)), "kind": kind} for kind in ("band", "all")]
    ((_, plan),) = make_loader(rows, lambda row: masks[row["kind"]], **OPTIONS)
    assert int(plan.tiles.pairs.sum()) == (2 * 30 - 1) + 30 * 31 // 2
    assert plan.provenance is None


def test_tokens_may_be_bytes_or_arrays_of_any_column():
    given = b"abc", np.array([1, 2], np.uint8), torch.tensor([3, 4])
    options = {**OPTIONS, "cluster": ONE, "token_column": "text"}
    rows = [{"text": tokens} for tokens in given]
    ((data, _),) = make_loader(rows, SPEC.mask("whole"), **options)
    assert data.tokens.tolist() == [97, 98, 99, 1, 2, 3, 4]


def parts_of(*lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def test_files_with_masks_of_their_own_share_batches_and_run_exactly(tmp_path, lab):
    spec = Spec.from_text(
        "segment part = question[question_len] answer[answer_lens]*\n"
        "segment doc = [doc_lens]*\n"
        "mask shared = causal and (k in question or same(answer))\n"
        "mask packed(w: tokens) = causal and same(doc) and q - k < w\n"
        'for "rl/*" having answer_lens use shared with question_len = prompt_len\n'
        'for "sft/*" use packed(w = 6)\n'
    )
    own = [part == part[:, None] for part in (parts_of(5, 11, 7, 9), parts_of(8, 4, 6))]
    own += [doc == doc[:, None] for doc in (parts_of(13, 8), parts_of(17))]
    own[0][:, :5] = own[1][:, :8] = True
    expected = [mask & np.tri(len(mask), dtype=bool) for mask in own]
    for mask in expected[2:]:
        mask &= ~np.tri(len(mask), k=-6, dtype=bool)
    (tmp_path / "rl").mkdir()
    (tmp_path / "sft").mkdir()
    rl = {
        "prompt_len": [5, 8], "answer_lens": [[11, 7, 9], [4, 6]],
        "input_ids": [list(range(32)), list(range(18))],
    }  # fmt: skip
    pq.write_table(pa.table(rl), tmp_path / "rl" / "a.parquet")
    sft = [{"doc_lens": lens, "tokens": list(range(sum(lens)))} for lens in ([13, 8], [17])]
    (tmp_path / "sft" / "a.jsonl").write_text("\n".join(map(json.dumps, sft)))

    options = {**OPTIONS, "shuffle": True, "seed": 3, "hidden_targets": "leave_out"}
    batches = list(make_loader(read_dataset(tmp_path), spec, **options))
    seen = [data.rows for data, _ in batches]
    assert sorted(row for rows in seen for row in rows) == [0, 1, 2, 3]
    assert any(min(rows) < 2 <= max(rows) for rows in seen)  # both masks in one batch
    for number, (data, plan) in enumerate(batches):
        dense = torch.block_diag(*(torch.tensor(expected[row]) for row in data.rows)).bool()
        lab.check_plan(plan, dense.numpy(), number)

    rl_alone = Spec.from_text("\n".join(spec.source.splitlines()[:-1]))
    with pytest.raises(DatasetError, match=r"no `for` statement matches .*sft/a\.jsonl with the c"):
        make_loader(read_dataset(tmp_path), rl_alone, **OPTIONS)
    assert len(make_loader(read_dataset(tmp_path / "rl"), rl_alone, **OPTIONS)) == 1


def test_a_list_without_rows_is_refused_as_such():
    spec = Spec.from_text('for "*" use document')
    with pytest.raises(DatasetError, match="the data set has no rows"):
        make_loader([], spec, **OPTIONS)
    with pytest.raises(DatasetError, match="`doc_lens`, which the data set in memory does not"):
        make_loader([{"tokens": [1]}], spec, **OPTIONS)


def test_rows_in_memory_find_their_mask_by_their_columns():
    rows = [{"tokens": [1, 2, 3, 4], "doc_lens": [2, 2]}, {"tokens": [1, 2, 3, 4, 5]}]
    spec = Spec.from_text('for "*" having doc_lens use document for "*" use causal')
    for dataset in (rows, (row for row in rows)):
        ((_, plan),) = make_loader(dataset, spec, hidden_targets="leave_out", **OPTIONS)
        assert int(plan.tiles.pairs.sum()) == 2 * 3 + 15


def test_the_rows_of_an_iterator_are_read_once_and_never_missed_in_silence():
    rows = rows_of([30, 30, 30, 30])
    loader = make_loader(iter(rows), SPEC.mask("band"), **OPTIONS)
    assert [data.rows for data, _ in loader] == [(0, 1), (2, 3)]
    with pytest.raises(DatasetError, match=r"from a list_iterator, .* only once; .* list\(rows\)"):
        next(iter(loader))
    loader = make_loader((row for row in rows), SPEC.mask("band"), **OPTIONS)
    next(iter(loader))
    with pytest.raises(DatasetError, match="from a generator"):
        list(loader)  # the rest of the epoch: rows that were read ahead are gone


def test_a_data_loader_of_torch_gives_the_same_rows_and_batches():
    rows = torch.utils.data.DataLoader([{"tokens": [1, 2, 3, 4]}] * 6, batch_size=None)
    ((data, _),) = make_loader(rows, SPEC.mask("band"), **OPTIONS)
    assert data.rows == (0, 1, 2, 3, 4, 5)
    loader = make_loader(rows_of([30, 30, 20, 40]), SPEC.mask("band"), **OPTIONS)
    expected = [(data.tokens.tolist(), digest(plan)) for data, plan in loader]
    wrapped = torch.utils.data.DataLoader(loader, batch_size=None)
    assert len(wrapped) == len(expected) == 2
    for _ in range(2):
        assert [(data.tokens.tolist(), digest(plan)) for data, plan in wrapped] == expected
    workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1)
    with pytest.raises(RunError, match="give DataLoader num_workers=0, LookAhead"):
        next(iter(workers))


def test_the_data_set_is_asked_once_for_a_row_of_a_batch():
    class Counted(list):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            return super().__getitem__(index)

    rows = Counted(rows_of([30, 30, 30]))
    loader = make_loader(rows, SPEC.mask("band"), **OPTIONS)
    before = rows.asked
    list(loader)
    assert rows.asked - before == 3


@pytest.mark.parametrize(
    ("name", "given", "kind"),
    [
        ("packing", 8192, "Packing"),
        ("rows", "skip", "RowRules"),
        ("planning", ModelShape(2, 1, 8, 4), "Planning"),
        ("look_ahead", 2, "LookAhead"),
    ],
)
def test_choices_that_are_no_group_are_refused_with_the_group_that_holds_them(name, given, kind):
    match = rf"{name}: expected a {kind}, got .*; give {name}={kind}\(\.\.\.\)"
    with pytest.raises(RunError, match=match):
        DCPDataloader(rows_of([5]), SPEC.mask("band"), **{name: given})


def test_the_lengths_of_a_hugging_face_data_set_come_from_its_tables(monkeypatch):
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    rows = [{"input_ids": list(range(n)), "other": str(n)} for n in (7, 0, 3, 12, 1)]
    plain = datasets.Dataset.from_list(rows)
    asked = []
    monkeypatch.setattr(
        datasets.Dataset, "__getitem__", lambda self, key: asked.append(key) or rows[key]
    )
    for dataset, lengths in (
        (plain, [7, 0, 3, 12, 1]),
        (plain.with_format("torch"), [7, 0, 3, 12, 1]),
        (plain.select([3, 0, 1]), [12, 7, 0]),
    ):
        assert IndexedRows(dataset, None).lengths.tolist() == lengths
    assert asked == []


def test_rows_that_a_hugging_face_data_set_makes_when_asked_are_counted_one_by_one():
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    plain = datasets.Dataset.from_list([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
    doubled = plain.with_transform(lambda b: {"input_ids": [2 * ids for ids in b["input_ids"]]})
    assert IndexedRows(doubled, None).lengths.tolist() == [6, 2]
    texts = datasets.Dataset.from_list([{"input_ids": [1]}, {"input_ids": None}])
    floats = datasets.Dataset.from_list([{"input_ids": [0.5]}])
    says = "row {}: expected `input_ids` to be integers or bytes, got {}"
    for dataset, row, value in ((texts, 1, "None"), (floats, 0, "'[0.5")):
        rows = IndexedRows(dataset, None)
        assert rows.lengths[row] == 0
        assert str(rows.faults[row]).startswith(says.format(row, value))
        with pytest.raises(
            DatasetError, match=f"row {row}: expected `input_ids` .*; policy='skip'"
        ):
            make_loader(dataset, SPEC.mask("band"), **OPTIONS)


def unfit(number, length=10):
    """Rows whose documents hold more tokens than the rows have."""
    return [{"tokens": list(range(length)), "doc_lens": [length + 1]}] * number


def test_rows_that_are_skipped_are_told_at_the_first_and_by_their_share(caplog):
    fit = [{"tokens": list(range(10)), "doc_lens": [10]}]
    rows = [*fit * 40, *unfit(1), *fit * 59, *unfit(60)]
    said = []
    for ranks, dataset in ((1, rows), (1, Stream(rows)), (2, rows)):
        caplog.clear()
        options = {**OPTIONS, "cluster": Cluster(1, ranks), "policy": "skip", "token_budget": 20}
        options["rank"] = ranks - 1
        loader = make_loader(dataset, DOCS.mask("own"), **options)
        assert len(list(loader)) == 50
        list(loader)  # the same rows: nothing new
        assert loader.screening.counts == {"unfit": 61}
        said.append([record.getMessage() for record in caplog.records])
    assert said[2] == []  # one rank tells
    for first, *shares in said[:2]:
        assert "leaves out rows without an error; the first: row 40: " in first
        found = [re.search(r"(\d+) of the (\d+) rows .*; the first: row 40", s) for s in shares]
        counts = [tuple(map(int, each.groups())) for each in found]
        assert len(counts) in (1, 2)
        assert all(0.01 * seen <= left_out <= 0.5 * seen for left_out, seen in counts)
    caplog.clear()
    lengths = [*rows_of([5] * 12), *rows_of([99] * 6)]
    make_loader(lengths, SPEC.mask("band"), **{**OPTIONS, "policy": "skip"})
    assert "6 of the 18 rows seen so far (33 %): 6 too_long; " in caplog.records[-1].getMessage()


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("kind", [list, Stream])
def test_an_epoch_without_a_batch_is_an_error(kind, policy):
    def run(rows, **given):
        options = {**OPTIONS, "cluster": ONE, "policy": policy, **given}
        loader = make_loader(kind(rows), DOCS.mask("own"), **options)
        for _ in range(2):
            with suppress(DatasetError):  # a loop that goes on finds the same
                list(loader)
        return list(loader)

    with pytest.raises(DatasetError, match=r"one batch in epoch 0, got none: .* has no rows"):
        run([])
    match = (
        r"row 0: .*doc" if policy == "error" else r"left out 3 of 3 rows; the first: row 0: .*doc"
    )
    with pytest.raises(DatasetError, match=match):
        run(unfit(3))
    fit = [{"tokens": list(range(10)), "doc_lens": [10]}]
    with pytest.raises(DatasetError, match=r"got none: drop_last=True .* 1 usable of 1 rows"):
        run(fit, drop_last=True)
    assert len(run(fit)) == 1
