"""Parcels over gloo: point to point, without waiting, a message per tensor.

Inputs and results each have a process group of their own, because operations of one group can wait
for each other. A message per tensor, straight from the working buffers, beat one packed message per
peer (2 ranks, 2 cores: blocks of 1 MiB 2.1 against 0.4 GB/s).
"""

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.transport.group_transport import POLL_S, GroupTransport, close_at_exit, make_group
from dcp_runtime.transport.limits import LinkLimit, SlowLink
from dcp_runtime.transport.recorder import Recorder, Timeline, gather_timeline
from dcp_runtime.transport.transport import Parcel

PARTS = 8
"""Tags per transfer: more than any has tensors."""
UNUSED_TAG = 2**31 - 1
LANES = ("receive inputs", "send inputs", "receive results", "send results")


@dataclass(slots=True)
class _Posted:
    """A parcel with messages in flight; CUDA tensors travel as copies in pinned memory."""

    parcel: Parcel
    stream: AbstractContextManager[object]  # where the layer works that waits for the parcel
    works: list[dist.Work] = field(default_factory=list)
    staged: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def stream_of(tensors: Sequence[Tensor]) -> AbstractContextManager[object]:
    """Return a context of the stream that this thread works on; of the CPU, one without effect.

    Threads have streams of their own. Copies that a watching thread makes belong to the stream of
    the layer, or that layer's kernels could read before the copy has ended.
    """
    if not tensors or tensors[0].device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(tensors[0].device))


class GlooTransport(GroupTransport):
    """Point-to-point messages on gloo, from CPU memory or through pinned memory.

    Threads wait for the messages, so that a trace knows when each one arrived and not only when
    somebody looked, and so that relays are sent on arrival.

    Args:
        group, timeout_s: see above; a message that takes longer names its peer.
        limit: hold outgoing messages back as a slower link would.
    """

    message_order = "fifo"

    def __init__(
        self, group: dist.ProcessGroup | None, timeout_s: float, limit: LinkLimit | None = None
    ) -> None:
        super().__init__(group, timeout_s)
        self._groups = [make_group(self._ranks, "gloo", timeout_s) for _ in ("inputs", "results")]
        self._link = SlowLink(limit) if limit is not None else None
        self._queues: list[queue.SimpleQueue[_Posted | None]] = []
        self._threads: list[threading.Thread] = []

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting; a peer that is gone shows at the wait."""
        if not self._queues:
            self._start_threads()
        for parcel in parcels:
            posted = _Posted(parcel, stream_of(parcel.tensors))
            if parcel.after is None:
                self._start_one(posted)
            else:
                parcel.after.then(partial(self._follow, posted, parcel.after))

    def _follow(self, posted: _Posted, before: Parcel) -> None:
        if before.error is not None:
            posted.parcel.finish(before.error)
        else:
            self._start_one(posted)

    def _start_one(self, posted: _Posted) -> None:
        parcel = posted.parcel
        parcel.start_ns = time.perf_counter_ns()
        if self._link is not None and parcel.transfer.is_send:
            self._link.send(parcel.size_bytes, partial(self._post, posted))
        else:
            self._post(posted)

    def _post(self, posted: _Posted) -> None:
        parcel, transfer = posted.parcel, posted.parcel.transfer
        is_result = int(transfer.kind.is_result)
        group, peer = self._groups[is_result], self._ranks[transfer.peer]
        # One by one, as a batch does on gloo as well: it would not say which peer is gone.
        post = dist.isend if transfer.is_send else dist.irecv
        try:
            for part, tensor in enumerate(parcel.tensors):
                host = self._stage(tensor, posted, is_send=transfer.is_send)
                work = post(host, peer, group=group, tag=PARTS * transfer.index + part)
                assert work is not None, "this rank is a member of its groups"
                posted.works.append(work)
        except RuntimeError as error:  # the connection is gone already
            parcel.finish(str(error))
            return
        self._queues[2 * is_result + int(transfer.is_send)].put(posted)

    def _stage(self, tensor: Tensor, posted: _Posted, *, is_send: bool) -> Tensor:
        """Return host memory to send from or receive into: the tensor itself if it is there."""
        if tensor.device.type == "cpu":
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        if is_send:
            with posted.stream:
                host.copy_(tensor)  # waits for the kernels that fill it
        else:
            posted.staged.append((tensor, host))
        return host

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        # The threads give up first; this limit only guards against a thread that does not.
        self._await(parcels, direction, 2 * self._timeout_s + 5, POLL_S)

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Return the events of all ranks on one clock on rank 0, ``None`` to others; collective."""
        return gather_timeline(self._groups[0], self._barrier, recorder)

    def _start_threads(self) -> None:
        for name in LANES:
            lane: queue.SimpleQueue[_Posted | None] = queue.SimpleQueue()
            # A daemon: a message that never comes must not keep a failed process alive.
            thread = threading.Thread(target=self._watch, args=(lane,), name=name, daemon=True)
            thread.start()
            self._queues.append(lane)
            self._threads.append(thread)
        close_at_exit(self)

    def _watch(self, lane: "queue.SimpleQueue[_Posted | None]") -> None:
        timeout = timedelta(seconds=self._timeout_s)
        while (posted := lane.get()) is not None:
            error = None
            try:
                for work in posted.works:
                    work.wait(timeout)
                with posted.stream:
                    for tensor, host in posted.staged:
                        tensor.copy_(host)
            except RuntimeError as failure:  # gloo: timeout, or the connection is gone
                error = str(failure)
            posted.parcel.finish(error)

    def close(self) -> None:
        """End the waiting threads; the process groups end with ``destroy_process_group``.

        A thread that still waits for a message would end the process by SIGABRT if it woke while
        Python shuts down, so it is woken now: a receive that nobody answers breaks gloo's
        connections.
        """
        if self._link is not None:
            self._link.close()
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join(timeout=0.1)
        if any(thread.is_alive() for thread in self._threads):
            peer = self._ranks[self.rank - 1]
            for group in self._groups:
                with suppress(RuntimeError):  # it is meant to fail
                    work = dist.irecv(torch.empty(1), peer, group=group, tag=UNUSED_TAG)
                    assert work is not None, "this rank is a member"
                    work.wait(timedelta(milliseconds=1))
        for thread in self._threads:
            thread.join(timeout=1)
        self._queues, self._threads = [], []
