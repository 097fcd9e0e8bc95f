"""Global batches over replicas: every row once, caps held, deterministic, resumable anywhere."""

import json
import math
from collections import Counter
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_options import POLICIES, SMALL, Stream, make_loader
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcp_dsl import Spec, read_dataset
from dcp_planner import Cluster, ModelShape, PlanConfig, digest
from dcp_runtime import Packing, Planning, RunError
from dcp_runtime.data.choices import find_replicas

SPEC = Spec.from_text(
    "segment s = part[parts]*\n"
    "mask band(w: tokens = 9) = causal and q - k < w\n"
    "mask own = causal and same(part)\n"
    "stack mixed = 2 of band, causal\n"
)
BUDGET = 40
OPTIONS = {**SMALL, "token_budget": BUDGET, "hidden_targets": "leave_out"}


def rows_of(lengths):
    """Tokens say which row and position they are; the last part of a row has a third of it."""
    return [
        {"tokens": [1000 * row + i for i in range(n)], "parts": [n - n // 3, n // 3]}
        for row, n in enumerate(lengths)
    ]


def mask_of(row):
    """Masks that are mixed within a batch."""
    return SPEC.mask("own" if len(row["tokens"]) % 3 else "band")


def loader_of(lengths, rank, devices=4, **options):
    given = {**OPTIONS, "cluster": Cluster(1, devices), "replicas": 2, "micro_batches": 2}
    return make_loader(rows_of(lengths), mask_of, rank=rank, **{**given, **options})


def run_of(lengths, ranks=range(4), **options):
    """Return the batches of each device, micro-batch after micro-batch."""
    loaders = [loader_of(lengths, rank, **options) for rank in ranks]
    return [list(parts) for parts in zip(*loaders, strict=True)]


def rows_seen(found, firsts):
    """Count rows over the first devices of replicas."""
    return Counter(row for parts in found for rank in firsts for row in parts[rank][0].rows)


LENGTHS = st.lists(st.integers(1, BUDGET), min_size=2, max_size=16)


@settings(max_examples=9, deadline=None)
@given(lengths=LENGTHS, policy=st.sampled_from(sorted(POLICIES)))
def test_every_row_is_in_one_micro_batch_and_budgets_hold(lengths, policy):
    options = POLICIES[policy]
    found = run_of(lengths, **options)
    again = loader_of(lengths, 3, **options)
    assert len(found) == len(again)
    assert len(found) % 2 == 0
    seen = Counter()
    for number, parts in enumerate(found):
        assert {(d.micro_batch, d.micro_batches) for d, _ in parts} == {(number % 2, 2)}
        assert parts[0][0].ends_step == (number % 2 == 1)
        for first in {first_of(plan, rank) for rank, (_, plan) in enumerate(parts)}:
            plan = parts[first][1]
            assert plan.num_tokens <= BUDGET * plan.num_devices // 2
            seen.update(parts[first][0].rows)
        tokens = torch.cat([data.tokens for data, _ in parts])
        assert len(tokens.unique()) == len(tokens)  # no token is on two devices
        if policy == "per_document":
            assert all(len(data.tokens) <= BUDGET for data, _ in parts)
    assert seen == Counter(range(len(lengths)))
    for step in zip(*[iter(found)] * 2, strict=True):
        parts = [part for micro_batch in step for part in micro_batch]
        stated = {data.num_targets for data, _ in parts}
        assert stated == {sum(len(data.target_ids) for data, _ in parts)}
    for parts, (data, plan) in zip(found, again, strict=True):
        assert parts[3][0].rows == data.rows
        assert digest(parts[3][1]) == digest(plan)


def first_of(plan, rank):
    """The first device of the group that shares a plan, in a mesh of 2 x 2."""
    return rank // plan.num_devices * plan.num_devices


@settings(max_examples=8, deadline=None)
@given(
    lengths=LENGTHS,
    policy=st.sampled_from(sorted(POLICIES)),
    stop=st.integers(1, 20),
    is_stream=st.booleans(),
)
def test_resuming_behind_any_micro_batch_gives_the_rest(lengths, policy, stop, is_stream):
    options = {"ahead": 1, **POLICIES[policy]}
    whole = [data.rows for data, _ in loader_of(lengths, 3, **options)]
    first = make(lengths, is_stream, options)
    seen = []
    for data, _ in first:
        seen.append(data.rows)
        if len(seen) == stop:
            break
    assert seen == whole[: len(seen)]
    state = json.loads(json.dumps(first.state_dict()))
    second = make(lengths, is_stream, options)
    second.load_state_dict(state)
    rest = [data.rows for data, _ in second]
    assert rest == (whole if len(seen) < stop else whole[stop:])


def make(lengths, is_stream, options):
    rows = rows_of(lengths)
    given = {**OPTIONS, "cluster": Cluster(1, 4), "replicas": 2, "micro_batches": 2}
    dataset = Stream(rows) if is_stream else rows
    return make_loader(dataset, mask_of, rank=3, **given, **options)


def test_packs_in_turn_are_those_that_replicas_took_before():
    """``batches[r::R]`` of the packs, with the targets of the whole global batch."""
    lengths = [30, 20, 15, 35, 12, 12, 12, 40, 8, 30]
    packs = [data.rows for data, _ in loader_of(lengths, 0, replicas=1, micro_batches=1)]
    for replica in range(2):
        loader = loader_of(lengths, 2 * replica, balance="order")
        found = [data.rows for data, _ in loader]
        wanted = packs[replica::2]
        assert found == wanted + [()] * (len(found) - len(wanted))
        assert len(found) == 4


def test_work_is_dealt_more_evenly_than_packs_in_turn():
    """Two long rows share a pack; by work they are on two replicas, with short ones beside each."""
    lengths = [20, 18, *[4] * 9]

    def most_pairs(balance):
        found = [list(loader_of(lengths, r, balance=balance, micro_batches=1)) for r in (0, 2)]
        ((one, _),), ((other, _),) = found
        return max(sum(n * (n + 1) // 2 for n in map(lengths.__getitem__, rows))
                   for rows in (one.rows, other.rows))  # fmt: skip

    assert most_pairs("order") == 20 * 21 // 2 + 18 * 19 // 2
    assert most_pairs("work") < 0.75 * most_pairs("order")


def test_a_window_moves_rows_between_neighbouring_global_batches(caplog):
    """The long rows of the first global batch are spread over the window, which the log says."""
    lengths = [40, 40, 40, 40, *[4] * 36]
    options = {"micro_batches": 1}
    alone = [data.rows for data, _ in loader_of(lengths, 0, **options)]
    with caplog.at_level("WARNING", logger="dcp_runtime"):
        found = run_of(lengths, window=2, **options)
    (record,) = caplog.records  # of the first rank, which says it for all
    assert "the order of sampling is not that of the data set" in record.getMessage()
    assert len(found) == len(alone) == 4
    assert [data.rows for data, _ in (parts[0] for parts in found)] != alone
    assert rows_seen(found, (0, 2)) == Counter(range(len(lengths)))


def test_the_log_says_once_that_work_cannot_be_dealt_within_the_budget(caplog):
    """Four packs of 40 tokens that only fit as they are; twice, and on ranks that are no first."""
    lengths = [11, 9, 4, 16, 1, 39, 32, 8, 20, 15, 5] * 2
    for rank in (0, 2):
        caplog.clear()
        with caplog.at_level("WARNING", logger="dcp_runtime"):
            batches = list(loader_of(lengths, rank))
        assert len(batches) == 4
        texts = [record.getMessage() for record in caplog.records]
        assert len(texts) == (rank == 0)
        assert all("41 tokens in a micro-batch, more than token_budget=40" in t for t in texts)


@pytest.mark.parametrize(
    ("ranks", "names", "found"),
    [
        ([0, 2], ("cp",), (1, 2, 1)),
        ([[0, 1, 2, 3]], ("dp", "cp"), (1, 4, 2)),
        ([[0, 1], [2, 3]], ("dp", "cp"), (2, 2, 2)),
        ([[0, 2], [1, 3]], ("dp", "cp"), (2, 2, 1)),
        ([[[0], [1]], [[2], [3]]], ("dp_replicate", "dp_shard", "cp"), (4, 1, 2)),
        ([[[0], [2]], [[1], [3]]], ("dp_replicate", "dp_shard", "cp"), (4, 1, 1)),
    ],
)
@pytest.mark.usefixtures("rank_2_of_4")
def test_a_mesh_says_which_rank_of_which_replica_this_one_is(ranks, names, found):
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names)
    own = find_replicas(Packing(BUDGET), Planning(ModelShape(2, 1, 8, 4), group=mesh))
    assert (own.count, own.context_ranks, own.device) == found


def test_a_replica_without_rows_gets_micro_batches_without_tokens():
    extra = {"extra_columns": ("x",), "micro_batches": 2}
    rows = [{**row, "x": [0.5] * len(row["tokens"])} for row in rows_of([20, 10])]
    given = {**OPTIONS, "cluster": Cluster(1, 8), "replicas": 4, **extra}
    loaders = [make_loader(rows, SPEC.stack("mixed"), rank=rank, **given) for rank in range(8)]
    found = list(zip(*loaders, strict=True))
    assert len(found) == 2
    assert sorted(data.rows for parts in found for data, _ in parts[::2]) == [()] * 6 + [(0,), (1,)]
    empty = next(data for data, _ in found[0] if not data.rows)
    assert [len(tensor) for tensor in (empty.tokens, empty.labels, empty.target_ids)] == [0] * 3
    assert empty.extra["x"].dtype == empty.target_extra["x"].dtype == torch.float32
    assert empty.num_targets == 28
    assert {plan.num_devices for parts in found for _, plan in parts} == {2}


def test_a_row_longer_than_a_replica_holds_is_spread_over_all():
    lengths = [70, 20, 10, 30]
    for group in ("all", "best"):
        found = run_of(lengths, group=group, micro_batches=1)
        long = next(parts for parts in found if 0 in parts[0][0].rows)
        assert {plan.num_devices for _, plan in long} == {4}
        assert sum(len(data.tokens) for data, _ in long) <= 2 * BUDGET


@pytest.mark.parametrize("name", ["static:heads", "static:heads_context"])
def test_rows_are_not_spread_one_by_one_by_layouts_that_split_heads(name):
    """Refused before training: else the first row on two devices would end it."""
    options = {"config": PlanConfig(name), "shape": ModelShape(4, 4, 8, 4)}
    with pytest.raises(RunError, match=f"got '{name}'; take 'portfolio' or 'static:zigzag'"):
        loader_of([30, 20], 0, **POLICIES["per_document"], **options)
    assert len(loader_of([30, 20], 0, devices=2, **options)) == 2  # groups of one width may


def test_a_state_inside_a_global_batch_belongs_to_its_ranks_and_model():
    loader = loader_of([10, 30, 12, 20], 0)
    parts = iter(loader)
    next(parts)
    state = loader.state_dict()
    assert (state["step"], state["micro_batch"]) == (0, 1)
    with pytest.raises(RunError, match="inside a global batch that was dealt for other ranks"):
        loader_of([10, 30, 12, 20], 0, devices=8).load_state_dict(state)
    next(parts)
    loader_of([10, 30, 12, 20], 0, devices=8).load_state_dict(loader.state_dict())


def test_rows_that_fit_no_mask_are_left_out_on_all_replicas():
    rows = rows_of([20, 21, 22, 23, 24, 25])
    rows[2]["parts"] = [99]
    given = {**OPTIONS, "cluster": Cluster(1, 4), "replicas": 2, "policy": "skip"}
    loaders = [make_loader(rows, SPEC.mask("own"), rank=rank, **given) for rank in range(4)]
    found = list(zip(*loaders, strict=True))
    assert rows_seen(found, (0, 2)) == Counter([0, 1, 3, 4, 5])
    assert [loader.screening.counts for loader in loaders] == [{"unfit": 1}] * 4


def test_replicas_may_lie_across_nodes_and_on_devices_of_several_rates():
    """Three replicas of two ranks on two nodes of three, one device half as fast."""
    cluster = Cluster(2, 3, devices=((1.0, 1.0, 0.5), (1.0, 1.0, 1.0)))
    options = {"cluster": cluster, "replicas": 3, "micro_batches": 1}
    ((*parts,),) = run_of([30, 20, 10, 12], range(6), **options)
    assert [plan.cluster.nodes for _, plan in parts] == [1, 1, 2, 2, 1, 1]
    assert parts[2][1].cluster.speed_of_device.tolist() == [0.5, 1.0]
    assert sum(len(data.tokens) for data, _ in parts) == 72


@pytest.fixture
def replicas_of_one_store(monkeypatch):
    """Let loaders of this process compare as if each were made on a rank of its own."""
    store = dist.HashStore()
    monkeypatch.setattr("dcp_runtime.data.dataloader.is_known", lambda *_: True)
    monkeypatch.setattr("dcp_runtime.data.content.open_store", lambda *_: store)


SAME = rows_of([7, 5, 9, 3])


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (SAME[::-1], {}),  # a shard each, or another order
        ([{**row, "tokens": [1] * len(row["tokens"])} for row in SAME], {}),
        (SAME, {"shuffle": True}),
        (SAME, {"mask": SPEC.mask("band(w = 3)")}),
        (Stream(SAME[1:]), {}),
    ],
)
@pytest.mark.usefixtures("replicas_of_one_store")
def test_replicas_that_read_different_data_are_told_so_before_they_train(rows, options):
    def make(rows, rank, mask=None, **more):
        given = {**OPTIONS, "cluster": Cluster(1, 4), "replicas": 2, **more}
        return make_loader(rows, mask or SPEC.mask("band"), rank=rank, **given)

    same = Stream(SAME) if isinstance(rows, Stream) else SAME
    for loader in (make(same, 0), make(same, 2)):
        assert list(loader)
        assert list(loader)  # later epochs are not compared: other rows may come first
    other = make(rows, 3, **options)
    says = r"^device 3 reads other data than device 0: expected rows .*, got rows .*; give every"
    with pytest.raises(RunError, match=says):
        next(iter(other))


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.usefixtures("replicas_of_one_store")
def test_replicas_compare_extra_columns_of_files_alone(tmp_path, is_file):
    """Code that computes rows may draw such columns at random; a file does not."""
    given = {**OPTIONS, "cluster": Cluster(1, 4), "replicas": 2, "extra_columns": ("x",)}

    def first_batch(rank, sign):
        rows = [{"tokens": [1, 2, 3], "x": [0.5, sign, math.nan]}] * 4
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        dataset = read_dataset(tmp_path / "rows.parquet") if is_file else rows
        return next(iter(make_loader(dataset, SPEC.mask("band"), rank=rank, **given)))

    for rank in (0, 2):
        first_batch(rank, 1.0)
    says = "device 3 reads other data than device 0"
    with pytest.raises(RunError, match=says) if is_file else nullcontext():
        first_batch(3, -1.0)
