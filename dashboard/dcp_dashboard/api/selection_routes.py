"""Routes of the data API that answer about one selected thing, and about parts of the mask."""

import json
from collections.abc import Callable

from flask import Blueprint, request
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.device_payload import devices_payload
from dcp_dashboard.api.pairs_payload import pairs_payload, read_window
from dcp_dashboard.facts.devices import device_facts, division_facts
from dcp_dashboard.facts.event import event_facts
from dcp_dashboard.facts.text import Facts
from dcp_dashboard.facts.tiles import pair_facts, tile_facts, transfer_facts
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_planner import Direction

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
Answer = Callable[[bytes, str], WSGIResponse]
JSON, BINARY = "application/json", "application/octet-stream"


def add_selection_routes(api: Blueprint, library: PlanLibrary, answer: Answer) -> None:
    """Add ``/plan/<key>/devices``, ``/pairs`` and one address for each thing that is selected."""

    @api.get("/plan/<key>/devices")
    def devices(key: str) -> WSGIResponse:
        loaded = library.load(key)
        return answer(library.payload(loaded, "devices", devices_payload), BINARY)

    @api.get("/plan/<key>/pairs")
    def pairs(key: str) -> WSGIResponse:
        plan = library.load(key).plan
        window = read_window(request.args.get("tokens", ""), plan.num_tokens)
        return answer(pairs_payload(plan, window), BINARY)

    _add_facts_routes(api, library, answer)


def _add_facts_routes(api: Blueprint, library: PlanLibrary, answer: Answer) -> None:
    def facts(key: str, make: Callable[[LoadedPlan], Facts]) -> WSGIResponse:
        text = json.dumps(make(library.load(key)).to_json(), separators=(",", ":"))
        return answer(text.encode(), JSON)

    @api.get("/plan/<key>/tile/<int:tile>")
    def tile(key: str, tile: int) -> WSGIResponse:
        return facts(key, lambda loaded: tile_facts(loaded, tile))

    @api.get("/plan/<key>/transfer/<int:transfer>")
    def transfer(key: str, transfer: int) -> WSGIResponse:
        return facts(key, lambda loaded: transfer_facts(loaded, transfer))

    @api.get("/plan/<key>/device/<int:device>")
    def device(key: str, device: int) -> WSGIResponse:
        return facts(key, lambda loaded: device_facts(loaded, device))

    @api.get("/plan/<key>/device/<int:device>/<int:peer>")
    def pair(key: str, device: int, peer: int) -> WSGIResponse:
        return facts(key, lambda loaded: pair_facts(loaded, device, peer))

    @api.get("/plan/<key>/division/<direction>/<int:division>")
    def division(key: str, direction: str, division: int) -> WSGIResponse:
        known = next((name for name in DIRECTIONS if name == direction), None)
        if known is None:
            raise DashboardError(f"expected forward or backward, got {direction[:20]!r}")
        text = request.args.get("device", "")
        one = int(text[:9]) if text.isascii() and text.isdigit() else None
        return facts(key, lambda loaded: division_facts(loaded, division, known, one))

    @api.get("/plan/<key>/event/<source>/<int:index>")
    def event(key: str, source: str, index: int) -> WSGIResponse:
        loaded = library.load(key)
        known = next((name for name in loaded.traces if name == source), None)
        if known is None:
            raise DashboardError(
                f"{loaded.entry.relative} has no trace {source[:40]!r}; it has "
                f"{', '.join(loaded.traces)}"
            )
        return facts(key, lambda item: event_facts(item, known, index))
