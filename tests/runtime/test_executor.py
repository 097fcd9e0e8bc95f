"""`DCPExecutor` and `DCPAttn` on three real gloo processes, as a training script uses them.

``test_executor.py FOLDER RANK SIZE`` is a rank: it runs every scenario on one process group and
writes a JSON object, scenario to "ok" or an error.
"""

import json
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from dense_oracle import plan_of, random_qkv
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from dcp_runtime import DCPAttn, DCPExecutor, RunError, dispatch, undispatch
from dcp_runtime.kernels.cpu import CpuKernel


def make(mask, seed, ranks):
    return plan_of([(mask, 100)], ranks), random_qkv(seed, 100, 4, 2, 8, torch.float32)


def leaves(plan, q, kv):
    rows = torch.tensor(plan.local_tokens(dist.get_rank()))
    return q[rows].requires_grad_(), kv[rows].requires_grad_(), rows


def gathered_timeline_holds_all_ranks(executor, ranks):
    plan, qkv = make("causal", 4, ranks)
    now = time.perf_counter_ns

    def clock():  # that of a machine of its own
        return now() + 10**12 * dist.get_rank()

    with mock.patch("time.perf_counter_ns", clock):
        executor.prepare(plan)
        mine = leaves(plan, *qkv[:2])
        DCPAttn.apply(executor, *mine[:2]).backward(qkv[2][mine[2]])
        timeline = executor.gather_timeline()
    if dist.get_rank() != 0:
        assert timeline is None
        return
    trace = timeline.trace
    assert set(trace.device.tolist()) == set(range(ranks))
    assert trace.start_ns.min() == 0
    assert 0 < timeline.uncertainty_s < 1
    # On one clock, nothing arrives before its sender has started to send it.
    sends = {
        (trace.name_of(i), trace.device[i], trace.peer[i], trace.is_backward[i]): trace.start_ns[i]
        for i in range(len(trace))
        if trace.lane[i] == 1
    }
    received = [i for i in range(len(trace)) if trace.lane[i] == 2]
    assert len(received) == len(sends) > 0
    for i in received:
        sent = sends[trace.name_of(i), trace.peer[i], trace.device[i], trace.is_backward[i]]
        assert trace.end_ns[i] + 1e9 * timeline.uncertainty_s >= sent


def tensors_by_token_go_to_their_ranks_and_come_back(executor, ranks):
    plan, (q, _, weights) = make("streaming", 7, ranks)
    rank, tokens = dist.get_rank(), torch.arange(100)
    local = torch.tensor(plan.local_tokens(rank))
    assert torch.equal(dispatch(tokens, plan), local)
    for whole in (tokens, tokens % 3 == 0, q[:, 0].bfloat16(), q[:, :0]):
        assert torch.equal(undispatch(dispatch(whole, plan), plan), whole)
    # The loss of a rank weighs its own rows there, and all rows here, by numbers of its own.
    x = q.clone().requires_grad_()
    here, there = dispatch(x, plan), weights * (rank + 1)
    all_rows = undispatch(here.tanh(), plan)
    ((all_rows * there).sum() + (here * there[local]).sum()).backward()
    dist.all_reduce(x.grad)
    owner = torch.empty(100, 1, 1)
    for each in range(ranks):
        owner[plan.local_tokens(each)] = each + 1
    wanted = weights * (1 - q.tanh() ** 2) * sum(range(1, ranks + 1)) + weights * owner
    torch.testing.assert_close(x.grad, wanted)
    with pytest.raises(
        RunError, match=r"each of the 100 tokens of the batch, got shape \[1, 100\]"
    ):
        dispatch(tokens[None], plan)
    with pytest.raises(RunError, match=rf"this rank's {len(local)} tokens, got shape \[100\]"):
        undispatch(tokens, plan)
    with pytest.raises(RunError, match=f"for {ranks + 1} devices, the process group has {ranks}"):
        dispatch(tokens, make("causal", 5, ranks + 1)[0])


def rows_go_where_they_are_wanted(executor, ranks):
    plan, (q, _, weights) = make("streaming", 7, ranks)
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (ranks,))
    wanted = [np.arange(100)[r :: ranks + 1][::-1] for r in range(ranks)]
    wanted[0] = wanted[0][:0]
    x = q.clone().requires_grad_()
    found = undispatch(dispatch(x, plan), plan, mesh, wanted)
    assert torch.equal(found, q[wanted[rank].copy()])
    (found * weights[wanted[rank].copy()]).sum().backward()
    dist.all_reduce(x.grad)
    sees = torch.zeros(100, 1, 1)
    sees[np.concatenate(wanted)] = 1
    assert torch.equal(x.grad, weights * sees)

    # The loss of a DTensor is one loss, whatever its placement: no rank counts it again.
    whole = torch.cat([q, q], 1)[:, : 2 * ranks]
    for placement in (Shard(0), Shard(1), Shard(-2), Replicate()):
        for start in (Replicate(), Shard(0)):
            x = distribute_tensor(whole, mesh, [start]).requires_grad_()
            here = dispatch(x, plan)
            assert torch.equal(here, whole[torch.tensor(plan.local_tokens(rank))])
            found = undispatch(here.tanh(), plan, mesh, placement)
            assert found.placements[0].is_shard() == placement.is_shard()
            assert torch.equal(found.full_tensor(), whole.tanh())
            factors = distribute_tensor(whole.cos(), mesh, found.placements)
            (found * factors).sum().backward()
            assert x.grad.placements == (start,)
            slope = whole.cos() * (1 - whole.tanh() ** 2)
            torch.testing.assert_close(x.grad.full_tensor(), slope)
    own = dispatch(whole, plan)
    for token in (-1, 100):
        with pytest.raises(
            RunError, match=f"wanted tokens 0 to 99, rank 1 has {min(5, token)} to {max(5, token)}"
        ):
            undispatch(own, plan, mesh, [np.arange(3), np.array([token, 5]), *wanted[2:]])
    with pytest.raises(RunError, match=f"for each of {ranks} ranks, got {ranks - 1} lists"):
        undispatch(own, plan, mesh, wanted[1:])
    with pytest.raises(RunError, match="needs a DeviceMesh as group, got None"):
        undispatch(own, plan, None, Shard(0))
    with pytest.raises(RunError, match=f"expected dim 1 to divide by {ranks}, got"):
        undispatch(own[:, 1:], plan, mesh, Shard(1))
    copy = undispatch(own[:, 1:], plan, mesh, Replicate())  # no dim needs to divide
    assert torch.equal(copy.to_local(), whole[:, 1:])


def what_is_no_plan_of_the_group_and_no_tensor_is_refused(executor, ranks):
    plan, (q, kv, _) = make("full", 6, ranks)
    says = f"for {ranks + 1} devices, the process group has {ranks} ranks"
    with pytest.raises(RunError, match=says):
        executor.prepare(make("causal", 5, ranks + 1)[0])
    with pytest.raises(RunError, match=r"expected a Plan, got str; a file gives one by read_plan"):
        executor.prepare("x.dcpplan")
    executor.prepare(plan)
    with pytest.raises(RunError, match="expected q to be a tensor, got ndarray"):
        DCPAttn.apply(executor, q.numpy(), kv)
    with pytest.raises(RunError, match="expected kv to be a tensor, got NoneType"):
        DCPAttn.apply(executor, q, None)
    for n in (1, 3):
        with pytest.raises(RunError, match=rf"kv as one tensor or as \(k, v\), got a tuple of {n}"):
            DCPAttn.apply(executor, q, (kv[:, 0],) * n)
    with pytest.raises(RunError, match="at most 86400 s, got nan s"):
        DCPExecutor(timeout_s=float("nan"))


def a_rank_outside_the_group_is_refused(executor, ranks):
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        DCPExecutor(group).close()
        return
    with pytest.raises(RunError, match=f"rank {dist.get_rank()} is not one of the group's ranks"):
        DCPExecutor(group)


def ranks_that_have_other_groups_meet_all_the_same(executor, ranks):
    """torch names groups by counts of those before, which are not the same on all ranks."""
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        DCPExecutor(group).close()
    for _ in range(2):
        DCPExecutor(timeout_s=20).close()
    assert dist.get_process_group_ranks(dist.new_group(range(ranks))) == list(range(ranks))


def error_on_one_rank_is_named_on_all(executor, ranks):
    """Last: it breaks the groups."""
    plan, qkv = make("full", 6, ranks)
    executor.prepare(plan)
    mine = leaves(plan, *qkv[:2])
    if dist.get_rank() == 1:

        def fail(*arguments):
            raise ValueError("the kernel met a bad value")

        CpuKernel.forward = fail
        with pytest.raises(ValueError, match="bad value"):
            DCPAttn.apply(executor, *mine[:2])
        return
    says = "rank 1 failed in division 0 of forward: ValueError: the kernel met"
    with pytest.raises(RunError, match=says) as caught:
        # Rank 1 may have sent all that this forward needs before it failed.
        DCPAttn.apply(executor, *mine[:2]).backward(qkv[2][mine[2]])
    assert (caught.value.rank, caught.value.division) == (1, 0)


SCENARIOS = (
    gathered_timeline_holds_all_ranks,
    tensors_by_token_go_to_their_ranks_and_come_back,
    rows_go_where_they_are_wanted,
    what_is_no_plan_of_the_group_and_no_tensor_is_refused,
    a_rank_outside_the_group_is_refused,
    ranks_that_have_other_groups_meet_all_the_same,
    error_on_one_rank_is_named_on_all,
)


def main():
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    results = {}
    with pytest.raises(RunError, match="init_process_group"):
        DCPExecutor()
    results["missing_process_group_is_explained"] = "ok"
    store, limit = dist.FileStore(str(folder / "store"), size), timedelta(seconds=300)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    executor = DCPExecutor(timeout_s=60)
    for scenario in SCENARIOS:
        try:
            scenario(executor, size)
            results[scenario.__name__] = "ok"
        except Exception:
            results[scenario.__name__] = traceback.format_exc()
    (folder / f"result-{rank}.json").write_text(json.dumps(results))


RANKS = 3


@pytest.mark.dist
def test_every_scenario_passes_on_every_rank(tmp_path, start_python):
    forks = [
        start_python(__file__, tmp_path, rank, RANKS, folder=tmp_path, PYTHONWARNINGS="error")
        for rank in range(RANKS)
    ]
    try:
        for fork in forks:
            fork.wait(250)
    finally:
        for fork in forks:
            fork.kill()
    logs = [fork.err.read_text() for fork in forks]
    files = [tmp_path / f"result-{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), logs
    for file in files:
        found = json.loads(file.read_text())
        assert len(found) == 8
        failed = [f"{name}: {said}" for name, said in found.items() if said != "ok"]
        assert not failed, "\n".join(failed)


if __name__ == "__main__":
    main()
