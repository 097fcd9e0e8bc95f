"""A trace in numbers: how long it took, who stood still, how much communication was hidden."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_planner.simulation.trace import LANES, Trace


@dataclass(frozen=True, slots=True)
class Timings:
    """A trace in seconds; one tuple entry per device.

    Attributes:
        source: who made the trace.
        forward_s, backward_s: from the first start to the last end.
        compute_s: computing.
        wait_s: standing still for messages: exposed communication.
        message_s: while at least one message was leaving or arriving.
        hidden_s: the part of `message_s` during which the device computed.
    """

    source: str
    forward_s: float
    backward_s: float
    compute_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    message_s: tuple[float, ...]
    hidden_s: tuple[float, ...]

    @property
    def overlap(self) -> float:
        """Share of the message time that is hidden behind compute; 1 if nothing travels."""
        total = sum(self.message_s)
        return sum(self.hidden_s) / total if total else 1.0

    def to_json(self) -> dict[str, Any]:
        """Give the figures as a JSON object; `Any`: numbers, texts and lists of numbers."""
        values = {name: getattr(self, name) for name in self.__slots__}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return plain | {"overlap": self.overlap}


def measure_trace(trace: Trace, num_devices: int) -> Timings:
    """Compute the figures of a trace; O(E log E)."""
    compute = trace.lane == LANES.index("compute")
    message = (trace.lane == LANES.index("send")) | (trace.lane == LANES.index("receive"))
    compute_s, message_s, either_s = (
        _covered_seconds(trace, chosen, num_devices)
        for chosen in (compute, message, compute | message)
    )
    return Timings(
        source=trace.source,
        forward_s=trace.seconds(is_backward=False),
        backward_s=trace.seconds(is_backward=True),
        compute_s=tuple(compute_s.tolist()),
        wait_s=tuple(trace.lane_seconds("wait", num_devices).tolist()),
        message_s=tuple(message_s.tolist()),
        hidden_s=tuple(np.maximum(compute_s + message_s - either_s, 0.0).tolist()),
    )


def _covered_seconds(
    trace: Trace, chosen: NDArray[np.bool_], num_devices: int
) -> NDArray[np.float64]:
    """Give the seconds that at least one chosen event of a device covers, ``[R]``."""
    seconds = np.zeros(num_devices)
    for device in range(num_devices):
        here = chosen & (trace.device == device)
        order = np.argsort(trace.start_ns[here], kind="stable")
        start, end = trace.start_ns[here][order], trace.end_ns[here][order]
        reached = np.maximum.accumulate(end)
        before = np.append(start[:1], reached[:-1])
        seconds[device] = np.maximum(end - np.maximum(start, before), 0).sum() / 1e9
    return seconds
