"""What Dash would meet with a traceback and status 500, answered with a plain 400 or 404."""

from typing import Any

from dash import Dash
from dash.exceptions import DependencyException
from flask import Flask, abort, request
from werkzeug.wrappers import Response

CALLBACK_PATH = "/_dash-update-component"


def refuse_malformed(app: Dash) -> None:
    """Refuse requests that no page of ours sends; call once all callbacks are set."""
    server: Flask = app.server

    @server.before_request
    def check() -> None:
        if request.path == CALLBACK_PATH and request.method == "POST" and request.is_json:
            try:
                body = request.get_json()
            except RecursionError:
                body = None
            if not _is_call(app, body):
                abort(400, "expected a call as the pages of this server make it")

    @server.errorhandler(DependencyException)
    def refuse(error: DependencyException) -> Response:
        return Response(f"{error}\n", 404, content_type="text/plain")


def _is_call(app: Dash, body: Any) -> bool:  # Any: a JSON document
    """Whether a body calls a callback of the server, with the inputs and outputs that it has."""
    output = body.get("output") if isinstance(body, dict) else None
    known = app.callback_map.get(output) if isinstance(output, str) else None
    if known is None or "callback" not in known:  # the others run in the browser
        return False
    outputs, changed = body.get("outputs"), body.get("changedPropIds", [])
    if isinstance(outputs, list):
        written = f"..{'...'.join(_places(outputs))}.."
    else:
        written = "".join(_places([outputs]))
    return (
        written == output
        and _places(body.get("inputs")) == _places(known["inputs"])
        and isinstance(changed, list)
        and all(isinstance(name, str) for name in changed)
        and not body.get("state")
    )


def _places(parts: Any) -> list[str]:  # Any: a JSON document
    """Give ``id.property`` of each input or output, nothing for what is none."""
    if not isinstance(parts, list):
        return []
    return [f"{part.get('id')}.{part.get('property')}" for part in parts if isinstance(part, dict)]
