"""Plan files that a browser sends piece by piece, so that no request is ever large.

`POST /api/uploads?name=&size=` announces a file and gives its ``id``; `POST /api/uploads/<id>?at=`
brings the piece that begins there, in order; the answer to the last one holds the plan's ``key``.
The bytes stay in memory until they are whole. Nothing is ever written into the served folder. Every
refusal is a `DashboardError`.
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from flask import Blueprint, jsonify, make_response, request
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.facts.quantities import size as size_text
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError

MAX_UPLOAD_BYTES = 64 * 10**6
MAX_OPEN = 4
BINARY = "application/octet-stream"


@dataclass(slots=True)
class Upload:
    """A file being uploaded: its name, its length, and the bytes received so far."""

    name: str
    size_bytes: int
    content: bytearray = field(default_factory=bytearray)


class Uploads:
    """Files on their way; a new one pushes the oldest out, so memory stays bounded."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Upload] = OrderedDict()
        self._lock = threading.Lock()

    def announce(self, name: str, size_bytes: int) -> str:
        """Begin a file and return its id."""
        shown = "".join(c for c in name[-80:] if c.isprintable()) or "the file"
        if not 0 < size_bytes <= MAX_UPLOAD_BYTES:
            raise DashboardError(
                f"{shown}: expected at most {size_text(MAX_UPLOAD_BYTES)} and at least one byte, "
                f"got {size_text(size_bytes)}; put larger plans into the served folder"
            )
        with self._lock:
            number = secrets.token_hex(8)
            self._open[number] = Upload(shown, size_bytes)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return number

    def add(self, number: str, at: int, piece: bytes) -> Upload | None:
        """Take the next piece; return the file once it is whole."""
        with self._lock:
            upload = self._open.get(number)
            if upload is None:
                raise DashboardError("expected a piece of an announced file; send it again")
            fits = at == len(upload.content) and 0 < len(piece) <= upload.size_bytes - at
            if not fits:
                del self._open[number]
                raise DashboardError(
                    f"{upload.name}: expected a piece from byte {len(upload.content)} to at most "
                    f"{upload.size_bytes}, got {len(piece)} bytes from {at}; send the file again"
                )
            upload.content += piece
            if len(upload.content) < upload.size_bytes:
                return None
            return self._open.pop(number)


def upload_api(library: PlanLibrary) -> Blueprint:
    """Build the routes; every refusal is a 400 with ``{"error": message}``."""
    api = Blueprint("dcp_uploads", __name__, url_prefix="/api/uploads")
    uploads = Uploads()

    @api.post("")
    def announce() -> WSGIResponse:
        number = uploads.announce(request.args.get("name", ""), _whole("size"))
        return make_response(jsonify(id=number), 201)

    @api.post("/<number>")
    def add(number: str) -> WSGIResponse:
        # A form of another site can only send forms and plain text without asking first.
        if request.mimetype != BINARY:
            raise DashboardError(f"expected a piece as {BINARY}, got {request.mimetype[:40]!r}")
        upload = uploads.add(number, _whole("at"), request.get_data())
        if upload is None:
            return make_response(jsonify(key=None))
        loaded = library.keep(bytes(upload.content), upload.name)
        return make_response(jsonify(key=loaded.entry.key))

    @api.errorhandler(DCPError)
    def refuse(error: DCPError) -> WSGIResponse:
        return make_response(jsonify(error=str(error)), 400)

    return api


def _whole(name: str) -> int:
    text = request.args.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise DashboardError(f"expected {name} as a whole number of bytes, got {text[:20]!r}")
    return int(text)
