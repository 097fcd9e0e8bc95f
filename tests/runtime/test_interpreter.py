"""Programs of real plans, all ranks as threads: buffers, messages, refusals.

That results are exact is shown by `test_random_placements` and `test_library_masks`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_planner import Cluster, ModelShape, PlanConfig, TransferKind, build_plan
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.divisions import Manner
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables import receive_buffer_bytes
from dcp_runtime.errors import RunError
from dcp_runtime.execute.interpreter import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import QueryRows
from dcp_runtime.plans.device_plan import prepare_device

SHAPE = ModelShape(4, 2, 8, 4)


def plan_of(lab, masks, block, ranks, partitioner, shape=SHAPE):
    sparsity = lab.sparsity_of(masks, block)
    config = PlanConfig(partitioner=partitioner)
    return build_plan(sparsity, shape, Cluster(devices_per_node=ranks), config)


def routed_plan(lab, masks, nodes, per_node, partitioner, divisions=4):
    config = PlanConfig(partitioner=partitioner, routing="node", divisions=divisions)
    return build_plan(lab.sparsity_of(masks, 16), SHAPE, Cluster(nodes, per_node), config)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_delta_is_summed_in_more_than_bfloat16(lab, kernel):
    """A token that sees only itself has no gradient of its score: dout.v and delta cancel.

    Their value, 263, lies between two bfloat16 numbers that are 2 apart.
    """
    plan = plan_of(
        lab, [lab.masks["causal"](1)], 16, 1, "static:contiguous", ModelShape(1, 1, 8, 2)
    )
    q, v = torch.ones(1, 1, 8), torch.ones(1, 1, 8)
    v[..., 0] = 256
    kv = torch.stack([torch.ones(1, 1, 8), v], 1)
    dout = torch.ones(1, 1, 8)
    given = (tensor.bfloat16() for tensor in (q, kv, dout))
    got, _ = lab.run_in_threads(plan, *given, kernel=kernel)
    assert torch.equal(got["out"].float(), v)
    assert got["dq"].abs().max() < 1e-3


def test_result_does_not_depend_on_the_number_of_ranks(lab):
    masks = [lab.masks["streaming"](100), lab.masks["causal"](28)]
    qkv = lab.random_qkv(2, 128, 4, 2, 8, torch.float64)
    results = [
        lab.run_in_threads(plan_of(lab, masks, 16, ranks, "static:zigzag"), *qkv)[0]
        for ranks in (1, 2, 5, 8)
    ]
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-12, atol=1e-13)


def test_ranks_that_own_nothing_take_part(lab):
    masks = [lab.masks["causal"](20)]
    plan = plan_of(lab, masks, 16, 6, "static:contiguous")
    assert min(len(plan.local_tokens(r)) for r in range(6)) == 0
    qkv = lab.random_qkv(3, 20, 4, 2, 8, torch.float32)
    got, _ = lab.run_in_threads(plan, *qkv)
    lab.assert_as_exact_as_eager(got, *qkv, masks[0])


def test_layers_before_backward_share_a_prepared_plan(lab):
    masks = [lab.masks["causal"](64)]
    plan = plan_of(lab, masks, 16, 3, "static:zigzag")
    qkv = lab.random_qkv(4, 64, 4, 2, 8, torch.float32)
    got, recorders = lab.run_in_threads(plan, *qkv, layers=3)
    lab.assert_as_exact_as_eager(got, *qkv, masks[0])
    attentions = [e for r in recorders for e in r.events if e.kind == "attention"]
    once = [e for r in lab.run_in_threads(plan, *qkv)[1] for e in r.events if e.kind == "attention"]
    assert len(attentions) == 3 * len([e for e in once if not e.is_backward]) + 3 * len(
        [e for e in once if e.is_backward]
    )


def test_receive_buffers_take_the_bytes_that_the_plan_states(lab):
    masks = [lab.masks["causal"](200), lab.masks["full"](60)]
    plans = [
        plan_of(lab, masks, 16, 4, "static:zigzag"),
        plan_of(lab, masks, 16, 4, "kahypar"),
        routed_plan(lab, masks, 2, 2, "static:zigzag"),
        lab.striped(routed_plan(lab, masks, 2, 2, "native"), is_frugal=True),
    ]
    for plan in plans:
        stated = receive_buffer_bytes(plan)
        q, kv, dout = lab.random_qkv(12, 260, 4, 2, 8, torch.float32)
        for rank in range(4):
            part = prepare_device(plan, rank, 16)
            rows = torch.tensor(plan.local_tokens(rank))
            forward = ForwardPass(part, q[rows], kv[rows])
            sums = torch.zeros(len(rows), 4)
            queries = QueryRows(q[rows], dout[rows], sums, sums)
            backward = BackwardPass(part, queries, kv[rows])
            assert (forward.receive_bytes, backward.receive_bytes) == tuple(stated[:, rank])


def test_a_plan_without_a_transfer_that_it_needs_is_refused(lab):
    masks = [lab.masks["full"](130)]
    for column, says in (
        ("target", "computes with kv block . but neither owns nor receives it"),
        ("hop", "forwards KV of block . but nothing brings it there"),
    ):
        plan = plan_of(lab, masks, 16, 3, "static:zigzag")
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


def test_rows_of_receive_buffers_are_used_again(lab):
    workload = build_workload(lab.sparsity_of([lab.masks["causal"](400)], 16), SHAPE)
    cluster, config = Cluster(devices_per_node=4), PlanConfig("static:zigzag", divisions=5)
    placement = place(workload, cluster, config)
    schedule = replace(
        make_schedule(workload, placement, cluster, config),
        manners=2 * (Manner(config.routing, is_frugal=True),),
    )
    plan = assemble(workload, cluster, placement, schedule, "frugal")
    table = plan.transfers
    arriving = ~table.is_backward & (table.kind == TransferKind.KV) & (table.target == 3)
    brought = int(plan.blocks.num_tokens[table.block[arriving]].sum())
    assert prepare_device(plan, 3, 16).forward.receive_rows[TransferKind.KV] < brought


def test_bytes_on_the_wire_are_the_bytes_of_the_plan(lab):
    masks = [lab.masks["causal"](150)]
    plan = plan_of(lab, masks, 16, 4, "kahypar")
    qkv = lab.random_qkv(5, 150, 4, 2, 8, torch.float32)
    _, recorders = lab.run_in_threads(plan, *qkv)
    table = plan.transfers
    for lane, end in (("send", table.source), ("receive", table.target)):
        for rank, recorder in enumerate(recorders):
            seen = sorted(
                (e.is_backward, e.transfer, e.name, e.peer, e.size_bytes)
                for e in recorder.events
                if e.kind == lane
            )
            prepared = prepare_device(plan, rank, 16)
            table_rows = np.flatnonzero(end == rank).tolist()
            mine = [prepared.transfers[n] for n in table_rows]
            assert seen == sorted(
                (bool(table.is_backward[n]), n, t.name, t.peer, int(table.size_bytes[n]))
                for n, t in zip(table_rows, mine, strict=True)
            )


def test_tensors_that_do_not_fit_the_plan_are_refused(lab):
    plan = plan_of(lab, [lab.masks["causal"](32)], 16, 1, "static:contiguous")
    q, kv, dout = lab.random_qkv(6, 32, 4, 2, 8, torch.float32)
    with pytest.raises(
        RunError, match=r"expected q \[32, 4, 8\] and kv \[32, 2, 2, 8\], got \[32, 3"
    ):
        lab.run_in_threads(plan, q[:, :3], kv, dout)
    with pytest.raises(RunError, match="share dtype and device"):
        lab.run_in_threads(plan, q, kv.double(), dout)
