"""A plan's files below `/api/plan/<key>/`: pictures, its page, its traces, and tables as CSV."""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from flask import Blueprint, Response, request, send_file
from numpy.typing import NDArray
from pyarrow.csv import WriteOptions, write_csv
from werkzeug.wrappers import Response as WSGIResponse

from dcp_dashboard.api.routes import BINARY, answer, refuse, trace_of
from dcp_dashboard.exports.overview import Theme, standalone_page, still
from dcp_dashboard.exports.pictures import mask_svg, thumbnail
from dcp_dashboard.facts.findings import device_columns
from dcp_dashboard.facts.traces import EventFilter, event_table, matching, read_filter
from dcp_dashboard.library.folder import SUFFIX
from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary, version_of
from dcp_dsl import DCPError
from dcp_planner import Trace, to_perfetto


def devices_csv(loaded: LoadedPlan) -> bytes:
    """Write one line per device: node, tokens, work, bytes sent, received and held, waiting."""
    loads, size = device_columns(loaded), loaded.plan.num_devices
    device = np.arange(size)
    columns: dict[str, NDArray[Any]] = {
        "device": device,
        "node": loaded.plan.cluster.node_of_device,
        "tokens": loads["tokens"].astype(np.int64),
        "tiles": loaded.totals.tiles,
        "pairs": loads["pairs"].round().astype(np.int64),
        "sent_bytes": loads["sent"].astype(np.int64),
        "received_bytes": loads["received"].astype(np.int64),
        "buffer_bytes": loads["memory"].astype(np.int64),
    }
    columns |= {f"{name}_s": loads[name] for name in loads if name.startswith("wait_")}
    return _table_csv(columns)


def tiles_csv(loaded: LoadedPlan) -> bytes:
    """Write one line per tile: its tokens, owners, device, divisions, kind, pairs.

    Plans with several groups of heads have a column `group`, counted from 0.
    """
    plan, tiles = loaded.plan, loaded.plan.tiles
    blocks, kinds = plan.blocks, np.array(["empty", "partial", "full"])  # by `BlockKind`
    columns: dict[str, NDArray[Any]] = {
        "tile": np.arange(len(tiles)),
        "q_block": tiles.q_block,
        "kv_block": tiles.kv_block,
        "q_start": blocks.start[tiles.q_block],
        "q_end": blocks.end[tiles.q_block],
        "kv_start": blocks.start[tiles.kv_block],
        "kv_end": blocks.end[tiles.kv_block],
        "kind": kinds[tiles.kind],
        "pairs": tiles.pairs,
        "device": tiles.device,
        "q_owner": blocks.owner[tiles.q_block],
        "kv_owner": blocks.owner[tiles.kv_block],
        "division": tiles.division,
        "backward_division": tiles.backward_division,
    }
    if tiles.group is not None:
        columns["group"] = tiles.group
    return _table_csv(columns)


def _table_csv(columns: dict[str, NDArray[Any]]) -> bytes:  # Any: numbers or texts
    buffer = io.BytesIO()
    write_csv(pa.table(columns), buffer)
    return buffer.getvalue()


def events_csv(traces: Iterable[Trace], chosen: EventFilter) -> Iterator[bytes]:
    """Write the matching events of traces as CSV, heading first, one trace after the other."""
    for number, trace in enumerate(traces):
        safe = replace(trace, names=tuple(map(_plain, trace.names)))
        table = event_table(safe, matching(trace, chosen))
        buffer = io.BytesIO()
        write_csv(table, buffer, WriteOptions(include_header=number == 0))
        yield buffer.getvalue()


def _plain(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


CSV = "text/csv; charset=utf-8"


def export_api(library: PlanLibrary) -> Blueprint:
    """Build the routes of the files below a plan; refusals are as in `data_api`."""
    api = Blueprint("dcp_exports", __name__, url_prefix="/api/plan/<key>")
    _add_trace_routes(api, library)

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

    @api.get("/thumbnail.png")
    def small_picture(key: str) -> WSGIResponse:
        return answer(library.thumbnail(key, thumbnail), "image/png")

    @api.get("/file")
    def file(key: str) -> WSGIResponse:
        entry = library.load(key).entry
        # A file name may hold line ends and bytes that are no UTF-8; a header may not.
        name = "".join(c for c in PurePosixPath(entry.relative).name if c.isprintable())
        # Flask's own ETag encodes the path, which need not be text.
        mark = version_of(entry)
        return send_file(entry.path, BINARY, as_attachment=True, download_name=name, etag=mark)

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
"""Suffix, content type and making function of a file, by the last part of its address."""


def _add_trace_routes(api: Blueprint, library: PlanLibrary) -> None:
    """Add the routes of traces; ``?source=`` names one of them, or is ``both`` for all."""

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
    # Browsers differ in how they read any other character in this header.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    response.headers.set("Content-Disposition", "attachment", filename=f"{plain}.{suffix}")
    return response
