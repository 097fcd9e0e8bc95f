"""The fabric of an emulated cluster: messages share ports max-min fairly, in virtual nanoseconds.

A message is ready when both of its ends have posted it. Messages from one device to another travel
one after the other, as through a connection; inputs and results have one each. Connections share
the ports of devices and of NICs as `dcp_planner.simulation.share_ports` says.
"""

import heapq
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_planner import Plan
from dcp_planner.model import MessageOrder
from dcp_planner.simulation import (
    NEVER_NS,
    PlanModel,
    StreamPorts,
    Streams,
    end_stream,
    first_ended,
    next_end,
    start_stream,
    streams_of,
)
from dcp_runtime.transport.transport import Parcel


@dataclass(slots=True)
class _Message:
    """A message, posted at one end or at both."""

    ends: list[Parcel] = field(default_factory=list)
    stream: int = 0
    busy_ns: int = 0
    latency_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Costs of the messages of a plan on its cluster; int64 ``[X]``, for each transfer."""

    stream: Ints  # connection of each transfer
    ports: StreamPorts  # of each connection
    busy_ns: Ints  # for which a transfer occupies ports that it has alone
    latency_ns: Ints
    order: MessageOrder = "any"  # in which a connection serves messages that are ready

    @classmethod
    def of_plan(cls, model: PlanModel, flat: Plan) -> "Costs":
        """Price the messages of both directions of an expanded plan."""
        stream, ports = streams_of(flat.transfers, flat.cluster)
        busy, latency = np.zeros((2, len(stream)), np.int64)
        for direction, part in model.directions.items():
            prices = model.price(direction)
            busy[part.rows], latency[part.rows] = prices.busy_ns, prices.latency_ns
        return cls(stream, ports, busy, latency, flat.cluster.message_order)


class Fabric:
    """Messages under way between devices; everything up to `now_ns` has happened.

    Not safe for threads: whoever uses it holds the lock of its clock.
    """

    def __init__(self, costs: Costs) -> None:
        self.now_ns, self._costs = 0, costs
        self._streams = Streams.of(*costs.ports)
        self._posted: dict[int, _Message] = {}
        self._current: dict[int, _Message] = {}
        # By stream: messages in line, by their number or, first in first out, by their turn.
        self._lines: dict[int, list[tuple[int, int, _Message]]] = {}
        self._arriving: list[tuple[int, int, Parcel]] = []
        self._turn = count()
        self._is_advancing = False

    def post(self, parcel: Parcel) -> None:
        """Note that an end of a message is there; with the second end it is ready."""
        number = parcel.bundle.index
        message = self._posted.setdefault(number, _Message())
        message.ends.append(parcel)
        if len(message.ends) < 2:
            return
        del self._posted[number]
        rows = [transfer.index for transfer in parcel.bundle.transfers]
        message.stream = int(self._costs.stream[rows[0]])
        message.busy_ns = int(self._costs.busy_ns[rows].sum())
        message.latency_ns = int(self._costs.latency_ns[rows[0]])
        turn = next(self._turn)
        line = self._lines.setdefault(message.stream, [])
        heapq.heappush(line, (turn if self._costs.order == "fifo" else number, turn, message))
        self._start_next(message.stream)

    def _start_next(self, stream: int) -> None:
        line = self._lines.get(stream)
        if not line or stream in self._current:
            return
        message = heapq.heappop(line)[2]
        self._current[stream] = message
        for parcel in message.ends:
            parcel.start_ns = self.now_ns + message.latency_ns * (not parcel.bundle.is_send)
        start_stream(self._streams, stream, message.busy_ns, self.now_ns)

    def next_ns(self) -> int:
        """Return when the next message leaves or arrives if no other is posted, or `NEVER_NS`."""
        leaves_ns = int(next_end(self._streams, self.now_ns))
        return min(leaves_ns, self._arriving[0][0] if self._arriving else NEVER_NS)

    def advance(self, until_ns: int) -> None:
        """Let time pass: messages leave and arrive, their parcels end and call their followers."""
        # A follower that posts a message does so at the moment to which time has come by then.
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while (when := self.next_ns()) <= until_ns:
                self.now_ns = max(self.now_ns, when)
                self._settle()
            self.now_ns = max(self.now_ns, until_ns)
        finally:
            self._is_advancing = False

    def _settle(self) -> None:
        """End what ends at this moment; the followers may post more."""
        while self._arriving and self._arriving[0][0] <= self.now_ns:
            heapq.heappop(self._arriving)[2].finish(end_ns=self.now_ns)
        while (stream := int(first_ended(self._streams, self.now_ns))) >= 0:
            end_stream(self._streams, stream, self.now_ns)
            message = self._current.pop(stream)
            self._start_next(stream)
            for parcel in message.ends:
                if parcel.bundle.is_send:
                    parcel.finish(end_ns=self.now_ns)
                else:
                    due = self.now_ns + message.latency_ns
                    heapq.heappush(self._arriving, (due, next(self._turn), parcel))
