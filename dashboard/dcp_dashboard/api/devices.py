"""The data of the canvases of devices: timeline, critical path, memory, balance and traffic.

All are payloads of the wire format in `api.columns`.

`dcp.timeline/1`: one row per event, sorted by (device, lane, start). Header: `source`,
`num_devices`, `node_starts`, `base_ns`, `unit_ns`, `longest_ns`, `kinds` and `colours` (by
code), `names` (distinct texts), `sequence_blocks` (the first block of each sequence, then the
number of all). Columns: `start`, `end` (u4, in `unit_ns` after `base_ns`),
`device`, `lane` (index into `dcp_planner.LANES`), `kind` (index into `kinds`), `backward` (0 or 1),
`division`, `peer` (-1: none), `bytes`, `name` (index into `names`); `transfer` and `block`, rows of
the plan that a message belongs to (-1: none).
`unit_ns` is 1 up to 4.29 s, then a power of ten. `longest_ns` is the length of the longest trace of
the plan: the axis that all share.

`dcp.memory/1`, see `facts.memory`. Header: `source`, `num_devices`, `unit_ns` and `longest_ns` as
in the timeline; `limit_bytes`, memory of a device. Columns: `saved`, `forward`, `backward` (f8, a
value per device), bytes held outside of both directions and in each; `buffers` and `began`,
`ended` (forward of all devices, then backward); `ptr`, where each device's steps begin in `time`
and `filled`, the last two a value per step.

`dcp.path/1`: the chain of events that decided the end, one row per step, in time. Header: `source`
and `shares`, words that link to the longest step of each kind. Columns: `event` (row of the
timeline), `start`, `end` (f8, ns as those of the timeline).

`dcp.devices/1`. Header: `num_devices`, `node_starts`, `rows`: the quantities of the balance
chart, each `{"id", "label", "meaning", "unit", "kind", "ratio", "mean"}`; unit is "count", "bytes"
or "seconds", kind names the colour, ratio is max/mean. Columns: one of type f8 per row, by its id,
a value per device; and the traffic: `source`, `target`, `bytes`, one row for every two devices
between which something moves.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.columns import encode, narrow
from dcp_dashboard.api.palette import KIND_COLOURS
from dcp_dashboard.facts.memory import memory_over_time
from dcp_dashboard.facts.metrics import ROWS, chart_columns
from dcp_dashboard.facts.path import path_shares
from dcp_dashboard.facts.traces import length_ns, track_order
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dsl.arrays import Ints
from dcp_planner import Plan, Source, Trace
from dcp_planner.simulation import EVENT_KINDS

MAX_EVENTS = 4_000_000
"""Events of a timeline that a browser draws: about 20 bytes each, on the way and in memory."""


def timeline_payload(trace: Trace, plan: Plan, longest_ns: int = 0) -> bytes:
    """Pack a trace for the timeline canvas; O(E log E), about 1 s for a million events.

    Args:
        trace: at most `MAX_EVENTS` events.
        plan: the plan that it is a trace of.
        longest_ns: length of the plan's longest trace, if that is not this one.

    Raises:
        DashboardError: if a browser could not hold so many events.
    """
    if len(trace) > MAX_EVENTS:
        raise DashboardError(
            f"expected at most {MAX_EVENTS:,} events in a timeline, the {trace.source} trace has "
            f"{len(trace):,}; open it in ui.perfetto.dev: dcpm run writes it with "
            "--trace FILE.pftrace, and the page of the timeline exports it"
        )
    base = int(trace.start_ns.min(initial=0)) if len(trace) else 0
    span = int(trace.end_ns.max(initial=base)) - base
    unit = time_unit_ns(span)
    header = {
        "source": trace.source,
        "num_devices": plan.num_devices,
        "node_starts": plan.cluster.node_ptr.tolist(),
        "base_ns": base,
        "unit_ns": unit,
        "longest_ns": max(span, longest_ns),
        "kinds": list(EVENT_KINDS),
        "colours": [KIND_COLOURS[kind] for kind in EVENT_KINDS],
        "names": list(trace.names),
        "sequence_blocks": np.searchsorted(
            plan.blocks.sequence, np.arange(len(plan.cu_seqlens))
        ).tolist(),
    }
    columns = {
        # Rounded outwards: an event is never shorter than it was, and never nothing.
        "start": ((trace.start_ns - base) // unit).astype(np.uint32),
        "end": (-(-(trace.end_ns - base) // unit)).astype(np.uint32),
        "bytes": narrow(trace.size_bytes),
        "division": narrow(trace.division),
        "peer": narrow(trace.peer),
        "name": narrow(trace.name),
        "transfer": narrow(trace.transfer),
        # Events without a transfer have -1, which reads what is appended.
        "block": narrow(np.append(plan.transfers.block, -1)[trace.transfer]),
        "device": narrow(trace.device),
        "lane": trace.lane,
        "kind": trace.kind,
        "backward": trace.is_backward.astype(np.uint8),
    }
    order = track_order(trace)
    return encode("dcp.timeline/1", header, {key: col[order] for key, col in columns.items()})


def path_payload(loaded: LoadedPlan, source: Source) -> bytes:
    """Pack the critical path of a trace; O(E log E)."""
    trace, path = loaded.traces[source], loaded.paths[source]
    base = int(trace.start_ns.min(initial=0)) if len(trace) else 0
    place = np.argsort(track_order(trace))
    shares = [link.to_json() for link in path_shares(loaded, source)]
    columns = {
        "event": narrow(place[path.event]),
        "start": (path.start_ns - base).astype(np.float64),
        "end": (path.end_ns - base).astype(np.float64),
    }
    return encode("dcp.path/1", {"source": source, "shares": shares}, columns)


def time_unit_ns(span_ns: int) -> int:
    """Return the smallest power of ten in which a span fits into 32 bits.

    >>> time_unit_ns(4_000_000_000), time_unit_ns(5_000_000_000)
    (1, 10)
    """
    unit = 1
    while span_ns // unit >= 2**32 - 1:
        unit *= 10
    return unit


def memory_payload(trace: Trace, plan: Plan, longest_ns: int = 0) -> bytes:
    """Pack the bytes that devices hold over the time of a trace; O((W + E) log E)."""
    curves, longest = memory_over_time(plan, trace), max(length_ns(trace), longest_ns)
    base = int(trace.start_ns.min(initial=0)) if len(trace) else 0
    unit, levels = time_unit_ns(longest), curves.levels

    def ticks(time_ns: Ints) -> NDArray[np.uint32]:
        return (np.maximum(time_ns - base, 0) // unit).astype(np.uint32).ravel()

    header = {
        "source": trace.source,
        "num_devices": plan.num_devices,
        "unit_ns": unit,
        "longest_ns": longest,
        "limit_bytes": plan.cluster.memory_bytes,
    }
    columns: dict[str, NDArray[np.generic]] = {
        # Exact up to 2**53 bytes; numbers of a browser are float64, too.
        "saved": levels.saved.astype(np.float64),
        "forward": levels.forward.astype(np.float64),
        "backward": levels.backward.astype(np.float64),
        "buffers": curves.buffers.astype(np.float64).ravel(),
        "began": ticks(curves.began_ns),
        "ended": ticks(curves.ended_ns),
        "ptr": curves.ptr.astype(np.uint32),
        "time": ticks(curves.time_ns),
        "filled": curves.filled.astype(np.float64),
    }
    return encode("dcp.memory/1", header, columns)


def devices_payload(loaded: LoadedPlan) -> bytes:
    """Pack the loads of all devices and the traffic between them; O(R^2)."""
    loads = chart_columns(loaded)
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
        "node_starts": loaded.plan.cluster.node_ptr.tolist(),
        "rows": rows,
    }
    return encode("dcp.devices/1", header, columns)
