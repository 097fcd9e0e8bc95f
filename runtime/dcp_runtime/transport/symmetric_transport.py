"""Send blocks through symmetric memory inside a machine, and over NCCL between machines.

A rank copies a block that leaves into its own part of the window, once for all its targets, and
puts one signal to each target and group of parcels. The target waits for the signal on a stream of
its own, pulls the blocks by the copy engine, so no kernel of a GPU sends anything, and signals that
it has read them. Inputs and results each have a lane: a stream out, a stream in, channels, and a
region of the window. The results of one division after another use two halves of their region in
turn.

A call leaves the window as it found it: the stream out ends behind the signals of all ranks that
read from it. So no signal is set, and no rank reads, when its next call begins. A stream out waits
for these signals and for the blocks that it sends, and for nothing else, so no two ranks wait for
each other. And calls that a CUDA graph captured are right whatever ran between their replays. All
streams of a captured call must end with its graph, so once there is a graph, the layers of this
rank wait at their end for those readers.

Targets must know the places of blocks. Ranks write them to the store when a plan is first run in a
direction, at a meeting of all ranks at which windows also grow to the size that the largest plan
needs.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.group_store import MeetingStore
from dcp_runtime.transport.group_transport import make_group
from dcp_runtime.transport.nccl_transport import NAP_S, MessageBatch, NcclTransport, last_limit_s
from dcp_runtime.transport.symmetric_memory import (
    HALVES,
    CopyStream,
    Mark,
    SharedWindow,
    WindowGroup,
    WindowPlaces,
    aligned,
    check_device,
    device_index,
    host_name,
    places,
)
from dcp_runtime.transport.transport import Parcel, RowBytes, agree

CLOSE_S = 1.0
"""Seconds that blocks in flight get to arrive when an executor is closed."""
RELEASE_S = 5.0
"""Seconds that streams get to end once nothing holds them."""
_PLACE = "laying out blocks"
_left_behind: list[SharedWindow] = []  # to free a window is to wait for streams that never end


@dataclass(slots=True, eq=False)
class _Lane:
    """Inputs or results on their way through the window."""

    is_result: bool
    out: CopyStream = field(default_factory=CopyStream)
    into: CopyStream = field(default_factory=CopyStream)
    # State of one call:
    sent: Counter[int] = field(default_factory=Counter)  # signals, by rank
    received: Counter[int] = field(default_factory=Counter)
    readers: tuple[set[int], ...] = field(default_factory=lambda: (set(), set()))
    """By half, the ranks that have not signalled yet that they have read it."""
    unsent: int = 0
    awaited: Counter[int] = field(default_factory=Counter)
    # Of all calls: pending work of `into` and of `out`, with the ranks that may hold it up.
    queued: tuple[deque[tuple[Mark, Sequence[int]]], ...] = field(
        default_factory=lambda: (deque(), deque())
    )

    def begin(self, call: WindowPlaces) -> None:
        self.sent.clear()
        self.received.clear()
        self.unsent, self.awaited = call.unsent[self.is_result], call.awaited.copy()

    def batch(
        self, parcels: Sequence[Parcel], peers: Sequence[int], *, is_send: bool
    ) -> MessageBatch:
        """Return a batch that ends with the work that is queued now."""
        mark, queued = (self.out if is_send else self.into).mark(), self.queued[is_send]
        if torch.cuda.is_current_stream_capturing():  # CUDA refuses to look at a mark in a graph
            return MessageBatch(parcels, (mark,))
        queued.append((mark, peers))
        while queued[0][0].is_completed() and len(queued) > 1:
            queued.popleft()

        # A stream works in order: the oldest work that is not over holds up all behind it, also
        # where that is work of an earlier batch for other ranks.
        def blamed() -> Sequence[int]:
            stuck = (peers for mark, peers in tuple(queued) if not mark.is_completed())
            return next(stuck, peers)

        return MessageBatch(parcels, (mark,), blamed)


class SymmetricTransport(NcclTransport):
    """Symmetric memory between the ranks of a machine, NCCL between machines; see above.

    A CUDA graph may capture calls where all ranks share a machine. No thread watches its replays.
    All replays must end before `close`: a later replay would read memory that is freed, and no
    check can refuse it.

    Args:
        group, timeout_s: as for NCCL, which is not used where all ranks share a machine.

    Raises:
        RunError: on all ranks, if a rank is alone on its machine, or GPUs of a machine cannot read
            each other's memory.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        super().__init__(group, timeout_s)
        node = self._control
        if len(self._near) < self.size:
            node = make_group([self._ranks[r] for r in self._near], "gloo", timeout_s)
        meet = partial(self._barrier.wait_for, ranks=list(self._near), place=_PLACE)
        self._node = WindowGroup(node, MeetingStore(self.store, f"node of {min(self._near)}", meet))
        self._windows: list[SharedWindow] = []  # the last is in use; graphs may use those before
        self._has_graphs = False
        self._capacity = [0, 0]  # bytes of the region of inputs, and of a half of that of results
        # Weak: the places of a plan go with the plan.
        self._calls: WeakKeyDictionary[DevicePlan, dict[Direction, WindowPlaces]]
        self._calls = WeakKeyDictionary()
        self._meetings = 0
        self._bridge = CopyStream()
        self._lanes = [_Lane(is_result=False), _Lane(is_result=True)]

    def _make_groups(self) -> list[dist.ProcessGroup]:
        notes = self.exchange_notes(json.dumps([host_name(), device_index()]), "finding the node")
        found = [json.loads(note) for note in notes]
        host, mine = found[self.rank]
        near = [rank for rank, (other, _) in enumerate(found) if other == host]
        others = [found[rank][1] for rank in near if rank != self.rank]

        def propose() -> tuple[Sequence[str], None]:
            check_device(mine, others)
            return (), None

        agree(self, (), "finding the node", propose)
        self._near = {rank: place for place, rank in enumerate(near)}
        return super()._make_groups() if len(near) < self.size else []

    def begin(self, part: DevicePlan, direction: Direction, row_bytes: RowBytes) -> None:
        """Find the places of the blocks of a call; collective in the first call of a plan.

        Raises:
            RunError: names a rank that does not come; or in a CUDA graph, if this is the first call
                of a plan, or some ranks are on another machine.
        """
        super().begin(part, direction, row_bytes)
        self._check()
        calls = self._calls.setdefault(part, {})
        if torch.cuda.is_current_stream_capturing():
            if direction not in calls or len(self._near) < self.size:
                raise RunError(
                    f"expected all {self.size} ranks on one machine, and a plan whose {direction} "
                    f"ran before, in a CUDA graph; got {len(self._near)} ranks here and a plan "
                    f"that {'ran' if direction in calls else 'did not run'}; run the layer once "
                    'before, or make the executor without transport="symmetric"'
                )
            self._has_graphs = True
        if direction not in calls:
            own = WindowPlaces.of(part, direction, row_bytes, self._near)
            calls[direction] = replace(own, places=self._exchange(own))
        self._call = calls[direction]
        self._unfinished = self._call.count
        for lane in self._lanes:
            lane.begin(self._call)
        if self._has_graphs and self._unfinished:
            for stream in self._streams():
                stream.follow()

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Make the current stream wait for every parcel, and have the thread watch them."""
        super().wait(parcels, direction)
        self._unfinished -= len(parcels)
        if self._has_graphs and not self._unfinished:
            # All streams of a graph must join its own before it ends, and a later graph must begin
            # behind them. Not earlier in the call: readers could wait for blocks that this rank has
            # still to compute.
            for stream in self._streams():
                stream.mark().wait()

    def _streams(self) -> Iterator[CopyStream]:
        return chain.from_iterable((lane.out, lane.into) for lane in self._lanes)

    def _exchange(self, own: WindowPlaces) -> dict[int, tuple[int, int]]:
        """Publish the places of this rank's blocks; return those of near ranks; collective."""
        number, self._meetings = self._meetings, self._meetings + 1
        with self._barrier.waiting_for(0, _PLACE):
            self.store.set(f"blocks/{number}/{self.rank}", json.dumps(list(own.places.items())))
        notes = self.exchange_notes(f"{own.needed[0]} {own.needed[1]}", _PLACE)
        each = (map(int, note.split()) for note in notes)
        self._grow([max(lane) for lane in zip(*each, strict=True)])
        found: dict[int, tuple[int, int]] = {}
        with self._barrier.waiting_for(0, _PLACE):
            for data in self.store.multi_get([f"blocks/{number}/{rank}" for rank in self._near]):
                found |= dict(json.loads(data))  # a transfer has one sender: no key comes twice
            if number > 0:  # all ranks came to this meeting, so they have read the last one's keys
                self.store.delete_key(f"blocks/{number - 1}/{self.rank}")
        return found

    def _grow(self, needed: Sequence[int]) -> None:
        """Make a larger window where a region is too small, on all ranks alike."""
        if self._windows and all(map(int.__le__, needed, self._capacity)):
            return
        # Blocks of calls before this one may still be on their way through the old window.
        for lane, is_send in product(self._lanes, (False, True)):
            others = [rank for rank in self._near if rank != self.rank]
            self._follow(lane.batch((), others, is_send=is_send), "growing the window", None)
        self._check()
        self._capacity = [aligned(max(pair)) for pair in zip(needed, self._capacity, strict=True)]
        if not self._has_graphs:  # replays use the window that was there when they were captured
            self._windows.clear()  # frees the memory before the larger window is made
        size = max(1, self._capacity[0] + HALVES * self._capacity[1])
        self._windows.append(SharedWindow(size, self._node, last_limit_s(self._timeout_s)))

    def _start_batch(self, is_result: bool, parcels: Sequence[Parcel]) -> None:
        near = [parcel for parcel in parcels if parcel.transfer.peer in self._near]
        if len(near) < len(parcels):
            self._start_far(is_result, [parcel for parcel in parcels if parcel not in near])
        now_ns = time.perf_counter_ns()
        for parcel in near:
            parcel.start_ns = now_ns
        lane = self._lanes[is_result]
        sends = [parcel for parcel in near if parcel.transfer.is_send]
        if sends:
            self._send(lane, sends)
        for peer in dict.fromkeys(p.transfer.peer for p in near if not p.transfer.is_send):
            chosen = [p for p in near if p.transfer.peer == peer and not p.transfer.is_send]
            self._receive(lane, peer, chosen)

    def _start_far(self, is_result: bool, parcels: Sequence[Parcel]) -> None:
        """Start messages to other nodes, those that forward blocks of near ranks behind these."""
        before = [self._batches[p.after] for p in parcels if p.after in self._batches]
        if not before:
            super()._start_batch(is_result, parcels)
            return
        # On a stream of its own: the current one, which computes, must not wait for those blocks.
        self._bridge.follow()
        with self._bridge.entered():
            for batch in before:
                batch.wait()
            super()._start_batch(is_result, parcels)

    def _send(self, lane: _Lane, parcels: Sequence[Parcel]) -> None:
        """Copy blocks into the window, unless they are there, and signal their targets."""
        window, half = self._window(), self._call.places[parcels[0].transfer.index][1]
        lane.out.follow()
        # Results overwrite those of the turn before the last, which must have been read. Inputs
        # of a call have a place each.
        readers = self._await_readers(lane, half) if lane.is_result else ()
        for parcel in parcels:
            if parcel.transfer.index not in self._call.copied:
                continue
            if parcel.after in self._batches:
                lane.out.run(self._batches[parcel.after].wait)
            self._copy_all(lane, parcel, self.rank)
        targets = list(dict.fromkeys(parcel.transfer.peer for parcel in parcels))
        batch = lane.batch(parcels, (*readers, *targets), is_send=True)
        self._batches.update(dict.fromkeys(parcels, batch))
        for target in targets:
            lane.readers[half].add(target)
            channel = self._channel(lane, lane.sent, target)
            lane.out.run(partial(window.put, self._near[target], channel))
        lane.unsent -= len(parcels)
        if not lane.unsent:
            late = [reader for half in range(HALVES) for reader in self._await_readers(lane, half)]
            lane.batch((), late, is_send=True)  # later work of the stream may have to blame them

    def _await_readers(self, lane: _Lane, half: int) -> Sequence[int]:
        """Wait until all targets have read the blocks of a half."""
        readers, channel = tuple(lane.readers[half]), self._read_channel(lane, half)
        for reader in readers:
            lane.out.run(partial(self._window().wait, self._near[reader], channel))
        lane.readers[half].clear()
        return readers

    def _receive(self, lane: _Lane, source: int, parcels: Sequence[Parcel]) -> None:
        """Pull blocks of a near rank once it has signalled them."""
        window, place = self._window(), self._near[source]
        lane.into.follow()
        lane.into.run(partial(window.wait, place, self._channel(lane, lane.received, source)))
        for parcel in parcels:
            self._copy_all(lane, parcel, source)
        batch = lane.batch(parcels, (source,), is_send=False)
        self._batches.update(dict.fromkeys(parcels, batch))
        lane.awaited[source] -= len(parcels)
        # One signal for all inputs of a rank, behind the last; one for each batch of results.
        if lane.is_result or lane.awaited[source] == 0:
            half = self._call.places[parcels[0].transfer.index][1]
            lane.into.run(partial(window.put, place, self._read_channel(lane, half)))

    def _copy_all(self, lane: _Lane, parcel: Parcel, rank: int) -> None:
        """Copy a block into this rank's part of the window, or out of another's."""
        offset, half = self._call.places[parcel.transfer.index]
        if lane.is_result:
            offset += self._capacity[0] + half * self._capacity[1]
        part = self._window().parts[self._near[rank]]
        for tensor, place in zip(parcel.tensors, places(part, offset, parcel.tensors), strict=True):
            if rank == self.rank:
                lane.out.run(partial(place.copy_, tensor))
            else:
                lane.into.run(partial(tensor.copy_, place))

    def _channel(self, lane: _Lane, signals: Counter[int], peer: int) -> int:
        """Return the channel of the next signal of blocks from or to a rank: one after another.

        Both ranks count the signals of a call, so they agree on it without a message.
        """
        # Each lane has one half of all channels; its first ones are those of `_read_channel`.
        each = self._window().num_channels // len(self._lanes)
        number, signals[peer] = signals[peer], signals[peer] + 1
        return lane.is_result * each + HALVES + number % (each - HALVES)

    def _read_channel(self, lane: _Lane, half: int) -> int:
        """Return the channel on which a reader signals that it has read a half."""
        return lane.is_result * (self._window().num_channels // len(self._lanes)) + half

    def _window(self) -> SharedWindow:
        if not self._windows:
            raise RunError("the executor is closed; make another one")
        return self._windows[-1]

    def _ends(self) -> MessageBatch:
        """Return a batch of all that is queued."""
        return MessageBatch((), [stream.mark() for stream in self._streams()])

    def _release(self) -> None:
        """End the waits of streams for a lost rank; their blocks are void.

        The signals of this rank are void from now on, too. The failure is in the registry by then,
        and every rank looks there before it takes a step.
        """
        super()._release()
        # Repeated, since each wait clears its signal and each put sets one.
        stream, ends, deadline = CopyStream(), self._ends(), time.monotonic() + RELEASE_S
        while self._windows and not ends.is_over() and time.monotonic() < deadline:
            for window in self._windows:
                window.release(stream)
            time.sleep(NAP_S)

    def catch_up(self) -> None:
        """Wait for the end of all messages, and look whether another rank has failed.

        Raises:
            RunError: if a message never came, or another rank failed, whose blocks may be void.
        """
        super().catch_up()
        marked = self._failures.marked_by()
        if marked is not None and not (self._is_over.is_set() or self._failures.is_settled):
            self._give_up(MessageBatch((), (), lambda: [marked]), "catching up", None)
            self._check()

    def close(self) -> None:
        """Free the windows, once no stream waits in them; graphs must not replay after that."""
        super().close()
        self._node.close()
        if not self._windows:
            return
        ends, deadline = self._ends(), time.monotonic() + CLOSE_S
        while not ends.is_over() and time.monotonic() < deadline:
            time.sleep(NAP_S)
        if not ends.is_over():
            error = RunError("the executor was closed while blocks travelled")
            self.report("closing the executor", None, error)
            self._release()
        if not ends.is_over():
            _left_behind.extend(self._windows)
        self._windows.clear()
