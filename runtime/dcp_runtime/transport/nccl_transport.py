"""Send blocks over NCCL: streams wait for them, and a thread watches them for the host."""

import ctypes
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import AcceleratorError
from torch._C import _current_graph_task_id
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dcp_planner import Direction
from dcp_runtime.errors import PeerError
from dcp_runtime.transport.failure_registry import Status, describe_error
from dcp_runtime.transport.group_transport import (
    POLL_S,
    GroupTransport,
    abort_group,
    close_at_exit,
    make_group,
)
from dcp_runtime.transport.transport import Parcel

NAP_S = 200e-6  # seconds between looks at a batch: so exact are the ends of messages in a trace
ABORT_S = 5.0  # seconds that communicators get to end


@dataclass(slots=True, eq=False)
class MessageBatch:
    """Parcels that started together, of one division and hop."""

    parcels: Sequence[Parcel]
    works: Sequence[dist.Work]

    def is_over(self) -> bool:
        """Return whether the device has done all of it."""
        return all(work.is_completed() for work in self.works)

    def wait(self) -> None:
        """Make the current stream wait for the messages; raise if the communicator has failed."""
        for work in self.works:
            work.wait()

    def peers(self) -> Sequence[int]:
        """Return the ranks that may hold up the batch."""
        return list(dict.fromkeys(parcel.bundle.peer for parcel in self.parcels))


@dataclass(slots=True, eq=False)
class _Awaited:
    """Parcels for which a stream waits, with their batches."""

    parcels: Sequence[Parcel]
    batches: Sequence[MessageBatch]
    direction: Direction


class NcclTransport(GroupTransport):
    """Batched point-to-point messages on NCCL, from and into CUDA memory.

    All that ranks exchange in one division and hop is one ``batch_isend_irecv`` on the communicator
    of inputs or of results, with the pairs that exchange something and no others. A communicator
    runs its batches in order. So two ranks that send to each other must do so within one batch, or
    each would wait for the other's second batch; and a forwarded block leaves after it has arrived,
    though no thread watches for it.

    `wait` makes the current stream wait for the messages and returns, so the host runs ahead of the
    device, over layers. A thread looks whether the messages come. If they do not, the thread agrees
    with the other ranks on the rank to blame and ends the communicators, whose kernels would never
    end; the next call of this rank raises that failure. Results that the device computed in between
    are void, and no optimizer of torch uses them: before its step the host waits until the messages
    so far have come. Calls that a CUDA graph captures are not watched.
    """

    message_order = "grouped"
    # Of the class, since the constructor of the base exchanges notes, which look at them.
    _failure: PeerError | None = None
    _has_failed = False  # the failure is there, or is being agreed on
    _is_told = False  # whether a call of this rank raised it
    _step_hook: RemovableHandle | None = None

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        super().__init__(group, timeout_s)
        # Waits on the GPU end the process, at a limit longer than ours: it counts from the start of
        # a message, ours from the wait for it.
        limit_s = 2 * timeout_s + 60
        self._groups = [make_group(self._ranks, "nccl", limit_s) for _ in ("inputs", "results")]
        self._control = make_group(self._ranks, "gloo", timeout_s)
        for made in self._groups:  # NCCL wants all ranks in the first operation of a communicator
            dist.all_reduce(torch.zeros(1, device="cuda"), group=made)
        self._batches: dict[Parcel, MessageBatch] = {}
        self._awaited: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
        self._watcher: threading.Thread | None = None
        self._latest: threading.Event | None = None  # the end of the last message watched
        self._is_over = threading.Event()  # nothing is watched any more
        self._blaming = threading.Lock()  # the thread and a call may notice one failure at a time

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, those of one division and hop as one batch."""
        self._check()
        for (is_result, *_), chosen in groupby(parcels, _batch_of):
            try:
                self._start_batch(is_result, list(chosen))
            except RuntimeError:
                self._check()  # the thread may have ended the communicator meanwhile
                raise

    def _start_batch(self, is_result: bool, parcels: Sequence[Parcel]) -> None:
        group = self._groups[int(is_result)]
        operations = [
            dist.P2POp(
                dist.isend if parcel.bundle.is_send else dist.irecv,
                tensor,
                self._ranks[parcel.bundle.peer],
                group,
            )
            for parcel in parcels
            for tensor in parcel.tensors
        ]
        start_ns = time.perf_counter_ns()
        batch = MessageBatch(parcels, dist.batch_isend_irecv(operations))
        for parcel in parcels:
            parcel.start_ns = start_ns
            self._batches[parcel] = batch

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Make the current stream wait for every parcel, and have the thread watch them."""
        batches = tuple(dict.fromkeys(self._batches.pop(parcel) for parcel in parcels))
        # A captured message has not started: every replay will start it again.
        if torch.cuda.is_current_stream_capturing():
            for parcel in parcels:
                parcel.finish()
        elif parcels:
            self._watch(_Awaited(parcels, batches, direction))
        for batch in batches:
            try:
                batch.wait()
            except RuntimeError as error:
                self._is_told = True
                division = parcels[0].division
                raise self._give_up(batch, direction, division, error) from error
        self._check()

    def exchange_notes(self, note: str, place: str, *, is_error: bool = False) -> list[str]:
        """Wait for every rank at this place, unless a message was lost before."""
        self._check()
        return super().exchange_notes(note, place, is_error=is_error)

    def _check(self) -> None:
        if self._has_failed:
            with self._blaming:  # the communicators have ended by then
                assert self._failure is not None, "it is agreed on within this lock"
                self._is_told = True
                raise self._failure

    def _watch(self, awaited: _Awaited) -> None:
        if self._watcher is None:
            device = torch.cuda.current_device()
            # A daemon: a message that never comes must not keep a failed process alive.
            self._watcher = threading.Thread(
                target=self._follow_all, args=(device,), name="messages", daemon=True
            )
            self._watcher.start()
            close_at_exit(self)
            self._step_hook = register_optimizer_step_pre_hook(self._before_step)
        # Not the parcel, which would keep the buffers of its call.
        self._latest = threading.Event()
        awaited.parcels[-1].then(self._latest.set)
        self._awaited.put(awaited)

    def _follow_all(self, device: int) -> None:
        # A thread begins on device 0, where its queries would make a context.
        torch.cuda.set_device(device)
        allow_captures()
        while (awaited := self._awaited.get()) is not None:
            self._see_through(awaited)
            del awaited  # kept while the queue is empty, it would keep the buffers of its call

    def _see_through(self, awaited: _Awaited) -> None:
        """Poll until the batches of some parcels are over, then finish the parcels."""
        where = awaited.direction, awaited.parcels[0].division
        error = next(filter(None, (self._follow(b, *where) for b in awaited.batches)), None)
        for parcel in awaited.parcels:
            parcel.finish(error)

    def _follow(self, batch: MessageBatch, place: str, division: int | None) -> str | None:
        """Poll until a batch is over; return the error if it never will be."""
        # It asks the device often, for exact times, and the store of the registry seldom.
        deadline = time.monotonic() + self.timeout_s
        looks_s = time.monotonic() + POLL_S
        try:
            while not batch.is_over():
                if self._is_over.wait(NAP_S):
                    return "the executor is closed, or has failed"
                now = time.monotonic()
                if now > deadline or (now > looks_s and self._failures.is_lost(batch.peers())):
                    return str(self._give_up(batch, place, division))
                looks_s = now + POLL_S if now > looks_s else looks_s
            batch.wait()  # a communicator that failed counts as completed
        except RuntimeError as error:
            return str(self._give_up(batch, place, division, error))
        return None

    def _give_up(
        self,
        batch: MessageBatch,
        place: str,
        division: int | None,
        error: RuntimeError | None = None,
    ) -> PeerError:
        """Agree on the rank to blame, and end the work that waits on the GPU."""
        # All peers of a batch may be late, since NCCL does not say which message is missing. A GPU
        # that refuses its work is the fault of this rank.
        with self._blaming:
            if self._failure is None:
                self._has_failed = True
                is_own = isinstance(error, AcceleratorError)
                if error is not None and is_own:
                    status = Status("raised", -1, place, division, describe_error(error))
                else:
                    peer, *others = batch.peers()
                    text = "" if error is None else str(error)
                    status = Status("waiting", peer, place, division, text, others)
                if error is not None and not is_own:
                    # A communicator failed, and torch ends a process that does not end it at once.
                    self._failures.post(status)
                    self._release()
                self._failure = self._failures.settle(status)
                self._is_over.set()
                if error is None:
                    # Last: streams go on with void blocks, so the host must know of the failure.
                    self._release()
            return self._failure

    def _release(self) -> None:
        """End the kernels that wait on the GPU for messages."""
        # All at once: the end of a communicator waits for the device, and so for kernels of the
        # others. Kernels of groups that are not ours may never end, so the wait has a limit.
        aborts = [
            threading.Thread(target=abort_group, args=(group,), name="abort", daemon=True)
            for group in self._groups
        ]
        for thread in aborts:
            thread.start()
        for thread in aborts:
            thread.join(ABORT_S)

    def report(self, place: str, division: int | None, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on; `place` is a direction or a step."""
        # This rank is to blame: its thread must blame no peer for missing messages from now on.
        self._is_over.set()
        super().report(place, division, error)

    def catch_up(self) -> None:
        """Wait until the thread knows the end of every message that a stream waits for."""
        # No deadline here: the thread has one for each message. A forked process has no thread.
        while self._latest and self._watcher and not self._latest.wait(POLL_S):
            if not self._watcher.is_alive():
                break
        if not self._is_told:
            self._check()

    def _before_step(self, *_: object) -> None:
        if _current_graph_task_id() == -1:  # inside a backward pass the host must run ahead
            self.catch_up()

    def close(self) -> None:
        """Drop messages in flight; ``destroy_process_group`` ends the process groups."""
        self._batches.clear()
        self._is_over.set()
        self._awaited.put(None)
        if self._step_hook is not None:
            self._step_hook.remove()
        if self._watcher is not None:
            self._watcher.join(timeout=1)


def allow_captures() -> None:
    """Let this thread ask about messages while another one captures a CUDA graph."""
    # Otherwise CUDA would refuse the question and end the capture.
    thread_local = ctypes.c_int(1)  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    with suppress(OSError):  # there is no driver
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(thread_local))


def _batch_of(parcel: Parcel) -> tuple[bool, int, int]:
    return parcel.bundle.is_result, parcel.division, parcel.bundle.hop
