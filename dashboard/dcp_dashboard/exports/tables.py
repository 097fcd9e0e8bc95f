"""The tables of a plan as CSV: its devices, its tiles, the events of its traces."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.csv import write_csv

from dcp_dashboard.facts.metrics import device_columns
from dcp_dashboard.facts.traces import EventFilter, matching, track_order
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import LANES, Trace
from dcp_planner.simulation import EVENT_KINDS

EVENT_COLUMNS = (
    "source", "event", "device", "lane", "kind", "name", "direction", "division", "peer", "bytes",
    "start_ns", "end_ns", "duration_ns",
)  # fmt: skip
CHUNK_ROWS = 20_000


def devices_csv(loaded: LoadedPlan) -> bytes:
    """Write one line per device: node, what it owns, computes, sends, receives, holds, waits."""
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
    blocks, kinds = plan.blocks, np.array(["empty", "partial", "full"])
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
    write_csv(pa.table({name: pa.array(values) for name, values in columns.items()}), buffer)
    return buffer.getvalue()


def events_csv(traces: Iterable[Trace], chosen: EventFilter) -> Iterator[str]:
    """Write the matching events of traces as CSV, heading first, some thousand lines at a time."""
    yield ",".join(EVENT_COLUMNS) + "\r\n"
    for trace in traces:
        rank = np.empty(len(trace), np.int64)
        rank[track_order(trace)] = np.arange(len(trace))
        rows = matching(trace, chosen)
        safe = [_plain(text) for text in trace.names]
        for at in range(0, len(rows), CHUNK_ROWS):
            part = rows[at : at + CHUNK_ROWS]
            start, end = trace.start_ns[part], trace.end_ns[part]
            text = io.StringIO()
            csv.writer(text).writerows(
                zip(
                    [trace.source] * len(part),
                    rank[part].tolist(),
                    trace.device[part].tolist(),
                    [LANES[lane] for lane in trace.lane[part].tolist()],
                    [EVENT_KINDS[code] for code in trace.kind[part].tolist()],
                    [safe[code] for code in trace.name[part].tolist()],
                    ["backward" if b else "forward" for b in trace.is_backward[part].tolist()],
                    trace.division[part].tolist(),
                    ["" if peer < 0 else peer for peer in trace.peer[part].tolist()],
                    trace.size_bytes[part].tolist(),
                    start.tolist(),
                    end.tolist(),
                    (end - start).tolist(),
                    strict=True,
                )
            )
            yield text.getvalue()


def _plain(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
