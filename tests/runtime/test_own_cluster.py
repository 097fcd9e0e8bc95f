"""The cluster that a loader plans for where its user names none."""

import pytest
import torch
import torch.distributed as dist

from dcp_planner import preset
from dcp_runtime.plans import own_cluster
from dcp_runtime.plans.own_cluster import cluster_of_ranks, machine_name


@pytest.mark.parametrize(
    ("has_gpus", "backends", "gpus", "name"),
    [
        (False, None, (), "cpu-gloo"),
        (True, None, ("NVIDIA H200",), "h200-dgx"),
        (True, "cpu:gloo,cuda:nccl", ("NVIDIA H200",), "h200-dgx"),
        (True, "cpu:gloo,cuda:nccl", (), "h100-dgx"),  # the container hides the drivers' files
        (False, "cpu:gloo,cuda:nccl", (), "cpu-gloo"),
        (True, "cpu:gloo,cuda:gloo", ("NVIDIA H200",), "cpu-gloo"),
    ],
)
def test_the_cluster_is_that_of_the_ranks(monkeypatch, caplog, has_gpus, backends, gpus, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(dist, "is_initialized", lambda: backends is not None)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(own_cluster, "gpus_here", lambda: gpus)
    assert cluster_of_ranks(6) == preset(name, 1, 6)
    assert machine_name(on_gpu=name != "cpu-gloo") == name
    assert not caplog.records


def test_a_gpu_without_a_preset_is_said(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(own_cluster, "gpus_here", lambda: ("NVIDIA L40S",))
    assert cluster_of_ranks(2) == preset("a100-p4de", 1, 2)
    (record,) = caplog.records
    assert "no preset describes NVIDIA L40S: batches are planned for a100-p4de" in record.message
    assert machine_name(on_gpu=True) == "NVIDIA L40S"
