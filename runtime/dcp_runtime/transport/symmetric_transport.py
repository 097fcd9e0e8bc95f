"""Parcels inside a node through symmetric memory, between nodes over NCCL.

A rank copies a block that leaves into its own part of the window, once for all its targets, and
puts one signal to each target and group of parcels. The target waits for the signal on a stream of
its own and pulls the blocks by the copy engine, so no kernel of a GPU sends anything. Inputs and
results each have a lane: a stream out, a stream in, channels, and two halves of the window.

The halves are written in turn, by inputs of one call after another, which several divisions read,
and by results of one division after another. The first block of a turn waits until all targets have
said that they have read what the turn before the last one left there. That is the only thing for
which a stream out waits, besides what it is to send, so no two ranks wait for each other.

Targets must know where a block lies. Ranks write that to the store when a plan is first run in a
direction, at a meeting of all ranks at which windows also grow to what the largest plan needs.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from dcp_planner import Direction, TransferKind
from dcp_planner.tables import CommLaunch
from dcp_runtime.errors import RunError
from dcp_runtime.plans.device_plan import DevicePlan, Transfer
from dcp_runtime.transport.group_transport import make_group
from dcp_runtime.transport.nccl_transport import NAP_S, Batch, NcclTransport, last_limit_s
from dcp_runtime.transport.symmetric_memory import (
    CopyStream,
    Mark,
    Window,
    aligned,
    check_device,
    device_index,
    host_name,
    places,
)
from dcp_runtime.transport.transport import Bytes, Parcel, agree

HALVES = 2
CLOSE_S = 1.0
"""Seconds that blocks in flight get to arrive when an executor is closed."""
RELEASE_S = 5.0
"""Seconds that streams get to end once nothing holds them."""
_PLACE = "laying out blocks"
_left_behind: list[Window] = []  # freeing one would wait for streams that never end


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the blocks of one plan and direction lie in the halves of a window.

    Attributes:
        places: by the index of a transfer, also of what near ranks send: its first byte in the
            half, and the half of a result.
        awaited: inputs that come from each near rank.
    """

    places: Mapping[int, tuple[int, int]]
    awaited: Counter[int]


@dataclass(slots=True, eq=False)
class _Lane:
    """Inputs or results on their way through the window."""

    is_result: bool
    out: CopyStream = field(default_factory=CopyStream)
    into: CopyStream = field(default_factory=CopyStream)
    sent: Counter[int] = field(default_factory=Counter)  # signals so far, by rank
    received: Counter[int] = field(default_factory=Counter)
    readers: tuple[set[int], ...] = field(default_factory=lambda: (set(), set()))
    """Ranks that have yet to say that they have read a half."""
    half: int = 0  # of the call
    staged: set[int] | None = None  # first bytes of what the half holds; None: not yet free
    awaited: Counter[int] = field(default_factory=Counter)
    # What the streams have to do, with the ranks that may hold it up.
    queued: tuple[deque[tuple[Mark, Sequence[int]]], ...] = field(
        default_factory=lambda: (deque(), deque())
    )

    def begin(self, layout: Layout) -> None:
        self.half, self.staged = (self.half + 1) % HALVES, None
        self.awaited = layout.awaited.copy()

    def batch(self, parcels: Sequence[Parcel], peers: Sequence[int], *, is_send: bool) -> Batch:
        """Return a batch that ends with what is queued now."""
        mark, queued = (self.out if is_send else self.into).mark(), self.queued[is_send]
        queued.append((mark, peers))
        while queued[0][0].is_completed() and len(queued) > 1:
            queued.popleft()

        def blamed() -> Sequence[int]:
            stuck = (peers for mark, peers in tuple(queued) if not mark.is_completed())
            return next(stuck, peers)

        return Batch(parcels, (mark,), blamed)


class SymmetricTransport(NcclTransport):
    """Symmetric memory between the ranks of a node, NCCL between nodes; see above.

    Args:
        group, timeout_s: as for NCCL, which is not used where all ranks share a node.

    Raises:
        RunError: on all ranks, if no two of them share a node, or GPUs of a node cannot read each
            other's memory.
    """

    _window: Window | None = None

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        super().__init__(group, timeout_s)
        self._node = self._control
        if len(self._near) < self.size:
            self._node = make_group([self._ranks[r] for r in self._near], "gloo", timeout_s)
        self._capacity = [0, 0]  # bytes of a half, for inputs and for results
        self._layouts: WeakKeyDictionary[DevicePlan, dict[Direction, Layout]]
        self._layouts = WeakKeyDictionary()
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

    def begin(
        self, part: DevicePlan, direction: Direction, row_bytes: Callable[[TransferKind], Bytes]
    ) -> None:
        """Find where the blocks of a call lie; collective in the first call of a plan.

        Raises:
            RunError: in a CUDA graph, whose replays would take each other's signals; or names a
                rank that does not come.
        """
        self._check()
        if torch.cuda.is_current_stream_capturing():
            raise RunError(
                "expected a call outside of CUDA graphs, got one that a graph captures; make the "
                'executor without transport="symmetric" for graphs'
            )
        layouts = self._layouts.setdefault(part, {})
        if direction not in layouts:
            layouts[direction] = self._lay_out(part, direction, row_bytes)
        self._layout = layouts[direction]
        for lane in self._lanes:
            lane.begin(self._layout)

    def _lay_out(
        self, part: DevicePlan, direction: Direction, row_bytes: Callable[[TransferKind], Bytes]
    ) -> Layout:
        places: dict[int, tuple[int, int]] = {}
        ends, known = Counter[int](), dict[tuple[int, ...], tuple[int, int]]()
        turns, awaited = dict[tuple[int, int], int](), Counter[int]()
        for launch, x in _near_launches(part, direction, self._near):
            if not x.is_send:
                awaited[x.peer] += not x.kind.is_result
                continue
            # A result has one target; all targets of an input get the same.
            copy: tuple[int, ...] = -1, x.kind, x.block, x.brought_by
            turn = -1
            if x.kind.is_result:
                copy, turn = (x.index,), turns.setdefault((launch.division, x.hop), len(turns))
            if copy not in known:
                known[copy] = ends[turn], turn % HALVES
                ends[turn] += sum(aligned(x.num_tokens * width) for width in row_bytes(x.kind))
            places[x.index] = known[copy]
        inputs = ends.pop(-1, 0)
        largest = inputs, max(ends.values(), default=0)
        return Layout(places | self._exchange(places, largest), awaited)

    def _exchange(
        self, places: Mapping[int, tuple[int, int]], largest: tuple[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Tell all ranks where blocks of this rank lie; return those of near ones; collective."""
        number, self._meetings = self._meetings, self._meetings + 1
        with self._barrier.waiting_for(0, _PLACE):
            self.store.set(f"blocks/{number}/{self.rank}", json.dumps(list(places.items())))
        notes = self.exchange_notes(f"{largest[0]} {largest[1]}", _PLACE)
        each = (map(int, note.split()) for note in notes)
        self._grow([max(lane) for lane in zip(*each, strict=True)])
        found: dict[int, tuple[int, int]] = {}
        with self._barrier.waiting_for(0, _PLACE):
            for data in self.store.multi_get([f"blocks/{number}/{rank}" for rank in self._near]):
                found |= dict(json.loads(data))
            if number > 0:  # all have read those of the meeting before
                self.store.delete_key(f"blocks/{number - 1}/{self.rank}")
        return found

    def _grow(self, needed: Sequence[int]) -> None:
        """Make a larger window where a half is too small, on all ranks alike."""
        if self._window is not None and all(map(int.__le__, needed, self._capacity)):
            return
        self._drain()
        self._capacity = [aligned(max(pair)) for pair in zip(needed, self._capacity, strict=True)]
        self._window = None  # frees it before the larger one is made
        size = max(1, HALVES * sum(self._capacity))
        self._window = Window(size, self._node, last_limit_s(self._timeout_s))
        for lane in self._lanes:  # signals of the old window are gone with it
            lane.sent.clear()
            lane.received.clear()
            lane.readers = (set(), set())

    def _drain(self) -> None:
        """Wait until all streams have done what is queued."""
        for lane in self._lanes:
            for is_send in (False, True):
                others = [rank for rank in self._near if rank != self.rank]
                batch = lane.batch((), others, is_send=is_send)
                self._follow(batch, "growing the window", -1)
        self._check()

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
        """Start messages to other nodes, behind what near ranks bring for them."""
        before = [self._batches[p.after] for p in parcels if p.after in self._batches]
        if not before:
            super()._start_batch(is_result, parcels)
            return
        self._bridge.follow()
        with self._bridge.entered():
            for batch in before:
                batch.wait()
            super()._start_batch(is_result, parcels)

    def _send(self, lane: _Lane, parcels: Sequence[Parcel]) -> None:
        """Copy blocks into the window, unless they are there, and signal their targets."""
        window, half = self._opened(), self._half(lane, parcels[0])
        lane.out.follow()
        readers: Sequence[int] = ()
        if lane.staged is None or lane.is_result:
            readers, lane.staged = self._free_half(lane, window, half), set()
        for parcel in parcels:
            offset, _ = self._layout.places[parcel.transfer.index]
            if offset in lane.staged:
                continue
            lane.staged.add(offset)
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

    def _free_half(self, lane: _Lane, window: Window, half: int) -> Sequence[int]:
        """Wait until all targets have read what the half held."""
        readers = tuple(lane.readers[half])
        for reader in readers:
            channel = self._read_channel(lane, half)
            lane.out.run(partial(window.wait, self._near[reader], channel))
        lane.readers[half].clear()
        return readers

    def _receive(self, lane: _Lane, source: int, parcels: Sequence[Parcel]) -> None:
        """Pull blocks of a near rank once it has signalled them."""
        window, place = self._opened(), self._near[source]
        lane.into.follow()
        lane.into.run(partial(window.wait, place, self._channel(lane, lane.received, source)))
        for parcel in parcels:
            self._copy_all(lane, parcel, source)
        batch = lane.batch(parcels, (source,), is_send=False)
        self._batches.update(dict.fromkeys(parcels, batch))
        lane.awaited[source] -= len(parcels)
        if lane.is_result or lane.awaited[source] == 0:  # the turn brings nothing more from there
            channel = self._read_channel(lane, self._half(lane, parcels[0]))
            lane.into.run(partial(window.put, place, channel))

    def _copy_all(self, lane: _Lane, parcel: Parcel, rank: int) -> None:
        """Copy a block into this rank's part of the window, or out of another's."""
        base = HALVES * self._capacity[0] if lane.is_result else 0
        base += self._half(lane, parcel) * self._capacity[lane.is_result]
        part = self._opened().parts[self._near[rank]]
        offset = base + self._layout.places[parcel.transfer.index][0]
        for tensor, place in zip(parcel.tensors, places(part, offset, parcel.tensors), strict=True):
            if rank == self.rank:
                lane.out.run(partial(place.copy_, tensor))
            else:
                lane.into.run(partial(tensor.copy_, place))

    def _half(self, lane: _Lane, parcel: Parcel) -> int:
        return self._layout.places[parcel.transfer.index][1] if lane.is_result else lane.half

    def _channel(self, lane: _Lane, signals: Counter[int], peer: int) -> int:
        """Return the channel of the next signal of blocks from or to a rank: one after another."""
        each = self._opened().num_channels // len(self._lanes)
        number, signals[peer] = signals[peer], signals[peer] + 1
        return lane.is_result * each + HALVES + number % (each - HALVES)

    def _read_channel(self, lane: _Lane, half: int) -> int:
        """Return the channel that says that a half has been read."""
        return lane.is_result * (self._opened().num_channels // len(self._lanes)) + half

    def _opened(self) -> Window:
        if self._window is None:
            raise RunError("the executor is closed; make another one")
        return self._window

    def _ends(self) -> Batch:
        """Return a batch of all that is queued."""
        streams = (stream for lane in self._lanes for stream in (lane.out, lane.into))
        return Batch((), [stream.mark() for stream in streams])

    def _release(self) -> None:
        """Let streams go on that wait for a lost rank; their blocks are void.

        What this rank signals from now on is void, too: the failure is in the registry by then, and
        every rank looks there before it takes a step.
        """
        super()._release()
        if self._window is not None:
            self._window.release(CopyStream(), self._ends().is_over, RELEASE_S)

    def catch_up(self) -> None:
        """Wait for the end of all messages, and look whether another rank has failed.

        Raises:
            RunError: if a message never came, or a rank failed that may have sent void blocks.
        """
        super().catch_up()
        marked = self._failures.marked_by()
        if marked is not None and not self._is_over.is_set():
            self._give_up(Batch((), (), lambda: [marked]), "catching up", -1)
        if not self._is_told:
            self._check()

    def close(self) -> None:
        """Free the window, once nothing waits in it any more."""
        super().close()
        if self._window is None:
            return
        ends, deadline = self._ends(), time.monotonic() + CLOSE_S
        while not ends.is_over() and time.monotonic() < deadline:
            time.sleep(NAP_S)
        if not ends.is_over():
            error = RunError("the executor was closed while blocks travelled")
            self.report("closing the executor", -1, error)
            self._release()
        if not ends.is_over():
            _left_behind.append(self._window)
        self._window = None


def _near_launches(
    part: DevicePlan, direction: Direction, near: Mapping[int, int]
) -> Iterator[tuple[CommLaunch, Transfer]]:
    """Yield what a program sends to near ranks and takes from them, in order."""
    for step, _ in part.of(direction).steps:
        if isinstance(step, CommLaunch):
            for index in step.transfers:
                if part.transfers[index].peer in near:
                    yield step, part.transfers[index]
