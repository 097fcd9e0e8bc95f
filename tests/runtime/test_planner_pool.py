"""Plans made ahead in processes of their own, or by one rank for all: they are the same plans."""

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
from loader_options import SMALL, make_loader

from dcp_dsl import DatasetError, DCPError, Spec
from dcp_planner import Cluster, PlanConfig, PlanFileError, digest
from dcp_planner.workers.process import WorkerProcess
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.data.planner_pool import MOST_FAILED_STARTS, PlannerPool
from dcp_runtime.transport.loopback import LoopbackWorld

pytestmark = [pytest.mark.dist, pytest.mark.timing]

SPEC = Spec.from_text('mask band(w: tokens = 20) = causal and q - k < w\nfor "*" use band(w = 30)')
ROWS = [{"tokens": list(range(n))} for n in (60, 50, 40, 30, 64)]
OPTIONS = {**SMALL, "cluster": Cluster(devices_per_node=2), "rank": 0}


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


SCRIPT = '''
import os, signal, sys, time, warnings
import torch, torch.distributed as dist
from dcp_dsl import DatasetError, Mask, Spec
from dcp_planner import Cluster, PlanConfig, digest
from dcp_planner.plan import PlanPart
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, RunError, StackedPlans
sys.path.insert(0, HERE)
from loader_options import SMALL as OPTIONS, make_loader

dist.init_process_group("gloo")
rank = dist.get_rank()
MASK = Spec.from_text("mask band = causal and q - k < 30").mask("band")
ROWS = [{"tokens": list(range(n))} for n in (60, 50, 40, 30, 64)]

def attend(executor, loader):
    """Outputs of all batches, with q, k and v that depend on the tokens alone."""
    found = []
    for data, plan in loader:
        executor.prepare(plan)
        x = (data.tokens + data.position_ids * 0.5 + data.sequence_ids)[:, None, None].float()
        q, kv = torch.cos(x * torch.arange(1, 17).view(2, 8)), torch.sin(x * torch.arange(1, 17)
            .view(2, 1, 8)[:, :, None].flatten(1, 2).view(2, 8)).view(-1, 2, 1, 8)
        found.append((data.rows, DCPAttn.apply(executor, q, kv), plan.cu_seqlens.tolist()))
    return found

def alike(executor, planners):
    each = make_loader(ROWS, MASK, **OPTIONS)
    digests = [digest(plan) for _, plan in each]
    first = make_loader(ROWS, MASK, planner="first", processes=planners, **OPTIONS)
    parts = [plan for _, plan in first]
    assert all(isinstance(part, PlanPart) and part.device == rank for part in parts)
    assert [part.digest for part in parts] == digests
    for one, other in zip(attend(executor, first), attend(executor, each), strict=True):
        assert one[0] == other[0] and one[2] == other[2]
        assert torch.equal(one[1], other[1])
    assert first.metrics.plans == 2 * len(digests) and first.metrics.lost == 0
    first.close()

def killed(executor):
    loader = make_loader(ROWS, MASK, planner="first", processes=1, ahead=2,
                           **{**OPTIONS, "config": PlanConfig("static:zigzag", divisions=3)})
    batches = iter(loader)
    seen = [next(batches)]
    if rank == 0:  # stopped first: a batch is in its hands when it is killed
        pool = loader._plans.pool
        pids, submit = [*pool.processes], pool.submit_parts
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        def submit_and_kill(request):
            pool.submit_parts, waiting = submit, submit(request)
            time.sleep(0.5)  # it is handed over, unless another one still is there
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return waiting
        pool.submit_parts = submit_and_kill
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen += list(batches)
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, [part.digest for _, part in seen])
    assert digests.count(digests[0]) == len(digests)
    if rank == 0:
        assert loader.metrics.lost >= 1, loader.metrics
        assert "the batch is placed by 'static:contiguous'" in str(caught[0].message)
        assert "static:contiguous" in {part.plan.partitioner for _, part in seen}
    loader.close()

LAYERS = Spec.from_text(
    "segment s = part[parts]*\\nmask own = causal and same(part)\\n"
    'mask band = causal and q - k < 9\\nstack mixed = 2 of band, own\\nfor "*" use mixed')
PARTS = [{"tokens": list(range(sum(n))), "parts": n} for n in ([20, 30], [9], [40], [5, 50])]
PARTS[1]["parts"] = [10]  # more than its tokens: no mask can be compiled for this row
PARTS.append({"tokens": list(range(64)), "parts": [65]})  # alone in its batch

def only_the_planner_compiles_masks(executor, processes):
    options = {**OPTIONS, "policy": "skip"}
    each = make_loader(PARTS, LAYERS, **options)
    wanted = [(data.rows, plan.digests, plan.cycle) for data, plan in each]
    assert [rows for rows, _, _ in wanted] == [(0,), (2,), (3,)]
    assert all(cycle == (0, 0, 1) for _, _, cycle in wanted)
    compile_mask, compiled = Mask.compile, []
    Mask.compile = lambda self, sample: compiled.append(sample) or compile_mask(self, sample)
    first = make_loader(PARTS, LAYERS, planner="first", processes=processes, **options)
    try:
        found = list(first)
    finally:
        Mask.compile = compile_mask
        first.close()
    assert bool(compiled) == (rank == 0 and not processes), len(compiled)
    assert [(data.rows, plan.digests, plan.cycle) for data, plan in found] == wanted
    assert all(isinstance(plan, StackedPlans) for _, plan in found)
    assert all(part.device == rank for _, plan in found for part in plan.plans)
    assert first.screening.counts == each.screening.counts == {"unfit": 2}
    assert first.screening.examples == each.screening.examples
    layers = LayerPlans.prepare(executor, found[0][1])
    assert layers.of(4).plan is layers.of(0).plan is not layers.of(2).plan
    tokens = len(found[0][0].tokens)
    DCPAttn.apply(layers.of(4), torch.ones(tokens, 2, 8), torch.ones(tokens, 2, 1, 8))
    strict = make_loader(PARTS, LAYERS, planner="first", processes=processes, **OPTIONS)
    try:
        list(strict)
    except DatasetError as error:
        assert str(error).startswith("row 1: segment `s`"), error
    else:
        raise AssertionError("row 1 does not fit its mask")
    strict.close()

OWN = Spec.from_text("segment s = part[parts]*\\nmask own = causal and same(part)").mask("own")

def targets_and_columns_are_alike(executor):
    rows = [{"tokens": list(range(sum(n))), "parts": n, "x": [i / 7 for i in range(sum(n))]}
            for n in ([20, 1, 1, 8], [9], [10, 30], [50, 5, 5])]
    options = {**OPTIONS, "hidden_targets": "leave_out", "extra_columns": ("x",)}
    each = make_loader(rows, OWN, **options)
    first = make_loader(rows, OWN, planner="first", processes=1, **options)
    for (one, _), (other, _) in zip(each, first, strict=True):
        assert one.num_targets == other.num_targets
        for name in ("labels", "target_rows", "target_ids", "position_ids"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert torch.equal(one.extra["x"], other.extra["x"])
        assert torch.equal(one.target_extra["x"], other.target_extra["x"])
    first.close()
    assert each.screening.hidden_targets == first.screening.hidden_targets == 3 + 1 + 2
executor = DCPExecutor()
for scenario in (lambda e: alike(e, 0), lambda e: alike(e, 1), killed,
                 lambda e: only_the_planner_compiles_masks(e, 0),
                 lambda e: only_the_planner_compiles_masks(e, 1),
                 targets_and_columns_are_alike):
    scenario(executor)
    dist.barrier()
try:
    make_loader(ROWS, MASK, planner="first", cluster=Cluster(devices_per_node=7), **OPTIONS)
except RunError as error:
    assert "a replica has 7 devices, the group 3 ranks" in str(error)
    print("fine", flush=True)
executor.close()
dist.destroy_process_group()
'''


HERE = str(Path(__file__).parent)


def test_parts_are_those_of_the_plan_every_rank_would_make(tmp_path, start_ranks):
    script = tmp_path / "shared.py"
    script.write_text(f"HERE = {HERE!r}\n{SCRIPT}", encoding="utf-8")
    assert start_ranks(3, script, tmp_path) == ["fine\n"] * 3
