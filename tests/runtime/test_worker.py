"""Replies of a rank whose job fails."""

import numpy as np
import pytest
import torch

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_planner.tables import Attention, CommWait
from dcp_runtime import RunConfig, RunError
from dcp_runtime.launch import worker
from dcp_runtime.launch.worker import progress_of
from dcp_runtime.transport.recorder import Activity, Recorder


def test_progress_counts_every_step_and_names_who_computes():
    ranks = [Recorder(0), Recorder(1)]
    ranks[0].begin(Activity(CommWait(0, 1), 1, "forward"))
    assert progress_of(ranks) == {"steps": 1, "doing": None}  # who waits is not to blame
    ranks[1].begin(Activity(Attention(2, (0,)), 2, "forward"))
    assert progress_of(ranks) == {
        "steps": 2, "doing": "attention in division 2 of forward", "division": 2, "rank": 1,
    }  # fmt: skip
    ranks[1].begin(None)
    assert progress_of(ranks) == {"steps": 3, "doing": None}


def test_a_run_checks_for_what_is_not_finite_only_if_asked(lab, monkeypatch):
    sparsity, shape = lab.sparsity_of([lab.masks["causal"](32)], 16), ModelShape(2, 1, 8, 4)
    plan = build_plan(sparsity, shape, Cluster(devices_per_node=1), PlanConfig("static:zigzag"))
    spoilt = worker.random_inputs(plan, plan.local_blocks(0).tolist(), 0, 0, torch.float32)
    spoilt.q[3] = torch.nan
    monkeypatch.setattr(worker, "random_inputs", lambda *_: spoilt)
    found = worker.run_job(RunConfig(1, transport="loopback", verify=True), plan, 60, [])
    assert np.isnan(found["0/out0"][3]).all()
    with pytest.raises(RunError, match=r"16 values that are not finite.*at local token 3"):
        worker.run_job(RunConfig(1, transport="loopback", check_finite=True), plan, 60, [])


def test_ranks_that_take_turns_run_without_overlap_too(lab):
    sparsity, shape = lab.sparsity_of([lab.masks["causal"](64)], 16), ModelShape(2, 1, 8, 4)
    plan = build_plan(sparsity, shape, Cluster(1, 2), PlanConfig("static:contiguous"))
    config = RunConfig(2, transport="loopback", overlap=False)
    found = worker.run_job(config, plan, 60, [])
    assert {"0/prepare_s", "1/prepare_s", "trace"} <= set(found)


@pytest.mark.parametrize(
    ("gloo", "said"),
    [
        ("[/src/buffer.cc:78] Timed out waiting 1ms for recv operation", "0.5 s long"),
        ("[/src/pair.cc:5] Connection closed by peer", "until its connection broke"),
        ("something\nelse", "something"),
    ],
)
def test_a_collective_that_fails_is_said_in_words(gloo, said):
    with (
        pytest.raises(RunError, match=f"^lost contact with another rank while starting: {said}$"),
        worker._collective("starting", 0.5),
    ):
        raise RuntimeError(gloo)
