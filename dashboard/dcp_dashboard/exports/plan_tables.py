"""The tables of a plan as CSV: its devices in numbers, its tiles."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from dcp_dashboard.api.device_payload import device_columns
from dcp_dashboard.library.plans import LoadedPlan


def devices_csv(loaded: LoadedPlan) -> bytes:
    """Write one line per device: node, what it owns, computes, sends, receives, holds, waits."""
    loads, size = device_columns(loaded), loaded.plan.num_devices
    device = np.arange(size)
    columns: dict[str, NDArray[Any]] = {
        "device": device,
        "node": device // loaded.plan.cluster.devices_per_node,
        "tokens": loads["tokens"].astype(np.int64),
        "tiles": loaded.totals.tiles,
        "pairs": loads["pairs"].round().astype(np.int64),
        "sent_bytes": loads["sent"].astype(np.int64),
        "received_bytes": loads["received"].astype(np.int64),
        "buffer_bytes": loads["memory"].astype(np.int64),
    }
    columns |= {f"{name}_s": loads[name] for name in loads if name.startswith("wait_")}
    return _csv(columns)


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
    return _csv(columns)


def _csv(columns: dict[str, NDArray[Any]]) -> bytes:  # Any: numbers or texts
    buffer = io.BytesIO()
    csv.write_csv(pa.table({name: pa.array(values) for name, values in columns.items()}), buffer)
    return buffer.getvalue()
