"""What happened, or would happen, when: the one record of the simulator and of the runtime."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

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
        """Give the time from the first start to the last end, of one direction or of both."""
        chosen = (
            np.ones(len(self), bool) if is_backward is None else self.is_backward == is_backward
        )
        if not chosen.any():
            return 0.0
        return float(self.end_ns[chosen].max() - self.start_ns[chosen].min()) / 1e9

    def lane_seconds(self, lane: Lane, num_devices: int) -> NDArray[np.float64]:
        """Give each device's seconds in a lane, ``[R]``; overlapping messages count twice."""
        chosen = self.lane == LANES.index(lane)
        spent = (self.end_ns[chosen] - self.start_ns[chosen]) / 1e9
        seconds = np.zeros(num_devices)
        np.add.at(seconds, self.device[chosen], spent)
        return seconds
