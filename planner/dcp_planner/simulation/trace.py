"""Traces: events of all devices in time, from the simulator or the runtime, and their figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Bytes, Floats, Indices, Ints, Record, order_by, sealed, settle
from dcp_planner.tables.plan import Drawn, TransferKind

Source: TypeAlias = Literal["simulated", "measured"]
Lane: TypeAlias = Literal["compute", "send", "receive", "wait"]
LANES: tuple[Lane, ...] = get_args(Lane)
EventKind: TypeAlias = Literal["attention", "reduction", "copy", "send", "receive", "wait"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
COLUMNS = (
    "start_ns", "end_ns", "ready_ns", "device", "kind", "is_backward", "division", "peer",
    "size_bytes", "transfer",
)  # fmt: skip
"""Columns of numbers, in the order of the fields."""

_LANE_OF_KIND = np.array([0, 0, 0, 1, 2, 3], np.uint8)  # attention, reduction, copy: compute


@dataclass(frozen=True, slots=True, eq=False)
class Trace(Record, Drawn):
    """Events of all devices on one clock, sorted by (device, lane, start).

    The lanes of a device: `compute` (attention, reduction, copy), `send` and `receive` (one event
    per message in flight), `wait` (the device stands still until a message is there).

    Attributes:
        source: ``"simulated"`` or ``"measured"``.
        start_ns, end_ns: int64 ``[E]``, nanoseconds since the first event of the trace.
        ready_ns: int64 ``[E]``, when all that an event needs was there: a simulated message stands
            in line for its ports from then on. Equal to `start_ns` for all other events.
        device: int32 ``[E]``.
        kind: uint8 ``[E]``, index into `EVENT_KINDS`.
        is_backward: bool ``[E]``.
        division: int32 ``[E]``.
        peer: int32 ``[E]``, the other device of a message, or -1.
        size_bytes: int64 ``[E]``, bytes of a message, or 0.
        transfer: int32 ``[E]``, row of the plan's transfers that a message belongs to, or -1.
        name: int32 ``[E]``, index into `names`.
        names: texts for people, sorted, each once: ``"attention"``, ``"kv 12"``.
        lane: uint8 ``[E]``, index into `LANES`; follows from `kind`.
    """

    source: Source
    start_ns: Annotated[Ints, "E"]
    end_ns: Annotated[Ints, "E"]
    ready_ns: Annotated[Ints, "E"]
    device: Annotated[Indices, "E"]
    kind: Annotated[Bytes, "E"]
    is_backward: Annotated[Bools, "E"]
    division: Annotated[Indices, "E"]
    peer: Annotated[Indices, "E"]
    size_bytes: Annotated[Ints, "E"]
    transfer: Annotated[Indices, "E"]
    name: Annotated[Indices, "E"]
    names: tuple[str, ...]
    lane: Bytes = field(init=False)

    def _check(self) -> None:
        if self.source not in get_args(Source):
            raise ValueError(
                f"Trace.source: expected one of {get_args(Source)}, got {self.source!r}"
            )
        if (self.end_ns < self.start_ns).any():
            raise ValueError("Trace: an event ends before it starts")
        for column, most in ((self.kind, len(EVENT_KINDS)), (self.name, len(self.names))):
            if len(column) and not 0 <= column.min() <= column.max() < most:
                raise ValueError(f"Trace: expected kinds and names below {most}")
        settle(self, lane=sealed(_LANE_OF_KIND[self.kind]))

    @classmethod
    def of_rows(cls, source: Source, rows: Ints, texts: Sequence[str]) -> "Trace":
        """Build a trace from events in any order.

        Args:
            source: as of the trace.
            rows: int64 ``[E, 10]``, values of `COLUMNS`.
            texts: the name of each event.
        """
        columns = dict(zip(COLUMNS, rows.T, strict=True))
        columns["name"], names = index_names(texts)
        lane = _LANE_OF_KIND[columns["kind"]]
        order = np.lexsort((columns["start_ns"], lane, columns["device"]))
        ordered: dict[str, Any] = {name: column[order] for name, column in columns.items()}
        return cls(source=source, names=names, **ordered)

    def name_of(self, event: int) -> str:
        """Return the text that names an event for people."""
        return self.names[int(self.name[event])]

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

    def lane_seconds(self, lane: Lane, num_devices: int) -> Floats:
        """Compute each device's seconds in a lane, ``[R]``; overlapping messages count twice."""
        chosen = self.lane == LANES.index(lane)
        spent = (self.end_ns[chosen] - self.start_ns[chosen]) / 1e9
        seconds = np.zeros(num_devices)
        np.add.at(seconds, self.device[chosen], spent)
        return seconds


def index_names(texts: Sequence[str]) -> tuple[Indices, tuple[str, ...]]:
    """Encode event names as the columns `name` and `names` of a trace.

    >>> index_names(["wait", "kv 3", "wait"])[1]
    ('kv 3', 'wait')
    """
    names = tuple(sorted(set(texts)))
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[text] for text in texts], np.int32), names


@dataclass(frozen=True, slots=True)
class Timings:
    """A trace in seconds; one tuple entry per device."""

    source: str  # as of the trace
    # forward_s, backward_s: from the first start to the last end
    forward_s: float
    backward_s: float
    compute_s: tuple[float, ...]  # computing
    wait_s: tuple[float, ...]  # waiting for messages
    message_s: tuple[float, ...]  # while at least one message was leaving or arriving
    hidden_s: tuple[float, ...]  # the part of `message_s` during which the device computed

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
        # Inclusion and exclusion: |A and B| = |A| + |B| - |A or B|.
        hidden_s=tuple(np.maximum(compute_s + message_s - either_s, 0.0).tolist()),
    )


def _covered_seconds(trace: Trace, chosen: Bools, num_devices: int) -> Floats:
    """Compute the seconds that at least one chosen event of a device covers, ``[R]``."""
    seconds = np.zeros(num_devices)
    for device in range(num_devices):
        here = chosen & (trace.device == device)
        order = np.argsort(trace.start_ns[here], kind="stable")
        start, end = trace.start_ns[here][order], trace.end_ns[here][order]
        # Events overlap; each adds only what lies behind the latest end before it.
        reached = np.maximum.accumulate(end)
        before = np.append(start[:1], reached[:-1])
        seconds[device] = np.maximum(end - np.maximum(start, before), 0).sum() / 1e9
    return seconds


def pair_messages(trace: Trace) -> tuple[Ints, Ints]:
    """Find the sends and the receives of the same messages, rows of a trace; O(E log E).

    Layers use a transfer again: its n-th send belongs to its n-th receive. A message of which one
    end is missing is left out.
    """
    send, receive = (np.flatnonzero(trace.lane == LANES.index(n)) for n in ("send", "receive"))
    _, sent, received = np.intersect1d(
        _occurrences(trace, send), _occurrences(trace, receive),
        assume_unique=True, return_indices=True,
    )  # fmt: skip
    return send[sent], receive[received]


def number_alike(*keys: NDArray[np.integer | np.bool_]) -> Ints:
    """Number rows of keys, at least 0, from 0; equal rows alike, in the order of the keys.

    >>> number_alike(np.array([7, 2, 7]), np.array([0, 5, 0])).tolist()
    [1, 0, 1]
    """
    order = order_by(*keys)
    rows, found = np.stack(keys)[:, order], np.zeros(len(order), np.int64)
    found[order[1:]] = np.cumsum((rows[:, 1:] != rows[:, :-1]).any(axis=0))
    return found


def number_divisions(trace: Trace) -> Ints:
    """Number the device, direction and division of every event, int64 ``[E]``."""
    _, division = np.unique(trace.division, return_inverse=True)  # it may be -1
    return number_alike(trace.device, trace.is_backward, division)


def _occurrences(trace: Trace, rows: Ints) -> Ints:
    """Number events by their transfer and by how often it came before, int64."""
    order = np.lexsort((trace.start_ns[rows], trace.transfer[rows]))
    transfer = trace.transfer[rows][order].astype(np.int64)
    first = np.searchsorted(transfer, transfer)
    found = np.empty(len(rows), np.int64)
    found[order] = transfer * len(trace) + np.arange(len(rows)) - first
    return found


def message_names(kind: Bytes, block: Indices, groups: int, num_blocks: int) -> list[str]:
    """Name messages of an expanded plan: ``"kv 12"``, of several groups ``"kv 12.3"``."""
    labels = [name.name.lower() for name in TransferKind]
    places = zip(kind.tolist(), block.tolist(), strict=True)
    if groups == 1:
        return [f"{labels[k]} {b}" for k, b in places]
    return [f"{labels[k]} {b % num_blocks}.{b // num_blocks}" for k, b in places]


def wait_name(division: int, *, is_result: bool) -> str:
    """Name the wait for the messages of a division: its inputs, or its results."""
    return f"wait for {'results' if is_result else 'inputs'} {division}"
