"""Measured rates of ranks: adopted when they stay off, and what the plans gain."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dcp_dsl import Spec
from dcp_planner import Cluster, PlanConfig
from dcp_runtime import DeviceRates, Planning, RunError
from dcp_runtime.adapters.megatron import PlannedBatches, PlannedSequences

SCRIPT = Path(__file__).with_name("rates_scenario.py")


def notes(*seconds, work=1000):
    return [json.dumps([[work, value]]) for value in seconds]


@pytest.mark.dist
def test_a_slow_rank_gets_less_work_and_steps_get_shorter(start_ranks, tmp_path):
    first, second = (json.loads(text) for text in start_ranks(2, SCRIPT, tmp_path))
    assert first == second  # all ranks plan alike
    _, speeds, seconds = zip(*first, strict=True)
    assert speeds[0] == [1, 1]
    fast, slow = speeds[-1]
    assert 0.2 < slow / fast < 0.5  # a quarter, if nothing but the naps took time
    assert seconds[-1] < seconds[0] / 1.3


def test_rates_are_adopted_only_if_they_stay_off():
    rates = DeviceRates(Cluster(2, 2), every=1)
    for seconds in (notes(1, 1, 2, 1), notes(1, 1.1, 1, 0.95), notes(1, 1, 2, 1)):
        rates.update(seconds)  # off, on, off
        assert rates.cluster == Cluster(2, 2)
    rates.update(notes(1, 1, 2.4, 1.02))
    assert rates.cluster.devices == ((1.0, 1.0), (0.45, 1.0))
    for _ in range(4):
        rates.update(notes(1, 1, 2.1, 1))  # within the change
    assert rates.cluster.devices == ((1.0, 1.0), (0.45, 1.0))
    for _ in range(2):
        rates.update(notes(1, 1, 1.01, 1))
    assert rates.cluster == Cluster(2, 2)


@pytest.mark.parametrize(
    ("cluster", "periods"),
    [
        (Cluster(1, 3), [notes(5, 5, 5)] * 3),  # all slow: no straggler
        (Cluster(1, 2, devices=((1.0, 0.5),)), [notes(1, 2)] * 3),  # as expected
        (Cluster(1, 2), [notes(1, 3), notes(1, None), notes(1, 3)]),  # not measured between
        (Cluster(1, 2), [notes(1, 3), notes(1, 3, work=0), notes(1, 3)]),
    ],
)
def test_rates_stay_where_no_rank_is_off_twice(cluster, periods):
    rates = DeviceRates(cluster, every=1)
    for seconds in periods:
        rates.update(seconds)
    assert rates.cluster == cluster


def test_periods_that_measure_nothing_are_said_once(caplog):
    rates = DeviceRates(Cluster(1, 2), every=1)
    for seconds in (notes(None, None), notes(None, 1), notes(1, 1), notes(None, None)):
        rates.update(seconds)
    assert [text.count("no batch of a period was measured") for text in caplog.messages] == [1, 1]


def test_packed_batches_are_planned_for_the_measured_rates(monkeypatch):
    monkeypatch.setattr(PlannedSequences, "prepare", lambda _, plan, positions: plan)
    rates, mask = DeviceRates(Cluster(1, 2), every=1), Spec.from_text("mask m = causal").mask("m")
    planning = Planning(rates=rates, config=PlanConfig("static:zigzag"), block_size=8)
    batches = PlannedBatches(SimpleNamespace(rank=0), mask, planning)
    for _ in range(2):
        rates.update(notes(1, 2))
    _, plan = batches.split({"tokens": torch.arange(64)[None]}, torch.tensor([0, 64]))
    assert plan.cluster.devices == ((1.0, 0.5),)


def test_a_period_ends_after_its_batches():
    rates = DeviceRates(Cluster(1, 2), every=2)
    assert rates.add(10, 0.5) is None
    assert json.loads(rates.add(20, None)) == [[10, 0.5], [20, None]]
    assert rates.add(10, 0.5) is None


def test_what_cannot_be_is_refused():
    with pytest.raises(RunError, match="every of at least 1"):
        DeviceRates(Cluster(), every=0)
