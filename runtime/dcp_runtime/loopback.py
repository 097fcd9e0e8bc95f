"""N ranks as threads of one process, on one device: for tests, and to measure one GPU.

A message is a copy within the device, made by whoever comes second, the sender or the receiver. The
plan, the interpreter and the kernels are those of real processes; failures are found and told the
same way, through a store that lives in memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore  # torch.distributed.HashStore, with its type

from dcp_planner import Direction
from dcp_runtime.clock import Timeline, merge_timelines
from dcp_runtime.errors import RunError
from dcp_runtime.failure_board import FailureBoard, Status
from dcp_runtime.meeting import Meeting
from dcp_runtime.recorder import Recorder
from dcp_runtime.transport import Parcel
from dcp_runtime.waiting import check_timeout

Result = TypeVar("Result")
POLL_S = 0.05


@dataclass(slots=True)
class _Box:
    """What has been sent to one rank under one number and not been received, or the reverse."""

    sent: deque[tuple[torch.Tensor, ...]] = field(default_factory=deque)
    awaited: deque[Parcel] = field(default_factory=deque)


class LoopbackWorld:
    """Ranks that share a process.

    Args:
        size: ranks.
        timeout_s: how long a rank may keep another one waiting before it counts as stalled.
        lockstep: let one rank compute at a time, so that the time of each is that of a device of
            its own; messages still cost their copies.
    """

    def __init__(self, size: int, timeout_s: float = 60.0, *, lockstep: bool = False) -> None:
        check_timeout(timeout_s)
        if size < 1:
            raise RunError(f"expected at least 1 rank, got {size}")
        self.size = size
        self.timeout_s = timeout_s
        self.store = HashStore()
        self.recorders: dict[int, Recorder] = {}
        self._lock = threading.Lock()
        self._boxes: dict[tuple[int, int], _Box] = {}
        self._turn = threading.Lock() if lockstep else None

    def run(self, work: Callable[["LoopbackTransport"], Result]) -> list[Result]:
        """Call `work` once per rank, each on a thread, and give the results in rank order.

        Raises:
            RunError: if a rank failed: what the others say of it, or else what it raised itself.
        """
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._run_rank, work, rank) for rank in range(self.size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if isinstance(error, RunError) and error.rank is not None:
                raise error
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _run_rank(self, work: Callable[["LoopbackTransport"], Result], rank: int) -> Result:
        with self.turn():
            return work(LoopbackTransport(self, rank))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the turn to compute, if ranks take turns."""
        if self._turn is None:
            yield
            return
        with self._turn:
            yield

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let others compute while this rank waits."""
        if self._turn is None:
            yield
            return
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def send(self, parcel: Parcel, source: int) -> None:
        """Hand a parcel over: into the receiver's tensors, or into a copy that waits for it."""
        key = parcel.transfer.index, parcel.transfer.peer
        with self._lock:
            box = self._boxes.setdefault(key, _Box())
            if not box.awaited:
                box.sent.append(tuple(tensor.clone() for tensor in parcel.tensors))
                receiver = None
            else:
                receiver = box.awaited.popleft()
        if receiver is not None:
            _deliver(parcel.tensors, receiver, source)
        parcel.finish()

    def receive(self, parcel: Parcel, target: int) -> None:
        """Take a parcel that has been sent, or leave word that it is awaited."""
        with self._lock:
            box = self._boxes.setdefault((parcel.transfer.index, target), _Box())
            if not box.sent:
                box.awaited.append(parcel)
                return
            tensors = box.sent.popleft()
        _deliver(tensors, parcel, parcel.transfer.peer)


def _deliver(tensors: Sequence[torch.Tensor], receiver: Parcel, source: int) -> None:
    wrong = [
        f"{tuple(sent.shape)} {sent.dtype}, expected {tuple(got.shape)} {got.dtype}"
        for sent, got in zip(tensors, receiver.tensors, strict=True)
        if sent.shape != got.shape or sent.dtype != got.dtype
    ]
    if wrong:
        receiver.finish(f"rank {source} sent {wrong[0]}")
        return
    for sent, got in zip(tensors, receiver.tensors, strict=True):
        got.copy_(sent)
    receiver.finish()


class LoopbackTransport:
    """One rank's side of a `LoopbackWorld`."""

    def __init__(self, world: LoopbackWorld, rank: int) -> None:
        self.rank, self.size = rank, world.size
        self._world = world
        self._board = FailureBoard(world.store, rank)
        self._meeting = Meeting(world.store, rank, world.size, self._board, world.timeout_s)

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting."""
        for parcel in parcels:
            if parcel.after is None:
                self._start_one(parcel)
            else:
                parcel.after.then(lambda parcel=parcel: self._start_one(parcel))  # type: ignore[misc]

    def _start_one(self, parcel: Parcel) -> None:
        parcel.start_ns = time.perf_counter_ns()
        if parcel.after is not None and parcel.after.error is not None:
            parcel.finish(parcel.after.error)
        elif parcel.transfer.is_send:
            self._world.send(parcel, self.rank)
        else:
            self._world.receive(parcel, self.rank)

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        deadline = time.monotonic() + self._world.timeout_s
        with self._world.pause():
            for parcel in parcels:
                while not parcel.wait(POLL_S):
                    if self._board.is_marked() or time.monotonic() > deadline:
                        self._give_up(parcel, direction)
                if parcel.error is not None:
                    self._give_up(parcel, direction)

    def _give_up(self, parcel: Parcel, direction: Direction) -> None:
        while parcel.after is not None and (not parcel.after.wait(0) or parcel.after.error):
            parcel = parcel.after
        text = parcel.error or f"{self._world.timeout_s:g} s long"
        status = Status("waiting", parcel.transfer.peer, direction, parcel.division, text)
        raise self._board.settle(status)

    def report(self, place: str, division: int, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on."""
        self._board.raised(place, division, error)

    def meet(self, note: str, place: str) -> list[str]:
        """Give the notes of all ranks in rank order; collective."""
        with self._world.pause():
            return self._meeting.meet(note, place)

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Give the events of all ranks on one clock to rank 0, ``None`` to others; collective."""
        self._world.recorders[self.rank] = recorder
        self.meet("", "gathering the trace")
        if self.rank != 0:
            return None
        parts = [self._world.recorders[rank].table() for rank in range(self.size)]
        return merge_timelines(parts, uncertainty_s=0.0)

    def close(self) -> None:
        """Nothing runs beside the ranks."""
