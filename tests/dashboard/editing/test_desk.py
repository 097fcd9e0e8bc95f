"""The routes of the editor over workers that only note what they are asked; plans in the making."""

import json
import re
import threading
import time
from types import SimpleNamespace

import pytest

from dcp_dashboard import create_app
from dcp_dashboard.editing import answer, routes, start
from dcp_dashboard.editing.routes import DESK, Desk
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.web.protection import protect
from dcp_dashboard.web.server import LOOPBACK
from dcp_dsl import DCPError
from dcp_planner import write_plan
from dcp_planner.workers import WorkerLost, WorkerOverdue

LOCAL = "http://127.0.0.1:8050"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    app = create_app(tmp_path_factory.mktemp("empty"))
    protect(app, LOOPBACK, None)
    return app.server.test_client()


@pytest.mark.parametrize(
    "path", ["check", "hover", "complete", "format", "picture", "preview", "plan"]
)
def test_only_our_own_pages_may_ask_and_only_for_what_they_send(client, path):
    url = f"/api/edit/{path}"
    foreign = {"Origin": "http://evil.example"}
    assert client.post(url, base_url=LOCAL, json={"text": ""}, headers=foreign).status_code == 403
    for body in ("[]", "7", "{", "[" * 100_000, "\xff"):
        answer = client.post(url, base_url=LOCAL, data=body, content_type="application/json")
        assert answer.status_code == 400
        assert answer.json["error"]
    large = client.post(url, base_url=LOCAL, json={"text": "x" * 2_000_000})
    assert large.status_code == 413
    # A form of another site can be sent without a question to the server, JSON cannot.
    assert client.post(url, base_url=LOCAL, data={"text": "a"}).status_code == 415


def test_a_job_that_nobody_started_is_a_message(client):
    for method, url in ((client.get, "/api/edit/plan/0"), (client.post, "/api/edit/plan/0/cancel")):
        answer = method(url, base_url=LOCAL)
        assert "start it again" in answer.json["error"]


def test_settings_that_cannot_be_are_refused_before_any_process_starts(client):
    answer = client.post("/api/edit/plan", base_url=LOCAL, json={"text": "", "limit_s": 10**9})
    assert "limit_s: expected a whole number 1 to 600" in answer.json["error"]


class Noting:
    """Answers whatever it is asked in one way, and notes it."""

    def __init__(self, name):
        self.name, self.asked, self.answer = name, [], ({"is": name}, b"bytes")

    def call(self, request, limit_s, *, blob=b"", on_note=lambda text: None):
        shown = {key: value for key, value in request.items() if value is not None}
        given = ", with bytes" if blob else ""
        self.asked.append(f"{self.name} {json.dumps(shown)} within {limit_s} s{given}")
        on_note("a stage")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def start(self):
        self.asked.append(f"{self.name} starts")

    def end(self):
        self.asked.append(f"{self.name} ends")

    def close(self):
        self.asked.append(f"{self.name} closes")


@pytest.fixture
def served(tmp_path, small_plan, lone_plan, unequal_plan):
    """An application whose workers note, over a text, a plan and one without a batch."""
    write_plan(tmp_path / "small.dcpplan", small_plan)
    write_plan(tmp_path / "lone.dcpplan", lone_plan)
    write_plan(tmp_path / "bare.dcpplan", unequal_plan)
    (tmp_path / "own.dcpm").write_text("mask own = causal")
    app = create_app(tmp_path).server
    desk = app.extensions[DESK]
    desk.checkers = [Noting(f"checker {number}") for number in range(4)]
    desk.previewer, desk.planner = map(Noting, ("previewer", "planner"))
    desk.jobs._worker = desk.planner
    return SimpleNamespace(client=app.test_client(), desk=desk, folder=tmp_path)


def noted(desk):
    """What workers were asked since the last call."""
    found = []
    for worker in (*desk.checkers, desk.previewer, desk.planner):
        found += worker.asked
        worker.asked = []
    return found


def done(job):
    """A job that has ended, its number and its time left out."""
    end = time.monotonic() + 60
    while job.ended_s is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    found = job.to_json()
    assert 0 <= found["seconds"] < 60
    assert len(found["job"]) == 16
    return found | {"job": "", "seconds": 0}


def test_what_workers_are_asked(served, snapshots):
    small, own = plan_key("small.dcpplan"), plan_key("own.dcpm")
    asked = (
        ("check", {"text": "t", "tab": "one"}),
        ("hover", {"text": "t", "home": own, "tab": "two" * 50}),
        ("complete", {"home": "0" * 16, "tab": "one"}), ("format", {"home": 3}),
        ("svg", {"batch": small, "tab": "three"}), ("picture", {"batch": "", "tab": "four"}),
        ("hover", {"tab": "five"}), ("check", {"batch": "0" * 16}), ("check", {"batch": 4}),
        ("preview", {"batch": plan_key("bare.dcpplan")}),
        ("preview", {"text": "t", "samples": ["x"], "task": "plan"}),
        ("suggest", {"plan": "0"}), ("nothing", {}),
    )  # fmt: skip
    lines = []
    for task, body in asked:
        found = served.client.post(f"/api/edit/{task}", json=body)
        said = found.json if found.is_json else found.data[:20]
        lines += [f"{task} {json.dumps(body)}: {found.status_code} {found.mimetype} {said}"]
        lines += [f"  cached {found.headers.get('Cache-Control')}"]
        lines += [f"  {line}" for line in noted(served.desk)]
    for error in (WorkerOverdue("it took 5 s"), WorkerLost("it died"), DCPError("wrong mask")):
        for worker in served.desk.checkers:
            worker.answer = error
        found = served.client.post("/api/edit/check", json={"tab": "one"})
        lines += [f"{type(error).__name__}, check: {found.status_code} {found.json}"]
    served.desk.close()
    lines += noted(served.desk)[-3:]
    text = "\n".join(lines).replace(str(served.folder), "FOLDER").replace(small, "SMALL")
    snapshots.check("routes", {"asked and answered": text.replace(own, "OWN")})


def test_plans_in_the_making(served, snapshots):
    client, desk, small = served.client, served.desk, plan_key("small.dcpplan")
    library = desk.jobs._library
    content = [(served.folder / f"{name}.dcpplan").read_bytes() for name in ("small", "lone")]
    texts = {}

    def post(title, task, body, answered):
        desk.planner.answer = answered
        found = client.post(f"/api/edit/{task}", json=body)
        if found.status_code != 202:
            texts[title] = f"{found.status_code} {found.json}"
            return
        job = desk.jobs.find(found.json["job"])
        shown = [json.dumps(done(job), indent=1), *noted(desk)]
        kept = [entry.relative for entry in library.session.entries()]
        texts[title] = "\n".join([*shown, f"kept {kept}"])
        state = client.get(f"/api/edit/plan/{found.json['job']}").json
        assert state["state"] == job.state
        assert client.post(f"/api/edit/plan/{found.json['job']}/cancel").json == state

    figures = {"tiles": 3}
    post("a plan", "plan", {"mask": "m" * 60, "limit_s": 600}, (dict(figures), content[0]))
    post("named", "plan", {"label": "l" * 60, "mask": ""}, (dict(figures), content[0]))
    post("no name", "plan", {}, (dict(figures), content[1]))
    post("too long", "plan", {"limit_s": 601}, (dict(figures), content[0]))
    post("no plan", "plan", {"mask": "x"}, (dict(figures), b"no plan"))
    post("refused", "plan", {"mask": "x"}, WorkerOverdue("it took long"))
    two = [{"size_bytes": len(one), "change": f"change {n}"} for n, one in enumerate(content)]
    post("two", "suggest", {"plan": small}, ({"plans": two}, b"".join(content)))
    post("front", "front", {"plan": small}, ({"plans": []}, b""))
    kept = {entry.key: entry.relative for entry in library.session.entries()}
    kept |= {small: "SMALL", str(served.folder): "FOLDER"}
    for key, name in kept.items():
        texts = {title: text.replace(key, f"<{name}>") for title, text in texts.items()}
    sizes = re.compile(r'(?<="size_bytes": )\d+')
    snapshots.check("jobs", {title: sizes.sub("…", text) for title, text in texts.items()})
    library.session.close()


def test_jobs_wait_for_each_other_and_can_be_cancelled(served):
    go_on, began, jobs = threading.Event(), threading.Event(), served.desk.jobs

    def slow(request, limit_s, *, on_note):
        began.set()
        assert go_on.wait(60)
        raise DCPError("slow is refused")

    served.desk.planner.call = slow
    first = jobs.start({}, 5, "first")
    assert began.wait(60)
    waiting = [jobs.start({}, 5, f"{n}") for n in range(4)]
    assert [job.state for job in (first, *waiting)] == ["running", *["waiting"] * 4]
    assert waiting[0].stage == "waiting for the plan before it"
    with pytest.raises(DCPError, match="expected at most 4 plans to wait, got one more"):
        jobs.start({}, 5, "one more")
    assert jobs.cancel(waiting[0].number).state == "cancelled"
    assert noted(served.desk) == []  # nobody has to end for a plan that waits
    another = jobs.start({}, 5, "in its place")
    assert jobs.cancel(first.number) is first
    assert noted(served.desk) == ["planner ends"]
    go_on.set()
    found = [done(job) for job in (first, *waiting, another)]
    refused = ("failed", "failed", "slow is refused")
    cancelled = ("cancelled", "cancelled", "")
    wanted = [cancelled, cancelled, *[refused] * 4]
    assert [(one["state"], one["stage"], one["message"]) for one in found] == wanted


def test_jobs_of_long_ago_are_forgotten(served, monkeypatch):
    monkeypatch.setattr(routes, "MAX_REMEMBERED", 2)
    jobs = served.desk.jobs
    served.desk.planner.answer = DCPError("no")
    made = [jobs.start({}, 5, "x") for _ in range(2)]
    for job in made:
        done(job)
    assert jobs.find(made[0].number) is made[0]
    made.append(jobs.start({}, 5, "x"))
    with pytest.raises(DCPError, match="start it again"):
        jobs.find(made[0].number)
    assert jobs.find(made[1].number) is made[1]
    done(made[2])


def test_workers_know_their_tasks_and_load_what_they_need(tmp_path, monkeypatch):
    desk = Desk(PlanLibrary(tmp_path))
    workers = [*desk.checkers, desk.previewer, desk.planner]
    programs = [worker.program for worker in workers]
    assert [p.arguments for p in programs] == [("check",)] * 4 + [("plan",)] * 2
    assert {p.entry for p in programs} == {"dcp_dashboard.editing:start"}
    assert {p.memory_bytes for p in programs} == {2 * 2**30}
    warmed = []
    monkeypatch.setattr("dcp_dashboard.editing.planning.warm_up", lambda: warmed.append(1))
    assert [start(kind) for kind in ("check", "plan")] == [answer] * 2
    assert warmed == [1]


def test_a_task_too_deep_or_too_large_is_a_message(monkeypatch):
    for error, said in (
        (RecursionError, "expected a shallower text: it is nested too deeply"),
        (MemoryError, "expected a smaller batch: the worker's 2 GiB of memory are full"),
    ):

        def fail(_request, error=error):
            raise error

        monkeypatch.setattr("dcp_dashboard.editing.texts.check_text", fail)
        with pytest.raises(DCPError, match=said):
            answer({"task": "check"}, b"", print)
    told = []
    monkeypatch.setattr("dcp_dashboard.editing.planning.make_plan", lambda asked, tell: tell(asked))
    assert answer({"task": "plan"}, b"", told.append) == (None, b"")
    assert told == [{"task": "plan"}]
