"""N ranks as threads of one process, on one device: for tests, and to measure one GPU.

A message is a copy within the device, made by the thread that comes second, sender or receiver. The
plan, the interpreter and the kernels are those of real processes; failures are found and reported
in the same way, through a store in memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore  # torch.distributed.HashStore, with its type

from dcp_planner import Direction
from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.transport.failure_registry import Status
from dcp_runtime.transport.limits import check_timeout
from dcp_runtime.transport.recorder import Recorder, Timeline, merge_timelines
from dcp_runtime.transport.transport import Parcel, Transport

Result = TypeVar("Result")
POLL_S = 0.05
GRACE_S = 3.0  # seconds beyond the timeout that ranks get to end after one has failed


@dataclass(slots=True)
class _Box:
    """Messages of one number between two ranks: sent and not received, or awaited and not sent.

    At least one of the queues is empty. Several messages wait where a sender is layers ahead.
    """

    sent: deque[tuple[Tensor, ...]] = field(default_factory=deque)
    awaited: deque[Parcel] = field(default_factory=deque)


class LoopbackWorld:
    """Ranks that share a process.

    With `lockstep` one rank computes at a time, so that each takes as long as on a device of its
    own; messages still cost their copies.
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
        # By bundle, source and target: two plans may use one number for different sources.
        self._boxes: dict[tuple[int, int, int], _Box] = {}
        self.turn = threading.Lock() if lockstep else None
        self.turn_holder = -1

    def run(self, work: Callable[["LoopbackTransport"], Result]) -> list[Result]:
        """Call `work` once per rank, each on a thread, and return the results in rank order."""
        # A rank that never returns is left behind once the others have failed because of it.
        runs = [Future[Result]() for _ in range(self.size)]
        threads = [
            threading.Thread(
                target=_run_rank, args=(self, work, rank, run), name=f"rank {rank}", daemon=True
            )
            for rank, run in enumerate(runs)
        ]
        for thread in threads:
            thread.start()
        if wait(runs, return_when=FIRST_EXCEPTION).not_done:  # a rank failed
            wait(runs, self.timeout_s + GRACE_S)
        errors = [error for run in runs if run.done() and (error := run.exception())]
        # A `PeerError` names the rank to blame; the error of that rank itself does not.
        agreed = [error for error in errors if isinstance(error, PeerError)]
        if errors:
            raise (agreed or errors)[0]
        return [run.result() for run in runs]

    def send(self, parcel: Parcel, source: int) -> None:
        """Hand a parcel over: into the receiver's tensors, or into a copy that waits for it."""
        key = parcel.bundle.index, source, parcel.bundle.peer
        with self._lock:
            box = self._boxes.setdefault(key, _Box())
            receiver = box.awaited.popleft() if box.awaited else None
            if receiver is None:  # a copy: the sender may use its rows again at once
                box.sent.append(tuple(tensor.clone() for tensor in parcel.tensors))
        if receiver is not None:
            _deliver(parcel.tensors, receiver)
        parcel.finish()

    def receive(self, parcel: Parcel, target: int) -> None:
        """Take a parcel that has been sent, or note that it is awaited."""
        key = parcel.bundle.index, parcel.bundle.peer, target
        with self._lock:
            box = self._boxes.setdefault(key, _Box())
            if not box.sent:
                box.awaited.append(parcel)
                return
            tensors = box.sent.popleft()
        _deliver(tensors, parcel)


def _run_rank(
    world: LoopbackWorld,
    work: "Callable[[LoopbackTransport], Result]",
    rank: int,
    run: "Future[Result]",
) -> None:
    transport = LoopbackTransport(world, rank)
    try:
        transport.take_turn("starting", None)
        # On CUDA one thread per device runs all backward passes, where a rank waits for another.
        with torch.autograd.set_multithreading_enabled(False):
            run.set_result(work(transport))
    except BaseException as error:  # the thread that waits for the ranks raises it
        run.set_exception(error)
    finally:
        transport.give_turn()


def _deliver(tensors: Sequence[Tensor], receiver: Parcel) -> None:
    # Ranks agree on plan and dtype before anything travels: both ends have the same shapes.
    for sent, got in zip(tensors, receiver.tensors, strict=True):
        got.copy_(sent)
    receiver.finish()


class LoopbackTransport(Transport):
    """One rank's side of a `LoopbackWorld`."""

    def __init__(self, world: LoopbackWorld, rank: int) -> None:
        super().__init__(rank, world.size, world.store, world.timeout_s)
        self._world = world

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting."""
        for parcel in parcels:
            parcel.once_due(partial(self._start_one, parcel))

    def _start_one(self, parcel: Parcel) -> None:
        parcel.start_ns = time.perf_counter_ns()
        if parcel.bundle.is_send:
            self._world.send(parcel, self.rank)
        else:
            self._world.receive(parcel, self.rank)

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        # Keeping the turn would stop the rank that is waited for.
        self.give_turn()
        self._await(parcels, direction, self.timeout_s, POLL_S)
        self.take_turn(direction, parcels[0].division if parcels else None)

    def take_turn(self, place: str, division: int | None) -> None:
        """Wait for the right to compute, if ranks take turns."""
        world, deadline = self._world, time.monotonic() + self._world.timeout_s
        if world.turn is None:
            return
        while not world.turn.acquire(timeout=POLL_S):
            if self._failures.is_marked() or time.monotonic() > deadline:
                status = Status("waiting", world.turn_holder, place, division, "")
                raise self._failures.settle(status)
        world.turn_holder = self.rank

    def give_turn(self) -> None:
        """Let other ranks compute."""
        if self._world.turn is not None and self._world.turn_holder == self.rank:
            self._world.turn_holder = -1
            self._world.turn.release()

    def _waited(self, parcel: Parcel) -> str:
        return f"{self.timeout_s:g} s long"

    def exchange_notes(self, note: str, place: str, *, is_error: bool = False) -> list[str]:
        """Wait for every rank at this place; other ranks may compute meanwhile."""
        self.give_turn()
        notes = super().exchange_notes(note, place, is_error=is_error)
        self.take_turn(place, None)
        return notes

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Return the events of all ranks on one clock on rank 0, ``None`` to others; collective."""
        self._world.recorders[self.rank] = recorder
        self.exchange_notes("", "gathering the trace")
        if self.rank != 0:
            return None
        parts = [self._world.recorders[rank].table() for rank in range(self.size)]
        return merge_timelines(parts, uncertainty_s=0.0)
