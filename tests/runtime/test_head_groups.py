"""Plans in head groups, in parts; that they are exact is shown by `test_random_placements`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_planner.plan import decode_part, encode_parts
from dcp_planner.tables.head_groups import possible_groups
from dcp_runtime.errors import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.device_plan import HeadLayout
from dcp_runtime.transport.loopback import LoopbackWorld

HEADS = {"mha": (8, 8), "gqa": (8, 2), "mqa": (8, 1), "odd": (6, 3)}


def test_a_rank_runs_its_part_of_a_grouped_plan(lab):
    mask, config = lab.masks["streaming"](70), PlanConfig("static:zigzag", head_groups=8)
    sparsity = lab.sparsity_of([mask], 16)
    plan = build_plan(sparsity, ModelShape(8, 2, 8, 4), Cluster(1, 2), config)
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
