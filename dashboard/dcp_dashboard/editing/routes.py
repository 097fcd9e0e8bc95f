"""The routes of the page `/edit`: `/api/edit/...`, JSON in, JSON or columns out."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from flask import Blueprint, Response, jsonify, make_response, request
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.editing.jobs import DEFAULT_LIMIT_S, Jobs
from dcp_dashboard.editing.planning import figures
from dcp_dashboard.editing.querying import events_arrow
from dcp_dashboard.editing.source import whole
from dcp_dashboard.editing.specs import batch_of, home_of
from dcp_dashboard.editing.tasks import loss_message, make_worker
from dcp_dashboard.library.folder import SUFFIX, DashboardError
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError
from dcp_planner.workers import Worker, WorkerLost, WorkerOverdue

DESK = "dcp_desk"
"""Key of an application's ``extensions`` under which its `Desk` stands."""
CHECK_LIMIT_S = 5.0
PREVIEW_LIMIT_S = 5.0
QUERY_LIMIT_S = 10.0
SUGGEST_LIMIT_S = 120.0
MOST_CHECKERS = 4
MAX_PLAN_S = 600


class Desk:
    """The workers of one server: some check and draw; one each previews, plans, runs SQL.

    Attributes:
        checkers: processes, started when first asked.
        previewer, planner, database: processes, started when first asked.
        jobs: the plans of `planner`.
    """

    def __init__(self, library: PlanLibrary) -> None:
        self.checkers = [make_worker("check") for _ in range(MOST_CHECKERS)]
        self.previewer, self.planner = make_worker("plan"), make_worker("plan")
        self.database = make_worker("query")
        self.jobs = Jobs(library, self.planner)
        self._tabs: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def checker(self, tab: str) -> Worker:
        """Return the checker of a tab of a browser, so that a slow text keeps no other waiting.

        A tab beyond `MOST_CHECKERS` shares the checker that was asked longest ago.
        """
        with self._lock:
            if tab not in self._tabs and len(self._tabs) < MOST_CHECKERS:
                self._tabs[tab] = len(self._tabs)
            elif tab not in self._tabs:
                self._tabs[tab] = self._tabs.popitem(last=False)[1]
            self._tabs.move_to_end(tab)
            return self.checkers[self._tabs[tab]]

    def close(self) -> None:
        """End all processes."""
        for worker in (*self.checkers, self.previewer, self.planner, self.database):
            worker.close()


def edit_api(library: PlanLibrary, desk: Desk) -> Blueprint:
    """Build the routes of the editor.

    What is wrong with a text, a sample or a setting is an answer too, ``{"error": message}``
    with status 200: while one types it is the rule, and no browser should log it. A request that no
    page sends is a 400, a worker that ended a 503.
    """
    api = Blueprint("dcp_edit", __name__, url_prefix="/api/edit")
    _add_text_routes(api, library, desk)
    _add_plan_routes(api, library, desk)
    _add_query_route(api, library, desk)

    @api.errorhandler(DCPError)
    def refuse(error: DCPError) -> WSGIResponse:
        if isinstance(error, WorkerLost):
            status = 200 if isinstance(error, WorkerOverdue) else 503
            return _json({"error": loss_message(error)}, status)
        return _json({"error": str(error)})

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
        desk.previewer.start()  # whoever writes a mask soon wants to see what it costs
        return _json(answer)

    @api.post("/picture")
    def picture() -> WSGIResponse:
        return Response(ask("picture")[1], content_type="application/octet-stream")

    def answering(task: str) -> Callable[[], WSGIResponse]:
        return lambda: _json(ask(task)[0])

    for task in ("hover", "complete", "format", "svg"):
        api.add_url_rule(f"/{task}", task, answering(task), methods=["POST"])


def _add_plan_routes(api: Blueprint, library: PlanLibrary, desk: Desk) -> None:
    """Add the routes that the planners answer."""

    @api.post("/preview")
    def preview() -> WSGIResponse:
        answer = desk.previewer.call(_request(library, "preview"), PREVIEW_LIMIT_S)[0]
        desk.planner.start()  # whoever sees figures may soon want the plan
        return _json(answer)

    @api.post("/plan")
    def plan() -> WSGIResponse:
        body = _request(library, "plan")
        limit_s = whole(body, "limit_s", int(DEFAULT_LIMIT_S), 1, MAX_PLAN_S)
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


def _add_query_route(api: Blueprint, library: PlanLibrary, desk: Desk) -> None:
    """Add the route that runs one SELECT over the events of a plan."""

    @api.post("/query")
    def query() -> WSGIResponse:
        body = _request(library, "query")
        loaded = library.load(str(body.get("plan", "")))
        asked = {"task": "query", "sql": body.get("sql", "")}
        try:
            return _json(desk.database.call(asked, QUERY_LIMIT_S, blob=events_arrow(loaded))[0])
        except WorkerOverdue as error:
            raise DashboardError(f"{error}; ask for less, for example with WHERE") from None


def _request(library: PlanLibrary, task: str) -> dict[str, Any]:
    """Read the JSON object of the request, for a worker; `Any`: JSON values.

    ``home``, the key of a file, becomes the path that imports start from, or nothing; ``batch``,
    the key of a plan, the samples of its batch.
    """
    try:
        body = request.get_json()
    except RecursionError:
        body = None
    if not isinstance(body, dict):
        raise BadRequest("expected a JSON object as the editor sends it")
    key = body.get("home")
    home = home_of(library, key) if isinstance(key, str) else None
    batch = body.get("batch")
    samples = batch_of(library, batch) if isinstance(batch, str) and batch else None
    return {**body, "home": home, "samples": samples, "task": task}


def _json(value: Mapping[str, Any], status: int = 200) -> WSGIResponse:
    response = make_response(jsonify(value), status)
    response.cache_control.no_store = True
    return response
