"""What the two canvases draw, as payloads of the wire format in `dcp_dashboard.api.columns`.

`dcp.timeline/1`: one row per event, sorted by (device, lane, start). Header: `source`,
`num_devices`, `devices_per_node`, `base_ns`, `unit_ns`, `longest_ns`, `kinds` and `colours` (by
code), `names` (distinct texts). Columns: `start`, `end` (u4, in `unit_ns` after `base_ns`),
`device`, `lane` (index into `dcp_planner.LANES`), `kind` (index into `kinds`), `backward` (0 or 1),
`division`, `peer` (-1: none), `bytes`, `name` (index into `names`).
`unit_ns` is 1 up to 4.29 s, then a power of ten. `longest_ns` is the length of the longest trace of
the plan: the axis that all share.

`dcp.mask/1`: one row per block and one per tile. Header: `num_tokens`, `num_devices`,
`devices_per_node`, `cu_seqlens`, `device_colours`, and `modes`, the ways to colour a tile, each
`{"id", "label", "column", "palette", "legend"}`: a tile has the colour `palette[column[tile]]`.
Columns: `block_start`, `block_end`, `block_owner`; `tile_q`, `tile_kv` (blocks), `tile_kind`,
`tile_pairs`, `tile_device`, `tile_division`, `tile_backward_division`, `tile_fetch`,
`tile_density`. A plan of several head groups has `group_labels` (the heads of each group) in its
header and a column `tile_group`: the tiles of one group are shown at a time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp_dashboard.api.columns import encode, narrow, narrow_signed
from dcp_dashboard.api.palette import KIND_COLOURS, KINDS, device_colours, oklch, ramp, tints
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.summary import group_labels
from dcp_planner import LANES, Plan, Trace

FETCHES = ("nothing", "keys and values", "queries", "both")
FETCH_TONES = ((0.74, 0.10, 300), (0.58, 0.16, 345), (0.45, 0.14, 300))
FETCH_COLOURS = (oklch(0.85, 0.02, 250), *(oklch(*c) for c in FETCH_TONES))
DENSITY_STEPS = 16

MAX_EVENTS = 4_000_000
"""Events of a timeline that a browser draws: about 20 bytes each, on the way and in memory."""


def timeline_payload(
    trace: Trace, num_devices: int, devices_per_node: int, longest_ns: int = 0
) -> bytes:
    """Pack a trace for the timeline canvas; O(E log E), about 1 s for a million events.

    Args:
        trace: at most `MAX_EVENTS` events.
        num_devices: of the plan's cluster.
        devices_per_node: of the plan's cluster.
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
    names, name = distinct_names(trace)
    header = {
        "source": trace.source,
        "num_devices": num_devices,
        "devices_per_node": devices_per_node,
        "base_ns": base,
        "unit_ns": unit,
        "longest_ns": max(span, longest_ns),
        "kinds": list(KINDS),
        "colours": [KIND_COLOURS[kind] for kind in KINDS],
        "names": names,
    }
    columns = {
        "start": ((trace.start_ns - base) // unit).astype(np.uint32),
        "end": (-(-(trace.end_ns - base) // unit)).astype(np.uint32),
        "bytes": narrow(trace.size_bytes),
        "division": narrow_signed(trace.division),
        "peer": narrow_signed(trace.peer),
        "name": narrow(name),
        "device": narrow(trace.device),
        "lane": trace.lane,
        "kind": kinds_of_names(names, name, trace.lane),
        "backward": trace.is_backward.astype(np.uint8),
    }
    order = track_order(trace)
    return encode("dcp.timeline/1", header, {key: col[order] for key, col in columns.items()})


def track_order(trace: Trace) -> NDArray[np.intp]:
    """Give the events by (device, lane, start), intp ``[E]``: the rows of the payload."""
    order: NDArray[np.intp] = np.lexsort((trace.start_ns, trace.lane, trace.device))
    return order


def length_ns(trace: Trace) -> int:
    """Give the time from the first start to the last end."""
    return int(trace.end_ns.max() - trace.start_ns.min()) if len(trace) else 0


def distinct_names(trace: Trace) -> tuple[list[str], NDArray[np.int64]]:
    """Give the different names, sorted, and which of them each event has, int64 ``[E]``."""
    coded = pa.array(trace.name, pa.string()).dictionary_encode()
    found = [str(text) for text in coded.dictionary.to_pylist()]
    order = sorted(range(len(found)), key=found.__getitem__)
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found))
    codes: NDArray[np.int64] = rank[coded.indices.to_numpy()]
    return [found[i] for i in order], codes


def time_unit_ns(span_ns: int) -> int:
    """Give the smallest power of ten in which a span fits into 32 bits.

    >>> time_unit_ns(4_000_000_000), time_unit_ns(5_000_000_000)
    (1, 10)
    """
    unit = 1
    while span_ns // unit >= 2**32 - 1:
        unit *= 10
    return unit


def event_kinds(trace: Trace) -> NDArray[np.uint8]:
    """Give the kind of each event as an index into `KINDS`, uint8 ``[E]``.

    On the compute lane the event's name says it; whatever is neither reduction nor copy counts as
    attention. The other lanes are kinds themselves.
    """
    return kinds_of_names(*distinct_names(trace), trace.lane)


def kinds_of_names(
    names: Sequence[str], name: NDArray[np.int64], lane: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Give `event_kinds` from the different names and which of them each event has."""
    of_lane = np.array([KINDS.index(lane) if lane in KINDS else 0 for lane in LANES], np.uint8)
    of_name = np.zeros(len(names), np.uint8)
    for kind in ("reduction", "copy"):
        of_name[[text.startswith(kind) for text in names]] = KINDS.index(kind)
    is_compute = lane == LANES.index("compute")
    kinds: NDArray[np.uint8] = np.where(is_compute, of_name[name], of_lane[lane])
    return kinds


def mask_payload(plan: Plan) -> bytes:
    """Pack blocks and tiles for the mask canvas; O(D + W)."""
    header = {
        "num_tokens": plan.num_tokens,
        "num_devices": plan.num_devices,
        "devices_per_node": plan.cluster.devices_per_node,
        "cu_seqlens": plan.cu_seqlens.tolist(),
        "device_colours": device_colours(plan.cluster.nodes, plan.cluster.devices_per_node),
        "modes": mask_modes(plan),
    }
    blocks, tiles = plan.blocks, plan.tiles
    grouped: dict[str, NDArray[np.generic]] = {}
    if tiles.group is not None:
        header["group_labels"] = group_labels(plan)
        grouped["tile_group"] = tiles.group
    columns = {
        "block_start": narrow(blocks.start),
        "block_end": narrow(blocks.end),
        "block_owner": narrow(blocks.owner),
        "tile_q": narrow(tiles.q_block),
        "tile_kv": narrow(tiles.kv_block),
        "tile_kind": tiles.kind,
        "tile_pairs": narrow(tiles.pairs),
        "tile_device": narrow(tiles.device),
        "tile_division": narrow(tiles.division),
        "tile_backward_division": narrow(tiles.backward_division),
        "tile_fetch": fetches(plan),
        "tile_density": densities(plan),
        **grouped,
    }
    return encode("dcp.mask/1", header, columns)


def mask_modes(plan: Plan) -> list[dict[str, Any]]:  # Any: JSON values
    """Give the ways to colour the mask: column, palette by value, and legend."""
    colours = device_colours(plan.cluster.nodes, plan.cluster.devices_per_node)
    per_node = plan.cluster.devices_per_node
    nodes = [
        {"label": f"node {node}", "colours": colours[node * per_node : (node + 1) * per_node]}
        for node in range(plan.cluster.nodes)
    ]
    devices = [{"label": f"device {i}", "colours": [c]} for i, c in enumerate(colours)]
    divisions = ramp(int(plan.tiles.division.max(initial=0)) + 1)
    blues = tints(DENSITY_STEPS)
    return [
        _mode("device", "Device", "tile_device", colours, devices if len(colours) <= 8 else nodes),
        _mode("division", "Division", "tile_division", divisions,
              [{"label": f"division {i}", "colours": [c]} for i, c in enumerate(divisions)]),
        _mode("fetch", "Fetched", "tile_fetch", FETCH_COLOURS,
              [{"label": f"fetches {name}", "colours": [c]}
               for name, c in zip(FETCHES, FETCH_COLOURS, strict=True)]),
        _mode("density", "Density", "tile_density", blues,
              [{"label": "visible pairs of the tile, few to all", "colours": blues}]),
    ]  # fmt: skip


def fetches(plan: Plan) -> NDArray[np.uint8]:
    """Give what each tile's device has to fetch, as an index into `FETCHES`, uint8 ``[W]``."""
    owner, tiles = plan.blocks.owner, plan.tiles
    kv = owner[tiles.kv_block] != tiles.device
    q = owner[tiles.q_block] != tiles.device
    wanted: NDArray[np.uint8] = (kv + 2 * q).astype(np.uint8)
    return wanted


def densities(plan: Plan) -> NDArray[np.uint8]:
    """Give the visible share of each tile in steps, the last for full tiles, uint8 ``[W]``."""
    tokens, tiles = plan.blocks.num_tokens, plan.tiles
    area = tokens[tiles.q_block] * tokens[tiles.kv_block]
    step: NDArray[np.int64] = tiles.pairs * (DENSITY_STEPS - 1) // np.maximum(area, 1)
    return step.astype(np.uint8)


def _mode(
    name: str, label: str, column: str, palette: "list[str] | tuple[str, ...]", legend: list[Any]
) -> dict[str, Any]:  # Any: JSON values
    return {
        "id": name, "label": label, "column": column, "palette": list(palette), "legend": legend,
    }  # fmt: skip
