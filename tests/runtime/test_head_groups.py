"""Plans in head groups on ranks as threads; `test_random_placements` shows that they are exact."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_options import make_loader

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, simulate
from dcp_planner.plan import decode_part, encode_parts
from dcp_planner.tables import receive_buffer_bytes
from dcp_planner.tables.head_groups import possible_groups
from dcp_runtime.errors import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.interpreter import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import QueryRows
from dcp_runtime.plans.device_plan import HeadLayout, prepare_device
from dcp_runtime.transport.loopback import LoopbackWorld

HEADS = {"mha": (8, 8), "gqa": (8, 2), "mqa": (8, 1), "odd": (6, 3)}


def plan_of(lab, masks, heads, cluster, groups, partitioner="static:zigzag", dim=8):
    config = PlanConfig(partitioner, head_groups=groups, budget="fast")
    shape = ModelShape(*heads, dim, 4)
    return build_plan(lab.sparsity_of(masks, 16), shape, cluster, config)


def test_the_result_does_not_depend_on_the_groups(lab):
    masks = [lab.masks["causal"](80)]
    qkv = lab.random_qkv(2, 80, 8, 2, 8, torch.float64)
    results = [
        lab.run_in_threads(plan_of(lab, masks, (8, 2), Cluster(1, 3), groups), *qkv)[0]
        for groups in (1, 2, 8)
    ]
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-12, atol=1e-13)


def test_buffers_and_messages_are_those_of_the_plan(lab):
    masks = [lab.masks["causal"](150), lab.masks["full"](40)]
    plan = plan_of(lab, masks, (8, 2), Cluster(2, 2), 4)
    stated = receive_buffer_bytes(plan)
    q, kv, dout = lab.random_qkv(12, 190, 8, 2, 8, torch.float32)
    for rank in range(4):
        part = prepare_device(plan, rank, 16)
        heads, rows = part.heads, torch.tensor(plan.local_tokens(rank))
        mine, keys = heads.split_q(q[rows]), heads.split_kv(kv[rows])
        sums = torch.zeros(mine.shape[:2])
        forward = ForwardPass(part, mine, keys)
        backward = BackwardPass(part, QueryRows(mine, heads.split_q(dout[rows]), sums, sums), keys)
        assert (forward.receive_bytes, backward.receive_bytes) == tuple(stated[:, rank])
    _, recorders = lab.run_in_threads(plan, q, kv, dout)
    trace, table = simulate(plan), plan.transfers
    predicted = {(trace.name_of(i), int(trace.peer[i])) for i in np.flatnonzero(trace.lane == 1)}
    sent = [e for recorder in recorders for e in recorder.events if e.kind == "send"]
    assert {(e.name, e.peer) for e in sent} == predicted
    assert sum(e.size_bytes for e in sent) == int(table.size_bytes.sum())


def test_a_rank_runs_its_part_of_a_grouped_plan(lab):
    masks = [lab.masks["streaming"](70)]
    plan = plan_of(lab, masks, (8, 2), Cluster(1, 2), 8)
    parts = [decode_part(data) for data in encode_parts(plan)]
    q, kv, dout = lab.random_qkv(5, 70, 8, 2, 8, torch.float32)

    def run_rank(transport):
        prepared = DCPExecutor(transport=transport).prepare(parts[transport.rank])
        rows = torch.tensor(plan.local_tokens(transport.rank))
        with pytest.raises(RunError, match=r"expected q \[\d+, 8, 8\] and kv \[\d+, 2, 2, 8\]"):
            prepared.forward(q[rows][:, :1], kv[rows])
        return rows

    def compute(transport):
        prepared = DCPExecutor(transport=transport).prepare(parts[transport.rank])
        rows = torch.tensor(plan.local_tokens(transport.rank))
        return rows, prepared.forward(q[rows], kv[rows])[0]

    assert len(LoopbackWorld(2, timeout_s=60).run(run_rank)) == 2
    want = lab.eager(q, kv, dout, masks[0])["out"]
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


def test_a_dataloader_plans_in_head_groups():
    mask = Spec.from_text("mask band = causal and q - k < 20").mask("band")
    rows = [{"tokens": list(range(n))} for n in (40, 17)]
    loader = make_loader(
        rows, mask, rank=1, token_budget=64, block_size=8, cluster=Cluster(devices_per_node=2),
        shape=ModelShape(4, 2, 8, 4), config=PlanConfig("static:zigzag", head_groups=2),
    )  # fmt: skip
    [(_, plan)] = list(loader)
    assert plan.head_groups == 2
