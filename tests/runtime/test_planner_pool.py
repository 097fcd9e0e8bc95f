"""Plans made ahead in processes of their own: the same plans, whatever happens to a process."""

import errno
import gc
import os
import signal
import sys
import warnings
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from loader_options import make_loader

from dcp_dsl import DatasetError, DCPError, Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, PlanFileError, digest
from dcp_planner.workers.process import WorkerProcess
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.data.planner_pool import MOST_FAILED_STARTS, PlannerPool
from dcp_runtime.transport.loopback import LoopbackWorld

pytestmark = [pytest.mark.dist, pytest.mark.timing]

SPEC = Spec.from_text('mask band(w: tokens = 20) = causal and q - k < w\nfor "*" use band(w = 30)')
ROWS = [{"tokens": list(range(n))} for n in (60, 50, 40, 30, 64)]
OPTIONS = {
    "token_budget": 64,
    "block_size": 8,
    "cluster": Cluster(devices_per_node=2),
    "shape": ModelShape(2, 1, 8, 4),
    "config": PlanConfig(partitioner="static:zigzag"),
    "rank": 0,
}


def digests_of(loader):
    return [digest(plan) for _, plan in loader]


@pytest.fixture(scope="module")
def own():
    """The plans that this process makes."""
    return digests_of(make_loader(ROWS, SPEC, **OPTIONS))


def test_plans_of_a_process_are_those_of_this_one(own):
    with make_loader(ROWS, SPEC, processes=2, ahead=3, **OPTIONS) as loader:
        plans = [plan for _, plan in loader]
        assert [digest(plan) for plan in plans] == own
        assert all(plan.provenance is not None for plan in plans)
        assert loader.metrics.plans == len(own)
        assert loader.metrics.lost == 0
        assert digests_of(loader) == own
        assert loader.metrics.cached == len(own)  # the second epoch has the same batches


def test_planning_is_hidden_behind_the_step():
    with make_loader(ROWS, SPEC, processes=1, ahead=4, **OPTIONS) as loader:
        for number, _ in enumerate(loader):
            if number == 0:
                waited = loader.metrics.waited_s
                under_way = [batch.pending.future for batch in loader._waiting]
                futures.wait(under_way, timeout=250)  # a long training step
        assert loader.metrics.waited_s - waited < waited  # only the first plan was waited for
        assert len(under_way) == 4
        assert 0 <= loader.metrics.hidden_share <= 1
        assert loader.metrics.queued == 0


def test_a_killed_process_is_replaced_and_its_batch_planned_here(own, monkeypatch):
    send, requests = WorkerProcess.send, []

    def send_and_kill_once(process, frame, limit_s):
        send(process, frame, limit_s)
        requests.extend([frame] if frame else [])
        if frame and len(requests) == 2:
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(WorkerProcess, "send", send_and_kill_once)
    says = "was killed by SIGKILL; the batch is planned again"
    with (
        make_loader(ROWS, SPEC, processes=1, ahead=2, **OPTIONS) as loader,
        pytest.warns(RuntimeWarning, match=says),
    ):
        assert digests_of(loader) == own
    assert len(requests) == len(own)
    assert loader.metrics.lost == 1


def test_a_planner_that_stands_still_does_not_outlast_the_patience_of_others(monkeypatch):
    """The executor waits 2 s for a rank; the planner's own limit is two minutes."""
    send, requests = WorkerProcess.send, []

    def send_and_stop_once(process, frame, limit_s):
        requests.extend([frame] if frame else [])
        if frame and len(requests) == 3:
            os.kill(process.pid, signal.SIGSTOP)
        send(process, frame, limit_s)

    monkeypatch.setattr(WorkerProcess, "send", send_and_stop_once)
    says = r"no plan within 1 s, half of the time that other ranks wait for this one"

    def train(transport):
        executor, found = DCPExecutor(transport=transport), []
        with make_loader(ROWS, SPEC, processes=1, ahead=1, **OPTIONS) as loader:
            for data, plan in loader:
                found.append(digest(plan))
                q = torch.ones(len(data.tokens), 2, 8)
                DCPAttn.apply(executor.prepare(plan), q, torch.ones(len(q), 2, 1, 8))
            return found, loader.metrics.lost

    monkeypatch.setitem(OPTIONS, "cluster", Cluster(1, 1))
    with pytest.warns(RuntimeWarning, match=says) as caught:
        ((found, lost),) = LoopbackWorld(1, timeout_s=2.0).run(train)
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}
    assert found == digests_of(make_loader(ROWS, SPEC, **OPTIONS))
    assert lost >= len(ROWS) - 2  # that plan, and those that wait behind it


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("dcp_runtime.data.planner_pool.decode_plan", PlanFileError("damaged")),
        ("dcp_planner.workers.worker.threading.Thread.start", RuntimeError("can't start thread")),
        ("dcp_planner.workers.process.socket.socketpair", OSError(errno.EMFILE, "Too many files")),
    ],
)
def test_whatever_keeps_a_planner_from_answering_its_batch_is_planned_here(
    own, monkeypatch, target, error
):
    with make_loader(ROWS[:3], SPEC, processes=1, ahead=2, **OPTIONS) as loader:
        with monkeypatch.context() as patched:
            patched.setattr(target, Mock(side_effect=error))
            with pytest.warns(RuntimeWarning, match=r"planned again here|this process plans"):
                assert digests_of(loader) == own[:3]
        assert loader.metrics.lost >= 1


def test_what_the_planner_refuses_is_said_as_without_processes():
    request = next(iter(make_loader(ROWS[:1], SPEC, **OPTIONS)._coming())).pending.request
    sample = replace(request.sequences[0], row=7, sample='{"len": 0, "x": 1.5}')
    pool = PlannerPool(1, time_limit_s=60)
    for error, change in (
        (RunError, {"masks": (request.masks[0]._replace(call="nonsense"),)}),
        (RunError, {"config": PlanConfig(partitioner="none")}),
        (DatasetError, {"sequences": (sample,)}),
    ):
        with pytest.raises(DCPError) as here:
            plan_request(replace(request, **change))
        with pytest.raises(error) as there:
            pool.submit(replace(request, **change)).result(timeout=250)
        assert str(there.value) == str(here.value)
    found, seconds = pool.submit(request).result(timeout=250)  # the process goes on
    assert seconds > 0
    assert [batch.plan.num_devices for batch in found.batches] == [2]
    (pid,) = pool.processes
    pool.close()
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_processes_end_with_the_loader_that_nobody_holds():
    loader = make_loader(ROWS, SPEC, processes=1, **OPTIONS)
    next(iter(loader))
    (pid,) = loader._plans.pool.processes
    assert is_running(pid)
    del loader
    gc.collect()
    assert not is_running(pid)


UNFINISHED = """
import sys
from loader_options import make_loader
from test_planner_pool import OPTIONS, ROWS, SPEC
loader = make_loader(ROWS, SPEC, processes=1, ahead=3, **OPTIONS)
for _ in loader:
    print(*loader._plans.pool.processes)
    break
"""


def test_processes_end_with_a_script_that_leaves_its_loop(tmp_path, start_python):
    script = tmp_path / "unfinished.py"
    script.write_text(UNFINISHED)
    fork = start_python(script, folder=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert fork.wait(250) == 0, fork.err.read_text()
    assert "Error" not in fork.err.read_text()
    assert not is_running(int(fork.out.read_text()))


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/program"])
def test_where_no_process_starts_this_one_plans(own, program, monkeypatch):
    loader = make_loader(ROWS, SPEC, processes=1, **OPTIONS)
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        patched.setattr(sys, "executable", program)
        assert digests_of(loader) == own
        assert digests_of(loader) == own
    assert 1 <= len(told) == loader.metrics.lost <= MOST_FAILED_STARTS
    assert str(told[-1].message).endswith("from now on this process plans, when a batch is needed")


def test_a_closed_loader_plans_in_this_process(own):
    loader = make_loader(ROWS, SPEC, processes=1, ahead=3, **OPTIONS)
    batches = iter(loader)
    found = [digest(next(batches)[1])]
    loader.close()
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        found += digests_of(batches)
    assert found == own
