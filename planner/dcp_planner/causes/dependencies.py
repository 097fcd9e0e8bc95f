"""Find the events that each event of a trace waited for.

A trace gives the begin and end of events, the plan gives their inputs. The edges follow from both,
for predicted and for measured traces alike:

- *lane*: a device computes, reduces and waits in sequence;
- *message*: a wait ends with the messages of its division, a receive with its send, and a block
  that a device passes on has to arrive first;
- *launch*: a message leaves once both of its ends have launched it and the messages of its group;
- *port*: a message stands in line behind another one at the same port;
- *barrier*: a predicted backward begins when the last device has finished forward.

The source that ends last held the event up: it is the event's *predecessor*.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Annotated, NamedTuple

import numpy as np

from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record
from dcp_planner.jit import IntTable, compiled
from dcp_planner.model.problem import DIRECTIONS
from dcp_planner.simulation.trace import (
    EVENT_KINDS,
    LANES,
    Trace,
    number_alike,
    number_divisions,
    pair_messages,
)
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.plan import Plan, TransferKind
from dcp_planner.tables.visits import find_feeders

COMPUTE, SEND, RECEIVE, WAIT = (
    LANES.index(lane) for lane in ("compute", "send", "receive", "wait")
)


class Reason(IntEnum):
    """Kind of a dependency; of several sources that end at once, the highest kind counts."""

    NOTHING = 0
    BARRIER = 1
    LANE = 2
    LAUNCH = 3
    PORT = 4
    MESSAGE = 5


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies(Record):
    """Edges between the events of a trace, sorted by the event that waits."""

    # begin_ns, end_ns: int64 `[E]`, when an event's own work began and ended: a wait has none, a
    # measured message begins when both ends have launched it, a receive with the end of its send
    begin_ns: Annotated[Ints, "E"]
    end_ns: Annotated[Ints, "E"]
    edge_ptr: Annotated[Ints, "E+1"]  # the edges of event e are `edge_ptr[e]` to `edge_ptr[e+1]`
    source: Annotated[Indices, "N"]  # event that has to end first
    predecessor: Annotated[Indices, "E"]  # the source that ended last, or -1
    reason: Annotated[Bytes, "E"]  # `Reason` of that edge

    @classmethod
    def of_edges(cls, begin_ns: Ints, end_ns: Ints, edges: "list[_Edges]") -> "Dependencies":
        """Sort edges by the event that waits, without those whose source ends later; O(E + N)."""
        target, source = (
            np.concatenate([np.asarray(edge[n], np.int64) for edge in edges]) for n in range(2)
        )
        reasons = np.repeat([edge.reason for edge in edges], [len(edge.target) for edge in edges])
        holds = end_ns[source] <= begin_ns[target]
        # Columns picked from a table may lie in another order, for which numba compiles again.
        table = np.ascontiguousarray(np.stack([target, source, reasons])[:, holds])
        edge_ptr = np.append(0, np.cumsum(np.bincount(table[0], minlength=len(begin_ns))))
        ordered = np.zeros(len(table[0]), np.int32)
        predecessor = np.full(len(begin_ns), -1, np.int32)
        reason = np.full(len(begin_ns), Reason.NOTHING, np.uint8)
        _sort_edges(table, end_ns, edge_ptr[:-1].copy(), ordered, predecessor, reason)
        return cls(begin_ns, end_ns, edge_ptr, ordered, predecessor, reason)


@compiled
def _sort_edges(
    table: IntTable,
    end_ns: Ints,
    place: Ints,
    ordered: Indices,
    predecessor: Indices,
    reason: Bytes,
) -> None:
    """Write sources to the places of their targets, and find the last source of each.

    A counting sort: `place` is the next free edge of each event. The rows of `table` are targets,
    sources and reasons.
    """
    for n in range(table.shape[1]):
        event, before, why = table[0, n], table[1, n], table[2, n]
        ordered[place[event]] = before
        place[event] += 1
        last = predecessor[event]
        later = end_ns[before] - end_ns[last] if last >= 0 else 1
        if later > 0 or (later == 0 and why >= reason[event]):
            predecessor[event], reason[event] = before, why


class _Edges(NamedTuple):
    """Edges of one kind: events that wait, and the events before them."""

    target: Ints
    source: Ints
    reason: Reason

    @classmethod
    def of(cls, target: Ints, source: Ints, reason: Reason) -> "_Edges":
        """Leave out edges without a source (-1)."""
        known = source >= 0
        return cls(target[known], source[known], reason)


class PairedMessages(NamedTuple):
    """Messages of which both ends are in the trace, ``[M]``."""

    # send, receive: their events
    send: Ints
    receive: Ints
    launched: Ints  # `[2, M]`, when the source and the target had launched it, at the latest
    started: Ints  # `[M]`, when it began to leave
    device: Ints  # `[2, M]`, source and target

    @classmethod
    def of(cls, trace: Trace) -> "PairedMessages":
        """Pair sends and receives, and find when each message was launched and left."""
        send, receive = pair_messages(trace)
        ready = np.stack([trace.ready_ns[send], trace.ready_ns[receive]])
        started = trace.start_ns[send]
        if trace.source == "simulated":
            ready[1] = ready[0]  # a receive is the send, a latency later
        else:
            started = ready.max(axis=0)
        ends = np.stack([trace.device[send], trace.device[receive]]).astype(np.int64)
        return cls(send, receive, ready, started, ends)


def layer_gaps(trace: Trace) -> tuple[Ints, Ints]:
    """Find the first events of layers ``[C]``, and the ns that no device had an event before them.

    Every device begins a layer, forward or backward, with a copy. Between two layers the rest of
    the model runs.
    """
    copies = np.flatnonzero(trace.kind == EVENT_KINDS.index("copy"))
    copies = copies[np.lexsort((trace.start_ns[copies], trace.device[copies]))]
    first_of_device = np.searchsorted(trace.device[copies], trace.device[copies])
    layer = np.arange(len(copies)) - first_of_device
    begin = np.full(int(layer.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begin, layer, trace.start_ns[copies])
    order = np.argsort(trace.start_ns, kind="stable")
    latest = np.maximum.accumulate(trace.end_ns[order])
    before = np.searchsorted(trace.start_ns[order], begin)
    gap = np.where(before > 0, begin - latest[before - 1], 0)
    return copies, np.maximum(gap, 0)[layer]


def find_dependencies(plan: Plan, trace: Trace) -> Dependencies:
    """Find the events that each event of a trace waited for; O(E log E)."""
    times = np.stack([trace.start_ns, trace.end_ns, trace.ready_ns])
    moments, ranks = np.unique(times, return_inverse=True)
    # Only the order of moments matters. Ranks are small, so (key, moment) fits into one int64.
    start, end, ready = ranks.reshape(times.shape)
    found = _find_ranked(plan, replace(trace, start_ns=start, end_ns=end, ready_ns=ready))
    return replace(found, begin_ns=moments[found.begin_ns], end_ns=moments[found.end_ns])


def _find_ranked(plan: Plan, trace: Trace) -> Dependencies:
    """Find dependencies in a trace whose moments are ranks: numbers from 0 without gaps."""
    plan, messages = expand_head_groups(plan), PairedMessages.of(trace)
    begin = trace.start_ns.copy()
    begin[trace.lane == WAIT] = trace.end_ns[trace.lane == WAIT]  # a wait has no work of its own
    ends = trace.end_ns.copy()
    arrived = trace.end_ns[messages.receive]
    left = ends[messages.send] = np.minimum(ends[messages.send], arrived)
    begin[messages.send] = np.minimum(messages.started, left)
    # A measured message may leave before its target has launched the receive: then the arrival
    # follows that launch.
    begin[messages.receive] = np.minimum(np.maximum(messages.started, left), arrived)
    main = np.flatnonzero((trace.lane == COMPUTE) | (trace.lane == WAIT))
    main = main[np.lexsort((trace.end_ns[main], trace.start_ns[main], trace.device[main]))]
    edges = [
        _lanes(trace, main),
        _waits(trace, main),
        _Edges.of(messages.receive, messages.send, Reason.MESSAGE),
        *_launches(plan, trace, main, messages),
        _passed_on(plan, trace, messages),
    ]
    if trace.source == "simulated":
        edges += [_barrier(trace, main, messages), *_ports(plan, trace, messages)]
    return Dependencies.of_edges(begin, ends, edges)


def _lanes(trace: Trace, main: Ints) -> _Edges:
    follows = np.diff(trace.device[main]) == 0
    return _Edges.of(main[1:][follows], main[:-1][follows], Reason.LANE)


def _waits(trace: Trace, main: Ints) -> _Edges:
    """Let every message hold up the first event of its division that may have waited for it."""
    message = np.flatnonzero((trace.lane == SEND) | (trace.lane == RECEIVE))
    wait = main[trace.lane[main] == WAIT]
    divisions = number_divisions(trace)
    key, wanted = divisions[wait], divisions[message]
    # Of the waits of its division on this device: the first that ended with the message or later.
    order, place, places = _by_key(key, trace.end_ns[wait], wanted, trace.end_ns[message])
    first = np.searchsorted(place, places, side="left")
    found = _checked(order, np.where(first < len(order), first, -1), key, wanted)
    known = found >= 0
    return _Edges.of(wait[found[known]], message[known], Reason.MESSAGE)


def _launches(plan: Plan, trace: Trace, main: Ints, messages: PairedMessages) -> list[_Edges]:
    """Let a message follow the last event of each of its ends before they had launched it.

    A message that stood in line may have waited for others of its group, so it follows the events
    before their launches, too.
    """
    is_backward = trace.is_backward[messages.send]
    # A predicted backward begins at a barrier, not behind its device's forward; a run has none.
    key, wanted = trace.device[main].astype(np.int64), messages.device
    if trace.source == "simulated":
        sides = len(DIRECTIONS)
        key, wanted = sides * key + trace.is_backward[main], sides * wanted + is_backward
    before = []
    for side in range(2):
        last = _last_until(key, trace.end_ns[main], wanted[side], messages.launched[side])
        before.append(np.where(last >= 0, main[last], -1))
    found = [_Edges.of(messages.send, source, Reason.LAUNCH) for source in before]
    if trace.source == "measured":
        return [*found, _Edges.of(messages.receive, before[1], Reason.LAUNCH)]
    waiting = np.flatnonzero(messages.started > messages.launched[0])
    for group in _groups(plan, trace, messages):
        other = _last_until(
            group, messages.launched[0], group[waiting], messages.started[waiting]
        )  # fmt: skip
        found += [_Edges.of(messages.send[waiting], source[other], Reason.LAUNCH)
                  for source in before]  # fmt: skip
    return found


def _groups(plan: Plan, trace: Trace, messages: PairedMessages) -> list[Ints]:
    """Number the group of each message at its source, and at its target, int64 ``[M]`` each.

    A group shares device, direction, division, hop and whether it holds results; see
    `MESSAGE_ORDERS`.
    """
    table, transfer = plan.transfers, trace.transfer[messages.send]
    is_result = table.kind[transfer] >= TransferKind.OUT
    keys = table.division[transfer], table.hop[transfer], is_result, table.is_backward[transfer]
    return [number_alike(*keys, device) for device in messages.device]


def _passed_on(plan: Plan, trace: Trace, messages: PairedMessages) -> _Edges:
    """Let an input that is passed on follow its arrival."""
    feeder = find_feeders(plan.transfers)
    transfer = trace.transfer[messages.send]
    wanted = np.where(transfer >= 0, feeder[transfer] if len(feeder) else -1, -1)
    sends = np.flatnonzero(wanted >= 0)
    source = _last_until(
        trace.transfer[messages.receive].astype(np.int64), trace.end_ns[messages.receive],
        wanted[sends], messages.started[sends],
    )  # fmt: skip
    found = np.where(source >= 0, messages.receive[source], -1)
    return _Edges.of(messages.send[sends], found, Reason.MESSAGE)


def _ports(plan: Plan, trace: Trace, messages: PairedMessages) -> list[_Edges]:
    """Let a message that stood in line follow the messages of its ends before it.

    It may have waited until one had left the port of its device or of the NIC, or until the group
    before it had arrived.
    """
    nic, left = plan.cluster.nic_of_device, trace.end_ns[messages.send]
    arrived, target = trace.end_ns[messages.receive], messages.device[1]
    waiting = np.flatnonzero(messages.started > messages.launched[0])
    found = []
    for device in messages.device:
        # The port that the message needs; when others left it or arrived; whose port that was.
        for port, ended, owner, event in (
            (device, left, device, messages.send),
            (nic[device], left, nic[device], messages.send),
            (device, arrived, target, messages.receive),
        ):
            last = _last_until(owner, ended, port[waiting], messages.started[waiting])
            source = np.where(last >= 0, event[last], -1)
            found.append(_Edges.of(messages.send[waiting], source, Reason.PORT))
    return found


def _barrier(trace: Trace, main: Ints, messages: PairedMessages) -> _Edges:
    """Let the first events of every device in backward follow the last event of forward."""
    forward = np.flatnonzero(~trace.is_backward)
    if not len(forward):
        return _Edges.of(forward, forward, Reason.BARRIER)
    last = forward[trace.end_ns[forward].argmax()]
    at_once = trace.ready_ns[messages.send] == trace.end_ns[last]
    first = main[trace.is_backward[main] & (trace.start_ns[main] == trace.end_ns[last])]
    target = np.concatenate([messages.send[at_once & trace.is_backward[messages.send]], first])
    return _Edges.of(target, np.full(len(target), last), Reason.BARRIER)


def _last_until(key: Ints, time_ns: Ints, wanted: Ints, until_ns: Ints) -> Ints:
    """Find the last of the rows with each wanted key, up to a moment; -1 if there is none."""
    order, place, places = _by_key(key, time_ns, wanted, until_ns)
    found = np.searchsorted(place, places, side="right") - 1
    return _checked(order, found, key, wanted)


def _by_key(key: Ints, time_ns: Ints, wanted: Ints, moment_ns: Ints) -> tuple[Ints, Ints, Ints]:
    """Sort rows by key and time; return the order, and rows and queries as single numbers."""
    span = 1 + max(int(times.max(initial=0)) for times in (time_ns, moment_ns))
    place = key * span + time_ns
    order = np.argsort(place, kind="stable")
    return order, place[order], wanted * span + moment_ns


def _checked(order: Ints, found: Ints, key: Ints, wanted: Ints) -> Ints:
    """Turn places in an order into rows; -1 where the row there has another key.

    A search among all keys may end at the neighbour of the wanted one.
    """
    if not len(order):
        return np.full(len(wanted), -1)
    rows = order[found]
    is_same: Bools = (found >= 0) & (key[rows] == wanted)
    return np.where(is_same, rows, -1)
