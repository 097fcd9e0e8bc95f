"""Programs of real plans, all ranks as threads: buffers, messages, bundles, parts, refusals."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, TransferKind, simulate
from dcp_planner.model.problem import DIRECTIONS
from dcp_planner.plan import decode_part, encode_parts
from dcp_planner.simulation.simulator import PlanModel
from dcp_planner.simulation.trace import LANES
from dcp_planner.tables import receive_buffer_bytes
from dcp_planner.tables.head_groups import possible_groups
from dcp_runtime.errors import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import QueryRows
from dcp_runtime.plans import device_plan
from dcp_runtime.plans.device_plan import HeadLayout, prepare_device
from dcp_runtime.plans.transfers import Bundle
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import merge_timelines
from dcp_runtime.transport.transport import Parcel

SHAPE = ModelShape(4, 2, 8, 4)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_delta_is_summed_in_more_than_bfloat16(lab, kernel):
    """A token that sees only itself has no gradient of its score: dout.v and delta cancel.

    Their value, 263, lies between two bfloat16 numbers that are 2 apart.
    """
    plan = lab.plan_of([("causal", 1)], heads=(1, 1, 8), dtype_bytes=2)
    q, v = torch.ones(1, 1, 8), torch.ones(1, 1, 8)
    v[..., 0] = 256
    kv = torch.stack([torch.ones(1, 1, 8), v], 1)
    dout = torch.ones(1, 1, 8)
    given = (tensor.bfloat16() for tensor in (q, kv, dout))
    got, _ = lab.run_in_threads(plan, *given, kernel=kernel)
    assert torch.equal(got["out"].float(), v)
    assert got["dq"].abs().max() < 1e-3


def test_receive_buffers_take_the_bytes_that_the_plan_states(lab):
    masks = [lab.MASKS["causal"](200), lab.MASKS["full"](60)]
    routed = {"cluster": Cluster(2, 2), "routing": "node", "divisions": 4}
    plans = [
        lab.plan_of(masks, 4),
        lab.plan_of(masks, 4, layout="kahypar"),
        lab.plan_of(masks, **routed),
        lab.plan_of(masks, cluster=Cluster(2, 2), head_groups=4),
        lab.striped(lab.plan_of(masks, layout="native", **routed), is_frugal=True),
    ]
    q, kv, dout = lab.random_qkv(12, 260, 4, 2, 8, torch.float32)
    for plan in plans:
        stated = receive_buffer_bytes(plan)
        for rank in range(4):
            part = prepare_device(plan, rank, 16)
            heads, rows = part.heads, torch.tensor(plan.local_tokens(rank))
            mine, keys = heads.split_q(q[rows]), heads.split_kv(kv[rows])
            sums = torch.zeros(mine.shape[:2])
            forward = ForwardPass(part, mine, keys)
            queries = QueryRows(mine, heads.split_q(dout[rows]), sums, sums)
            backward = BackwardPass(part, queries, keys)
            # Inputs arrive behind the local rows, partial results in buffers of their own.
            arriving = [
                sum(buffer[0 if kind.is_result else part.num_local :].nbytes
                    for kind, buffers in each._buffers.items() for buffer in buffers)
                for each in (forward, backward)
            ]  # fmt: skip
            assert arriving == stated[:, rank].tolist()


def test_a_plan_without_a_transfer_that_it_needs_is_refused(lab):
    masks = [lab.MASKS["full"](130)]
    for column, says in (
        ("target", "computes with kv block . but neither owns nor receives it"),
        ("hop", "forwards KV of block . but nothing brings it there"),
    ):
        plan = lab.plan_of(masks, 3)
        table = plan.transfers
        first = int(np.flatnonzero(table.kind == TransferKind.KV)[0])
        damaged = getattr(table, column).copy()
        if column == "target":  # it goes to nobody who asked for it
            damaged[(table.block == table.block[first]) & (damaged == damaged[first])] = 99
        else:  # the owner is said to pass on what it got
            damaged[first] = 1
        device = int((table.target if column == "target" else table.source)[first])
        object.__setattr__(table, column, damaged)
        with pytest.raises(RunError, match=says.replace(".", r"\d+,")):
            prepare_device(plan, device, 16)


@pytest.mark.parametrize(("partitioner", "groups"), [("kahypar", 1), ("static:zigzag", 4)])
def test_bytes_on_the_wire_are_the_bytes_of_the_plan(lab, partitioner, groups):
    masks = [lab.MASKS["causal"](150)]
    plan = lab.plan_of(masks, 4, layout=partitioner, head_groups=groups)
    qkv = lab.random_qkv(5, 150, 4, 2, 8, torch.float32)
    _, recorders = lab.run_in_threads(plan, *qkv)
    table, trace = plan.transfers, simulate(plan)
    sent = [event for recorder in recorders for event in recorder.events if event.kind == "send"]
    predicted = {(trace.name_of(n), int(trace.peer[n])) for n in np.flatnonzero(trace.lane == 1)}
    assert {(event.name, event.peer) for event in sent} == predicted
    for lane, end in (("send", table.source), ("receive", table.target)):
        for rank, recorder in enumerate(recorders):
            seen = sorted(
                (e.is_backward, e.transfer, e.name, e.peer, e.size_bytes)
                for e in recorder.events
                if e.kind == lane
            )
            prepared = prepare_device(plan, rank, 16)
            mine = {n: prepared.transfers[n] for n in np.flatnonzero(end == rank).tolist()}
            assert seen == sorted(
                (bool(table.is_backward[n]), n, t.name, t.peer, int(table.size_bytes[n]))
                for n, t in mine.items()
            )


ROUTED = {"nodes": 2, "routing": "node", "divisions": 3}
PLANS = {
    "zigzag": ("static:zigzag", {}),
    "native": ("native", {"divisions": 2}),
    "routed": ("static:zigzag", ROUTED),
    "head groups": ("static:zigzag", {"nodes": 2, "head_groups": 4}),
    "wide partials": ("static:grid", {"partials": "float32"}),
    "striped, frugal": ("native", ROUTED),
}


def bundled_plan(lab, name):
    partitioner, options = PLANS[name]
    options = dict(options)
    nodes = options.pop("nodes", 1)
    cluster = Cluster(nodes, 4 // nodes, port_sharing="exclusive")
    plan = lab.plan_of(
        [("causal", 200), ("full", 60)], dtype_bytes=2, cluster=cluster, layout=partitioner,
        **options,
    )  # fmt: skip
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
    plan = bundled_plan(lab, name)
    qkv = [x.bfloat16() for x in lab.random_qkv(7, 260, 4, 2, 8, torch.float32)]
    together, _ = lab.run_in_threads(plan, *qkv, layers=2)
    with monkeypatch.context() as patch:
        patch.setattr(device_plan, "bundle", alone)
        apart, _ = lab.run_in_threads(plan, *qkv, layers=2)
    for key, value in apart.items():
        assert torch.equal(together[key], value), key


@pytest.mark.parametrize("name", PLANS)
def test_both_ends_find_the_same_bundles(lab, name):
    plan = bundled_plan(lab, name)
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
    plan = bundled_plan(lab, "zigzag")
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
    plan = bundled_plan(lab, name)
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


HEADS = {"mha": (8, 8), "gqa": (8, 2), "mqa": (8, 1), "odd": (6, 3)}


def test_a_rank_runs_its_part_of_a_grouped_plan(lab):
    mask = lab.MASKS["streaming"](70)
    plan = lab.plan_of([mask], 2, heads=(8, 2, 8), head_groups=8)
    parts = [decode_part(data) for data in encode_parts(plan)]
    q, kv, dout = lab.random_qkv(5, 70, 8, 2, 8, torch.float32)

    def compute(transport):
        prepared = DCPExecutor(transport=transport).prepare(parts[transport.rank])
        rows = torch.tensor(plan.local_tokens(transport.rank))
        with pytest.raises(RunError, match=r"expected q \[\d+, 8, 8\] and kv \[\d+, 2, 2, 8\]"):
            prepared.forward(q[rows][:, :1], kv[rows])
        return rows, prepared.forward(q[rows], kv[rows])[0]

    want = lab.eager(q, kv, dout, mask)["out"]
    for rows, out in LoopbackWorld(2, timeout_s=60).run(compute):
        torch.testing.assert_close(out, want[rows])


@given(heads=st.sampled_from(sorted(HEADS)), tokens=st.integers(0, 5), data=st.data())
def test_heads_come_back_as_they_went(heads, tokens, data):
    shape = ModelShape(*HEADS[heads], 3)
    layout = HeadLayout(shape, data.draw(st.sampled_from(possible_groups(shape))))
    q = torch.randn(tokens, shape.q_heads, 3)
    kv = torch.randn(tokens, 2, shape.kv_heads, 3)
    assert torch.equal(layout.join_q(layout.split_q(q)), q)
    assert torch.equal(layout.join_q(layout.split_q(q[..., 0])), q[..., 0])
    assert torch.equal(layout.join_kv(layout.split_kv(kv)), kv)
