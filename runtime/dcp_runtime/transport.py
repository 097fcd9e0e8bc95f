"""Moves blocks between ranks: point to point, without waiting, a message per transfer.

A message per transfer, sent from and received into the working buffers, was measured against one
packed message per peer (gloo over loopback, 2 ranks, 2 cores): blocks of 128 KiB 1.3 against
0.4 GB/s, of 1 MiB 2.1 against 0.4 GB/s; only below some 32 KiB is packing faster.
"""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from dcp_planner import Direction
from dcp_runtime.device_plan import Transfer
from dcp_runtime.errors import RunError
from dcp_runtime.failure_board import FailureBoard, Status
from dcp_runtime.waiting import explain

POLL_S = 0.25
"""Seconds between looks at the failure board while waiting for a message."""


@dataclass(slots=True)
class Parcel:
    """A transfer in flight: `tensor` is read until it has left, or written until it has arrived."""

    transfer: Transfer
    tensor: torch.Tensor
    division: int
    start_ns: int = 0
    end_ns: int = 0
    error: str | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def finish(self, error: str | None) -> None:
        """Note that it has arrived or left, or why it never will."""
        self.error, self.end_ns = error, time.perf_counter_ns()
        self.done.set()


class Transport(Protocol):
    """What an execution needs of the world outside its process."""

    rank: int
    size: int

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting."""

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left.

        Raises:
            RunError: names the rank and the division, within the transport's timeout.
        """

    def report(self, direction: Direction, division: int, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on."""


class TorchTransport:
    """Point-to-point messages of ``torch.distributed`` on gloo.

    Inputs and results each have a process group of their own, because operations of one group can
    wait for each other. Threads wait for the messages, so that a trace knows when each one arrived
    and not only when somebody looked.

    Args:
        group: the ranks of the plan, ``None`` for all. Every rank of it makes its transport at the
            same time.
        timeout_s: how long a message may take before its peer counts as stalled.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self._ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        if dist.get_rank() not in self._ranks:
            raise RunError(
                f"rank {dist.get_rank()} is none of the group's ranks {self._ranks[:8]}; make the "
                "executor on these alone"
            )
        self.rank = self._ranks.index(dist.get_rank())
        self.size = len(self._ranks)
        self._timeout_s = timeout_s
        self._groups = [self._new_group() for _ in ("inputs", "results")]
        store = self._groups[0].get_group_store()
        self._board = FailureBoard(store, self.rank)
        self._queues: list[queue.SimpleQueue[tuple[Parcel, dist.Work] | None]] = []
        self._threads: list[threading.Thread] = []

    def _new_group(self) -> dist.ProcessGroup:
        made = dist.new_group(
            self._ranks,
            timeout=timedelta(seconds=self._timeout_s),
            backend="gloo",
            use_local_synchronization=True,
        )
        assert isinstance(made, dist.ProcessGroup), "this rank is a member"
        return made

    @property
    def control_group(self) -> dist.ProcessGroup:
        """The group for rare small messages: clocks, traces."""
        return self._groups[0]

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting; a peer that is gone shows at the wait."""
        if not self._queues:
            self._start_threads()
        for parcel in parcels:
            transfer = parcel.transfer
            is_result = int(transfer.kind.is_result)
            # One by one, as a batch does on gloo as well: it would not say which peer is gone.
            post = dist.isend if transfer.is_send else dist.irecv
            group, peer = self._groups[is_result], self._ranks[transfer.peer]
            parcel.start_ns = time.perf_counter_ns()
            try:
                work = post(parcel.tensor, peer, group=group, tag=transfer.index)
            except RuntimeError as error:  # the connection is gone already
                parcel.finish(str(error))
                continue
            assert work is not None, "this rank is a member of its groups"
            self._queues[2 * is_result + int(transfer.is_send)].put((parcel, work))

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        # The threads give up first; this deadline only guards against a thread that does not.
        deadline = time.monotonic() + 2 * self._timeout_s + 5
        for parcel in parcels:
            while not parcel.done.wait(POLL_S):
                if self._board.is_marked() or time.monotonic() > deadline:
                    self._give_up(parcel, direction)
            if parcel.error is not None:
                self._give_up(parcel, direction)

    def report(self, direction: Direction, division: int, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on."""
        text = f"{type(error).__name__}: {error}"
        self._board.post(Status("raised", -1, direction, division, text))

    def _give_up(self, parcel: Parcel, direction: Direction) -> None:
        text = explain(parcel.error, self._timeout_s) if parcel.error else ""
        status = Status("waiting", parcel.transfer.peer, direction, parcel.division, text)
        raise self._board.settle(status)

    def _start_threads(self) -> None:
        for name in ("receive inputs", "send inputs", "receive results", "send results"):
            lane: queue.SimpleQueue[tuple[Parcel, dist.Work] | None] = queue.SimpleQueue()
            # A daemon: a message that never comes must not keep a failed process alive.
            thread = threading.Thread(target=self._watch, args=(lane,), name=name, daemon=True)
            thread.start()
            self._queues.append(lane)
            self._threads.append(thread)

    def _watch(self, lane: "queue.SimpleQueue[tuple[Parcel, dist.Work] | None]") -> None:
        timeout = timedelta(seconds=self._timeout_s)
        while (item := lane.get()) is not None:
            parcel, work = item
            error = None
            try:
                work.wait(timeout)
            except RuntimeError as failure:  # gloo: timeout, or the connection is gone
                error = str(failure)
            parcel.finish(error)

    def close(self) -> None:
        """End the waiting threads; the process groups end with ``destroy_process_group``."""
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join(timeout=1)
        self._queues, self._threads = [], []
