"""Traces: events of all devices in time, from the simulator or the runtime, and their figures."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import readonly

Source: TypeAlias = Literal["simulated", "measured"]
Lane: TypeAlias = Literal["compute", "send", "receive", "wait"]
LANES: tuple[str, ...] = get_args(Lane)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Events of all devices on one clock, sorted by (device, lane, start).

    The lanes of a device: `compute` (attention, reduction, copy), `send` and `receive` (one event
    per message in flight), `wait` (the device stands still: exposed communication).

    Attributes:
        source: who made it.
        start_ns, end_ns: int64 ``[E]``, nanoseconds since the first event of the trace.
        device: int32 ``[E]``.
        lane: uint8 ``[E]``, index into `LANES`.
        is_backward: bool ``[E]``.
        division: int32 ``[E]``.
        peer: int32 ``[E]``, the other device of a message, or -1.
        size_bytes: int64 ``[E]``, bytes of a message, or 0.
        name: one text per event, for example ``"attention"`` or ``"kv 12"``.
    """

    source: Source
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    device: NDArray[np.int32]
    lane: NDArray[np.uint8]
    is_backward: NDArray[np.bool_]
    division: NDArray[np.int32]
    peer: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    name: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise ValueError(
                f"Trace.source: expected one of {get_args(Source)}, got {self.source!r}"
            )
        size = len(self.name)
        for column, dtype in (
            ("start_ns", np.int64), ("end_ns", np.int64), ("device", np.int32), ("lane", np.uint8),
            ("is_backward", np.bool_), ("division", np.int32), ("peer", np.int32),
            ("size_bytes", np.int64),
        ):  # fmt: skip
            value = readonly(f"Trace.{column}", getattr(self, column), dtype, (size,))
            object.__setattr__(self, column, value)
        if (self.end_ns < self.start_ns).any():
            raise ValueError("Trace: an event ends before it starts")

    def __len__(self) -> int:
        return len(self.name)

    def seconds(self, *, is_backward: bool | None = None) -> float:
        """Compute the time from the first start to the last end, of one direction or of both."""
        chosen = (
            np.ones(len(self), bool) if is_backward is None else self.is_backward == is_backward
        )
        if not chosen.any():
            return 0.0
        return float(self.end_ns[chosen].max() - self.start_ns[chosen].min()) / 1e9

    def lane_seconds(self, lane: Lane, num_devices: int) -> NDArray[np.float64]:
        """Compute each device's seconds in a lane, ``[R]``; overlapping messages count twice."""
        chosen = self.lane == LANES.index(lane)
        spent = (self.end_ns[chosen] - self.start_ns[chosen]) / 1e9
        seconds = np.zeros(num_devices)
        np.add.at(seconds, self.device[chosen], spent)
        return seconds


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
        """Compute the figures as a JSON object; `Any`: numbers, texts and lists of numbers."""
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
    """Compute the seconds that at least one chosen event of a device covers, ``[R]``."""
    seconds = np.zeros(num_devices)
    for device in range(num_devices):
        here = chosen & (trace.device == device)
        order = np.argsort(trace.start_ns[here], kind="stable")
        start, end = trace.start_ns[here][order], trace.end_ns[here][order]
        reached = np.maximum.accumulate(end)
        before = np.append(start[:1], reached[:-1])
        seconds[device] = np.maximum(end - np.maximum(start, before), 0).sum() / 1e9
    return seconds
