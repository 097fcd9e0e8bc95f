"""The data API behind the canvases: `/api/plan/<key>/...`, bytes with an ETag of their content."""

import hashlib
from pathlib import PurePosixPath

from flask import Blueprint, Response, jsonify, make_response, request, send_file
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.payloads import mask_payload
from dcp_dashboard.api.selection_routes import add_selection_routes
from dcp_dashboard.exports.pictures import thumbnail
from dcp_dashboard.facts.moves import has_same_blocks, moves_payload
from dcp_dashboard.library.folder import SUFFIX
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError

MAX_WATCHED = 8
"""Files whose versions one request may ask for."""
BINARY = "application/octet-stream"


def data_api(library: PlanLibrary) -> Blueprint:
    """Make the routes that serve the plans of a library.

    A plan that is missing or broken is a 404 with ``{"error": message}``.
    """
    api = Blueprint("dcp_data", __name__, url_prefix="/api")

    @api.get("/plan/<key>/mask")
    def mask(key: str) -> WSGIResponse:
        loaded = library.load(key)
        return answer(library.payload(loaded, "mask", lambda item: mask_payload(item.plan)), BINARY)

    @api.get("/plan/<key>/thumbnail.png")
    def picture(key: str) -> WSGIResponse:
        loaded = library.load(key)
        return answer(
            library.payload(loaded, "png", lambda item: thumbnail(item.plan)), "image/png"
        )

    @api.get("/plan/<key>/file")
    def file(key: str) -> WSGIResponse:
        entry = library.load(key).entry
        name = f"{PurePosixPath(entry.relative).name.removesuffix(SUFFIX)}{SUFFIX}"
        return send_file(entry.path, BINARY, as_attachment=True, download_name=name)

    @api.get("/changes")
    def changes() -> WSGIResponse:
        keys = [key for key in request.args.get("keys", "").split(",") if key][:MAX_WATCHED]
        response = make_response(jsonify(versions={key: library.version(key) for key in keys}))
        response.cache_control.no_store = True
        return response

    @api.get("/compare/<first>/<second>/moves")
    def moves(first: str, second: str) -> WSGIResponse:
        a, b = library.load(first), library.load(second)
        if not has_same_blocks(a.plan, b.plan):
            return refuse(
                f"{a.entry.relative} and {b.entry.relative} cut tokens differently; tiles cannot "
                "be compared"
            )
        name = f"moves {b.entry.key} {b.entry.size_bytes} {b.entry.mtime_ns}"
        payload = library.payload(a, name, lambda item: moves_payload(item.plan, b.plan))
        return answer(payload, BINARY)

    add_selection_routes(api, library, answer)

    @api.errorhandler(DCPError)
    def explain(error: DCPError) -> WSGIResponse:
        return refuse(str(error))

    return api


def answer(payload: bytes, content_type: str) -> WSGIResponse:
    """Give bytes with an ETag of their content; 304 if the browser has them already."""
    response = Response(payload, content_type=content_type)
    response.set_etag(hashlib.blake2b(payload, digest_size=16).hexdigest())
    response.cache_control.no_cache = (
        True  # may be kept, must be asked for again: the file can change
    )
    response.cache_control.private = True
    return response.make_conditional(request)


def refuse(message: str) -> WSGIResponse:
    """Give a 404 that says why there is nothing."""
    return make_response(jsonify(error=message), 404)
