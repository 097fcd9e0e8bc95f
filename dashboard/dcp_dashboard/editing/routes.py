"""The routes of the page `/edit`, the workers that answer them, and the plans in the making.

`/api/edit/...` takes JSON and answers with JSON or columns. Planning takes longer than a request
may, so it is a job: one plan at a time is made, in a process that can be ended, and the page asks
for its state.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from flask import Blueprint, Response, jsonify, make_response, request
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.editing import MAX_DATA_BYTES
from dcp_dashboard.editing.planning import figures
from dcp_dashboard.editing.texts import whole
from dcp_dashboard.library.folder import SPEC_SUFFIX, SUFFIX, DashboardError
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError
from dcp_planner.workers import Worker, WorkerLost, WorkerOverdue, WorkerProgram

MAX_WAITING = 4
"""Most plans that wait behind the one that is being made."""
MAX_REMEMBERED = 64
"""Jobs whose state can still be asked for; each keeps its figures, not its plan."""


def make_worker(kind: Literal["check", "plan"]) -> Worker:
    """Make a worker that loads the modules of its kind in advance; each worker knows all tasks."""
    entry = f"{__package__}:start"
    name = {"check": "the checker", "plan": "the planner"}[kind]
    return Worker(WorkerProgram(entry, (kind,), memory_bytes=MAX_DATA_BYTES), name)


def reason_of(error: DCPError) -> str:
    """Return why there is no answer; after the loss of a worker, with the way out."""
    if isinstance(error, WorkerOverdue):
        return f"{error}; try a shorter sample, larger blocks or a simpler mask"
    if isinstance(error, WorkerLost):
        return f"{error}; the next request starts another"
    return str(error)


State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(slots=True)
class Job:
    """A plan in the making; its key and figures are there once it is done.

    The number is 16 random hexadecimal digits, so that no other page can guess it; times are on
    ``time.monotonic``.
    """

    number: str
    state: State = "waiting"
    stage: str = "waiting for the plan before it"
    message: str = ""
    key: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the state as the page reads it; `Any`: JSON values."""
        end = time.monotonic() if self.ended_s is None else self.ended_s
        shown = ("state", "stage", "message", "key", "figures")
        values = {name: getattr(self, name) for name in shown}
        times = {"seconds": end - self.began_s}
        return {"schema": "dcp.edit_job/1", "job": self.number, **values, **times}


class Jobs:
    """The plans of this session that are being made, and the worker that makes them."""

    def __init__(self, library: PlanLibrary, worker: Worker) -> None:
        self._library, self._worker = library, worker
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._turn, self._lock = threading.Lock(), threading.Lock()

    def start(self, request: Mapping[str, Any], limit_s: float, name: str) -> Job:
        """Start planning in a new thread; give up after `limit_s`. `name` is shown to people."""
        with self._lock:
            open_jobs = [job for job in self._jobs.values() if job.ended_s is None]
            if len(open_jobs) > MAX_WAITING:
                raise DashboardError(
                    f"expected at most {MAX_WAITING} plans to wait, got one more; wait for one of "
                    "them or cancel it"
                )
            job = Job(secrets.token_hex(8))
            self._jobs[job.number] = job
            while len(self._jobs) > MAX_REMEMBERED:
                self._jobs.popitem(last=False)
        thread = threading.Thread(
            target=self._run, args=(job, request, limit_s, name), name="dcp-plan", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # too many threads: it must not wait for ever
            self._fail(job, f"{error}; try again when other plans are done")
        return job

    def find(self, number: str) -> Job:
        """Find a job by its number; `DashboardError` if it is not known any more."""
        with self._lock:
            job = self._jobs.get(number)
        if job is None:
            raise DashboardError("expected a plan that was started here; start it again")
        return job

    def cancel(self, number: str) -> Job:
        """End a job: its process is killed if it runs. What has ended stays as it is."""
        job = self.find(number)
        with self._lock:
            if job.ended_s is None:
                if job.state == "running":  # under the lock, so that no other job runs
                    self._worker.end()
                self._end(job, "cancelled")
        return job

    def _run(self, job: Job, request: Mapping[str, Any], limit_s: float, name: str) -> None:
        with self._turn:  # one plan at a time
            with self._lock:
                # Cancelled while it waited for its turn.
                if job.ended_s is not None:
                    return
                job.state, job.stage, job.began_s = "running", "starting", time.monotonic()
            try:
                figures, content = self._worker.call(
                    request, limit_s, on_note=lambda stage: setattr(job, "stage", str(stage))
                )
                key = self._keep(figures, content, name)
            except DCPError as error:
                self._fail(job, reason_of(error))
            else:
                with self._lock:
                    # A job may be cancelled after the worker has answered.
                    if job.ended_s is None:
                        job.key, job.figures = key, figures
                        self._end(job, "done")

    def _keep(self, figures: dict[str, Any], content: bytes, name: str) -> str:
        """Keep the plan of an answer and return its key; of several plans, each has its own."""
        if "plans" not in figures:
            return self._library.keep(content, name).entry.key
        for plan in figures["plans"]:
            file, content = content[: plan["size_bytes"]], content[plan["size_bytes"] :]
            plan["key"] = self._library.keep(file, f"{name}, {plan['change']}").entry.key
        return ""

    def _fail(self, job: Job, message: str) -> None:
        with self._lock:
            if job.ended_s is None:  # a cancelled job ends its worker too
                job.message = message
                self._end(job, "failed")

    def _end(self, job: Job, state: State) -> None:
        job.state, job.stage, job.ended_s = state, state, time.monotonic()


DESK = "dcp_desk"
"""Key of an application's ``extensions`` under which its `Desk` stands."""
CHECK_LIMIT_S, PREVIEW_LIMIT_S, SUGGEST_LIMIT_S = 5.0, 5.0, 120.0
"""Seconds after which the worker of a request is ended."""
PLAN_LIMIT_S, MAX_PLAN_S = 60, 600
"""The same for a full plan, unless the request states more or less; and the most it may state."""
MOST_CHECKERS = 4


class Desk:
    """The workers of one server: four check and draw, one previews, one plans.

    A process starts with the first request for it. `jobs` are the plans of the planner.
    """

    def __init__(self, library: PlanLibrary) -> None:
        self.checkers = [make_worker("check") for _ in range(MOST_CHECKERS)]
        self.previewer, self.planner = make_worker("plan"), make_worker("plan")
        self.jobs = Jobs(library, self.planner)
        self._tabs: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def checker(self, tab: str) -> Worker:
        """Return the checker of a tab of a browser, so that a slow text keeps no other waiting.

        A tab beyond `MOST_CHECKERS` takes the checker of the tab that asked longest ago.
        """
        with self._lock:
            # `_tabs` holds the number of each tab's checker, the tab that asked longest ago first.
            if tab not in self._tabs and len(self._tabs) < MOST_CHECKERS:
                self._tabs[tab] = len(self._tabs)
            elif tab not in self._tabs:
                self._tabs[tab] = self._tabs.popitem(last=False)[1]
            self._tabs.move_to_end(tab)
            return self.checkers[self._tabs[tab]]

    def close(self) -> None:
        """End all processes."""
        for worker in (*self.checkers, self.previewer, self.planner):
            worker.close()


def edit_api(library: PlanLibrary, desk: Desk) -> Blueprint:
    """Build the routes of the editor.

    A fault of a text, a sample or a setting is an answer, ``{"error": message}`` with status 200:
    while a person types, most texts have one, and browsers log every other status. A request that
    no page sends is a 400, a worker that ended a 503.
    """
    api = Blueprint("dcp_edit", __name__, url_prefix="/api/edit")
    _add_text_routes(api, library, desk)
    _add_plan_routes(api, library, desk)

    @api.errorhandler(DCPError)
    def refuse(error: DCPError) -> WSGIResponse:
        # A text that takes too long is a fault of the text; a worker that ended is not.
        is_lost = isinstance(error, WorkerLost) and not isinstance(error, WorkerOverdue)
        return _json({"error": reason_of(error)}, 503 if is_lost else 200)

    @api.errorhandler(BadRequest)
    def refuse_request(error: BadRequest) -> WSGIResponse:
        return _json({"error": error.description}, 400)

    return api


def _add_text_routes(api: Blueprint, library: PlanLibrary, desk: Desk) -> None:
    """Add the routes that the checker answers."""

    def ask(task: str) -> tuple[dict[str, Any], bytes]:
        body = _request(library, task)
        return desk.checker(str(body.get("tab", ""))[:40]).call(body, CHECK_LIMIT_S)

    @api.post("/check")
    def check() -> WSGIResponse:
        answer = ask("check")[0]
        desk.previewer.start()  # a person who writes a mask soon wants to see its cost
        return _json(answer)

    @api.post("/picture")
    def picture() -> WSGIResponse:
        return Response(ask("picture")[1], content_type="application/octet-stream")

    @api.post("/<any(hover, complete, format, svg):task>")
    def text_task(task: str) -> WSGIResponse:
        return _json(ask(task)[0])


def _add_plan_routes(api: Blueprint, library: PlanLibrary, desk: Desk) -> None:
    """Add the routes that the planners answer."""

    @api.post("/preview")
    def preview() -> WSGIResponse:
        answer = desk.previewer.call(_request(library, "preview"), PREVIEW_LIMIT_S)[0]
        desk.planner.start()  # a person who sees figures may soon want the plan
        return _json(answer)

    @api.post("/plan")
    def plan() -> WSGIResponse:
        body = _request(library, "plan")
        limit_s = whole(body, "limit_s", PLAN_LIMIT_S, 1, MAX_PLAN_S)
        mask = str(body.get("mask", ""))[:40] or "mask"
        name = str(body.get("label", ""))[:40] or f"edited/{mask}"
        return _json(desk.jobs.start(body, limit_s, name).to_json(), 202)

    @api.post("/<any(suggest, front):task>")
    def plan_again(task: str) -> WSGIResponse:
        entry = library.load(str(_request(library, task).get("plan", ""))).entry
        asked = {"task": task, "path": str(entry.path)}
        name = PurePosixPath(entry.relative).name.removesuffix(SUFFIX)
        return _json(desk.jobs.start(asked, SUGGEST_LIMIT_S, name).to_json(), 202)

    @api.get("/figures/<key>")
    def of_plan(key: str) -> WSGIResponse:
        loaded = library.load(key)
        summary = loaded.summary
        return _json(figures(loaded.plan, summary.metrics, summary.seconds["simulated"]))

    @api.get("/plan/<job>")
    def state(job: str) -> WSGIResponse:
        return _json(desk.jobs.find(job).to_json())

    @api.post("/plan/<job>/cancel")
    def cancel(job: str) -> WSGIResponse:
        return _json(desk.jobs.cancel(job).to_json())


def _request(library: PlanLibrary, task: str) -> dict[str, Any]:
    """Read the JSON object of the request, for a worker; `Any`: JSON values.

    ``home``, the key of a file, becomes the path that imports start from, or nothing; ``batch``,
    the key of a plan, the samples of its batch.
    """
    try:
        body = request.get_json()
    except RecursionError:  # JSON that is nested thousands of times
        body = None
    if not isinstance(body, dict):
        raise BadRequest("expected a JSON object as the editor sends it")
    # A page knows keys, never paths: both entries are replaced by what the server finds for them.
    key = body.get("home")
    home = home_of(library, key) if isinstance(key, str) else None
    batch = body.get("batch")
    samples = batch_of(library, batch) if isinstance(batch, str) and batch else None
    return {**body, "home": home, "samples": samples, "task": task}


def home_of(library: PlanLibrary, key: str) -> str | None:
    """Return the path of a `.dcpm` file of the folder by its key, ``None`` if there is none."""
    entry = library.folder.find(key, SPEC_SUFFIX)
    return None if entry is None else str(entry.path)


def batch_of(library: PlanLibrary, key: str) -> list[str]:
    """Return the samples of a plan's batch, as JSON objects."""
    loaded = library.load(key)
    provenance = loaded.plan.provenance
    if provenance is None or not provenance.samples:
        raise DashboardError(
            f"{loaded.entry.relative} does not contain the samples of its batch; open another plan"
        )
    return list(provenance.samples)


def _json(value: Mapping[str, Any], status: int = 200) -> WSGIResponse:
    response = make_response(jsonify(value), status)
    response.cache_control.no_store = True
    return response
