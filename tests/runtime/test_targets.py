"""Targets, positions and columns of tokens: what every rank trains on, token by token."""

import json
import math
import random
from itertools import accumulate

import loader_options
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from loader_options import (
    ONE,
    OPTIONS,
    QUESTION,
    SPEC,
    Stream,
    data_of,
    loader_of,
    make_loader,
    oracle,
    random_row,
)

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_planner import Cluster
from dcp_runtime import RunError, next_token_loss


def test_the_last_token_of_an_answer_does_not_predict_the_next_answer():
    with pytest.warns(UserWarning, match="1 of the 11 targets of a batch are left out") as caught:
        data = data_of([QUESTION])
    assert data.labels.tolist() == [2, 3, 4, 11, 12, 13, -100, 22, 23, 24, 25, -100]
    assert data.loss_mask.tolist() == [label != -100 for label in data.labels.tolist()]
    assert data.num_targets == 10
    assert data.target_rows.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert data.target_ids.tolist() == [2, 3, 4, 11, 12, 13, 22, 23, 24, 25]
    assert data.target_weights.tolist() == [1.0] * 10
    assert data.position_ids.tolist() == list(range(12))
    said = str(caught[0].message)
    assert "token 7 of row 0, which does not see token 6 under `shared`" in said
    for way_out in ("position_column=", "hidden_targets='leave_out'", "'keep'", "labels column"):
        assert way_out in said
    assert caught[0].filename == loader_options.__file__


def test_what_is_left_out_is_said_once_by_one_rank_and_counted_by_all():
    rows = [QUESTION, QUESTION, {**QUESTION, "answer_lens": [8]}] * 3
    loader = loader_of(rows, token_budget=24)
    with pytest.warns(UserWarning, match="of the 22 targets of a batch") as caught:
        assert len([*loader, *loader]) == 10
    assert len(caught) == 1
    assert loader.screening.hidden_targets == 6  # one in each of six rows, once
    silent = [loader_of(rows, rank=1), loader_of(rows, hidden_targets="leave_out")]
    for loader in silent:
        list(loader)
        assert loader.screening.hidden_targets == 6


IMAGES = Spec.from_text("""
segment part = (text[text_lens] image[image_lens])*
@ahead mask seen = causal or same(image)
mask causal_only = causal
stack mixed = 2 of causal_only, seen
""")


@pytest.mark.parametrize("name", ["seen", "mixed"])
def test_targets_that_their_predictor_sees_are_told_once_with_numbers(name):
    row = {"tokens": list(range(20)), "text_lens": [3, 5], "image_lens": [6, 6]}
    mask = IMAGES.stack(name) if name == "mixed" else IMAGES.mask(name)

    def run(rows=(row, row), **given):
        options = {**OPTIONS, "token_budget": 20, **given}
        loader = make_loader(rows, mask, **options)
        return [data.num_targets for _ in range(2) for data, _ in loader]

    with pytest.warns(UserWarning, match=r"10 of the 19 targets of a batch are seen by") as caught:
        assert run() == [19] * 4
    assert len(caught) == 1
    assert caught[0].filename == __file__
    said = str(caught[0].message)
    assert "token 4 of row 0, which token 3 sees under `" in said
    for way_out in ("loss_column", "labels column", "mask under which", "masked-language-model"):
        assert way_out in said
    assert run(rank=1) == [19] * 4
    counted = [int(not (4 <= at < 9 or 15 <= at < 20)) for at in range(20)]
    assert run([{**row, "counted": counted}], loss_column="counted") == [9] * 2


@pytest.mark.parametrize("mask", ["dilated", "apart"])
def test_a_mask_under_which_no_token_sees_the_one_before_it_leaves_no_targets_and_says_so(mask):
    rows = [{"tokens": list(range(9)), "question_len": 9, "answer_lens": []}]
    with pytest.warns(UserWarning, match="8 of the 8 targets"):
        data = data_of(rows, mask)
    assert data.num_targets == 0
    assert (data.labels == -100).all()
    kept = data_of(rows, mask, hidden_targets="keep")
    assert kept.labels.tolist() == [*range(1, 9), -100]


def test_an_epoch_that_trains_on_nothing_is_told_once_with_numbers(caplog):
    nothing = {"tokens": [1, 2, 3], "labels": [-100] * 3}

    def told(rows, epochs=2, **options):
        caplog.clear()
        loader = loader_of(rows, "plain", **{"token_budget": 6, **options})
        for _ in range(epochs):
            list(loader)
        return caplog.messages

    (said,) = told([nothing] * 5)
    assert said.startswith("this run trains on nothing: 5 rows of 15 tokens hold 0 targets; the la")
    assert len(told(Stream([nothing] * 5))) == len(told([{"tokens": [7]}] * 3)) == 1
    assert told([nothing] * 5, rank=1) == []
    assert told([*[nothing] * 9, {"tokens": [1, 2]}]) == []
    many = loader_of(Stream([nothing] * 2000), "plain", token_budget=600)
    for _ in zip(range(6), many, strict=False):
        pass  # six batches of the ten: no need to wait for the end
    assert "1000 rows of 3000 tokens" in caplog.messages[-1]
    caplog.clear()
    rows = [{"tokens": [1, 2, 3]}, nothing]
    first = loader_of(rows, "plain", token_budget=3)
    next(iter(first))
    rest = loader_of(rows, "plain", token_budget=3)
    rest.load_state_dict(first.state_dict())
    assert len(list(rest)) == 1
    assert caplog.messages == []  # the rest of an epoch may be short


def test_a_replica_that_trains_on_nothing_says_so(caplog):
    nothing, own = {"tokens": [1, 2, 3], "labels": [-100] * 3}, {"tokens": [4, 5, 6]}
    options = {"token_budget": 3, "replicas": 2, "balance": "order", "cluster": Cluster(1, 4)}
    for rank, said in (
        (0, []),
        (1, []),
        (2, ["replica 1 trains on nothing: 2 rows of 6"]),
        (3, []),
    ):
        caplog.clear()
        list(loader_of([own, nothing] * 2, "plain", rank=rank, **options))
        assert [message[: len(said[0])] for message in caplog.messages] == said


def test_positions_come_from_a_column():
    positions = [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8]
    rows = [{**QUESTION, "at": positions}, {**QUESTION, "at": np.array(positions, np.int32)}]
    with pytest.warns(UserWarning, match="2 of the 22 targets") as caught:
        data = data_of(rows, position_column="at")
    assert data.position_ids.tolist() == positions * 2
    assert data.position_ids.dtype == torch.int64
    assert "position_column" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("mask", "columns", "keep"),
    [
        ("shared", (), False), ("shared", ("labels",), False), ("own", ("loss",), False),
        ("layers", ("loss", "labels"), False), ("helped", ("labels",), False),
        ("plain", ("loss",), False), ("far", ("labels",), False),
        ("dilated", ("labels",), True), ("shared", ("loss",), True),
    ],
)  # fmt: skip
def test_all_ranks_together_hold_what_a_dense_oracle_says_token_by_token(mask, columns, keep):
    rng = random.Random(f"{mask} {columns}")
    rows = [random_row(rng) for _ in range(12)]
    masks = SPEC.stack(mask).masks if mask in SPEC.stacks else (SPEC.mask(mask),)
    options = {
        "labels_column": "targets" if "labels" in columns else "labels",
        "loss_column": "counted" if "loss" in columns else None,
        "position_column": "at",
        "extra_columns": ("advantages", "kinds"),
        "hidden_targets": "keep" if keep else "leave_out",
        # `plain` reads no column, and trains on purpose across the parts that these state.
        "unchecked_columns": ("question_len", "answer_lens") if mask == "plain" else (),
    }
    loaders = [loader_of(rows, mask, rank=rank, **options) for rank in range(3)]
    wanted = {number: oracle(row, masks, columns, keep=keep) for number, row in enumerate(rows)}
    met, of_targets = [], []
    for parts in zip(*loaders, strict=True):
        lengths = [len(rows[row]["tokens"]) for row in parts[0][0].rows]
        cu = [0, *accumulate(lengths)]
        total = sum(t is not None for row in parts[0][0].rows for t in wanted[row])
        assert {data.num_targets for data, _ in parts} == {total}
        for rank, (data, plan) in enumerate(parts):
            places = []
            for packed in plan.local_tokens(rank).tolist():
                number = next(i for i in range(len(lengths)) if packed < cu[i + 1])
                places.append((data.rows[number], packed - cu[number]))
            met += places
            for i, (row, at) in enumerate(places):
                values, target = rows[row], wanted[row][at]
                assert data.tokens[i] == values["tokens"][at]
                assert data.position_ids[i] == values["at"][at]
                assert data.labels[i] == (-100 if target is None else target)
                assert bool(data.loss_mask[i]) == (target is not None)
                assert data.extra["advantages"][i] == np.float32(values["advantages"][at])
                assert data.extra["kinds"][i] == values["kinds"][at]
            for j, i in enumerate(data.target_rows.tolist()):
                row, at = places[i]
                of_targets.append((row, at))
                assert data.target_ids[j] == wanted[row][at]
                behind = np.float32(rows[row]["advantages"][at + 1])
                assert data.target_extra["advantages"][j] == behind
                assert data.target_extra["kinds"][j] == rows[row]["kinds"][at + 1]
            assert data.target_rows.tolist() == sorted(data.target_rows.tolist())
    assert sorted(met) == [(r, i) for r, row in enumerate(rows) for i in range(len(row["tokens"]))]
    assert sorted(of_targets) == [
        (row, at) for row in wanted for at, target in enumerate(wanted[row]) if target is not None
    ]


# Labels


def test_labels_stand_at_their_token_and_the_token_before_predicts_them():
    rows = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [9, 3, 4], "labels": [9, 41, -100]},  # 41, of another token, is used as it is
        {"input_ids": [1, 2]},
    ]
    data = data_of(rows, "plain")
    assert data.labels.tolist() == [-100, 7, 8, -100, 41, -100, -100, 2, -100]
    assert data.num_targets == 4
    unread = data_of(rows, "plain", labels_column=None)
    assert unread.labels.tolist() == [6, 7, 8, -100, 3, 4, -100, 2, -100]


def test_labels_are_those_that_a_hugging_face_model_trains_on():
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    rows = [{"input_ids": [5, 6, 7, 8, 2], "labels": [-100, -100, 7, 8, -100]}]
    data = data_of(datasets.Dataset.from_list(rows), "plain")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        given = {name: torch.tensor([values]) for name, values in rows[0].items()}
        theirs = model(**given)
        ours = next_token_loss(model(given["input_ids"]).logits, data)
    torch.testing.assert_close(ours, theirs.loss)


def test_labels_that_were_shifted_already_are_refused():
    tokens = list(range(20, 29))  # 8 labels, as many as show it
    rows = [{"tokens": tokens, "labels": [*tokens[1:], -100]}]
    for policy in ("error", "skip"):  # a fault of the data set, not of a row
        with pytest.raises(RunError, match="row 0: column `labels` is shifted already: every lab"):
            data_of(rows, "plain", policy=policy)
    alike = [{"tokens": [7] * 12, "labels": [7] * 12}]  # both at their token and one too early
    assert data_of(alike, "plain").num_targets == 11
    chance = [{"tokens": tokens, "labels": [*tokens[1:8], -100, -100]}]
    assert data_of(chance, "plain").labels.tolist() == [*tokens[2:8], -100, -100, -100]


@pytest.mark.parametrize("kind", [list, Stream])
def test_shifted_labels_of_short_rows_are_judged_together(kind):
    tokens = [5, 6, 7, 8, 9, 10]
    shifted = [{"tokens": tokens, "labels": [-100, 7, 8, 9, -100, -100]}] * 9
    alike = [{"tokens": [7, 7], "labels": [7, 7]}, {"tokens": tokens, "labels": [-100] * 6}] * 9
    match = r"row 20: column `labels` is shifted already: .* in 3 rows with 9 labels; expected l"
    with pytest.raises(RunError, match=match):
        list(loader_of(kind([*alike, *shifted]), "plain"))
    settled = [{"tokens": tokens, "labels": [-100, 6, -100, -100, -100, -100]}, *shifted]
    assert sum(len(data.rows) for data, _ in loader_of(kind(settled), "plain")) == 10
    few = loader_of(kind(shifted[:2]), "plain")  # the same rows are no more evidence when read anew
    assert [data.num_targets for _ in range(3) for data, _ in few] == [6] * 3


# Extra columns


def test_extra_columns_keep_their_kind():
    rows = [
        {"tokens": [1, 2, 3], "advantages": np.array([0.5, -1, math.nan]),
         "kinds": np.array([0, 2, 255], np.uint8), "is_tool": [True, False, True],
         "mixed": [1, 2, 3], "rewards": torch.tensor([math.inf, 0, 1])},
        {"tokens": [4], "advantages": [2.0], "kinds": [7], "is_tool": [False], "mixed": [0.25],
         "rewards": [1.5]},
    ]  # fmt: skip
    names = ("advantages", "kinds", "is_tool", "mixed", "rewards")
    data = data_of(rows, "plain", extra_columns=names)
    assert tuple(data.extra) == names
    advantages = data.extra["advantages"]
    assert advantages.dtype == torch.float32
    assert advantages[[0, 1, 3]].tolist() == [0.5, -1.0, 2.0]
    assert advantages[2].isnan()  # as it came
    assert data.extra["kinds"].tolist() == [0, 2, 255, 7]
    assert data.extra["kinds"].dtype == torch.int64
    assert data.extra["is_tool"].tolist() == [True, False, True, False]
    assert data.extra["mixed"].tolist() == [1, 2, 3, 0.25]
    assert data.extra["rewards"].tolist() == [math.inf, 0, 1, 1.5]
    assert data.target_extra["kinds"].tolist() == [2, 255]


@pytest.mark.parametrize("kind", ["list", "stream", "jsonl", "parquet"])
def test_columns_travel_from_any_data_set_through_truncation_and_resuming(kind, tmp_path):
    rng = random.Random(3)
    rows = [
        {"tokens": [1000 * r + i for i in range(n)], "x": [rng.random() for _ in range(n)],
         "at": [i + 5 for i in range(n)], "labels": [-100] * (n // 2) + [9] * (n - n // 2)}
        for r, n in enumerate((30, 80, 30, 40, 7, 64))
    ]  # fmt: skip
    options = {"policy": "truncate", "extra_columns": ["x"], "position_column": "at"}

    def make():
        return loader_of(opened(rows, kind, tmp_path), "plain", cluster=ONE, **options)

    loader = make()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    found = [data for data, _ in make()]
    assert [data.rows for data in found] == [(0,), (1,), (2,), (3, 4), (5,)]
    for data in found:
        of = {c: [v for r in data.rows for v in rows[r][c][:64]] for c in ("x", "at", "tokens")}
        sent = zip(of["x"], of["at"], of["tokens"], strict=True)
        for i, (x, at, token) in enumerate(sent):
            assert data.extra["x"][i] == np.float32(x)
            assert data.position_ids[i] == at
            assert data.tokens[i] == token
        targets = [v for r in data.rows for v in [*rows[r]["labels"][1:64], -100]]
        assert [int(t) for t in data.labels if t != -100] == [t for t in targets if t != -100]
    resumed = make()
    resumed.load_state_dict(state)
    for data, want in zip((data for data, _ in resumed), found[1:], strict=True):
        assert torch.equal(data.extra["x"], want.extra["x"])
        assert torch.equal(data.target_extra["x"], want.target_extra["x"])


def opened(rows, kind, folder):
    """Return rows as one of the kinds of data sets."""
    if kind == "list":
        return rows
    if kind == "stream":
        return Stream(rows)
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_dataset(path)


def test_a_missing_first_value_of_a_column_of_json_lines_shifts_no_other_row(tmp_path):
    rows = [{"tokens": [n, n, n], "x": [float(n), n + 0.25, n + 0.5]} for n in range(1, 5)]
    rows[0]["x"][0] = None
    dataset = opened(rows, "jsonl", tmp_path)
    with pytest.raises(DatasetError, match=r"row 0: column `x`: .*policy='skip' leaves such rows"):
        data_of(dataset, "plain", extra_columns=("x",))
    left = data_of(dataset, "plain", extra_columns=("x",), policy="skip")
    assert left.extra["x"].tolist() == [value for row in rows[1:] for value in row["x"]]
    assert left.tokens.tolist() == [token for row in rows[1:] for token in row["tokens"]]
