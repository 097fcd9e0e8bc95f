"""Blocks through symmetric memory: real processes, a stand-in for what needs a GPU."""

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dcp_runtime import DCPExecutor, RunError
from dcp_runtime.transport import symmetric_memory
from dcp_runtime.transport.symmetric_memory import CopyStream, check_device

SCRIPT = Path(__file__).with_name("symmetric_scenarios.py")


@pytest.mark.dist
@pytest.mark.timing
@pytest.mark.parametrize(("ranks", "nodes"), [pytest.param(3, 1, marks=pytest.mark.slow), (4, 2)])
def test_scenarios_on_real_processes(tmp_path, start_ranks, ranks, nodes):
    for said in start_ranks(ranks, SCRIPT, tmp_path, tmp_path, nodes):
        assert len(said.splitlines()) == 5, said


@pytest.fixture
def machine(monkeypatch):
    """Two GPUs that reach each other, as torch and the environment tell of them."""
    for name in (symmetric_memory.OVERLAPPING, symmetric_memory.QUEUES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda mine, other: other < 2)
    monkeypatch.setattr(symmetric_memory.symm_mem, "get_backend", lambda device: "CUDA")
    return monkeypatch


def test_gpus_that_reach_each_other_are_taken(machine):
    check_device(0, [1])
    machine.setenv(symmetric_memory.OVERLAPPING, "1")
    machine.setenv(symmetric_memory.QUEUES, "32")
    check_device(0, [0, 1])


@pytest.mark.parametrize(
    ("mine", "others", "backend", "queues", "says"),
    [
        (-1, [0], "CUDA", "8", "needs CUDA, and torch sees no device"),
        (0, [], "CUDA", "8", "needs ranks that share a machine"),
        (0, [1, 0], "CUDA", "8", "expected a GPU for each rank, got cuda:0 for two"),
        (0, [1, 2], "CUDA", "8", "cuda:0 cannot read the memory of cuda:2"),
        (0, [1], "CUDA", "1", "expected CUDA_DEVICE_MAX_CONNECTIONS of at least 8, got 1"),
        (0, [1], "NVSHMEM", "1", "on the backend CUDA, got NVSHMEM"),
    ],
)
def test_other_machines_are_refused(machine, mine, others, backend, queues, says):
    machine.setenv(symmetric_memory.QUEUES, queues)
    machine.setattr(symmetric_memory.symm_mem, "get_backend", lambda device: backend)
    with pytest.raises(RunError, match=says):
        check_device(mine, others)


@pytest.mark.parametrize("version", ["2.15.0.dev20261101+cu130", "2.15.0", "3.0.1+cu140"])
def test_a_torch_whose_signals_wait_for_each_other_is_refused(machine, version):
    machine.setattr(torch, "__version__", version)
    with pytest.raises(RunError, match=r"needs a torch before 2\.15, this is "):
        check_device(0, [1])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("symmetric", "needs CUDA"),
        ("nvlink", "expected transport 'symmetric', a Transport or None"),
    ],
)
def test_an_executor_without_cuda_refuses(tmp_path, name, says):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(RunError, match=says):
            DCPExecutor(transport=name)
    finally:
        torch.distributed.destroy_process_group()


def test_streams_wait_for_each_other_as_they_say(monkeypatch):
    """CUDA is told this, in order; its streams do not wait for anything else."""
    told, current = [], ["compute"]

    class Stream:
        def __init__(self, priority):
            told.append(("priority", priority))

        def wait_stream(self, other):
            told.append(("copies wait for", other))

    @contextmanager
    def entered(stream):
        current.append("copies")
        yield
        current.pop()

    def event():
        return SimpleNamespace(record=lambda stream: told.append("marked"), query=lambda: True)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda: SimpleNamespace(
            name=current[-1], wait_event=lambda event, who=current[-1]: told.append((who, "waits"))
        ),
    )
    stream = CopyStream()
    stream.follow()
    assert told.pop()[1].name == "compute"
    stream.run(lambda: told.append(("copied on", current[-1])))
    mark = stream.mark()
    mark.wait()
    stream.run(mark.wait)
    assert mark.is_completed()
    assert told == [
        ("priority", -1), ("copied on", "copies"), "marked", ("compute", "waits"),
        ("copies", "waits"),
    ]  # fmt: skip


def test_other_transports_do_without_symmetric_memory(monkeypatch):
    for name in ("symmetric_transport", "symmetric_memory"):
        monkeypatch.setitem(sys.modules, f"dcp_runtime.transport.{name}", None)
    found = importlib.util.find_spec("dcp_runtime.execute.executor")
    found.loader.exec_module(importlib.util.module_from_spec(found))
