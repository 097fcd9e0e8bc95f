"""Files of a plan under `/api/plan/<key>/`: picture, drawing, tables, a page of its own."""

from collections.abc import Callable

from flask import Blueprint, Response, request
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.routes import refuse
from dcp_dashboard.api.trace_routes import as_file
from dcp_dashboard.exports.pictures import mask_svg
from dcp_dashboard.exports.plan_tables import devices_csv, tiles_csv
from dcp_dashboard.exports.standalone import standalone_page
from dcp_dashboard.exports.still import Theme, still
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dsl import DCPError

CSV = "text/csv; charset=utf-8"


def export_api(library: PlanLibrary) -> Blueprint:
    """Make the routes; refusals are as in `data_api`."""
    api = Blueprint("dcp_exports", __name__, url_prefix="/api/plan/<key>")

    def send(key: str, suffix: str, kind: str, make: Callable[[LoadedPlan], bytes]) -> WSGIResponse:
        loaded = library.load(key)
        return as_file(Response(make(loaded), content_type=kind), loaded, suffix)

    @api.get("/overview.png")
    def picture(key: str) -> WSGIResponse:
        theme: Theme = "dark" if request.args.get("theme") == "dark" else "light"
        return send(key, "png", "image/png", lambda loaded: still(loaded, theme))

    @api.get("/mask.svg")
    def drawing(key: str) -> WSGIResponse:
        return send(key, "svg", "image/svg+xml", lambda loaded: mask_svg(loaded).encode())

    @api.get("/overview.html")
    def page(key: str) -> WSGIResponse:
        kind = "text/html; charset=utf-8"
        return send(key, "html", kind, lambda loaded: standalone_page(loaded).encode())

    @api.get("/devices.csv")
    def devices(key: str) -> WSGIResponse:
        return send(key, "devices.csv", CSV, devices_csv)

    @api.get("/tiles.csv")
    def tiles(key: str) -> WSGIResponse:
        return send(key, "tiles.csv", CSV, tiles_csv)

    @api.errorhandler(DCPError)
    def explain(error: DCPError) -> WSGIResponse:
        return refuse(str(error))

    return api
