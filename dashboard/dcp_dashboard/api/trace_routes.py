"""The traces of a plan under `/api/plan/<key>/`: for the canvas, as CSV and for ui.perfetto.dev."""

from collections.abc import Iterator

from flask import Blueprint, Response, request
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.payloads import length_ns, timeline_payload
from dcp_dashboard.api.routes import BINARY, answer, refuse
from dcp_dashboard.facts.events import csv_lines, read_filter
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dsl import DCPError
from dcp_planner import Trace, to_perfetto


def trace_api(library: PlanLibrary) -> Blueprint:
    """Make the routes that serve traces; refusals are as in `data_api`.

    ``?source=`` is ``simulated``, ``measured`` or, for the exports, ``both``, all there are.
    """
    api = Blueprint("dcp_traces", __name__, url_prefix="/api/plan/<key>")

    @api.get("/timeline")
    def timeline(key: str) -> WSGIResponse:
        loaded = library.load(key)
        (trace,) = _traces(loaded, request.args.get("source", "simulated"), together=False)
        longest = max(length_ns(each) for each in loaded.traces.values())

        def make(item: LoadedPlan) -> bytes:
            plan = item.plan
            per_node = plan.cluster.devices_per_node
            return timeline_payload(trace, plan.num_devices, per_node, longest)

        return answer(library.payload(loaded, f"timeline {trace.source}", make), BINARY)

    @api.get("/events.csv")
    def events(key: str) -> WSGIResponse:
        loaded = library.load(key)
        traces = _traces(loaded, request.args.get("source", "both"), together=True)
        chosen = read_filter(request.args)
        lines: Iterator[str] = csv_lines(traces, chosen)
        return as_file(Response(lines, content_type="text/csv; charset=utf-8"), loaded, "csv")

    @api.get("/trace.pftrace")
    def perfetto(key: str) -> WSGIResponse:
        loaded = library.load(key)
        first, *more = _traces(loaded, request.args.get("source", "both"), together=True)
        return as_file(Response(to_perfetto(first, *more), content_type=BINARY), loaded, "pftrace")

    @api.errorhandler(DCPError)
    def explain(error: DCPError) -> WSGIResponse:
        return refuse(str(error))

    return api


def _traces(loaded: LoadedPlan, source: str, *, together: bool) -> list[Trace]:
    """Give the traces that a request names."""
    if together and source == "both":
        return list(loaded.traces.values())
    found = [trace for name, trace in loaded.traces.items() if name == source]
    if not found:
        raise DashboardError(
            f"{loaded.entry.relative} has no trace {source[:40]!r}; it has "
            f"{', '.join(loaded.traces)}"
        )
    return found


def as_file(response: Response, loaded: LoadedPlan, suffix: str) -> Response:
    """Make a response a download, named after the plan's file."""
    name = loaded.entry.relative.rsplit("/", 1)[-1].removesuffix(".dcpplan")
    response.headers.set(
        "Content-Disposition", "attachment",
        filename="".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
        + f".{suffix}",
    )  # fmt: skip
    return response
