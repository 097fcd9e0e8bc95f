"""The tables of a plan as CSV: its devices, its tiles, the events of its traces."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.csv import WriteOptions, write_csv

from dcp_dashboard.facts.event_table import event_table
from dcp_dashboard.facts.metrics import device_columns
from dcp_dashboard.facts.traces import EventFilter, matching
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import Trace


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


def events_csv(traces: Iterable[Trace], chosen: EventFilter) -> Iterator[bytes]:
    """Write the matching events of traces as CSV, heading first, one trace after the other."""
    for number, trace in enumerate(traces):
        safe = replace(trace, names=tuple(map(_plain, trace.names)))
        table = event_table(safe, matching(trace, chosen)).drop_columns("ready_ns")
        buffer = io.BytesIO()
        write_csv(table, buffer, WriteOptions(include_header=number == 0))
        yield buffer.getvalue()


def _plain(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
