"""Blocks that travel together arrive as blocks that travel alone."""

import time

import pytest
import torch

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_planner.model.problem import DIRECTIONS
from dcp_planner.simulation.simulator import PlanModel
from dcp_planner.simulation.trace import LANES
from dcp_runtime.plans import device_plan
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.plans.transfers import Bundle
from dcp_runtime.transport.recorder import merge_timelines
from dcp_runtime.transport.transport import Parcel

ROUTED = {"nodes": 2, "routing": "node", "divisions": 3}
PLANS = {
    "zigzag": ("static:zigzag", {}),
    "native": ("native", {"divisions": 2}),
    "routed": ("static:zigzag", ROUTED),
    "head groups": ("static:zigzag", {"nodes": 2, "head_groups": 4}),
    "wide partials": ("static:grid", {"partials": "float32"}),
    "striped, frugal": ("native", ROUTED),
}


def plan_of(lab, name):
    partitioner, options = PLANS[name]
    options = dict(options)
    nodes = options.pop("nodes", 1)
    cluster = Cluster(nodes, 4 // nodes, port_sharing="exclusive")
    masks = [lab.masks["causal"](200), lab.masks["full"](60)]
    shape = ModelShape(4, 2, 8, 2)
    plan = build_plan(
        lab.sparsity_of(masks, 16), shape, cluster, PlanConfig(partitioner, **options)
    )
    return lab.striped(plan, is_frugal=True) if "frugal" in name else plan


def alone(items, transfers):
    return tuple(Bundle.of([transfers[item]]) for item in items)


def bundles_of(plan, rank):
    part = prepare_device(plan, rank, 16)
    return [
        bundle
        for direction in (part.forward, part.backward)
        for *_, bundles in direction.steps
        for bundle in bundles
    ]


@pytest.mark.parametrize("name", PLANS)
def test_bundles_bring_what_single_messages_bring(lab, name, monkeypatch):
    plan = plan_of(lab, name)
    qkv = [x.bfloat16() for x in lab.random_qkv(7, 260, 4, 2, 8, torch.float32)]
    together, _ = lab.run_in_threads(plan, *qkv, layers=2)
    with monkeypatch.context() as patch:
        patch.setattr(device_plan, "bundle", alone)
        apart, _ = lab.run_in_threads(plan, *qkv, layers=2)
    for key, value in apart.items():
        assert torch.equal(together[key], value), key


@pytest.mark.parametrize("name", PLANS)
def test_both_ends_find_the_same_bundles(lab, name):
    plan = plan_of(lab, name)
    ends = {True: [], False: []}
    carried = 0
    for rank in range(4):
        for each in bundles_of(plan, rank):
            pair = (rank, each.peer) if each.is_send else (each.peer, rank)
            what = each.index, each.kind, each.slot, each.num_tokens
            ends[each.is_send].append((*pair, *what, tuple(t.index for t in each.transfers)))
            carried += len(each.transfers)
    assert sorted(ends[True]) == sorted(ends[False])
    assert carried == 2 * len(plan.transfers)
    assert len(ends[True]) + len(ends[False]) < carried, "nothing travels together"


def test_no_block_arrives_before_its_sender_starts_to_send_it(lab, monkeypatch):
    """A sender may learn late that its bundle has left: the trace does not guess when blocks left.

    A guess put the last blocks of a bundle behind their own arrival.
    """
    finish = Parcel.finish

    def late(parcel, error=None):
        if parcel.bundle.is_send:
            time.sleep(0.002)
        finish(parcel, error)

    monkeypatch.setattr(Parcel, "finish", late)
    plan = plan_of(lab, "zigzag")
    qkv = lab.random_qkv(7, 260, 4, 2, 8, torch.float32)
    _, recorders = lab.run_in_threads(plan, *qkv)
    parts = [recorder.table() for recorder in recorders]
    trace = merge_timelines(parts, 0.0).trace
    ends = {"send": {}, "receive": {}}
    for row in range(len(trace)):
        if (lane := LANES[trace.lane[row]]) in ends:
            ends[lane][trace.transfer[row]] = row
    assert set(ends["send"]) == set(ends["receive"]) == set(range(len(plan.transfers)))
    for number, row in ends["receive"].items():
        assert trace.start_ns[ends["send"][number]] <= trace.end_ns[row]


@pytest.mark.parametrize("name", PLANS)
def test_the_simulator_counts_the_messages_that_devices_send_and_receive(lab, name):
    """It does not see that rows which were in use before part some bundles: a few in a hundred."""
    plan = plan_of(lab, name)
    model = PlanModel.of(plan)
    told = sum(model.directions[direction].bundles.ends for direction in DIRECTIONS)
    for rank in range(4):
        part = prepare_device(plan, rank, 16)
        whole, found = 0, 0
        for *_, bundles in (*part.forward.steps, *part.backward.steps):
            alike = {
                (b.peer, b.is_send, b.kind, b.hop, b.index if b.hop and not b.is_result else -1)
                for b in bundles
            }
            whole, found = whole + len(alike), found + len(bundles)
        assert told[rank] == whole
        assert whole <= found <= 1.1 * whole
    firsts = sum(int(model.directions[d].bundles.is_first.sum()) for d in DIRECTIONS)
    assert 2 * firsts == told.sum()
