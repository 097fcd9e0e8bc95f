"""Where tiles and events lie on a canvas, and scripts that read its pixels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcp_planner import LANES, Plan, Trace

READ = """(canvas, points) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return points.map(([x, y]) => {
    const at = 4 * (Math.floor(y * canvas.height) * canvas.width + Math.floor(x * canvas.width));
    return '#' + [0, 1, 2].map((i) => data.data[at + i].toString(16).padStart(2, '0')).join('');
  });
}"""
"""The colours at points given as shares of the width and the height of a canvas."""
BANDS = {"compute": 0.48, "wait": 0.30, "send": 0.67, "receive": 0.87}
"""The middle of the band of each lane in the row of its device."""


def centres(plan: Plan) -> list[tuple[float, float]]:
    """Return (across, down) of every tile as shares of the mask."""
    middle = (plan.blocks.start + plan.blocks.end) / 2 / plan.num_tokens
    return list(zip(middle[plan.tiles.kv_block], middle[plan.tiles.q_block], strict=True))


def place(
    traces: Sequence[Trace], source: int, event: int, window: Any = None, devices: int = 4
) -> tuple[float, float]:
    """Return the middle of an event's bar as shares; a device has a row for each trace."""
    trace = traces[source]
    start, end = window or (0, max(int(t.end_ns.max()) for t in traces))
    middle = ((trace.start_ns[event] + trace.end_ns[event]) / 2 - start) / (end - start)
    row = trace.device[event] * len(traces) + source + BANDS[LANES[trace.lane[event]]]
    return float(middle), float(row / (devices * len(traces)))


def longest(trace: Trace, lane: str) -> int:
    """Return the longest event of a lane whose middle no later event of its lane covers.

    Messages that share a port overlap, and the one that is drawn last lies above the others.
    """
    events = np.flatnonzero(trace.lane == LANES.index(lane))
    middle = (trace.start_ns + trace.end_ns) / 2

    def is_seen(event: int) -> bool:
        others = events[(trace.device[events] == trace.device[event]) & (events != event)]
        return not np.any(
            (trace.start_ns[others] <= middle[event]) & (middle[event] <= trace.end_ns[others])
        )

    seen = [event for event in events.tolist() if is_seen(event)]
    return int(max(seen or events.tolist(), key=lambda e: trace.end_ns[e] - trace.start_ns[e]))
