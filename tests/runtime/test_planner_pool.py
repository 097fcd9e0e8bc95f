"""Plans made ahead in processes of their own: the same plans, whatever happens to a process."""

import errno
import gc
import os
import signal
import sys
import warnings
from concurrent import futures
from dataclasses import replace

import pytest
from loader_options import make_loader

from dcp_dsl import DatasetError, DCPError, Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, PlanFileError, digest
from dcp_planner.workers import WorkerLost
from dcp_planner.workers.process import WorkerProcess
from dcp_runtime import RunError
from dcp_runtime.data import planner_pool
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.data.planner_pool import (
    MOST_FAILED_STARTS,
    PlannerPool,
    PlanRequest,
)

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


@pytest.fixture
def pool():
    pool = PlannerPool(1, time_limit_s=60)
    yield pool
    pool.close()
    assert all(not os.path.exists(f"/proc/{pid}") for pid in pool.processes)


def request_of(row: int = 0) -> PlanRequest:
    """Catch the request that a loader makes for its first batch."""
    loader = make_loader(ROWS[row : row + 1], SPEC, **OPTIONS)
    return next(iter(loader._coming())).pending.request


def test_plans_of_a_process_are_those_of_this_one():
    own = [digest(plan) for _, plan in make_loader(ROWS, SPEC, **OPTIONS)]
    loader = make_loader(ROWS, SPEC, processes=2, ahead=3, **OPTIONS)
    try:
        plans = [plan for _, plan in loader]
        assert [digest(plan) for plan in plans] == own
        assert all(plan.provenance is not None for plan in plans)
        assert loader.metrics.plans == len(own)
        assert loader.metrics.lost == 0
        assert [digest(plan) for _, plan in loader] == own
        assert loader.metrics.cached == len(own)  # the second epoch has the same batches
    finally:
        loader.close()


def test_what_a_process_says_of_hidden_tokens_is_what_this_one_finds(pool):
    spec = Spec.from_text('segment s = part[parts]*\nfor "*" use causal and same(part)')
    rows = [{"tokens": list(range(sum(n))), "parts": n} for n in ([20, 1, 1, 8], [9], [10, 15])]
    loader = make_loader(rows, spec, **OPTIONS)
    request = next(iter(loader._coming())).pending.request
    found, _ = pool.submit(request).result(timeout=250)
    assert found.hidden == plan_request(request).hidden == ((19, 22), (48, 49))


def test_planning_is_hidden_behind_the_step():
    loader = make_loader(ROWS, SPEC, processes=1, ahead=4, **OPTIONS)
    try:
        for number, _ in enumerate(loader):
            if number == 0:
                waited = loader.metrics.waited_s
                under_way = [batch.pending.future for batch in loader._waiting]
                futures.wait(under_way, timeout=250)  # a long training step
        assert loader.metrics.waited_s - waited < waited  # only the first plan was waited for
        assert len(under_way) == 4
        assert 0 <= loader.metrics.hidden_share <= 1
        assert loader.metrics.queued == 0
    finally:
        loader.close()


def test_a_killed_process_is_replaced_and_its_batch_planned_here(monkeypatch):
    own = [digest(plan) for _, plan in make_loader(ROWS, SPEC, **OPTIONS)]
    loader = make_loader(ROWS, SPEC, processes=1, ahead=2, **OPTIONS)
    send, requests = WorkerProcess.send, []

    def send_and_kill_once(process, frame, limit_s):
        send(process, frame, limit_s)
        requests.extend([frame] if frame else [])
        if frame and len(requests) == 2:
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(WorkerProcess, "send", send_and_kill_once)
    try:
        with pytest.warns(
            RuntimeWarning, match="was killed by SIGKILL; the batch is planned again"
        ):
            assert [digest(plan) for _, plan in loader] == own
        assert len(requests) == len(own)
        assert loader.metrics.lost == 1
    finally:
        loader.close()


@pytest.mark.parametrize("fault", ["damaged answer", "no thread", "too many open files"])
def test_whatever_keeps_a_planner_from_answering_its_batch_is_planned_here(monkeypatch, fault):
    own = [digest(plan) for _, plan in make_loader(ROWS[:3], SPEC, **OPTIONS)]

    def fail(error):
        def failing(*_, **__):
            raise error

        return failing

    match fault:
        case "damaged answer":
            monkeypatch.setattr(planner_pool, "decode_plan", fail(PlanFileError("damaged")))
        case "no thread":
            no_thread = RuntimeError("can't start new thread")
            monkeypatch.setattr(
                "dcp_planner.workers.worker.threading.Thread.start", fail(no_thread)
            )
        case _:
            full = OSError(errno.EMFILE, "Too many open files")
            monkeypatch.setattr("dcp_planner.workers.process.socket.socketpair", fail(full))
    loader = make_loader(ROWS[:3], SPEC, processes=1, ahead=2, **OPTIONS)
    try:
        with pytest.warns(RuntimeWarning, match=r"planned again here|this process plans"):
            assert [digest(plan) for _, plan in loader] == own
        assert loader.metrics.lost >= 1
    finally:
        monkeypatch.undo()
        loader.close()


def test_a_plan_that_takes_too_long_ends_its_process():
    pool = PlannerPool(1, time_limit_s=0.01)  # no planner loads its modules that fast
    try:
        with pytest.raises(WorkerLost, match=r"the planner .* took longer than 0\.01 s"):
            pool.submit(request_of()).result(timeout=250)
    finally:
        pool.close()


def test_a_process_whose_answer_cannot_be_read_is_ended(pool, monkeypatch):
    monkeypatch.setattr(planner_pool, "decode_plan", int)  # a ValueError
    with pytest.raises(WorkerLost, match="the planner's answer cannot be read"):
        pool.submit(request_of()).result(timeout=250)
    assert pool.processes == ()


def test_what_the_planner_refuses_is_said(pool):
    request = request_of()
    bad = replace(request, masks=(request.masks[0]._replace(call="nonsense"),))
    with pytest.raises(RunError, match="nonsense"):
        pool.submit(bad).result(timeout=250)
    sample = replace(request.sequences[0], row=7, sample='{"len": 0, "x": 1.5}')
    with pytest.raises(DatasetError, match="expected integers or lists of integers"):
        pool.submit(replace(request, sequences=(sample,))).result(timeout=250)
    found, seconds = pool.submit(request).result(timeout=250)  # the process goes on
    assert seconds > 0
    assert [batch.plan.num_devices for batch in found.batches] == [2]


def test_a_batch_that_cannot_be_planned_is_refused_as_without_processes():
    options = {**OPTIONS, "config": PlanConfig(partitioner="none")}
    messages = []
    for planners in (0, 1):
        loader = make_loader(ROWS, SPEC, processes=planners, **options)
        try:
            with pytest.raises(DCPError) as caught:
                next(iter(loader))
            messages.append(str(caught.value))
        finally:
            loader.close()
    assert messages[0] == messages[1]


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
def test_where_no_process_starts_this_one_plans(program, monkeypatch):
    own = [digest(plan) for _, plan in make_loader(ROWS, SPEC, **OPTIONS)]
    loader = make_loader(ROWS, SPEC, processes=1, **OPTIONS)
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        patched.setattr(sys, "executable", program)
        assert [digest(plan) for _, plan in loader] == own
        assert [digest(plan) for _, plan in loader] == own
    assert 1 <= len(told) == loader.metrics.lost <= MOST_FAILED_STARTS
    assert str(told[-1].message).endswith("from now on this process plans, when a batch is needed")


def test_a_pool_gives_up_with_the_first_worker_that_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    pool, request = PlannerPool(2, time_limit_s=60), request_of()
    for _ in range(2 * MOST_FAILED_STARTS - 1):  # one of the two has failed that often by then
        with pytest.raises(WorkerLost):
            pool.submit(request).result(timeout=250)
    assert pool.cannot_start
    pool.close()


def test_a_closed_loader_plans_in_this_process():
    own = [digest(plan) for _, plan in make_loader(ROWS, SPEC, **OPTIONS)]
    loader = make_loader(ROWS, SPEC, processes=1, ahead=3, **OPTIONS)
    batches = iter(loader)
    found = [digest(next(batches)[1])]
    loader.close()
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        found += [digest(plan) for _, plan in batches]
    assert found == own
