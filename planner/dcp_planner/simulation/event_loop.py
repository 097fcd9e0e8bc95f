"""The compiled event loop of the simulator, on arrays, with times in whole nanoseconds.

An event is a device that may go on, a message that has left, or one that has arrived. Events at the
same time are handled in the order in which they were made.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Bytes, Indices, Ints
from dcp_planner.jit import IntTable, compiled, inner
from dcp_planner.tables.programs import ATTENTION, LAUNCH, WAIT, ProgramTable

_RESUME, _LEAVE, _ARRIVE = 0, 1, 2
_WAITING, _READY, _STARTED = 0, 1, 2


class Steps(NamedTuple):
    """The instructions of one direction, device by device.

    Attributes:
        row_ptr: int64 ``[R+1]``, instructions of each device.
        op, item_ptr, items: columns of a `ProgramTable`; only the messages of launches are read.
        duration: int64 ``[I]``, time on the compute lane.
        launch_of: int64 ``[I]``, launch that a wait belongs to, else -1.
    """

    row_ptr: Ints
    op: Bytes
    item_ptr: Ints
    items: Indices
    duration: Ints
    launch_of: Ints

    @classmethod
    def of(cls, programs: ProgramTable, num_devices: int, duration: Ints) -> "Steps":
        """Take the instructions from a table, and find the launch of each wait."""
        row_ptr = np.searchsorted(programs.device, np.arange(num_devices + 1))
        op, ptr, items = programs.op, programs.item_ptr, programs.items
        return cls(row_ptr, op, ptr, items, duration, launches_of_waits(programs))


class Messages(NamedTuple):
    """The messages of one direction.

    Attributes:
        source, target: int32 ``[X]``.
        feeder: int64 ``[X]``, message that has to arrive before this one can leave, or -1.
        ports: int64 ``[2, X]``, port that it leaves by and port that it enters by.
        busy: int64 ``[X]``, time that it occupies both.
        latency: int64 ``[X]``, between leaving and arriving.
        group: int64 ``[2, X]``, group of messages that it belongs to at its source and its target.
        group_ptr: int64 ``[G+1]``, members of each group in `members`.
        members: int64 ``[2X]``, messages.
        after: int64 ``[G]``, group that a group follows on its communicator, or -1.
        is_fifo: whether a port serves first what was ready first, not the lowest number.
        slowdown: times that attention takes longer while messages of its device are under way.
    """

    source: Indices
    target: Indices
    feeder: Ints
    ports: Ints
    busy: Ints
    latency: Ints
    group: IntTable
    group_ptr: Ints
    members: Ints
    after: Ints
    is_fifo: int
    slowdown: float


def one_group(size: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Put so many messages into one group that follows nobody: groups hold nothing back."""
    both = np.concatenate([np.arange(size)] * 2)
    return np.zeros((2, size), np.int64), np.array([0, 2 * size]), both, np.array([-1])


class _State(NamedTuple):
    """Mutable state of the replay of one direction, and its messages by port.

    Attributes:
        port_ptr: int64 ``[2, P+1]``, where each port's messages start in `port_list`; leaving by
            it (0) and entering by it (1).
        port_list: int64 ``[2, X]``, messages by port, then by number.
        head: int64 ``[2, P]``, first message of each port that may not have started.
        is_busy: int64 ``[2, P]``, whether a message occupies the port.
        ready_at: int64 ``[2, P]``, messages that could start but for their ports.
        begun, ended: int64 ``[I]``, of each instruction; -1: not yet.
        at: int64 ``[R]``, instruction that each device is at.
        still_open: int64 ``[I]``, messages of each launch that have not arrived or left.
        started: int64 ``[X]``, of each message; -1: not yet.
        launch_row: int64 ``[2, X]``, launch at the source and at the target; -1: not yet.
        first_fed, next_fed: int64 ``[X]``, lists of the messages that pass each message on.
        progress: uint8 ``[X]``, waiting, ready or started.
        has_arrived: uint8 ``[X]``.
        ready_number: int64 ``[X]``, order in which messages became ready.
        still_grouped: int64 ``[G]``, ends of messages of each group that are not done.
        follower: int64 ``[G]``, group that follows each group, or -1.
        under_way: int64 ``[R]``, messages that each device has launched and that are not done.
        to_start: int64 ``[X+1]``, messages that an event makes ready.
        times, numbers, codes: int64, a binary heap of events.
    """

    port_ptr: Ints
    port_list: Ints
    head: Ints
    is_busy: Ints
    ready_at: Ints
    begun: Ints
    ended: Ints
    at: Ints
    still_open: Ints
    started: Ints
    launch_row: Ints
    first_fed: Ints
    next_fed: Ints
    progress: Bytes
    has_arrived: Bytes
    ready_number: Ints
    still_grouped: Ints
    follower: Ints
    under_way: Ints
    to_start: Ints
    times: Ints
    numbers: Ints
    codes: Ints


@inner
def _push(
    times: Ints, numbers: Ints, codes: Ints, size: int, time_ns: int, number: int, code: int
) -> int:
    """Add an event to a binary heap by (time, number); gives its size."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time_ns or (times[up] == time_ns and numbers[up] < number):
            break
        times[i], numbers[i], codes[i] = times[up], numbers[up], codes[up]
        i = up
    times[i], numbers[i], codes[i] = time_ns, number, code
    return size + 1


@inner
def _pop(times: Ints, numbers: Ints, codes: Ints, size: int) -> int:
    """Remove the first event; gives the new size."""
    size -= 1
    time_ns, number, code = times[size], numbers[size], codes[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and (
            times[child + 1] < times[child]
            or (times[child + 1] == times[child] and numbers[child + 1] < numbers[child])
        ):
            child += 1
        if time_ns < times[child] or (time_ns == times[child] and number < numbers[child]):
            break
        times[i], numbers[i], codes[i] = times[child], numbers[child], codes[child]
        i = child
    times[i], numbers[i], codes[i] = time_ns, number, code
    return size


def launches_of_waits(programs: ProgramTable) -> Ints:
    """Find the launch that each wait belongs to, int64 ``[I]``; -1 for other instructions."""
    found = np.full(len(programs), -1, np.int64)
    span = int(programs.key.max(initial=0)) + 2
    place = programs.device.astype(np.int64) * span + programs.key
    launches, waits = (np.flatnonzero(programs.op == op) for op in (LAUNCH, WAIT))
    if launches.size and waits.size:
        order = np.argsort(place[launches])
        where = np.searchsorted(place[launches], place[waits], sorter=order)
        chosen = launches[order[np.minimum(where, len(launches) - 1)]]
        found[waits] = np.where(place[chosen] == place[waits], chosen, -1)
    return found


def run_events(
    steps: Steps, messages: Messages, num_ports: int, start_ns: int
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """Play one direction to its end; O(E log E), and a scan of a port's waiting messages per start.

    Args:
        steps: what the devices do.
        messages: what they send each other.
        num_ports: ports of each direction.
        start_ns: when all devices begin.

    Returns:
        Begin and end of every instruction ``[I]``, start of every message ``[X]`` (-1 if never),
        the instruction each device is at ``[R]``, the time of the last event.
    """
    state = _initial_state(steps, messages, num_ports)
    end_ns = _play(steps, messages, state, start_ns)
    return state.begun, state.ended, state.started, state.at, int(end_ns)


def _initial_state(steps: Steps, messages: Messages, num_ports: int) -> _State:
    """Lay out the state before the first event, and messages by the ports that they use."""
    num_rows, num_messages, ports = len(steps.op), len(messages.source), messages.ports
    port_ptr = np.zeros((2, num_ports + 1), np.int64)
    for side in range(2):
        port_ptr[side, 1:] = np.cumsum(np.bincount(ports[side], minlength=num_ports))
    room = len(steps.row_ptr) + 2 * num_messages + num_rows + 8
    begun_ended = np.full((2, num_rows), -1, np.int64)
    launch_row = np.full((2, num_messages), -1, np.int64)
    fed = np.full((2, num_messages), -1, np.int64)
    flags = np.zeros((2, num_messages), np.uint8)
    events = np.zeros((3, room), np.int64)
    follower = np.full(len(messages.after), -1, np.int64)
    follows = np.flatnonzero(messages.after >= 0)
    follower[messages.after[follows]] = follows
    return _State(
        port_ptr=port_ptr,
        port_list=np.argsort(ports, axis=1, kind="stable"),
        head=port_ptr[:, :-1].copy(),
        is_busy=np.zeros((2, num_ports), np.int64),
        ready_at=np.zeros((2, num_ports), np.int64),
        begun=begun_ended[0],
        ended=begun_ended[1],
        at=steps.row_ptr[:-1].copy(),
        still_open=np.zeros(num_rows, np.int64),
        started=np.full(num_messages, -1, np.int64),
        launch_row=launch_row,
        first_fed=fed[0],
        next_fed=fed[1],
        progress=flags[0],
        has_arrived=flags[1],
        ready_number=np.zeros(num_messages, np.int64),
        still_grouped=np.diff(messages.group_ptr),
        follower=follower,
        under_way=np.zeros(len(steps.row_ptr), np.int64),
        to_start=np.zeros(num_messages + 1, np.int64),
        times=events[0],
        numbers=events[1],
        codes=events[2],
    )


@inner
def _is_ready(
    group: IntTable,
    after: Ints,
    still_grouped: Ints,
    launch_row: IntTable,
    feeder: Ints,
    has_arrived: Bytes,
    x: int,
) -> int:
    """Say whether both ends launched a message, their groups' turns came, and its data is there."""
    for side in range(2):
        before = after[group[side, x]]
        if launch_row[side, x] < 0 or (before >= 0 and still_grouped[before] > 0):
            return 0
    return 1 if feeder[x] < 0 or has_arrived[feeder[x]] > 0 else 0


@compiled
def _play(steps: Steps, messages: Messages, current: _State, start_ns: int) -> int:  # noqa: C901
    row_ptr, op, item_ptr = steps.row_ptr, steps.op, steps.item_ptr
    items, duration, launch_of = steps.items, steps.duration, steps.launch_of
    source, target, feeder = messages.source, messages.target, messages.feeder
    ports, busy, latency = messages.ports, messages.busy, messages.latency
    port_ptr, port_list, head = current.port_ptr, current.port_list, current.head
    is_busy, ready_at = current.is_busy, current.ready_at
    begun, ended, at, still_open = current.begun, current.ended, current.at, current.still_open
    started, launch_row = current.started, current.launch_row
    first_fed, next_fed = current.first_fed, current.next_fed
    state, has_arrived, to_start = current.progress, current.has_arrived, current.to_start
    times, numbers, codes = current.times, current.numbers, current.codes
    group, group_ptr, members = messages.group, messages.group_ptr, messages.members
    after, still_grouped, follower = messages.after, current.still_grouped, current.follower
    ready_number, under_way, made_ready = current.ready_number, current.under_way, 0
    num_devices, num_messages = len(row_ptr) - 1, len(source)
    for x in range(num_messages - 1, -1, -1):
        if feeder[x] >= 0:
            next_fed[x] = first_fed[feeder[x]]
            first_fed[feeder[x]] = x
    heap_size, count = 0, 0
    for device in range(num_devices):
        heap_size = _push(times, numbers, codes, heap_size, start_ns, count, 3 * device + _RESUME)
        count += 1
    end_ns = start_ns
    while heap_size:
        now, what, subject = times[0], codes[0] % 3, codes[0] // 3
        heap_size = _pop(times, numbers, codes, heap_size)
        end_ns = max(end_ns, now)
        starting = 0
        device = -1
        freed = False
        if what == _RESUME:
            device = subject
        else:
            side = 0 if what == _LEAVE else 1
            done = group[side, subject]
            still_grouped[done] -= 1
            if what == _LEAVE:
                freed = True
                is_busy[0, ports[0, subject]] = 0
                is_busy[1, ports[1, subject]] = 0
            else:
                has_arrived[subject] = 1
                x = first_fed[subject]
                while x >= 0:
                    if _is_ready(group, after, still_grouped, launch_row, feeder, has_arrived, x):
                        to_start[starting] = x
                        starting += 1
                    x = next_fed[x]
            row = launch_row[side, subject]
            still_open[row] -= 1
            here = source[subject] if side == 0 else target[subject]
            under_way[here] -= 1
            if still_grouped[done] == 0 and follower[done] >= 0:
                for k in range(group_ptr[follower[done]], group_ptr[follower[done] + 1]):
                    x = members[k]
                    if (  # one that the arrival feeds is in line already
                        _is_ready(group, after, still_grouped, launch_row, feeder, has_arrived, x)
                        and (what == _LEAVE or feeder[x] != subject)
                    ):
                        to_start[starting] = x
                        starting += 1
            row_at = at[here]
            if (
                still_open[row] == 0
                and row_at < row_ptr[here + 1]
                and op[row_at] == WAIT
                and launch_of[row_at] == row
                and begun[row_at] >= 0
            ):
                ended[row_at] = now
                at[here] += 1
                device = here
        if device >= 0:
            while at[device] < row_ptr[device + 1]:
                row = at[device]
                if begun[row] < 0:
                    begun[row] = now
                if op[row] == WAIT:
                    if launch_of[row] >= 0 and still_open[launch_of[row]] > 0:
                        break
                    ended[row] = now
                elif op[row] == LAUNCH:
                    ended[row] = now
                    for k in range(item_ptr[row], item_ptr[row + 1]):
                        x = items[k]
                        side = 0 if source[x] == device else 1
                        still_open[row] += 1
                        under_way[device] += 1
                        launch_row[side, x] = row
                        if _is_ready(
                            group, after, still_grouped, launch_row, feeder, has_arrived, x
                        ):
                            to_start[starting] = x
                            starting += 1
                else:
                    ended[row] = now + duration[row]
                    if under_way[device] > 0 and messages.slowdown > 1.0 and op[row] == ATTENTION:
                        ended[row] = now + int(np.ceil(duration[row] * messages.slowdown))
                    if duration[row] > 0:
                        at[device] += 1
                        heap_size = _push(
                            times,
                            numbers,
                            codes,
                            heap_size,
                            ended[row],
                            count,
                            3 * device + _RESUME,
                        )
                        count += 1
                        break
                at[device] += 1
        for n in range(starting):
            x = to_start[n]
            state[x] = _READY
            made_ready += 1
            ready_number[x] = made_ready
            for side in range(2):
                ready_at[side, ports[side, x]] += 1
        # New messages first, then what waited for the ports that have become free.
        for n in range(starting + 2 * freed):
            x = -1
            if n < starting:
                x = to_start[n]
                if state[x] != _READY or is_busy[0, ports[0, x]] or is_busy[1, ports[1, x]]:
                    continue
            else:
                side = n - starting
                port = ports[side, subject]
                if is_busy[side, port] or ready_at[side, port] == 0:
                    continue
                k = head[side, port]
                while k < port_ptr[side, port + 1] and state[port_list[side, k]] == _STARTED:
                    k += 1
                head[side, port] = k
                unseen = ready_at[side, port]
                while unseen > 0:
                    y = port_list[side, k]
                    if state[y] == _READY:
                        unseen -= 1
                        if not is_busy[1 - side, ports[1 - side, y]] and (
                            x < 0 or ready_number[y] < ready_number[x]
                        ):
                            x = y
                            if not messages.is_fifo:
                                break
                    k += 1
                if x < 0:
                    continue
            state[x] = _STARTED
            started[x] = now
            for side in range(2):
                is_busy[side, ports[side, x]] = 1
                ready_at[side, ports[side, x]] -= 1
            for what_next in (_LEAVE, _ARRIVE):
                when = now + busy[x] + (latency[x] if what_next == _ARRIVE else 0)
                heap_size = _push(times, numbers, codes, heap_size, when, count, 3 * x + what_next)
                count += 1
    return end_ns
