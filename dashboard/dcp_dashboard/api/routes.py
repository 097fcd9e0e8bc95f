"""The routes of plans: their data below `/api/plan/<key>/`, and files that a browser sends.

Every answer with data carries an ETag of its content, so a browser asks again but receives nothing
twice. `POST /api/uploads?name=&size=` announces a file and gives its ``id``; `POST
/api/uploads/<id>?at=` brings the piece that begins there, in order, so that no request is ever
large; the answer to the last one holds the plan's ``key``. The bytes stay in memory until they are
whole. Nothing is ever written into the served folder.
"""

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flask import Blueprint, Response, jsonify, make_response, request
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.devices import (
    devices_payload,
    memory_payload,
    path_payload,
    timeline_payload,
)
from dcp_dashboard.api.mask import (
    mask_payload,
    moves_payload,
    pairs_payload,
    read_window,
)
from dcp_dashboard.facts.comparison import has_same_blocks
from dcp_dashboard.facts.devices import device_facts, division_facts, find_sequences, sequence_facts
from dcp_dashboard.facts.gain import gains_of_plan
from dcp_dashboard.facts.quantities import size as size_text
from dcp_dashboard.facts.text import DIRECTIONS, Details
from dcp_dashboard.facts.tiles import event_facts, pair_facts, tile_facts, transfer_facts
from dcp_dashboard.facts.traces import length_ns, phase_of
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dsl import DCPError
from dcp_planner import Trace

MAX_WATCHED = 8
"""Most files whose versions a request may ask for."""
JSON, BINARY = "application/json", "application/octet-stream"
NUMBERED: Mapping[str, Callable[[LoadedPlan, int], Details]] = {
    "tile": tile_facts,
    "transfer": transfer_facts,
    "device": device_facts,
    "sequence": sequence_facts,
}
"""Numbered things by their word in addresses, with the functions that collect their details."""


OF_PLAN: Mapping[str, Callable[[LoadedPlan], bytes]] = {
    "mask": lambda loaded: mask_payload(loaded.plan),
    "devices": devices_payload,
}
OF_TRACE: Mapping[str, Callable[[LoadedPlan, Trace, str], bytes]] = {
    "memory": lambda loaded, trace, _: memory_payload(trace, loaded.plan, _longest_ns(loaded)),
    "path": lambda loaded, trace, _: path_payload(loaded, trace.source),
    "timeline": lambda loaded, trace, phase: timeline_payload(
        phase_of(trace, phase), loaded.plan, _longest_ns(loaded, phase)
    ),
}
"""Payloads by the last part of their address: of a plan, or of one trace and, if asked, phase."""


def _longest_ns(loaded: LoadedPlan, phase: str = "") -> int:
    return max(length_ns(phase_of(each, phase)) for each in loaded.traces.values())


def data_api(library: PlanLibrary) -> Blueprint:
    """Build the routes; a plan that is missing or broken is a 404 with ``{"error": message}``."""
    api = Blueprint("dcp_data", __name__, url_prefix="/api")
    _add_payload_routes(api, library)
    _add_facts_routes(api, library)

    @api.get("/changes")
    def changes() -> WSGIResponse:
        keys = [key for key in request.args.get("keys", "").split(",") if key][:MAX_WATCHED]
        response = make_response(jsonify(versions={key: library.version(key) for key in keys}))
        response.cache_control.no_store = True
        return response

    @api.errorhandler(DCPError)
    def explain(error: DCPError) -> WSGIResponse:
        return refuse(str(error))

    return api


def _add_payload_routes(api: Blueprint, library: PlanLibrary) -> None:
    """Add what canvases draw: of a plan, of its traces, of a part of its mask, of two plans."""

    @api.get(f"/plan/<key>/<any({', '.join(OF_PLAN)}):what>")
    def of_plan(key: str, what: str) -> WSGIResponse:
        loaded = library.load(key)
        return answer(library.payload(loaded, what, lambda: OF_PLAN[what](loaded)), BINARY)

    @api.get(f"/plan/<key>/<any({', '.join(OF_TRACE)}):what>")
    def of_trace(key: str, what: str) -> WSGIResponse:
        loaded = library.load(key)
        trace = trace_of(loaded, request.args.get("source", "simulated"))
        asked = request.args.get("phase", "")
        # Any other text means both directions, and must not become a key of the cache.
        phase = asked if asked in DIRECTIONS else ""
        made = library.payload(
            loaded, f"{what} {trace.source} {phase}", lambda: OF_TRACE[what](loaded, trace, phase)
        )
        return answer(made, BINARY)

    @api.get("/plan/<key>/gain")
    def gain(key: str) -> WSGIResponse:
        loaded = library.load(key)
        return answer(library.payload(loaded, "gain", lambda: _gain_payload(loaded)), JSON)

    @api.get("/plan/<key>/pairs")
    def pairs(key: str) -> WSGIResponse:
        plan = library.load(key).plan
        window = read_window(request.args.get("tokens", ""), plan.num_tokens)
        return answer(pairs_payload(plan, window), BINARY)

    @api.get("/compare/<first>/<second>/moves")
    def moves(first: str, second: str) -> WSGIResponse:
        a, b = library.load(first), library.load(second)
        if not has_same_blocks(a.plan, b.plan):
            return refuse(
                f"{a.entry.relative} and {b.entry.relative} cut tokens differently; tiles cannot "
                "be compared"
            )
        # The cache knows the content of the first plan; that of the second belongs to the name.
        name = f"moves {b.entry.key} {b.entry.size_bytes} {b.entry.mtime_ns}"
        made = library.payload(a, name, lambda: moves_payload(a.plan, b.plan))
        return answer(made, BINARY)


def _gain_payload(loaded: LoadedPlan) -> bytes:
    return json.dumps([gain.to_json() for gain in gains_of_plan(loaded)]).encode()


def _add_facts_routes(api: Blueprint, library: PlanLibrary) -> None:
    """Add one address for each kind of thing that can be selected."""

    def facts(key: str, make: Callable[[LoadedPlan], Details]) -> WSGIResponse:
        text = json.dumps(make(library.load(key)).to_json(), separators=(",", ":"))
        return answer(text.encode(), JSON)

    @api.get(f"/plan/<key>/<any({', '.join(NUMBERED)}):thing>/<int:number>")
    def by_number(key: str, thing: str, number: int) -> WSGIResponse:
        return facts(key, lambda loaded: NUMBERED[thing](loaded, number))

    @api.get("/plan/<key>/sequence")
    def named_sequence(key: str) -> WSGIResponse:
        name = request.args.get("name", "")
        try:
            return facts(key, lambda loaded: find_sequences(loaded, name))
        except DashboardError as error:  # a browser logs every other status as a fault
            return jsonify(error=str(error))

    @api.get("/plan/<key>/device/<int:device>/<int:peer>")
    def pair(key: str, device: int, peer: int) -> WSGIResponse:
        return facts(key, lambda loaded: pair_facts(loaded, device, peer))

    @api.get("/plan/<key>/division/<direction>/<int:division>")
    def division(key: str, direction: str, division: int) -> WSGIResponse:
        known = next((name for name in DIRECTIONS if name == direction), None)
        if known is None:
            raise DashboardError(f"expected forward or backward, got {direction[:20]!r}")
        text = request.args.get("device", "")
        # Cut: Python refuses to read a number of thousands of digits.
        one = int(text[:9]) if text.isascii() and text.isdigit() else None
        return facts(key, lambda loaded: division_facts(loaded, division, known, one))

    @api.get("/plan/<key>/event/<source>/<int:index>")
    def event(key: str, source: str, index: int) -> WSGIResponse:
        return facts(
            key, lambda loaded: event_facts(loaded, trace_of(loaded, source).source, index)
        )


def trace_of(loaded: LoadedPlan, source: str) -> Trace:
    """Return the trace of a plan by its source, a text of a request."""
    for name, trace in loaded.traces.items():
        if name == source:
            return trace
    raise DashboardError(
        f"{loaded.entry.relative} has no trace {source[:40]!r}; it has {', '.join(loaded.traces)}"
    )


def answer(payload: bytes, content_type: str) -> WSGIResponse:
    """Return bytes with an ETag of their content; 304 if the browser has them already."""
    response = Response(payload, content_type=content_type)
    response.set_etag(hashlib.blake2b(payload, digest_size=16).hexdigest())
    # The browser may keep them but must ask again: the file can change.
    response.cache_control.no_cache = True
    response.cache_control.private = True
    return response.make_conditional(request)


def refuse(message: str) -> WSGIResponse:
    """Return a 404 with the reason."""
    return make_response(jsonify(error=message), 404)


MAX_UPLOAD_BYTES = 64 * 10**6
"""Most bytes of a file that a browser sends: it is held in memory until it is whole."""
MAX_OPEN = 4
"""Most files that are on their way at once."""


@dataclass(slots=True)
class Upload:
    """A file being uploaded, with the bytes received so far."""

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
            number = secrets.token_hex(8)  # no other page can guess it and add to the file
            self._open[number] = Upload(shown, size_bytes)
            # The oldest goes: it may be one whose page was closed half way.
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
                # A piece is lost or came twice: the rest would make another file.
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
        # The page of another site may send forms and plain text without a preflight request, but
        # not this content type.
        if request.mimetype != BINARY:
            raise DashboardError(f"expected a piece as {BINARY}, got {request.mimetype[:40]!r}")
        upload = uploads.add(number, _whole("at"), request.get_data())
        if upload is None:
            return make_response(jsonify(key=None))
        loaded = library.keep(bytes(upload.content), upload.name)
        return make_response(jsonify(key=loaded.entry.key))

    @api.errorhandler(DCPError)
    def explain(error: DCPError) -> WSGIResponse:
        return make_response(jsonify(error=str(error)), 400)

    return api


def _whole(name: str) -> int:
    text = request.args.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise DashboardError(f"expected {name} as a whole number of bytes, got {text[:20]!r}")
    return int(text)
