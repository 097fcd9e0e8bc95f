"""Serve files of a plan below `/api/plan/<key>/`: pictures, tables, traces, a standalone page."""

from collections.abc import Callable
from pathlib import PurePosixPath

from flask import Blueprint, Response, request, send_file
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.routes import BINARY, answer, refuse, trace_of
from dcp_dashboard.exports.pictures import mask_svg, thumbnail
from dcp_dashboard.exports.standalone import standalone_page
from dcp_dashboard.exports.still import Theme, still
from dcp_dashboard.exports.tables import devices_csv, events_csv, tiles_csv
from dcp_dashboard.facts.traces import read_filter
from dcp_dashboard.library.folder import SUFFIX
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dsl import DCPError
from dcp_planner import Trace, to_perfetto

CSV = "text/csv; charset=utf-8"


def export_api(library: PlanLibrary) -> Blueprint:
    """Build the routes; refusals are as in `data_api`."""
    api = Blueprint("dcp_exports", __name__, url_prefix="/api/plan/<key>")
    _add_plan_routes(api, library)
    _add_trace_routes(api, library)

    @api.get("/thumbnail.png")
    def small_picture(key: str) -> WSGIResponse:
        return answer(library.thumbnail(key, thumbnail), "image/png")

    @api.get("/file")
    def file(key: str) -> WSGIResponse:
        entry = library.load(key).entry
        name = f"{PurePosixPath(entry.relative).name.removesuffix(SUFFIX)}{SUFFIX}"
        return send_file(entry.path, BINARY, as_attachment=True, download_name=name)

    @api.errorhandler(DCPError)
    def explain(error: DCPError) -> WSGIResponse:
        return refuse(str(error))

    return api


FILES: dict[str, tuple[str, str, Callable[[LoadedPlan], bytes]]] = {
    "mask.svg": ("svg", "image/svg+xml", lambda loaded: mask_svg(loaded).encode()),
    "overview.html": ("html", "text/html; charset=utf-8",
                      lambda loaded: standalone_page(loaded).encode()),
    "devices.csv": ("devices.csv", CSV, devices_csv),
    "tiles.csv": ("tiles.csv", CSV, tiles_csv),
}  # fmt: skip
"""Suffix, content type and maker of a file by the last part of its address."""


def _add_plan_routes(api: Blueprint, library: PlanLibrary) -> None:
    @api.get("/overview.png")
    def picture(key: str) -> WSGIResponse:
        theme: Theme = "dark" if request.args.get("theme") == "dark" else "light"
        loaded = library.load(key)
        return as_file(Response(still(loaded, theme), content_type="image/png"), loaded, "png")

    @api.get(f"/<any({', '.join(repr(name) for name in FILES)}):name>")
    def whole_file(key: str, name: str) -> WSGIResponse:
        suffix, kind, make = FILES[name]
        loaded = library.load(key)
        return as_file(Response(make(loaded), content_type=kind), loaded, suffix)


def _add_trace_routes(api: Blueprint, library: PlanLibrary) -> None:
    """Add the traces as files; ``?source=`` is one of them or ``both``, all there are."""

    def traces(loaded: LoadedPlan) -> list[Trace]:
        source = request.args.get("source", "both")
        return list(loaded.traces.values()) if source == "both" else [trace_of(loaded, source)]

    @api.get("/events.csv")
    def events(key: str) -> WSGIResponse:
        loaded = library.load(key)
        lines = events_csv(traces(loaded), read_filter(request.args))
        return as_file(Response(lines, content_type=CSV), loaded, "csv")

    @api.get("/trace.pftrace")
    def perfetto(key: str) -> WSGIResponse:
        loaded = library.load(key)
        content = to_perfetto(*traces(loaded))
        return as_file(Response(content, content_type=BINARY), loaded, "pftrace")


def as_file(response: Response, loaded: LoadedPlan, suffix: str) -> Response:
    """Make a response a download, named after the plan's file."""
    name = PurePosixPath(loaded.entry.relative).name.removesuffix(SUFFIX)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    response.headers.set("Content-Disposition", "attachment", filename=f"{plain}.{suffix}")
    return response
