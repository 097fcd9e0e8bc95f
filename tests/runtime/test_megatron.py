"""Megatron-Core under DCP computes what it does alone, and its samples are dealt by our planner."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dcp_planner import Cluster
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime import RunError
from dcp_runtime.adapters.megatron import (
    DCPCoreAttention,
    PlannedCPScheduler,
    PlannedRotary,
    PlannedSequences,
)

CONFIG = SimpleNamespace(
    attention_dropout=0.0, window_size=None, softmax_type="vanilla", num_attention_heads=8,
    tensor_model_parallel_size=2,
)  # fmt: skip
RANKS, ROOM = 8, 8192


@pytest.mark.dist
def test_a_gpt_on_two_ranks_is_one_with_megatrons_attention(tmp_path, start_ranks):
    pytest.importorskip("megatron.core", reason="megatron-core has no wheel here")
    script = Path(__file__).with_name("megatron_ranks.py")
    assert start_ranks(2, script, tmp_path) == ["equal\n"] * 2


def test_the_plans_have_what_layers_read_of_packed_sequences():
    names = pytest.importorskip("megatron.core.packed_seq_params").PackedSeqParams.__annotations__
    assert set(names) <= set(PlannedSequences.__dataclass_fields__)


def test_what_no_plan_computes_is_refused():
    for name, value in (("attention_dropout", 0.1), ("window_size", (5, 0))):
        config = SimpleNamespace(**{**vars(CONFIG), name: value})
        with pytest.raises(RunError, match=f"layer 1: expected {name} "):
            DCPCoreAttention(config, 1)
    attention, sequences = DCPCoreAttention(CONFIG, 1), PlannedSequences(None, torch.zeros(0), 0)
    q, kv = torch.zeros(5, 1, 4, 8), torch.zeros(5, 1, 2, 8)
    for name in ("attention_mask", "attention_bias"):
        arguments = {"attention_mask": None, name: torch.zeros(1)}
        with pytest.raises(RunError, match=f"expected {name} None"):
            attention(q, kv, kv, **arguments, packed_seq_params=sequences)
    with pytest.raises(RunError, match="expected query"):
        attention(q.expand(5, 2, 4, 8), kv, kv, None, packed_seq_params=sequences)
    with pytest.raises(RunError, match=r"PlannedSequences\.prepare.* got NoneType"):
        attention(q, kv, kv, None)
    rotary = SimpleNamespace(get_freqs_non_repeated=None, rotary_interleaved=False)
    with pytest.raises(RunError, match=r"PlannedSequences\.prepare.* got NoneType"):
        PlannedRotary(rotary).get_rotary_seq_len(None, None, None, None, None)
    with pytest.raises(RunError, match="expected Megatron's RotaryEmbedding, got Linear"):
        PlannedRotary(torch.nn.Linear(2, 2))


def planned(window=None):
    cluster = Cluster(devices_per_node=RANKS)
    setting = StepSetting(StepMesh(1, RANKS), step_model("llama-8b"), cluster, 0)

    def pairs(lengths):
        seen = np.minimum(lengths, window)
        return seen * (seen + 1) / 2.0 + (lengths - seen) * seen

    return PlannedCPScheduler(ROOM, setting, None if window is None else pairs)


def drawn(seed):
    """Lengths of a global batch as Megatron pads them, a few of them long."""
    lengths = np.exp(np.random.default_rng(seed).normal(7, 1.4, 60)).clip(64, RANKS * ROOM)
    return (lengths.astype(int) // 16 * 16).tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [None, 512])
def test_every_sample_runs_on_ranks_that_megatron_has_a_group_for(seed, window):
    lengths = drawn(seed)
    samples = [(100 + number, length) for number, length in enumerate(lengths)]
    by_length, by_id = planned(window).get_groups_and_subsamples(samples)
    length_of = dict(samples)
    assert by_length == [[[length_of[i] for i in ids] for ids in group] for group in by_id]
    seen = []
    for group in by_id:
        assert len(group) == RANKS
        tokens = np.zeros(RANKS)
        for sample in {i for ids in group for i in ids}:
            ranks = [rank for rank, ids in enumerate(group) if sample in ids]
            width = len(ranks)
            assert width & (width - 1) == 0
            first = ranks[0] // width * width
            assert ranks == list(range(first, first + width))
            tokens[ranks] += length_of[sample] / width
            seen.append(sample)
        assert tokens.max() <= ROOM
        for one in group:  # ranks that share samples run them in one order
            for other in group:
                common = set(one) & set(other)
                assert [i for i in one if i in common] == [i for i in other if i in common]
    assert sorted(seen) == sorted(length_of)
    assert all(by_id[-1])


def test_a_group_with_an_idle_rank_is_not_the_last(monkeypatch):
    mesh, scheduler = SimpleNamespace(micro_batches=2), planned()
    rows = [(0, 0, RANKS, np.array([0])), (1, 0, RANKS // 2, np.array([1]))]
    assignment = SimpleNamespace(mesh=mesh, groups=lambda: rows)
    monkeypatch.setattr(scheduler, "_plan", lambda _: SimpleNamespace(assignment=assignment))
    _, ids = scheduler.get_groups_and_subsamples([(7, 64), (8, 64)])
    assert ids == [[[8]] * (RANKS // 2) + [[]] * (RANKS // 2), [[7]] * RANKS]


@pytest.mark.parametrize("window", [None, 512])
def test_groups_are_shorter_than_by_the_squares_of_lengths(window):
    """By FLOPs of an 8B model; a group is as long as its fullest rank. Messages are not counted."""
    name = "megatron.core.pipeline_parallel.hybrid_cp_schedule"
    schedule = pytest.importorskip(name).BalancedCPScheduler
    theirs = schedule(ROOM, SimpleNamespace(size=lambda: RANKS))
    for seed in range(3):
        samples = list(enumerate(drawn(seed)))
        ours, other = (
            work_of(scheduler.get_groups_and_subsamples(samples, None)[1], dict(samples), window)
            for scheduler in (planned(window), theirs)
        )
        assert ours < 0.95 * other


def work_of(groups, length_of, window):
    total = 0.0
    for group in groups:
        busy = np.zeros(RANKS)
        for sample in {i for ids in group for i in ids}:
            ranks, n = [r for r, ids in enumerate(group) if sample in ids], length_of[sample]
            pairs = sum(min(token, window or n) for token in range(1, n + 1))
            busy[ranks] += (1.8e6 * pairs + 4.8e10 * n) / len(ranks)
        total += busy.max()
    return total


def test_a_number_of_ranks_that_megatron_has_no_groups_for_is_refused():
    setting = StepSetting(StepMesh(1, 6), step_model("llama-8b"), Cluster(devices_per_node=6), 0)
    assert planned().get_groups_and_subsamples([]) == ([], [])
    with pytest.raises(RunError, match="expected a power of two of ranks, got 6"):
        PlannedCPScheduler(ROOM, setting)
