"""Send bundles over gloo: point-to-point messages that do not block, one for each tensor.

Inputs and results each have a process group of their own, because operations of one group can wait
for each other. Messages straight from the working buffers, one for each tensor, were faster than
one packed message per peer (2 ranks, 2 cores, blocks of 1 MiB: 2.1 against 0.4 GB/s).
"""

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.group_transport import GroupTransport, close_at_exit, make_group
from dcp_runtime.transport.transport import Parcel, RowBytes

PARTS = 8
"""Tags per bundle, a bound on its tensors: part p of bundle n has the tag ``PARTS * n + p``."""
UNUSED_TAG = 2**31 - 1
LANES = ("receive inputs", "send inputs", "receive results", "send results")
"""Threads that wait for messages, by the place ``2 * is_result + is_send``."""


@dataclass(slots=True)
class Posted:
    """A parcel with messages in flight; CUDA tensors travel as copies in pinned memory."""

    parcel: Parcel
    stream: AbstractContextManager[object]  # of the layer that waits for the parcel
    works: list[dist.Work] = field(default_factory=list)
    staged: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # on the device, on the host


class GlooTransport(GroupTransport):
    """Point-to-point messages on gloo, from CPU memory or through pinned memory.

    Threads wait for the messages, so that a trace has the time at which each arrived, not the time
    at which its rank looked, and so that relays are sent on arrival. A message that is passed on
    has a thread of its own: whatever was posted before it may come later.
    """

    message_order = "fifo"

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        super().__init__(group, timeout_s)
        self._groups = [make_group(self._ranks, "gloo", timeout_s) for _ in ("inputs", "results")]
        self._control = self._groups[0]
        self._passed_on: frozenset[int] = frozenset()
        self._queues: list[queue.SimpleQueue[Posted | None]] = []
        self._threads: list[threading.Thread] = []

    def begin(self, part: DevicePlan, direction: Direction, row_bytes: RowBytes) -> None:
        """Begin a call of a plan."""
        super().begin(part, direction, row_bytes)
        self._passed_on = part.passed_on

    def _post(self, parcel: Parcel, stream: AbstractContextManager[object]) -> None:
        if not self._queues:  # the first parcel forwards nothing, so that no other thread is here
            self._start_threads(parcel.tensors[0].device)
        bundle, posted = parcel.bundle, Posted(parcel, stream)
        is_result = int(bundle.is_result)
        group, peer = self._groups[is_result], self._ranks[bundle.peer]
        # One by one: gloo does no more for a batch, whose error would not name the lost peer.
        post = dist.isend if bundle.is_send else dist.irecv
        try:
            for part, tensor in enumerate(parcel.tensors):
                host = self._stage(tensor, posted, is_send=bundle.is_send)
                work = post(host, peer, group=group, tag=PARTS * bundle.index + part)
                assert work is not None, "this rank is a member of its groups"
                posted.works.append(work)
        except RuntimeError as error:  # the connection is broken already
            parcel.finish(str(error))
            return
        if not bundle.is_send and bundle.index in self._passed_on:
            self._start_thread("relay", parcel.tensors[0].device, partial(self._end, posted))
        else:
            self._queues[2 * is_result + int(bundle.is_send)].put(posted)

    def _stage(self, tensor: Tensor, posted: Posted, *, is_send: bool) -> Tensor:
        """Return host memory to send from or receive into: the tensor itself if it is there."""
        if tensor.device.type == "cpu":
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        if is_send:
            with posted.stream:
                host.copy_(tensor)  # blocks the host until the kernels that fill it have ended
        else:
            posted.staged.append((tensor, host))
        return host

    def _start_threads(self, device: torch.device) -> None:
        for name in LANES:
            lane: queue.SimpleQueue[Posted | None] = queue.SimpleQueue()
            self._start_thread(name, device, partial(self._watch, lane))
            self._queues.append(lane)
        close_at_exit(self)

    def _start_thread(self, name: str, device: torch.device, work: Callable[[], None]) -> None:
        def run() -> None:
            if device.type == "cuda":
                # A thread begins on device 0, and coming back to it would make a context there.
                torch.cuda.set_device(device)
            work()

        # A daemon: a message that never comes must not keep a failed process alive.
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)

    def _watch(self, lane: "queue.SimpleQueue[Posted | None]") -> None:
        while (posted := lane.get()) is not None:
            self._end(posted)

    def _end(self, posted: Posted) -> None:
        """Wait until a parcel has arrived or left, and end it."""
        error = None
        try:
            for work in posted.works:
                work.wait(timedelta(seconds=self.timeout_s))
            with posted.stream:
                for tensor, host in posted.staged:
                    tensor.copy_(host)
        except RuntimeError as failure:  # gloo: timeout, or a broken connection
            error = str(failure)
        posted.parcel.finish(error)

    def close(self) -> None:
        """End the waiting threads; the process groups end with ``destroy_process_group``."""
        # A thread that still waits for a message would end the process by SIGABRT if it woke while
        # Python shuts down. It is woken now, by a receive that no rank answers: after its time
        # limit gloo breaks the connections.
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join(timeout=0.1)
        if any(thread.is_alive() for thread in self._threads):
            peer = self._ranks[self.rank - 1]
            for group in self._groups:
                with suppress(RuntimeError):  # it is meant to fail
                    unused = torch.empty(1, device="cpu")
                    work = dist.irecv(unused, peer, group=group, tag=UNUSED_TAG)
                    assert work is not None, "this rank is a member"
                    work.wait(timedelta(milliseconds=1))
        for thread in self._threads:
            thread.join(timeout=1)
        self._queues, self._threads = [], []
