"""Tables of the event loop: instructions and messages of one direction, and their times.

Messages of a communicator may travel in groups, one group after the other.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Bools, Bytes, Floats, Indices, Ints, order_by
from dcp_planner.jit import IntTable, compiled
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cost_model import KernelWork, reduction_seconds
from dcp_planner.tables.plan import TransferKind, Transfers
from dcp_planner.tables.programs import ATTENTION, LAUNCH, REDUCTION, WAIT, ProgramTable


class Steps(NamedTuple):
    """The instructions of one direction, device by device."""

    row_ptr: Ints  # `[R+1]`, instructions of each device
    # op, item_ptr, items: columns of a `ProgramTable`; only the messages of launches are read
    op: Bytes
    item_ptr: Ints
    items: Indices
    duration: Ints  # `[I]`, time on the compute lane; 0 until it is known
    launch_of: Ints  # `[I]`, launch that a wait belongs to, else -1

    @classmethod
    def of(cls, programs: ProgramTable, num_devices: int) -> "Steps":
        """Take the instructions from a table, and find the launch of each wait."""
        row_ptr = np.searchsorted(programs.device, np.arange(num_devices + 1))
        op, ptr, items = programs.op.copy(), programs.item_ptr.copy(), programs.items.copy()
        return cls(
            row_ptr, op, ptr, items, np.zeros(len(op), np.int64), launches_of_waits(programs)
        )


class StreamPorts(NamedTuple):
    """Streams of messages, and the ports that they share."""

    ports: IntTable  # int64 `[2, S]`, that each stream sends and receives through
    part: Ints  # `[S]`; streams of unequal parts never meet
    num_ports: int  # to send through, and as many to receive through


NO_STREAMS = StreamPorts(np.zeros((2, 0), np.int64), np.zeros(0, np.int64), 0)


class Messages(NamedTuple):
    """The messages of one direction."""

    # source, target: int32 `[X]`
    source: Indices
    target: Indices
    feeder: Ints  # `[X]`, message that has to arrive before this one can leave, or -1
    # int64 `[2, X]`, port that it leaves by (0) and port that it enters by (1), which serve one
    # message at a time; where ports are shared, its stream, twice
    ports: IntTable
    num_ports: int  # ports of either kind, P
    streams: StreamPorts  # ports that streams share; none where ports are not shared
    busy: Ints  # `[X]`, time that it occupies both, alone; 0 until it is known
    latency: Ints  # `[X]`, between leaving and arriving; 0 until it is known
    # int64 `[2, X]`, group of messages that it belongs to at its source and its target
    group: IntTable
    group_ptr: Ints  # `[G+1]`, members of each group in `members`
    members: Ints  # `[2X]`, messages
    after: Ints  # `[G]`, group that a group follows on its communicator, or -1
    is_fifo: int  # whether a port serves the message that was ready first, not the lowest number
    slowdown: float  # times that attention takes longer while messages of its device are under way

    @classmethod
    def of(
        cls,
        ends: tuple[Indices, Indices],
        feeder: Ints,
        ports: tuple[Ints, int],
        groups: tuple[Ints, Ints, Ints, Ints],
        *,
        is_fifo: bool,
        streams: StreamPorts | None = None,
    ) -> "Messages":
        """Take messages whose times are not known yet."""
        nothing = np.zeros_like(feeder)
        source, target = (end.copy() for end in ends)
        streams = NO_STREAMS if streams is None else streams
        return cls(
            source, target, feeder, *ports, streams, nothing, nothing, *groups, int(is_fifo), 1.0
        )


def one_group(size: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Put all messages into one group that follows no other, so that groups delay nothing."""
    # Members are ends of messages: every message is there as it leaves, and as it arrives.
    both = np.concatenate([np.arange(size)] * 2)
    return np.zeros((2, size), np.int64), np.array([0, 2 * size]), both, np.array([-1])


def ports_of(source: Indices, target: Indices, cluster: Cluster) -> tuple[IntTable, int]:
    """Find the ports by which messages leave and enter, int64 ``[2, X]``, and their number.

    Ports 0 to R - 1 are those of devices inside their node; the ports of NICs follow.
    """
    nics, ends = cluster.nic_of_device, np.stack([source, target])
    devices = cluster.num_devices
    is_inter = cluster.link_class(source, target) > 0
    ports = np.where(is_inter, devices + nics[ends], ends)
    num_ports = devices + int(nics[-1]) + 1
    if cluster.message_order == "fifo":  # one port to send from; the target's is always free
        ports[0], ports[1] = source, np.arange(len(source))
        num_ports += len(source)
    return ports, num_ports


def streams_of(transfers: Transfers, cluster: Cluster) -> tuple[Ints, StreamPorts]:
    """Find the stream of each transfer, int64 ``[X]``, and the ports of all streams.

    There is one for inputs and one for results, from each device to each other: a transport has a
    connection for each, whose messages travel one after the other.
    """
    is_result = transfers.kind >= TransferKind.OUT
    devices = np.int64(cluster.num_devices)
    pair = (transfers.source * devices + transfers.target) * 2 + is_result
    found, stream = np.unique(pair, return_inverse=True)
    source, target = np.divmod(found // 2, devices)
    ports, num_ports = ports_of(source.astype(np.int32), target.astype(np.int32), cluster)
    # Behind the ports of devices are those of NICs, which are one part.
    part = np.append(cluster.node_of_device, cluster.nodes)[np.minimum(ports[0], devices)]
    return stream.astype(np.int64), StreamPorts(ports, part, num_ports)


def launches_of_waits(programs: ProgramTable) -> Ints:
    """Find the launch that each wait belongs to, int64 ``[I]``; -1 for other instructions."""
    found = np.full(len(programs), -1, np.int64)
    # Device and key in one number; keys of launches and waits are at least 0.
    place = programs.device.astype(np.int64) << 32 | programs.key
    launches, waits = (np.flatnonzero(programs.op == op) for op in (LAUNCH, WAIT))
    if launches.size:
        order = np.argsort(place[launches])
        where = np.searchsorted(place[launches], place[waits], sorter=order)
        # A wait of a damaged plan may lack its launch: its place is another one, or behind all.
        chosen = launches[order[np.minimum(where, len(launches) - 1)]]
        found[waits] = np.where(place[chosen] == place[waits], chosen, -1)
    return found


def groups_of(
    steps: Steps, transfers: Transfers, cluster: Cluster
) -> tuple[Ints, Ints, Ints, Ints]:
    """Find `group`, `group_ptr`, `members` and `after` of `Messages`.

    If messages do not travel in groups, all are in one.
    """
    size = len(transfers)
    if cluster.message_order != "grouped" or not size:
        return one_group(size)
    launch = np.full((2, size), -1, np.int64)
    _find_launches(steps, transfers.source.copy(), launch)
    # A communicator is a device and a kind of message. Its messages of one division and hop are one
    # group; the first launch of a group decides its turn.
    is_result = np.tile(transfers.kind >= TransferKind.OUT, 2)
    # + 1: communicator 0 is for ends that the programs do not launch.
    communicator = np.append(transfers.source, transfers.target) * np.int64(2) + is_result + 1
    columns = np.stack([communicator, np.tile(transfers.division, 2), np.tile(transfers.hop, 2)])
    columns *= launch.ravel() >= 0  # ends that are not launched form one group
    order = order_by(*columns)
    group, group_ptr = np.empty((2, size), np.int64), np.empty(2 * size + 1, np.int64)
    begins = np.empty(2 * size, np.int64)
    count = _number_groups(order, columns, launch, group, group_ptr, begins)
    communicator = columns[0, order[group_ptr[:count]]]
    turn = order_by(communicator, begins[:count] + 1)  # + 1: -1 where nothing is launched
    after = np.full(count, -1, np.int64)
    follows = np.diff(communicator[turn]) == 0
    after[turn[1:][follows]] = turn[:-1][follows]
    return group, group_ptr[: count + 1], order % size, after


@compiled
def _find_launches(steps: Steps, source: Indices, launch: IntTable) -> None:
    for device in range(len(steps.row_ptr) - 1):
        for row in range(steps.row_ptr[device], steps.row_ptr[device + 1]):
            if steps.op[row] == LAUNCH:
                for k in range(steps.item_ptr[row], steps.item_ptr[row + 1]):
                    x = steps.items[k]
                    launch[0 if source[x] == device else 1, x] = row


@compiled
def _number_groups(
    order: Ints, columns: IntTable, launch: IntTable, group: IntTable, group_ptr: Ints, begins: Ints
) -> int:
    """Number groups of ends with equal columns, and find the first launch of each.

    `order` sorts the ends by `columns`, so members of a group are neighbours in it.
    """
    size, count = launch.shape[1], 0
    for n in range(len(order)):
        end = order[n]
        is_first = n == 0
        for column in range(3):
            is_first = is_first or columns[column, end] != columns[column, order[n - 1]]
        if is_first:
            group_ptr[count], begins[count] = n, launch[end // size, end % size]
            count += 1
        group[end // size, end % size] = count - 1
        begins[count - 1] = min(begins[count - 1], launch[end // size, end % size])
    group_ptr[count] = len(order)
    return count


class Bundles(NamedTuple):
    """Messages of one direction: the blocks that a device launches together for another are one.

    Inputs that are passed on travel alone, as in the runtime.
    """

    is_first: Bytes  # `[X]`, whether a transfer is the first of its message
    last: Ints  # `[X]`, the last transfer of the message that each one belongs to
    ends: Ints  # `[R]`, messages that each device sends or receives

    @classmethod
    def of(cls, steps: Steps, transfers: Transfers) -> "Bundles":
        """Bundle the transfers of each launch; O(X)."""
        size, devices = len(transfers), len(steps.row_ptr) - 1
        found = cls(np.ones(size, np.uint8), np.arange(size), np.zeros(devices, np.int64))
        is_relay = (transfers.hop > 0) & (transfers.kind < TransferKind.OUT)
        hops = int(transfers.hop.max(initial=0)) + 1
        sort = transfers.kind * np.int64(hops) + transfers.hop
        ends = transfers.source.copy(), transfers.target.copy()
        # For each peer, way, kind and hop: the launch seen last, and its last transfer.
        seen = np.full((2, 2 * devices * hops * len(TransferKind)), -1, np.int64)
        _bundle(steps, ends, sort, is_relay.astype(np.uint8), seen, found)
        return found


@compiled
def _bundle(
    steps: Steps,
    ends: tuple[Indices, Indices],
    sort: Ints,
    is_relay: Bytes,
    seen: IntTable,
    found: Bundles,
) -> None:
    """Find the messages of every launch at both of their ends.

    `sort` numbers the kind and hop of each transfer. The source decides which transfers travel
    together; the target launches the same ones together.
    """
    devices, (source, target) = len(found.ends), ends
    num_sorts = seen.shape[1] // (2 * devices)
    for device in range(devices):
        for row in range(steps.row_ptr[device], steps.row_ptr[device + 1]):
            if steps.op[row] != LAUNCH:
                continue
            for k in range(steps.item_ptr[row], steps.item_ptr[row + 1]):
                x = steps.items[k]
                sends = source[x] == device
                peer = target[x] if sends else source[x]
                place = (2 * peer + (1 if sends else 0)) * num_sorts + sort[x]
                is_first = is_relay[x] > 0 or seen[0, place] != row
                found.ends[device] += 1 if is_first else 0
                if sends:
                    found.is_first[x] = 1 if is_first else 0
                if is_relay[x] == 0:
                    seen[0, place], seen[1, place] = row, x
            for k in range(steps.item_ptr[row], steps.item_ptr[row + 1]):
                x = steps.items[k]
                if source[x] == device and is_relay[x] == 0:
                    found.last[x] = seen[1, (2 * target[x] + 1) * num_sorts + sort[x]]


def durations(
    programs: ProgramTable, steps: Steps, transfers: Transfers, work: KernelWork, cluster: Cluster
) -> Floats:
    """Compute the seconds that each instruction takes on the device, ``[I]``, without the host."""
    seconds, speed = np.zeros(len(programs)), cluster.speed_of_device
    counts = np.diff(programs.item_ptr)
    attends = np.flatnonzero((programs.op == ATTENTION) & (counts > 0))
    seconds[attends] = work.launch_seconds(attends, programs.item_ptr, programs.items)
    merged = np.zeros(len(programs), np.int64)
    _add_merged(steps, transfers.size_bytes.copy(), merged)
    reduces = np.flatnonzero((programs.op == REDUCTION) & (counts > 0))
    seconds[reduces] = reduction_seconds(merged[reduces], cluster)
    busy = np.append(attends, reduces)
    # A launch is no work of the device: a slow device launches no slower.
    seconds[busy] = seconds[busy] / speed[programs.device[busy]] + cluster.kernel_launch_s
    return seconds


@compiled
def _add_merged(steps: Steps, size_bytes: Ints, merged: Ints) -> None:
    for row in range(len(steps.op)):
        if steps.op[row] == REDUCTION:
            for k in range(steps.item_ptr[row], steps.item_ptr[row + 1]):
                merged[row] += size_bytes[steps.items[k]]


def host_seconds(programs: ProgramTable, bundles: Bundles, cluster: Cluster) -> Floats:
    """Compute the seconds that the host of each device works for one direction, ``[R]``."""
    is_kernel = np.isin(programs.op, (ATTENTION, REDUCTION)) & (np.diff(programs.item_ptr) > 0)
    kernels = np.bincount(programs.device[is_kernel], minlength=cluster.num_devices)
    return np.asarray(
        cluster.pass_s + cluster.host_kernel_s * kernels + cluster.host_message_s * bundles.ends
    )


def levelled(
    spent: Floats,
    device: Indices,
    kinds: tuple[Bools, Bools],
    speed: Floats,
    *,
    is_everywhere: bool,
) -> Floats:
    """Stretch or shrink the compute of each device to what it would be in balance.

    `kinds` mark the attentions and the reductions of `spent`; nothing else is compute. Everywhere:
    devices without attention take their share, too.
    """
    attends, reduces = kinds
    load = np.bincount(device, spent * (attends | reduces), len(speed))
    busy = np.bincount(device, spent * attends, len(speed)) > 0
    shares = busy | is_everywhere
    # Seconds times speed is work; all devices that share it take equally long for their part.
    mean = float(load[shares] @ speed[shares]) / max(speed[shares].sum(), 1e-300)
    # A device that only merges keeps that: stretched, it would hold up those that it merges for.
    factor = np.divide(mean, load, out=np.ones(len(load)), where=busy)
    return np.where(attends | reduces, spent * factor[device], spent)


def message_times(
    transfers: Transfers, link: Ints, bundles: Bundles, cluster: Cluster
) -> tuple[Floats, Floats]:
    """Compute the seconds that messages occupy their ports, and their latencies, ``[X]`` each.

    The first block of a message pays for its launch.
    """
    rate = np.array([one.bytes_per_s for one in cluster.links])[link]
    latency = np.array([one.latency_s for one in cluster.links])[link]
    if cluster.slow_ports:
        slowness = cluster.port_slowness
        slower = np.maximum(slowness[transfers.source], slowness[transfers.target])
        rate = rate / np.where(link > 0, slower, 1.0)
    return transfers.size_bytes / rate + cluster.message_launch_s * bundles.is_first, latency


def nanoseconds(seconds: Floats) -> Ints:
    """Round seconds up to whole nanoseconds, int64; positive times stay positive."""
    return np.ceil(seconds * 1e9).astype(np.int64)
