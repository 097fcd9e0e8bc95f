"""The base of transports between the ranks of a process group; they send over their own groups."""

import atexit
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakSet, finalize

import torch
import torch.distributed as dist
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.transport.group_store import open_store
from dcp_runtime.transport.limits import describe_wait
from dcp_runtime.transport.recorder import Recorder, Timeline, gather_timeline
from dcp_runtime.transport.store_barrier import StoreBarrier
from dcp_runtime.transport.transport import Parcel, Transport

POLL_S = 0.25  # seconds between looks at the failure registry while waiting for a message
MAX_CTAS = 8
"""Most multiprocessors that messages of an NCCL group take from kernels that compute meanwhile; the
variable NCCL_MAX_CTAS overrides this number (LOG.md)."""

_with_threads: "WeakSet[GroupTransport]" = WeakSet()


def close_at_exit(transport: "GroupTransport") -> None:
    """Note a transport that started threads: it is closed before Python shuts down."""
    _with_threads.add(transport)


@atexit.register
def _close_all() -> None:
    for transport in list(_with_threads):
        transport.close()


def _leave_unclosed(barrier: StoreBarrier, process: int) -> None:
    if process == os.getpid():  # a fork speaks for no rank
        barrier.leave("ended without closing its executor")


def member_ranks(group: dist.ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    if dist.get_rank() not in ranks:
        raise RunError(
            f"rank {dist.get_rank()} is not one of the group's ranks {ranks[:8]}; make the "
            "executor on these alone"
        )
    return ranks


def make_group(ranks: list[int], backend: str, timeout_s: float) -> dist.ProcessGroup:
    """Make a separate group of some ranks; collective among these ranks only."""
    # The name counts the groups that this function has made of these ranks, so all of them know it.
    # `dist.new_group` counts other groups: up to torch 2.13 those that a rank is in, so that ranks
    # look for each other under different names; later versions count groups unknown to others, too.
    world, known = dist.group.WORLD, dist.distributed_c10d._world
    assert world is not None, "`member_ranks` has asked this group for its ranks"
    timeout, options = timedelta(seconds=timeout_s), None
    if backend == "nccl":
        # On a stream of high priority messages start while an attention kernel fills the device,
        # before the blocks of that kernel which still wait for room.
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = timeout  # torch warns if it differs from that of the group
        options.config.max_ctas = MAX_CTAS
    prefix = f"dcp {hashlib.sha256(str(ranks).encode()).hexdigest()} "
    number = sum(name.startswith(prefix) for name in known.pg_names.values())
    name, place = f"{prefix}{number}", ranks.index(dist.get_rank())
    make: Any = dist.distributed_c10d._new_process_group_helper  # Any: types differ by version
    try:
        with _unbound_device(world):
            made, _ = make(
                len(ranks), place, ranks, backend, world.get_group_store(), name, options, timeout
            )
    except RuntimeError as error:
        raise RunError(
            f"rank {dist.get_rank()} lost contact with one of the ranks {ranks[:8]} while they "
            f"made a process group: {describe_wait(str(error), timeout_s)}"
        ) from error
    known.pg_group_ranks[made] = {rank: place for place, rank in enumerate(ranks)}
    assert isinstance(made, dist.ProcessGroup), "this rank is a member"
    return made


def abort_group(group: dist.ProcessGroup) -> None:
    """End the communicator of an NCCL group, also while its messages are under way."""
    backend = group._get_backend(torch.device("cuda"))
    with suppress(RuntimeError):  # torch gives up after the time limit of the group
        backend.abort()


@contextmanager
def _unbound_device(world: dist.ProcessGroup) -> Iterator[None]:
    """Hide the device that ``init_process_group(device_id=...)`` bound to all ranks."""
    # With that device torch makes a group by splitting the communicator of all ranks, and a split
    # waits for every rank, also for those that make no executor.
    bound, world.bound_device_id = world.bound_device_id, None
    try:
        yield
    finally:
        world.bound_device_id = bound


def stream_of(tensors: Sequence[Tensor]) -> AbstractContextManager[object]:
    """Return a context of this thread's current stream; for tensors on the CPU an empty one."""
    # Each thread has a current stream of its own. A watching thread must copy on the stream of the
    # layer, or kernels of that layer could read before the copy has ended.
    if not tensors or tensors[0].device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(tensors[0].device))


class GroupTransport(Transport):
    """A transport between the ranks of a process group; see `start`."""

    _control: dist.ProcessGroup  # of gloo; traces travel over it

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self._ranks = member_ranks(group)
        store = open_store(group, "dcp-executors", timeout_s)
        super().__init__(self._ranks.index(dist.get_rank()), len(self._ranks), store, timeout_s)
        # Missing ranks are named here; when torch makes a group it names only a key of the store.
        self.exchange_notes("", "making the executor")
        # Where Python frees it, or ends, and nobody has closed it.
        finalize(self, _leave_unclosed, self._barrier, os.getpid())

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Have `_post` start all parcels in order, without waiting; errors are raised by `wait`.

        A parcel ends once, on any thread, by `Parcel.finish`: with an error if it will never arrive
        or leave. One with ``after`` is posted on the thread that ends the other one, or ends with
        the error of that. Of each ``bundle.index``, the n-th parcel that a rank sends to a peer
        meets the n-th that the peer receives from it: numbers come again with every layer. Threads
        keep the limit of ``timeout_s``; a transport that starts any calls `close_at_exit`, since
        one that waits inside torch while Python shuts down would abort the process.
        """
        for parcel in parcels:
            parcel.once_due(partial(self._start_one, parcel, stream_of(parcel.tensors)))

    def _start_one(self, parcel: Parcel, stream: AbstractContextManager[object]) -> None:
        if parcel.after is not None and parcel.after.error is not None:
            parcel.finish(parcel.after.error)  # there is nothing to forward
            return
        parcel.start_ns = time.perf_counter_ns()
        self._post(parcel, stream)

    def _post(self, parcel: Parcel, stream: AbstractContextManager[object]) -> None:
        """Send to rank ``_ranks[parcel.bundle.peer]`` or receive, without waiting.

        What copies CUDA tensors does so in `stream`, that of the layer.
        """
        raise NotImplementedError  # NCCL starts whole batches

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        # The threads give up first; this limit only guards against a thread that does not.
        self._await(parcels, direction, 2 * self.timeout_s + 5, POLL_S)

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Return the events of all ranks on one clock on rank 0, ``None`` to others; collective."""
        self.catch_up()
        return gather_timeline(self._control, self._barrier, recorder)
