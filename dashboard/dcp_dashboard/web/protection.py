"""Checks every request (host, origin, token, malformed calls) and sets the headers of every answer.

A page of another site may point a browser at this server, so loopback alone protects nothing. The
`Host` header must name the server; otherwise a foreign name could be made to resolve to this
machine (DNS rebinding). An `Origin` must be this server's own. A server that listens beyond
loopback needs a token, which only the person at the terminal has seen.
"""

import hmac
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from dash import Dash
from dash.exceptions import DependencyException
from flask import Flask, Response, abort, make_response, redirect, request
from werkzeug.wrappers import Response as WSGIResponse

COOKIE = "dcp_token"
MAX_BODY_BYTES = 1_000_000

TOKEN_PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>dcp-dsl</title></head>
<body><h1>A token is needed</h1>
<p>Open the full address that <code>dcpm dashboard</code> printed, with <code>?token=...</code>.</p>
</body></html>
"""

CALLBACK_PATH = "/_dash-update-component"
"""Dash's own: the pages call all callbacks there."""


def protect(app: Dash, hosts: Sequence[str] | None, token: str | None) -> None:
    """Install the checks and headers on the application's server; call once all layouts are set.

    `hosts` are the names that the `Host` header may carry; ``None`` takes any, for use with a
    `token`: a secret that the first request must bring as ``?token=``.
    """
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @server.before_request
    def check() -> WSGIResponse | None:
        if hosts is not None and host_name(request.headers.get("Host", "")) not in hosts:
            abort(400, f"this server answers to {', '.join(hosts)} only")
        origin = request.headers.get("Origin")
        if origin is not None and getattr(_split(origin), "netloc", None) != request.host:
            abort(403, "this address takes requests from its own pages only")
        return None if token is None else _check_token(token)

    refuse_malformed(app)  # after the checks above: the origin of a request counts first

    headers = {
        "Content-Security-Policy": content_security_policy(app.csp_hashes()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

    @server.after_request
    def add_headers(response: Response) -> Response:
        response.headers.update(headers)
        return response


def host_name(header: str) -> str | None:
    """Return the name in a `Host` header without its port, ``None`` if it is malformed."""
    parts = _split(f"//{header}")
    return None if parts is None or "@" in header else parts.hostname


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def content_security_policy(script_hashes: Sequence[str]) -> str:
    """Write the policy: everything from this server, no frames, no plug-ins, no other origin.

    Styles may be inline because React and Plotly set `style` attributes; scripts may not, apart
    from Dash's one line that starts its renderer. Plotly turns SVG into `data:` and `blob:` images.
    """
    sources = {
        "default-src": "'self'",
        "script-src": f"'self' {' '.join(script_hashes)}",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{kind} {allowed}" for kind, allowed in sources.items())


def _check_token(token: str) -> WSGIResponse | None:
    given = request.args.get("token")
    # Takes equally long for every wrong token, so that none can be found letter by letter.
    if given is not None and hmac.compare_digest(given.encode(), token.encode()):
        rest = urlencode([(key, value) for key, value in request.args.items() if key != "token"])
        # The token goes from the address, and so from the history, into a cookie.
        response = redirect(request.path + (f"?{rest}" if rest else ""), code=303)
        response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return response
    cookie = request.cookies.get(COOKIE, "")
    if hmac.compare_digest(cookie.encode(), token.encode()):
        return None
    return make_response(TOKEN_PAGE, 401)


def refuse_malformed(app: Dash) -> None:
    """Refuse requests that no page of ours sends (400, 404); call once all callbacks are set."""
    server: Flask = app.server

    @server.before_request
    def check() -> None:
        if request.path == CALLBACK_PATH and request.method == "POST" and request.is_json:
            try:
                body = request.get_json()
            except RecursionError:  # JSON nested too deeply
                body = None
            if not _is_call(app, body):
                abort(400, "expected a call as the pages of this server make it")

    @server.errorhandler(DependencyException)
    def refuse(error: DependencyException) -> Response:
        return Response(f"{error}\n", 404, content_type="text/plain")


def _is_call(app: Dash, body: Any) -> bool:  # Any: a JSON document
    """Return whether a body calls a callback of the server, with all its inputs and outputs."""
    output = body.get("output") if isinstance(body, dict) else None
    known = app.callback_map.get(output) if isinstance(output, str) else None
    if known is None or "callback" not in known:  # callbacks without it run in the browser
        return False
    outputs, changed = body.get("outputs"), body.get("changedPropIds", [])
    # Dash names a callback of several outputs "..a.x...b.y..", of one output "a.x".
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
    """Return ``id.property`` of each input or output of a call."""
    if not isinstance(parts, list):
        return []
    return [f"{part.get('id')}.{part.get('property')}" for part in parts if isinstance(part, dict)]
