"""Find the critical path of a trace, and account for every moment of every device.

Both follow predecessors backwards in time. From the last event they form the critical path, the
chain of events that decided the end; from the end of a wait they lead to the reasons of the wait.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

import numpy as np

from dcp_dsl.arrays import Bools, Bytes, Floats, Indices, Ints, Record
from dcp_planner.causes.alternatives import Free, cluster_without
from dcp_planner.causes.dependencies import COMPUTE, RECEIVE, SEND, WAIT, Dependencies, layer_gaps
from dcp_planner.jit import IntTable, compiled
from dcp_planner.model.problem import loads_of
from dcp_planner.simulation.trace import EVENT_KINDS, Trace
from dcp_planner.tables.plan import Plan

Step = Literal["computing", "reducing", "links", "latency", "launches"]
STEPS: tuple[Step, ...] = get_args(Step)
"""Uses of a moment on the critical path: `links` while a message leaves, `latency` until
it has arrived, `launches` before a direction's first kernel (the host, copies of own tokens) and
in the gap between two events of the chain."""

Account = Literal["computing", "reducing", "links", "latency", "others", "launches", "idle"]
ACCOUNTS: tuple[Account, ...] = get_args(Account)
"""Uses of a moment of a device. `links` to `launches`: the device stands still, because a message
that it needs, directly or through others, is leaving (`links`) or on its way (`latency`); because
another device still computes (`others`); or although nothing is under way (`launches`). `idle`: the
device has finished a direction on which others still work."""

_COMPUTING, _REDUCING, _LINKS, _LATENCY, _LAUNCHES = range(len(STEPS))
_OTHERS, _STARTS, _IDLE = (ACCOUNTS.index(name) for name in ("others", "launches", "idle"))
# The first four steps and accounts have the same numbers.
_ACCOUNT_OF_STEP = np.array([_OTHERS, _OTHERS, _LINKS, _LATENCY, _STARTS])
"""Account of a wait for each step that leads to its end: compute there is another device's."""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath(Record):
    """Chain of events that decided when the last one ended; it has no gap in time."""

    event: Annotated[Indices, "P"]  # rows of the trace
    # start_ns, end_ns: int64 `[P]`
    start_ns: Annotated[Ints, "P"]
    end_ns: Annotated[Ints, "P"]
    step: Annotated[Bytes, "P"]  # index into `STEPS`; `launches`: the time before an event

    def __len__(self) -> int:
        return len(self.event)

    def shares(self) -> dict[Step, float]:
        """Compute the share of the path that each kind of step takes; they add up to 1."""
        spent = np.bincount(self.step, self.end_ns - self.start_ns, len(STEPS))
        return dict(zip(STEPS, (spent / max(1.0, spent.sum())).tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Accounting(Record):
    """The time of each direction by device and account."""

    # int64 `[2, R, 7]`, by direction (forward, backward), device and `ACCOUNTS`; for each device
    # they add up to the length of the run, without the time between layers. A moment in which
    # others are still in forward counts for the direction of the device.
    spent_ns: Annotated[Ints, 2, "R", "K"]

    def shares(self) -> dict[Account, float]:
        """Compute the share of all devices' time in each account; they add up to 1."""
        spent = self.spent_ns.sum(axis=(0, 1))
        return dict(zip(ACCOUNTS, (spent / max(1.0, spent.sum())).tolist(), strict=True))


def steps_of(trace: Trace) -> Bytes:
    """Find the kind of step that each event of a trace is, index into `STEPS`, uint8 ``[E]``."""
    found = np.where(trace.kind == EVENT_KINDS.index("attention"), _COMPUTING, _REDUCING)
    found[trace.kind == EVENT_KINDS.index("copy")] = _LAUNCHES
    found[trace.lane == SEND] = _LINKS
    # In a run a receive lasts until the data is there; in a prediction it is the send, later.
    found[trace.lane == RECEIVE] = _LATENCY if trace.source == "simulated" else _LINKS
    return found.astype(np.uint8)


def critical_path(trace: Trace, found: Dependencies) -> CriticalPath:
    """Follow the predecessors from the last event to the begin of the trace; O(E)."""
    table = np.zeros((4, 2 * len(trace) + 2), np.int64)  # each event, and the gap before it
    size = 0
    if len(trace):
        last, first_ns = int(found.end_ns.argmax()), int(trace.start_ns.min())
        size = _walk(last, first_ns, found.begin_ns, found.end_ns, found.predecessor, table)
    event, is_gap, start_ns, end_ns = table[:, :size][:, ::-1]  # in time: it was walked backwards
    step = np.where(is_gap, _LAUNCHES, steps_of(trace)[event])
    return CriticalPath(event.astype(np.int32), start_ns, end_ns, step.astype(np.uint8))


def account_for(trace: Trace, found: Dependencies, num_devices: int) -> Accounting:
    """Divide the time of every device in each direction; O(E + lengths of the waits' chains)."""
    spent = np.zeros((2, num_devices, len(ACCOUNTS)), np.int64)
    length = trace.end_ns - trace.start_ns
    side, step = trace.is_backward.astype(np.int64), steps_of(trace)
    is_work = trace.lane == COMPUTE
    account = np.where(step == _LAUNCHES, _STARTS, step)  # of a device's own work
    np.add.at(spent, (side[is_work], trace.device[is_work], account[is_work]), length[is_work])
    _blame_waits(trace, found, spent)
    begins, gap = layer_gaps(trace)
    works = is_work | (trace.lane == WAIT)
    ended = np.full(num_devices, np.iinfo(np.int64).min)  # of each device's share of forward
    for backward in range(2):
        here = trace.is_backward == bool(backward)
        if not here.any():
            continue
        first, last = int(trace.start_ns[here].min()), int(trace.end_ns[here].max())
        mine = here & works
        finished = np.full(num_devices, first)
        np.maximum.at(finished, trace.device[mine], trace.end_ns[mine])
        # In a run a device begins backward while others still work on forward.
        begin, end = np.maximum(first, ended), np.full(num_devices, last)
        if not backward:
            end = ended = _until_backward(trace, works, finished, end)
        finished = np.maximum(finished, begin)
        spent[backward, :, _IDLE] = end - finished
        inside = here[begins] & (trace.start_ns[begins] - gap >= first)
        between = np.bincount(trace.device[begins[inside]], gap[inside]).max(initial=0)
        # Other gaps between events are time to start the next one.
        rest = end - begin - int(between) - spent[backward].sum(axis=1)
        spent[backward, :, _STARTS] += rest
    return Accounting(spent)


def _until_backward(trace: Trace, works: Bools, finished: Ints, end: Ints) -> Ints:
    """Bound the end of forward by the begin of each device's backward, int64 ``[R]``.

    A device that computes forward again during backward keeps the end of all: both are mixed.
    """
    began = np.full(len(end), np.iinfo(np.int64).max)
    mine = works & trace.is_backward
    np.minimum.at(began, trace.device[mine], trace.start_ns[mine])
    return np.where(finished <= began, np.minimum(end, began), end)


def _blame_waits(trace: Trace, found: Dependencies, spent: Ints) -> None:
    """Add the time of every wait to the accounts of its reasons."""
    waits = np.flatnonzero(trace.lane == WAIT)
    spent_of = np.zeros((len(waits), len(STEPS)), np.int64)
    _blame(
        waits, trace.start_ns, found.begin_ns, found.end_ns, found.predecessor,
        steps_of(trace), spent_of,
    )  # fmt: skip
    side, device = trace.is_backward[waits].astype(np.int64), trace.device[waits]
    for step, account in enumerate(_ACCOUNT_OF_STEP.tolist()):
        np.add.at(spent, (side, device, account), spent_of[:, step])


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A plan of one head group, its timeline, critical path, and accounting of time."""

    plan: Plan
    trace: Trace
    path: CriticalPath
    accounting: Accounting

    @property
    def ideal(self) -> Plan:
        """The plan on a cluster without launches whose kernels waste nothing."""
        free: tuple[Free, ...] = ("launches", "waves", "tiles")
        return replace(self.plan, cluster=cluster_without(self.plan.cluster, free))

    @property
    def pairs_of_device(self) -> Ints:
        """Visible pairs that each device computes, int64 ``[R]``."""
        tiles = self.plan.tiles
        return loads_of(tiles.device, tiles.pairs, self.plan.num_devices)

    @property
    def idle_devices(self) -> Ints:
        """Devices without a visible pair to compute, if there are others."""
        # A batch without any pair has no idle devices: there is nothing to share out.
        pairs = self.pairs_of_device
        return np.flatnonzero(pairs == 0) if pairs.any() else np.zeros(0, np.int64)

    @property
    def compute_s(self) -> Floats:
        """Seconds that each device computes, without the work of its host, float64 ``[R]``."""
        trace = self.trace
        spent = (trace.end_ns - trace.start_ns) / 1e9
        spent *= (trace.lane == COMPUTE) & (steps_of(trace) != _LAUNCHES)
        return np.bincount(trace.device, spent, self.plan.num_devices).astype(np.float64)


@compiled
def _walk(
    last: int, floor_ns: int, begin_ns: Ints, end_ns: Ints, predecessor: Indices, table: IntTable
) -> int:
    """Write the steps that lead to an event: (event, whether it is the gap before it, start, end).

    The last one comes first; steps that take no time are left out.
    """
    size, at, now = 0, last, end_ns[last]
    # A bounded loop: events of no length could wait for each other.
    for _ in range(len(begin_ns)):
        began = max(floor_ns, min(now, begin_ns[at]))
        before = predecessor[at]
        ended = floor_ns if before < 0 else max(floor_ns, min(began, end_ns[before]))
        for is_gap, start, end in ((0, began, now), (1, ended, began)):
            if start < end:
                table[0, size], table[1, size] = at, is_gap
                table[2, size], table[3, size] = start, end
                size += 1
        if before < 0 or ended <= floor_ns:
            break
        at, now = before, ended
    return size


@compiled
def _blame(
    waits: Ints,
    start_ns: Ints,
    begin_ns: Ints,
    end_ns: Ints,
    predecessor: Indices,
    step: Bytes,
    spent: IntTable,
) -> None:
    """Divide every wait among the steps that lead to its end, as far as they lie within it."""
    for n in range(len(waits)):
        at = waits[n]
        # From the end of the wait backwards; `now` never rises, so all parts add up to the wait.
        floor_ns, now = start_ns[at], end_ns[at]
        for _ in range(len(begin_ns)):
            began = max(floor_ns, min(now, begin_ns[at]))
            spent[n, step[at]] += now - began
            before = predecessor[at]
            now = floor_ns if before < 0 else max(floor_ns, min(began, end_ns[before]))
            spent[n, _LAUNCHES] += began - now
            if before < 0 or now <= floor_ns:
                break
            at = before
