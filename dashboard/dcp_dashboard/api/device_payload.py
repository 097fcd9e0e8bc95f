"""What the charts of the devices draw, in the wire format of `dcp_dashboard.api.columns`.

`dcp.devices/1`. Header: `num_devices`, `devices_per_node`, `rows`: the quantities of the balance
chart, each `{"id", "label", "meaning", "unit", "kind", "ratio", "mean"}`; unit is "count", "bytes"
or "seconds", kind names the colour, ratio is max/mean. Columns: one of type f8 per row, by its id,
a value per device; and the traffic: `source`, `target`, `bytes`, one row for every two devices
between which something moves.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.columns import encode, narrow
from dcp_dashboard.library.plans import LoadedPlan

ROWS = (
    ("pairs", "Compute", "Visible pairs that the device computes", "count", "attention"),
    ("tokens", "Tokens", "Tokens that the device owns", "count", "neutral"),
    ("sent", "Bytes sent", "Bytes that leave the device", "bytes", "send"),
    ("received", "Bytes received", "Bytes that arrive at the device", "bytes", "receive"),
    ("memory", "Buffers", "Receive buffers and partial sums that the device allocates, forward or "
     "backward, whichever needs more", "bytes", "copy"),
    ("wait_simulated", "Waiting, predicted", "Time that the device stands still", "seconds",
     "wait"),
    ("wait_measured", "Waiting, measured", "Time that the device stood still", "seconds", "wait"),
)  # fmt: skip


def device_columns(loaded: LoadedPlan) -> dict[str, NDArray[np.float64]]:
    """Give the values of each row of the balance chart that the plan has, float64 ``[R]``."""
    totals, size = loaded.totals, loaded.plan.num_devices
    columns = {
        "pairs": totals.pairs,
        "tokens": totals.tokens,
        "sent": totals.sent_bytes,
        "received": totals.received_bytes,
        "memory": totals.memory_bytes,
    }
    floats = {name: values.astype(np.float64) for name, values in columns.items()}
    for source, trace in loaded.traces.items():
        floats[f"wait_{source}"] = trace.lane_seconds("wait", size)
    return floats


def devices_payload(loaded: LoadedPlan) -> bytes:
    """Pack the loads of all devices and the traffic between them; O(R^2)."""
    loads = device_columns(loaded)
    rows = []
    for name, label, meaning, unit, kind in ROWS:
        if name not in loads:
            continue
        values = loads[name]
        mean = float(np.mean(values)) if len(values) else 0.0
        ratio = float(np.max(values)) / mean if mean else 1.0
        rows.append(
            {"id": name, "label": label, "meaning": meaning, "unit": unit, "kind": kind,
             "mean": mean, "ratio": ratio}
        )  # fmt: skip
    traffic = loaded.totals.traffic_bytes
    source, target = np.nonzero(traffic)
    columns: dict[str, NDArray[np.generic]] = {
        **loads,
        "source": narrow(source),
        "target": narrow(target),
        "bytes": traffic[source, target].astype(np.float64),
    }
    header = {
        "num_devices": loaded.plan.num_devices,
        "devices_per_node": loaded.plan.cluster.devices_per_node,
        "rows": rows,
    }
    return encode("dcp.devices/1", header, columns)
