"""The compiled event loop of the simulator, on arrays, with times in whole nanoseconds.

An event is a device that may go on, a message that has left, or a message that has arrived. Events
at the same time are handled in the order in which they were made.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Bytes, Ints
from dcp_planner.jit import IntTable, compiled, inlined
from dcp_planner.simulation.event_tables import Messages, Steps
from dcp_planner.simulation.fair_rates import (
    NEVER_NS,
    Streams,
    end_stream,
    first_ended,
    next_end,
    start_stream,
)
from dcp_planner.tables.programs import ATTENTION, LAUNCH, WAIT

_LEAVE, _ARRIVE, _RESUME = 0, 1, 2
_SIZE, _MADE, _STARTING = 0, 1, 2
# 32 bits hold three codes for each of 2**30 messages; the 31 above them count the events.
_CODE_BITS = 32


class _State(NamedTuple):
    """Mutable state of the replay of one direction.

    A message that only waits for its ports stands in the queues of both. A queue is a circular list
    whose begin and end is the place ``X + port``, behind the numbers of all messages.
    """

    # following, before: int64 `[2, X+P]`, neighbours in the queues of ports to leave by (0) and to
    # enter by (1)
    following: IntTable
    before: IntTable
    is_busy: IntTable  # int64 `[2, P]`, whether a message occupies the port
    # begun, ended: int64 `[I]`, of each instruction; -1: not yet
    begun: Ints
    ended: Ints
    at: Ints  # `[R]`, instruction that each device is at
    still_open: Ints  # `[I]`, messages of each launch that have not arrived or left
    # started, left: int64 `[X]`, of each message; -1: not yet
    started: Ints
    left: Ints
    launch_row: IntTable  # int64 `[2, X]`, launch at the source and at the target; -1: not yet
    # first_fed, next_fed: int64 `[X]`, lists of the messages that pass each message on
    first_fed: Ints
    next_fed: Ints
    has_arrived: Bytes  # `[X]`
    still_grouped: Ints  # `[G]`, ends of messages of each group that are not done
    follower: Ints  # `[G]`, group that follows each group, or -1
    under_way: Ints  # `[R]`, messages that each device has launched and that are not done
    to_start: Ints  # `[X+1]`, messages that an event makes ready
    # times, codes: int64, a binary heap of events; a code holds the number of the event, which
    # decides between equal times, and in its `_CODE_BITS` the kind of event and its subject
    times: Ints
    codes: Ints
    counts: Ints  # `[3]`, events in the heap, events made so far, messages in `to_start`
    streams: Streams  # that share ports; none where ports are not shared
    in_stream: Ints  # `[S]`, message under way in each stream

    @classmethod
    def of(cls, steps: Steps, messages: Messages) -> "_State":
        """Lay out the state before the first event."""
        rows, size, ports = len(steps.op), len(messages.source), messages.num_ports
        devices = len(steps.row_ptr) - 1
        alone = np.tile(np.arange(size + ports), (2, 1))
        follower = np.full(len(messages.after), -1, np.int64)
        follows = np.flatnonzero(messages.after >= 0)
        follower[messages.after[follows]] = follows

        def nothing_yet(count: int) -> Ints:
            return np.full(count, -1, np.int64)

        def none(count: int) -> Ints:
            return np.zeros(count, np.int64)

        # A device begins once, a message leaves and arrives, an instruction ends: no more events.
        events = devices + 2 * size + rows + 8
        return cls(
            following=alone, before=alone.copy(), is_busy=np.zeros((2, ports), np.int64),
            begun=nothing_yet(rows), ended=nothing_yet(rows), at=steps.row_ptr[:-1].copy(),
            still_open=none(rows), started=nothing_yet(size), left=nothing_yet(size),
            launch_row=np.full((2, size), -1, np.int64), first_fed=nothing_yet(size),
            next_fed=nothing_yet(size), has_arrived=np.zeros(size, np.uint8),
            still_grouped=np.diff(messages.group_ptr), follower=follower, under_way=none(devices),
            to_start=none(size + 1), times=none(events), codes=none(events),
            counts=none(3), streams=Streams.of(*messages.streams),
            in_stream=none(len(messages.streams.part)),
        )  # fmt: skip


def run_events(steps: Steps, messages: Messages) -> tuple[Ints, Ints, Ints, Ints, Ints, int]:
    """Play one direction from 0 to its end; O(E log E), and a scan of a port's ready messages each.

    Where ports are shared, O(A L) for each message in addition: A streams are active, at L shares.
    Returns begin and end of every instruction ``[I]``, start and leaving of every message ``[X]``
    (-1 if never), the instruction each device is at ``[R]``, the time of the last event.
    """
    state = _State.of(steps, messages)
    end_ns = _play(steps, messages, state)
    return state.begun, state.ended, state.started, state.left, state.at, int(end_ns)


@inlined
def _push(state: _State, time_ns: int, code: int) -> None:
    """Add an event to the heap by time, behind those at the same time."""
    times, codes = state.times, state.codes
    i, numbered = state.counts[_SIZE], (state.counts[_MADE] << _CODE_BITS) + code
    state.counts[_SIZE] += 1
    state.counts[_MADE] += 1
    while i > 0:
        up = (i - 1) >> 1
        if times[up] <= time_ns:  # an equal time stays ahead: its event was made before
            break
        times[i], codes[i] = times[up], codes[up]
        i = up
    times[i], codes[i] = time_ns, numbered


@inlined
def _pop(state: _State) -> int:
    """Remove the first event from the heap and return its code without the number."""
    times, codes = state.times, state.codes
    found = int(codes[0] & ((1 << _CODE_BITS) - 1))
    state.counts[_SIZE] -= 1
    size = state.counts[_SIZE]
    time_ns, code = times[size], codes[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and (
            times[child + 1] < times[child]
            or (times[child + 1] == times[child] and codes[child + 1] < codes[child])
        ):
            child += 1
        if time_ns < times[child] or (time_ns == times[child] and code < codes[child]):
            break
        times[i], codes[i] = times[child], codes[child]
        i = child
    times[i], codes[i] = time_ns, code
    return found


@inlined
def _note_if_ready(messages: Messages, state: _State, x: int) -> None:
    """Note a message if both ends launched it, their groups' turns came, and its data is there."""
    is_ready = messages.feeder[x] < 0 or state.has_arrived[messages.feeder[x]] > 0
    for side in range(2):
        before = messages.after[messages.group[side, x]]
        if state.launch_row[side, x] < 0 or (before >= 0 and state.still_grouped[before] > 0):
            is_ready = False
    if is_ready:
        state.to_start[state.counts[_STARTING]] = x
        state.counts[_STARTING] += 1


@inlined
def _finish(messages: Messages, state: _State, side: int, x: int, now: int) -> None:
    """Let a message leave its source (side 0) or reach its target (1); note those set free."""
    group = messages.group[side, x]
    state.still_grouped[group] -= 1
    if side == _LEAVE:
        state.left[x] = now
        # A port is free when the last byte has left: the latency occupies neither of the two.
        state.is_busy[0, messages.ports[0, x]] = 0
        state.is_busy[1, messages.ports[1, x]] = 0
    else:
        state.has_arrived[x] = 1
        fed = state.first_fed[x]  # messages that pass on the data of this one
        while fed >= 0:
            _note_if_ready(messages, state, fed)
            fed = state.next_fed[fed]
    # The last end of a group lets the next group of the communicator go.
    next_group = state.follower[group]
    if state.still_grouped[group] == 0 and next_group >= 0:
        for k in range(messages.group_ptr[next_group], messages.group_ptr[next_group + 1]):
            member = messages.members[k]
            if side == _LEAVE or messages.feeder[member] != x:  # else it is noted above
                _note_if_ready(messages, state, member)


@inlined
def _freed(steps: Steps, messages: Messages, state: _State, side: int, x: int, now: int) -> int:
    """Close one end of a message; return its device if that ends the device's wait, else -1."""
    launch = state.launch_row[side, x]
    device = int(messages.source[x] if side == _LEAVE else messages.target[x])
    state.still_open[launch] -= 1
    state.under_way[device] -= 1
    row = state.at[device]
    if (
        state.still_open[launch] > 0
        or row >= steps.row_ptr[device + 1]
        or steps.op[row] != WAIT
        or steps.launch_of[row] != launch
        or state.begun[row] < 0  # it does not stand at that wait yet
    ):
        return -1
    state.ended[row] = now
    state.at[device] += 1
    return device


@inlined
def _launch(steps: Steps, messages: Messages, state: _State, device: int, row: int) -> None:
    for k in range(steps.item_ptr[row], steps.item_ptr[row + 1]):
        x = steps.items[k]
        state.still_open[row] += 1
        state.under_way[device] += 1
        state.launch_row[0 if messages.source[x] == device else 1, x] = row
        _note_if_ready(messages, state, x)


@inlined
def _advance(steps: Steps, messages: Messages, state: _State, device: int, now: int) -> None:
    """Let a device go on until it computes or waits.

    It comes to every instruction once: the end of a wait moves the device behind the wait.
    """
    while state.at[device] < steps.row_ptr[device + 1]:
        row = state.at[device]
        op, launch = steps.op[row], steps.launch_of[row]
        state.begun[row] = now
        if op == WAIT and launch >= 0 and state.still_open[launch] > 0:
            break
        state.ended[row] = now
        state.at[device] += 1
        if op == LAUNCH:
            _launch(steps, messages, state, device, row)
        elif op != WAIT and steps.duration[row] > 0:
            # Slower from begin to end if messages are under way when it begins: durations are fixed
            # then, and no event is ever taken back.
            duration = steps.duration[row]
            if state.under_way[device] > 0 and messages.slowdown > 1.0 and op == ATTENTION:
                duration = np.int64(np.ceil(duration * messages.slowdown))
            state.ended[row] = now + duration
            _push(state, now + duration, 3 * device + _RESUME)
            break


@inlined
def _enqueue(messages: Messages, state: _State, x: int) -> None:
    """Put a message into the queues of its ports: by number, or behind all others (fifo)."""
    size = len(messages.source)
    for side in range(2):
        # From the end of the circle forwards past higher numbers; the sentinel X + port ends it.
        behind = size + messages.ports[side, x]
        ahead = state.before[side, behind]
        while x < ahead < size and not messages.is_fifo:
            behind, ahead = ahead, state.before[side, ahead]
        state.following[side, ahead] = state.before[side, behind] = x
        state.before[side, x], state.following[side, x] = ahead, behind


@inlined
def _first_in_line(messages: Messages, state: _State, side: int, x: int) -> int:
    """Find the first message in line for a port that `x` has left, or -1.

    Messages whose other port is busy are passed over.
    """
    size, port = len(messages.source), messages.ports[side, x]
    found = state.following[side, size + port]
    while found < size and state.is_busy[1 - side, messages.ports[1 - side, found]]:
        found = state.following[side, found]
    return found if found < size else -1


@inlined
def _start_if_free(messages: Messages, state: _State, x: int, now: int) -> None:
    """Start a message, -1 for none, if both of its ports are free."""
    if x < 0 or state.is_busy[0, messages.ports[0, x]] or state.is_busy[1, messages.ports[1, x]]:
        return
    state.started[x] = now
    for side in range(2):
        state.is_busy[side, messages.ports[side, x]] = 1
        ahead, behind = state.before[side, x], state.following[side, x]
        state.following[side, ahead], state.before[side, behind] = behind, ahead
    if messages.streams.num_ports > 0:
        stream = messages.ports[0, x]
        start_stream(state.streams, stream, messages.busy[x], now)
        state.in_stream[stream] = x
        return
    for what in (_LEAVE, _ARRIVE):
        when = now + messages.busy[x] + (messages.latency[x] if what == _ARRIVE else 0)
        _push(state, when, 3 * x + what)


@inlined
def _list_fed(messages: Messages, state: _State) -> None:
    """List for each message those that pass it on."""
    # Backwards, since each message goes to the head of its list: lists then rise.
    for x in range(len(messages.source) - 1, -1, -1):
        if messages.feeder[x] >= 0:
            state.next_fed[x] = state.first_fed[messages.feeder[x]]
            state.first_fed[messages.feeder[x]] = x


@inlined
def _leave_stream(messages: Messages, state: _State, now: int) -> int:
    """Let a message leave that has no work left at this moment and return it; -1 if none has."""
    stream = first_ended(state.streams, now)
    if stream < 0:
        return -1
    end_stream(state.streams, stream, now)
    x = state.in_stream[stream]
    _push(state, now + messages.latency[x], 3 * x + _ARRIVE)
    return int(x)


@inlined
def _handle(
    steps: Steps, messages: Messages, state: _State, what: int, subject: int, now: int
) -> None:
    state.counts[_STARTING] = 0
    device = subject
    if what != _RESUME:
        _finish(messages, state, what, subject, now)
        device = _freed(steps, messages, state, what, subject, now)
    if device >= 0:
        _advance(steps, messages, state, device, now)
    starting = state.counts[_STARTING]
    for n in range(starting):
        _enqueue(messages, state, state.to_start[n])
    # New messages first, then the first in line at each of the two ports that became free. One
    # loop for both, since `_start_if_free` is compiled into every place of call.
    for n in range(starting + (2 if what == _LEAVE else 0)):
        x = state.to_start[n] if n < starting else -1
        if n >= starting:
            x = _first_in_line(messages, state, n - starting, subject)
        _start_if_free(messages, state, x, now)


@compiled
def _play(steps: Steps, messages: Messages, state: _State) -> int:
    """Handle events in time until there are none; return the time of the last one."""
    _list_fed(messages, state)
    for device in range(len(state.at)):
        _push(state, 0, 3 * device + _RESUME)
    now, next_leave = 0, NEVER_NS
    while True:
        event_ns = state.times[0] if state.counts[_SIZE] > 0 else NEVER_NS
        # Shares change when time moves: many messages may leave and start at one moment.
        if event_ns > now and next_leave != now:
            next_leave = next_end(state.streams, now)
        if min(event_ns, next_leave) >= NEVER_NS:
            return int(now)
        now = min(event_ns, next_leave)
        what, subject = _LEAVE, -1
        if next_leave == now:
            subject = _leave_stream(messages, state, now)
            if subject < 0:  # all have left that leave now
                next_leave = NEVER_NS
                continue
        else:
            code = _pop(state)
            what, subject = code % 3, code // 3
        _handle(steps, messages, state, what, subject, now)
