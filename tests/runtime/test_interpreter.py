"""Programs of real plans, all ranks as threads: buffers, messages, refusals.

That results are exact is shown by `test_random_placements` and `test_library_masks`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_planner import Cluster, ModelShape, PlanConfig, TransferKind, build_plan, simulate
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.divisions import Manner
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables import receive_buffer_bytes
from dcp_runtime.errors import RunError
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import QueryRows
from dcp_runtime.plans.device_plan import prepare_device

SHAPE = ModelShape(4, 2, 8, 4)


def plan_of(lab, masks, ranks, partitioner="static:zigzag", shape=SHAPE, nodes=1, **options):
    config, cluster = PlanConfig(partitioner, **options), Cluster(nodes, ranks // nodes)
    return build_plan(lab.sparsity_of(masks, 16), shape, cluster, config)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_delta_is_summed_in_more_than_bfloat16(lab, kernel):
    """A token that sees only itself has no gradient of its score: dout.v and delta cancel.

    Their value, 263, lies between two bfloat16 numbers that are 2 apart.
    """
    plan = plan_of(lab, [lab.masks["causal"](1)], 1, shape=ModelShape(1, 1, 8, 2))
    q, v = torch.ones(1, 1, 8), torch.ones(1, 1, 8)
    v[..., 0] = 256
    kv = torch.stack([torch.ones(1, 1, 8), v], 1)
    dout = torch.ones(1, 1, 8)
    given = (tensor.bfloat16() for tensor in (q, kv, dout))
    got, _ = lab.run_in_threads(plan, *given, kernel=kernel)
    assert torch.equal(got["out"].float(), v)
    assert got["dq"].abs().max() < 1e-3


def test_result_depends_neither_on_the_number_of_ranks_nor_on_head_groups(lab):
    masks = [lab.masks["streaming"](100), lab.masks["causal"](28)]
    qkv = lab.random_qkv(2, 128, 4, 2, 8, torch.float64)
    first, *others = [
        lab.run_in_threads(plan_of(lab, masks, ranks, head_groups=groups), *qkv)[0]
        for ranks, groups in ((1, 1), (2, 1), (5, 2), (8, 1), (3, 4))
    ]
    for other in others:
        for name, value in first.items():
            torch.testing.assert_close(other[name], value, rtol=1e-12, atol=1e-13)


def test_ranks_that_own_nothing_take_part(lab):
    masks = [lab.masks["causal"](20)]
    plan = plan_of(lab, masks, 6, "static:contiguous")
    assert min(len(plan.local_tokens(r)) for r in range(6)) == 0
    qkv = lab.random_qkv(3, 20, 4, 2, 8, torch.float32)
    got, _ = lab.run_in_threads(plan, *qkv)
    lab.assert_as_exact_as_eager(got, *qkv, masks[0])


def test_layers_before_backward_share_a_prepared_plan(lab):
    masks = [lab.masks["causal"](64)]
    plan = plan_of(lab, masks, 3)
    qkv = lab.random_qkv(4, 64, 4, 2, 8, torch.float32)
    counts = []
    for layers in (1, 3):
        got, recorders = lab.run_in_threads(plan, *qkv, layers=layers)
        lab.assert_as_exact_as_eager(got, *qkv, masks[0])
        counts.append(sum(e.kind == "attention" for r in recorders for e in r.events))
    assert counts[1] == 3 * counts[0] > 0


def test_receive_buffers_take_the_bytes_that_the_plan_states(lab):
    masks = [lab.masks["causal"](200), lab.masks["full"](60)]
    routed = {"nodes": 2, "routing": "node", "divisions": 4}
    plans = [
        plan_of(lab, masks, 4),
        plan_of(lab, masks, 4, "kahypar"),
        plan_of(lab, masks, 4, **routed),
        plan_of(lab, masks, 4, nodes=2, head_groups=4),
        lab.striped(plan_of(lab, masks, 4, "native", **routed), is_frugal=True),
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
    masks = [lab.masks["full"](130)]
    for column, says in (
        ("target", "computes with kv block . but neither owns nor receives it"),
        ("hop", "forwards KV of block . but nothing brings it there"),
    ):
        plan = plan_of(lab, masks, 3)
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


@pytest.mark.parametrize(("partitioner", "groups"), [("kahypar", 1), ("static:zigzag", 4)])
def test_bytes_on_the_wire_are_the_bytes_of_the_plan(lab, partitioner, groups):
    masks = [lab.masks["causal"](150)]
    plan = plan_of(lab, masks, 4, partitioner, head_groups=groups)
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


def test_tensors_that_do_not_fit_the_plan_are_refused(lab):
    plan = plan_of(lab, [lab.masks["causal"](32)], 1)
    q, kv, dout = lab.random_qkv(6, 32, 4, 2, 8, torch.float32)
    says = r"expected q \[32, 4, 8\] and kv \[32, 2, 2, 8\], got \[32, 3"
    with pytest.raises(RunError, match=says):
        lab.run_in_threads(plan, q[:, :3], kv, dout)
    with pytest.raises(RunError, match="share dtype and device"):
        lab.run_in_threads(plan, q, kv.double(), dout)
