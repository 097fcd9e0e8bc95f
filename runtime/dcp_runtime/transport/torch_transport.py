"""Parcels over ``torch.distributed``: point to point, without waiting, a message per tensor.

Inputs and results each have a process group of their own, because operations of one group can wait
for each other. A message per tensor, straight from the working buffers, beat one packed message per
peer (gloo, 2 ranks, 2 cores: blocks of 1 MiB 2.1 against 0.4 GB/s).
"""

import atexit
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import groupby
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.transport.failure_registry import Status
from dcp_runtime.transport.group_store import open_store
from dcp_runtime.transport.limits import LinkLimit, SlowLink, describe_wait
from dcp_runtime.transport.recorder import Recorder, Timeline, gather_timeline
from dcp_runtime.transport.transport import Parcel, Transport

POLL_S = 0.25
"""Seconds between looks at the failure registry while waiting for a message."""
PARTS = 8
"""Tags per transfer: more than any has tensors."""
UNUSED_TAG = 2**31 - 1
LANES = ("receive inputs", "send inputs", "receive results", "send results")


_with_threads: "WeakSet[GlooTransport]" = WeakSet()


@atexit.register
def _close_all() -> None:
    for transport in list(_with_threads):
        transport.close()


def member_ranks(group: dist.ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    if dist.get_rank() not in ranks:
        raise RunError(
            f"rank {dist.get_rank()} is none of the group's ranks {ranks[:8]}; make the executor "
            "on these alone"
        )
    return ranks


def make_group(ranks: list[int], backend: str, timeout_s: float) -> dist.ProcessGroup:
    """Make a group of our own; collective among its ranks only."""
    try:
        with _unbound_world():
            made = dist.new_group(
                ranks,
                timeout=timedelta(seconds=timeout_s),
                backend=backend,
                use_local_synchronization=True,
            )
    except RuntimeError as error:
        raise RunError(
            f"rank {dist.get_rank()} lost contact with one of the ranks {ranks[:8]} while they "
            f"made a process group: {describe_wait(str(error), timeout_s)}"
        ) from error
    assert isinstance(made, dist.ProcessGroup), "this rank is a member"
    return made


def abort_group(group: dist.ProcessGroup) -> None:
    """End the communicator of an NCCL group, also while its messages are under way."""
    backend = group._get_backend(torch.device("cuda"))
    backend.abort()


@contextmanager
def _unbound_world() -> Iterator[None]:
    """Hide the device that ``init_process_group(device_id=...)`` bound to the group of all ranks.

    torch would split the communicator of all ranks to make a group, which waits for every rank,
    also for those that make no executor.
    """
    world = dist.group.WORLD
    assert world is not None, "the process group was looked at before"
    bound, world.bound_device_id = world.bound_device_id, None
    try:
        yield
    finally:
        world.bound_device_id = bound


class _GroupTransport(Transport):
    """A transport between the ranks of a process group."""

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self._ranks = member_ranks(group)
        store = open_store(group, "dcp-executors", timeout_s)
        super().__init__(self._ranks.index(dist.get_rank()), len(self._ranks), store, timeout_s)
        # Missing ranks are named here; torch would say which key is missing in the store.
        self.exchange_notes("", "making the executor")


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


class GlooTransport(_GroupTransport):
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
        _with_threads.add(self)

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


class NcclTransport(_GroupTransport):
    """Batched point-to-point messages on NCCL, from and into CUDA memory.

    What all ranks exchange in one division and hop is one ``batch_isend_irecv`` on the communicator
    of inputs or of results, with the pairs that exchange something and no others. A communicator
    runs its batches in order: two ranks that send to each other must do so within one, or each
    would wait for the other's second batch; and a forwarded block leaves after it has arrived
    without anybody watching. The host waits for a batch by asking, so that a peer that is gone is
    named and not waited for forever.
    """

    message_order = "grouped"

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        super().__init__(group, timeout_s)
        # NCCL's watchdog ends the process; it counts from the start of a message, we from the wait.
        watchdog_s = 2 * timeout_s + 60
        self._groups = [make_group(self._ranks, "nccl", watchdog_s) for _ in ("inputs", "results")]
        self._control = make_group(self._ranks, "gloo", timeout_s)
        for made in self._groups:  # NCCL wants all ranks in the first operation of a communicator
            dist.all_reduce(torch.zeros(1, device="cuda"), group=made)
        self._works: dict[Parcel, list[dist.Work]] = {}

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, those of one division and hop as one batch."""
        for (is_result, *_), chosen in groupby(parcels, _batch_of):
            self._start_batch(self._groups[int(is_result)], list(chosen))

    def _start_batch(self, group: dist.ProcessGroup, parcels: Sequence[Parcel]) -> None:
        operations = [
            dist.P2POp(
                dist.isend if parcel.transfer.is_send else dist.irecv,
                tensor,
                self._ranks[parcel.transfer.peer],
                group,
            )
            for parcel in parcels
            for tensor in parcel.tensors
        ]
        start_ns = time.perf_counter_ns()
        works = dist.batch_isend_irecv(operations)
        for parcel in parcels:
            parcel.start_ns = start_ns
            self._works[parcel] = works

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        deadline = time.monotonic() + self._timeout_s
        looks_s = time.monotonic() + POLL_S
        for parcel in parcels:
            works = self._works.pop(parcel)
            while not all(work.is_completed() for work in works):
                now = time.monotonic()
                if now > deadline or (now > looks_s and self._failures.is_marked()):
                    raise self._give_up(parcel, works, direction)
                looks_s = now + POLL_S if now > looks_s else looks_s
                time.sleep(20e-6)
            try:
                for work in works:
                    work.wait()  # orders the current stream behind the messages
            except RuntimeError as error:  # a communicator that failed counts as completed
                raise self._give_up(parcel, works, direction, str(error)) from error
            parcel.finish()

    def _give_up(
        self, parcel: Parcel, works: list[dist.Work], direction: Direction, text: str = ""
    ) -> PeerError:
        """Agree on the rank to blame, and end the communicators: their kernels wait on the GPU.

        All peers of a batch count, since NCCL does not tell which of its messages are missing.
        """
        batch = [parcel, *(other for other, own in self._works.items() if own is works)]
        peer, *others = dict.fromkeys(other.transfer.peer for other in batch)
        status = Status("waiting", peer, direction, parcel.division, text, others)
        failure = self._failures.settle(status)
        for group in self._groups:
            abort_group(group)
        return failure

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Return the events of all ranks on one clock on rank 0, ``None`` to others; collective."""
        return gather_timeline(self._control, self._barrier, recorder)

    def close(self) -> None:
        """Drop messages in flight; ``destroy_process_group`` ends the process groups."""
        self._works.clear()


def _batch_of(parcel: Parcel) -> tuple[bool, int, int]:
    return parcel.transfer.kind.is_result, parcel.division, parcel.transfer.hop


def make_transport(group: dist.ProcessGroup | None, timeout_s: float) -> Transport:
    """Make the transport of a group: NCCL where that moves its CUDA tensors, else gloo.

    A group may have a backend per device: ``"cpu:gloo,cuda:nccl"``.
    """
    member_ranks(group)  # get_backend_config would not say which group it is
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    if backends.get("cuda") == "nccl" and torch.cuda.is_available():
        return NcclTransport(group, timeout_s)
    return GlooTransport(group, timeout_s)
