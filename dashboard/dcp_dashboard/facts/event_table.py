"""The events of a trace as an Arrow table, for SQL and CSV."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp_dashboard.facts.text import DIRECTIONS
from dcp_dashboard.facts.traces import track_order
from dcp_planner import LANES, Trace
from dcp_planner.simulation import EVENT_KINDS


def event_table(trace: Trace, rows: NDArray[np.integer]) -> pa.Table:
    """Build the table of some events; `event` counts as the timeline's payload, texts are words.

    `peer` is null where there is none; O(E log E).
    """
    event = np.empty(len(trace), np.int64)
    event[track_order(trace)] = np.arange(len(trace))
    peer, start, end = trace.peer[rows], trace.start_ns[rows], trace.end_ns[rows]
    return pa.table(
        {
            "source": _words(np.zeros(len(rows), np.uint8), (trace.source,)),
            "event": event[rows],
            "device": trace.device[rows],
            "lane": _words(trace.lane[rows], LANES),
            "kind": _words(trace.kind[rows], EVENT_KINDS),
            "name": _words(trace.name[rows], trace.names),
            "direction": _words(trace.is_backward[rows].astype(np.uint8), DIRECTIONS),
            "division": trace.division[rows],
            "peer": pa.array(peer, mask=peer < 0),
            "bytes": trace.size_bytes[rows],
            "ready_ns": trace.ready_ns[rows],
            "start_ns": start,
            "end_ns": end,
            "duration_ns": end - start,
        }
    )


def _words(codes: NDArray[np.integer], texts: tuple[str, ...]) -> "pa.Array[Any]":
    return pa.array(texts, pa.string()).take(pa.array(codes))
