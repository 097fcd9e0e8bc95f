"""Worker processes: what they answer, and that whatever ends them ends nobody else."""

import json
import os
import signal
import time
from urllib.request import Request, urlopen

import pytest

from dcp_dashboard import create_app, start_server
from dcp_dashboard.editing import routes
from dcp_dashboard.editing.routes import Jobs, make_worker
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError, Spec, sample_from_argument
from dcp_planner import (
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    digest,
    preset,
    validate,
)
from dcp_planner.model.cuts import choose_block_size
from dcp_planner.workers import WorkerProgram

pytestmark = [pytest.mark.dist, pytest.mark.timing]
TEXT = """segment doc = [lens]*
mask packed = causal per doc
sample two(lens = [3, 5])
"""


@pytest.fixture(scope="module")
def planner():
    worker = make_worker("plan")
    yield worker
    worker.close()


def wait_for(job, *states):
    while job.state not in states:
        time.sleep(0.02)
    return job


def wait_for_placing(job):
    while not job.stage.startswith("placing"):
        time.sleep(0.02)


def test_a_finished_job_is_the_plan_that_the_planner_makes(planner, tmp_path):
    library = PlanLibrary(tmp_path)
    asked = {
        "task": "plan", "text": TEXT, "mask": "packed", "sample": '{"lens": [300, 724]}',
        "nodes": 2, "devices_per_node": 2, "method": "native", "budget": "fast", "copies": 2,
    }  # fmt: skip
    job = wait_for(Jobs(library, planner).start(asked, 60, "edited/packed"), "done", "failed")
    assert job.message == ""
    kept = library.load(job.key)
    spec = Spec.from_text(TEXT)
    mask = spec.mask("packed")
    bound = [mask.bind(sample_from_argument(spec, '{"lens": [300, 724]}'))] * 2
    cluster, config = preset("a100-p4de", 2, 2), PlanConfig(partitioner="native", budget="fast")
    sparsity = cut_blocks(bound, choose_block_size(bound, cluster, config))
    expected = build_plan(sparsity, ModelShape(), cluster, config)
    validate(kept.plan)
    assert digest(kept.plan) == digest(expected)
    assert kept.plan.provenance.spec == TEXT
    assert kept.plan.provenance.mask == mask.call
    assert job.figures["block"] == expected.blocks.num_tokens.max()
    assert job.figures["pairs"] == 2 * (300 * 301 + 724 * 725) // 2
    assert sum(job.figures["device_pairs"]) == job.figures["pairs"]
    assert sum(job.figures["device_tokens"]) == 2048
    library.session.close()


def test_a_job_that_gets_no_thread_fails_and_keeps_no_other_waiting(tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    jobs = Jobs(PlanLibrary(tmp_path), make_worker("plan"))
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", fail)
        for _ in range(9):
            job = jobs.start({}, 60, "edited/m")
            assert (job.state, job.message[:22]) == ("failed", "can't start new thread")
            assert 0 <= job.to_json()["seconds"] < 60


SLOW = {
    "task": "plan", "text": "mask m = causal", "sample": "4194304", "block": 2048, "nodes": 8,
    "devices_per_node": 8, "method": "native", "budget": "balanced",
}  # fmt: skip


def test_a_cancelled_job_ends_its_process_and_the_one_behind_it_runs(planner, tmp_path):
    library = PlanLibrary(tmp_path)
    jobs = Jobs(library, planner)
    slow = wait_for(jobs.start(SLOW, 120, "slow"), "running")
    quick = jobs.start({"task": "plan", "text": "mask m = causal", "sample": "64"}, 60, "quick")
    assert quick.state == "waiting"
    wait_for_placing(slow)
    pid = planner.pid
    jobs.cancel(slow.number)
    assert wait_for(quick, "done", "failed").state == "done"
    assert (slow.state, slow.key) == ("cancelled", "")
    assert planner.pid != pid
    with pytest.raises(DCPError, match="start it again"):
        jobs.find("0" * 16)
    library.session.close()


def test_a_job_whose_process_is_killed_says_so(planner, tmp_path):
    jobs = Jobs(PlanLibrary(tmp_path), planner)
    job = jobs.start(SLOW, 120, "slow")
    wait_for_placing(job)
    os.kill(planner.pid, signal.SIGKILL)
    wait_for(job, "failed")
    assert "was killed by SIGKILL; the next request starts another" in job.message


def test_the_workers_end_with_their_server(tmp_path, fork_server):
    before = len(fork_server.started)
    with start_server(tmp_path) as server:
        body = json.dumps({"text": TEXT}).encode()
        asked = Request(f"{server.url}api/edit/check", body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=250) as answer:
            assert json.load(answer)["is_usable"]
        deadline = time.monotonic() + 250
        while len(started := fork_server.started[before:]) < 2:
            assert time.monotonic() < deadline  # one checks, one gets ready to preview
            time.sleep(0.02)
        assert [worker.poll() for worker in started] == [None, None]
    assert None not in [worker.poll() for worker in started]


def test_a_slow_text_in_one_tab_keeps_no_other_waiting(tmp_path):
    desk = create_app(tmp_path).server.extensions[routes.DESK]
    checkers = [desk.checker(tab) for tab in "abcd"]
    assert len(set(checkers)) == len(desk.checkers)
    # An unknown tab gets the checker that was asked longest ago.
    assert [desk.checker(tab) for tab in "aeb"] == checkers[:3]
    desk.close()


def test_a_worker_that_is_lost_is_an_answer_too(tmp_path, monkeypatch):
    app = create_app(tmp_path).server
    desk = app.extensions[routes.DESK]

    def check():
        found = app.test_client().post("/api/edit/check", json={"text": TEXT})
        return found.status_code, found.json.get("error")

    assert check() == (200, None)
    with monkeypatch.context() as hurried:
        hurried.setattr(routes, "CHECK_LIMIT_S", 0)
        status, message = check()
    assert status == 200
    assert "took longer than 0 s and was ended; try a shorter sample, larger" in message
    monkeypatch.setattr(desk.checker(""), "program", WorkerProgram("no_such_module:start"))
    status, message = check()
    assert status == 503
    assert "the checker (process " in message
    assert "No module named 'no_such_module'; the next request starts another" in message
    desk.close()
