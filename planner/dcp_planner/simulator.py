"""Run a plan's programs against a cluster model instead of a cluster.

The model, per device: one compute lane, which stands still at a `CommWait`; and for each link class
(inside the node, between nodes) one port that sends and one that receives, independent of each
other. A message starts once both ends have launched it and both ports are free, occupies both for
``size / bandwidth`` and arrives ``latency`` later. Messages between two devices keep the order in
which they were launched; a free port takes the lowest transfer id it can serve. Attention takes
``FLOPs / flops_per_s``; copies and reductions, bound by memory bandwidth, count as free. Backward
starts when the slowest device has finished forward. Times are whole nanoseconds, durations rounded
up.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from dcp_planner.cluster import BACKWARD_FLOPS_RATIO
from dcp_planner.errors import PlanError
from dcp_planner.plan import Attention, CommLaunch, CommWait, Plan, TransferKind
from dcp_planner.trace import LANES, Lane, Trace

Port = tuple[int, bool]  # device, whether it leads out of the node
_END_OF_TIME_NS = 1 << 62  # 146 years; traces keep int64


def simulate(plan: Plan) -> Trace:
    """Predict the timeline of a plan, forward and then backward.

    Discrete events, O(E log E + E R) for E messages and instructions on R devices.

    Raises:
        PlanError: if the programs wait for each other for ever, or run for a century.
    """
    events = _Events()
    start_ns = 0
    for is_backward in (False, True):
        start_ns = _Pass(plan, is_backward, events).run(start_ns)
    return events.trace()


@dataclass(slots=True)
class _Events:
    rows: list[tuple[int, int, int, int, bool, int, int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(  # noqa: PLR0913 - one argument per column
        self,
        lane: Lane,
        device: int,
        start_ns: int,
        end_ns: int,
        name: str,
        is_backward: bool,
        division: int,
        peer: int = -1,
        size_bytes: int = 0,
    ) -> None:
        self.rows.append(
            (start_ns, end_ns, device, LANES.index(lane), is_backward, division, peer, size_bytes)
        )
        self.names.append(name)

    def trace(self) -> Trace:
        columns = np.array(self.rows, np.int64).reshape(-1, 8)
        order = np.lexsort((columns[:, 0], columns[:, 3], columns[:, 2]))
        start, end, device, lane, is_backward, division, peer, size = columns[order].T
        return Trace(
            source="simulated",
            start_ns=start,
            end_ns=end,
            device=device.astype(np.int32),
            lane=lane.astype(np.uint8),
            is_backward=is_backward.astype(np.bool_),
            division=division.astype(np.int32),
            peer=peer.astype(np.int32),
            size_bytes=size,
            name=tuple(self.names[i] for i in order),
        )


class _Pass:
    """One direction in flight: the state of every device, port and transfer."""

    def __init__(self, plan: Plan, is_backward: bool, events: _Events) -> None:
        self.cluster, self.is_backward, self.events = plan.cluster, is_backward, events
        self.programs = [p.instructions for p in (plan.backward if is_backward else plan.forward)]
        ratio = BACKWARD_FLOPS_RATIO if is_backward else 1.0
        flops = plan.tiles.pairs.astype(np.float64) * (plan.shape.flops_per_pair * ratio)
        self.flops = flops.tolist()
        table = plan.transfers
        self.kind, self.block = table.kind.tolist(), table.block.tolist()
        self.source, self.target = table.source.tolist(), table.target.tolist()
        self.size, self.division = table.size_bytes.tolist(), table.division.tolist()
        self.step = [0] * plan.num_devices
        self.blocked: list[tuple[int, int, int] | None] = [None] * plan.num_devices
        self.open: dict[tuple[int, int], int] = {}  # (device, key): transfers not yet done there
        self.keys: dict[tuple[int, int], int] = {}  # (device, transfer): key it was launched under
        self.queues: dict[tuple[int, int], deque[int]] = {}  # (source, target): ready, in order
        self.sends: dict[Port, dict[int, deque[int]]] = {}  # ready queues that leave by a port
        self.receives: dict[Port, dict[int, deque[int]]] = {}  # ready queues that enter by it
        self.busy: set[tuple[bool, Port]] = set()  # (is receiving, port)
        self.heap: list[tuple[int, int, str, int]] = []
        self.count = 0
        self.end_ns = 0

    def run(self, start_ns: int) -> int:
        """Play all events; gives the time of the last one."""
        self.end_ns = start_ns
        for device in range(len(self.programs)):
            self._at(start_ns, "resume", device)
        handlers = {
            "resume": self._resume, "leave": self._leave, "arrive": self._arrive,
        }  # fmt: skip
        while self.heap:
            now, _, what, subject = heappop(self.heap)
            self.end_ns = max(self.end_ns, now)
            handlers[what](now, subject)
        stuck = [d for d, state in enumerate(self.blocked) if state is not None]
        if stuck:
            raise PlanError(
                f"the programs wait for each other for ever: devices {stuck[:8]} never get past a "
                "CommWait; validate(plan) names the transfer"
            )
        return self.end_ns

    def _at(self, time_ns: int, what: str, subject: int) -> None:
        self.count += 1
        heappush(self.heap, (time_ns, self.count, what, subject))

    def _resume(self, now: int, device: int) -> None:
        program = self.programs[device]
        while self.step[device] < len(program):
            instruction = program[self.step[device]]
            if isinstance(instruction, CommWait) and self.open.get((device, instruction.key)):
                self.blocked[device] = (instruction.key, instruction.division, now)
                return
            self.step[device] += 1
            if isinstance(instruction, CommLaunch):
                self._launch(now, device, instruction)
            elif isinstance(instruction, Attention):
                self._compute(now, device, instruction)
                return

    def _compute(self, now: int, device: int, instruction: Attention) -> None:
        flops = math.fsum(self.flops[tile] for tile in instruction.tiles)
        end = _later(now, flops / self.cluster.flops_per_s)
        self.events.add(
            "compute", device, now, end, "attention", self.is_backward, instruction.division
        )
        self._at(end, "resume", device)

    def _launch(self, now: int, device: int, instruction: CommLaunch) -> None:
        place = (device, instruction.key)
        self.open[place] = self.open.get(place, 0) + len(instruction.transfers)
        for transfer in instruction.transfers:
            self.keys[device, transfer] = instruction.key
            source, target = self.source[transfer], self.target[transfer]
            if (target if device == source else source, transfer) in self.keys:
                self._make_ready(now, transfer)

    def _make_ready(self, now: int, transfer: int) -> None:
        source, target = self.source[transfer], self.target[transfer]
        queue = self.queues.setdefault((source, target), deque())
        queue.append(transfer)
        out, into = self._ports(transfer)
        self.sends.setdefault(out, {})[target] = queue
        self.receives.setdefault(into, {})[source] = queue
        if (False, out) not in self.busy and (True, into) not in self.busy:
            self._start(now, queue)

    def _ports(self, transfer: int) -> tuple[Port, Port]:
        source, target = self.source[transfer], self.target[transfer]
        is_inter = self.cluster.node_of(source) != self.cluster.node_of(target)
        return (source, is_inter), (target, is_inter)

    def _start(self, now: int, queue: deque[int]) -> None:
        transfer = queue.popleft()
        out, into = self._ports(transfer)
        if not queue:
            del self.sends[out][into[0]]
            del self.receives[into][out[0]]
        self.busy |= {(False, out), (True, into)}
        rate = self.cluster.inter_bytes_per_s if out[1] else self.cluster.intra_bytes_per_s
        size, division = self.size[transfer], self.division[transfer]
        end = max(now + 1, _later(now, size / rate))
        latency = _later(end, self.cluster.latency_s) - end
        name = f"{TransferKind(self.kind[transfer]).name.lower()} {self.block[transfer]}"
        add, backward = self.events.add, self.is_backward
        add("send", out[0], now, end, name, backward, division, into[0], size)
        add(
            "receive", into[0], now + latency, end + latency, name, backward, division, out[0], size
        )
        self._at(end, "leave", transfer)
        self._at(end + latency, "arrive", transfer)

    def _leave(self, now: int, transfer: int) -> None:
        out, into = self._ports(transfer)
        self.busy -= {(False, out), (True, into)}
        self._finish(now, out[0], transfer)
        if (False, out) not in self.busy:  # finishing may have launched, and started, more
            self._serve(now, self.sends.get(out), into_side=True, is_inter=out[1])
        if (True, into) not in self.busy:
            self._serve(now, self.receives.get(into), into_side=False, is_inter=out[1])

    def _serve(
        self, now: int, waiting: dict[int, deque[int]] | None, *, into_side: bool, is_inter: bool
    ) -> None:
        """Start the lowest transfer of a free port whose other port is free too."""
        if not waiting:
            return
        free = [q for peer, q in waiting.items() if (into_side, (peer, is_inter)) not in self.busy]
        if free:
            self._start(now, min(free, key=lambda queue: queue[0]))

    def _arrive(self, now: int, transfer: int) -> None:
        self._finish(now, self.target[transfer], transfer)

    def _finish(self, now: int, device: int, transfer: int) -> None:
        place = (device, self.keys[device, transfer])
        self.open[place] -= 1
        state = self.blocked[device]
        if state is None or state[0] != place[1] or self.open[place]:
            return
        _, division, since = state
        self.blocked[device] = None
        if now > since:
            what = "results" if TransferKind(self.kind[transfer]).is_result else "inputs"
            name = f"wait for {what} {division}"
            self.events.add("wait", device, since, now, name, self.is_backward, division)
        self._resume(now, device)


def _later(now: int, seconds: float) -> int:
    """Give the time that long after `now`, rounded up."""
    if now + seconds * 1e9 >= _END_OF_TIME_NS:
        raise PlanError(
            f"expected a predicted time below {_END_OF_TIME_NS / 1e9:.0f} s, got more; give the "
            "cluster's rates in bytes and FLOPs per second, its latency in seconds"
        )
    return now + math.ceil(seconds * 1e9)
