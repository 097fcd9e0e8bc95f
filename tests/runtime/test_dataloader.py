"""`DCPDataloader`: every sample once, labels across block borders, all ranks one plan."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_options import make_loader

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_planner import Cluster, ModelShape, PlanConfig, digest
from dcp_runtime import DCPDataloader, RunError
from dcp_runtime.data.local_data import IGNORE_LABEL
from dcp_runtime.data.rows import IndexedRows

SPEC = Spec.from_text("mask band(w: tokens = 20) = causal and q - k < w\nmask whole = causal")
RANKS = 3
OPTIONS = {
    "token_budget": 64,
    "block_size": 8,
    "cluster": Cluster(devices_per_node=RANKS),
    "shape": ModelShape(2, 1, 8, 4),
    "config": PlanConfig(partitioner="static:zigzag"),
}


def rows_of(lengths):
    """Tokens that say which row and position they are."""
    return [{"tokens": [1000 * row + i for i in range(n)]} for row, n in enumerate(lengths)]


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=12),
    order=st.sampled_from(["in_order", "decreasing"]),
)
def test_every_token_is_on_exactly_one_rank_of_one_batch(lengths, order):
    loaders = [
        make_loader(rows_of(lengths), SPEC.mask("band"), rank=rank, order=order, **OPTIONS)
        for rank in range(RANKS)
    ]
    seen, targets, expected_targets = [], [], []
    for parts in zip(*loaders, strict=True):
        assert len({digest(plan) for _, plan in parts}) == 1
        assert len({data.rows for data, _ in parts}) == 1
        stated = {data.num_targets for data, _ in parts}
        assert stated == {sum(int(data.loss_mask.sum()) for data, _ in parts)}
        for data, _ in parts:
            seen += data.tokens.tolist()
            targets += data.labels[data.loss_mask].tolist()
            assert (data.labels[~data.loss_mask] == IGNORE_LABEL).all()
            row = torch.tensor(data.rows)[data.sequence_ids]
            assert torch.equal(data.tokens, 1000 * row + data.position_ids)
            # The next token of the same sequence, on whichever rank it lives.
            assert torch.equal(data.labels[data.loss_mask], data.tokens[data.loss_mask] + 1)
    for row in rows_of(lengths):
        expected_targets += row["tokens"][1:]
    assert sorted(seen) == sorted(t for row in rows_of(lengths) for t in row["tokens"])
    assert sorted(targets) == sorted(expected_targets)


def test_mask_may_depend_on_the_row():
    masks = {"band": SPEC.mask("band(w = 2)"), "all": SPEC.mask("whole")}
    rows = [{"tokens": list(range(30)), "kind": kind} for kind in ("band", "all")]
    loader = make_loader(rows, lambda row: masks[row["kind"]], rank=0, **OPTIONS)
    ((_, plan),) = loader
    assert int(plan.tiles.pairs.sum()) == (2 * 30 - 1) + 30 * 31 // 2
    assert plan.provenance is None


def test_tokens_may_be_bytes_or_arrays_of_any_column():
    given = b"abc", np.array([1, 2], np.uint8), torch.tensor([3, 4])
    options = {**OPTIONS, "cluster": Cluster(1, 1), "token_column": "text"}
    rows = [{"text": tokens} for tokens in given]
    ((data, _),) = make_loader(rows, SPEC.mask("whole"), rank=0, **options)
    assert data.tokens.tolist() == [97, 98, 99, 1, 2, 3, 4]


@pytest.fixture
def mixed(tmp_path):
    """A folder whose files have columns and masks of their own."""
    (tmp_path / "rl").mkdir()
    (tmp_path / "sft").mkdir()
    rl = [([11, 7, 9], 5), ([4, 6], 8)]
    pq.write_table(
        pa.table(
            {
                "prompt_len": [prompt for _, prompt in rl],
                "answer_lens": [answers for answers, _ in rl],
                "input_ids": [list(range(prompt + sum(answers))) for answers, prompt in rl],
            }
        ),
        tmp_path / "rl" / "a.parquet",
    )
    with (tmp_path / "sft" / "a.jsonl").open("w") as file:
        for doc_lens in ([13, 8], [17]):
            row = {"doc_lens": doc_lens, "tokens": list(range(sum(doc_lens))), "source": "web"}
            file.write(json.dumps(row) + "\n")
    return tmp_path


MIXED = Spec.from_text(
    "segment part = question[question_len] answer[answer_lens]*\n"
    "segment doc = [doc_lens]*\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask packed(w: tokens) = causal and same(doc) and q - k < w\n"
    'for "rl/*" having answer_lens use shared with question_len = prompt_len\n'
    'for "sft/*" use packed(w = 6)\n'
)
MIXED_RL = Spec.from_text("\n".join(MIXED.source.splitlines()[:-1]))


def shared_by_hand(prompt, answers):
    """Make the mask of several answers to one question, token by token."""
    part = [0] * prompt + [n + 1 for n, answer in enumerate(answers) for _ in range(answer)]
    return [
        [k <= q and part[k] in (0, part[q]) for k in range(len(part))] for q in range(len(part))
    ]


def packed_by_hand(doc_lens, window):
    doc = [n for n, length in enumerate(doc_lens) for _ in range(length)]
    return [
        [k <= q and doc[k] == doc[q] and q - k < window for k in range(len(doc))]
        for q in range(len(doc))
    ]


def test_files_with_masks_of_their_own_share_batches_and_run_exactly(mixed, lab):
    expected = [
        shared_by_hand(5, [11, 7, 9]),
        shared_by_hand(8, [4, 6]),
        packed_by_hand([13, 8], 6),
        packed_by_hand([17], 6),
    ]
    dataset = read_dataset(mixed)
    options = {**OPTIONS, "shuffle": True, "seed": 3, "hidden_targets": "leave_out"}
    batches = list(make_loader(dataset, MIXED, rank=0, **options))
    seen = [data.rows for data, _ in batches]
    assert sorted(row for rows in seen for row in rows) == [0, 1, 2, 3]
    assert any(min(rows) < 2 <= max(rows) for rows in seen)  # both masks in one batch
    for number, (data, plan) in enumerate(batches):
        dense = block_diagonal([np.array(expected[row]) for row in data.rows])
        q, kv, dout = lab.random_qkv(number, len(dense), 2, 1, 8, torch.float32)
        got, _ = lab.run_in_threads(plan, q, kv, dout)
        lab.assert_as_exact_as_eager(got, q, kv, dout, dense)


def block_diagonal(masks):
    ends = np.cumsum([len(mask) for mask in masks])
    whole = np.zeros((ends[-1], ends[-1]), bool)
    for mask, end in zip(masks, ends, strict=True):
        whole[end - len(mask) : end, end - len(mask) : end] = mask
    return whole


def test_rows_in_memory_find_their_mask_by_their_columns():
    rows = [
        {"tokens": [1, 2, 3, 4], "doc_lens": [2, 2]},
        {"tokens": [1, 2, 3, 4, 5]},
    ]
    spec = Spec.from_text('for "*" having doc_lens use document for "*" use causal')
    for dataset in (rows, (row for row in rows)):
        ((_, plan),) = make_loader(dataset, spec, rank=0, hidden_targets="leave_out", **OPTIONS)
        assert int(plan.tiles.pairs.sum()) == 2 * 3 + 15


def test_a_file_that_no_statement_takes_is_named(mixed):
    with pytest.raises(
        DatasetError, match=r"no `for` statement matches .*sft/a\.jsonl with the col"
    ):
        make_loader(read_dataset(mixed), MIXED_RL, rank=0, **OPTIONS)
    assert len(make_loader(read_dataset(mixed / "rl"), MIXED_RL, rank=0, **OPTIONS)) == 1


def test_the_rows_of_an_iterator_are_read_once_and_never_missed_in_silence():
    rows = rows_of([30, 30, 30, 30])
    loader = make_loader(iter(rows), SPEC.mask("band"), rank=0, **OPTIONS)
    assert [data.rows for data, _ in loader] == [(0, 1), (2, 3)]
    with pytest.raises(DatasetError, match=r"from a list_iterator, .* only once; .* list\(rows\)"):
        next(iter(loader))
    loader = make_loader((row for row in rows), SPEC.mask("band"), rank=0, **OPTIONS)
    next(iter(loader))
    with pytest.raises(DatasetError, match="from a generator"):
        list(loader)  # the rest of the epoch: rows that were read ahead are gone


def test_a_data_loader_of_torch_gives_the_same_rows_and_batches():
    rows = torch.utils.data.DataLoader([{"tokens": [1, 2, 3, 4]}] * 6, batch_size=None)
    ((data, _),) = make_loader(rows, SPEC.mask("band"), rank=0, **OPTIONS)
    assert data.rows == (0, 1, 2, 3, 4, 5)
    loader = make_loader(rows_of([30, 30, 20, 40]), SPEC.mask("band"), rank=0, **OPTIONS)
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
    loader = make_loader(rows, SPEC.mask("band"), rank=0, **OPTIONS)
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
    for dataset, order in (
        (plain, [0, 1, 2, 3, 4]),
        (plain.with_format("torch"), [0, 1, 2, 3, 4]),
        (plain.select([3, 0, 1]), [3, 0, 1]),
    ):
        lengths = IndexedRows(dataset, None).lengths
        assert lengths.tolist() == [len(rows[row]["input_ids"]) for row in order]
    assert asked == []


def test_rows_that_a_hugging_face_data_set_makes_when_asked_are_counted_one_by_one():
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    plain = datasets.Dataset.from_list([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
    doubled = plain.with_transform(lambda b: {"input_ids": [2 * ids for ids in b["input_ids"]]})
    assert IndexedRows(doubled, None).lengths.tolist() == [6, 2]
    texts = datasets.Dataset.from_list([{"input_ids": [1]}, {"input_ids": None}])
    with pytest.raises(
        DatasetError, match="row 1: expected `input_ids` to be integers or bytes, got None"
    ):
        _ = IndexedRows(texts, None).lengths
    floats = datasets.Dataset.from_list([{"input_ids": [0.5]}])
    with pytest.raises(DatasetError, match="row 0: expected `input_ids` to be integers"):
        _ = IndexedRows(floats, None).lengths
