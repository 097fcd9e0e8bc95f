"""The base of all transports, which send blocks between ranks as parcels; agreement of all ranks.

`gloo_transport` and `nccl_transport` move parcels between processes, `loopback` between the threads
of one. Before blocks travel all ranks agree on the plan, and on the tensors that it runs on
(`agree`). A rank that cannot go on says so there, so that all ranks raise an error at the same
place: a person can then mend the cause and try again, and no rank waits for a message that never
comes.
"""

import threading
import time
from _thread import LockType
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from torch import Tensor
from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_planner import Direction, TransferKind
from dcp_planner.model import MessageOrder
from dcp_runtime.errors import PeerError
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.plans.transfers import Bundle
from dcp_runtime.transport.failure_registry import Awaited, FailureRegistry, Status, describe_error
from dcp_runtime.transport.limits import describe_wait
from dcp_runtime.transport.recorder import Recorder, Timeline
from dcp_runtime.transport.store_barrier import StoreBarrier, Topic

RowBytes: TypeAlias = Callable[[TransferKind], tuple[int, ...]]
"""Returns the bytes of a token in each tensor that travels as one kind."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Parcel:
    """A bundle in flight, at its sender or its receiver.

    Tensors are contiguous; read until they have left, or written until they have arrived. Each is a
    message of its own. A parcel that forwards a block starts once that has arrived, `after`
    another.
    """

    bundle: Bundle
    tensors: tuple[Tensor, ...]
    division: int  # of the launch
    after: "Parcel | None" = None
    start_ns: int = 0  # on the monotonic clock
    end_ns: int = 0
    error: str | None = None  # why it never arrived or left
    # Most parcels have ended before anybody waits: only a wait makes an event.
    _is_done: bool = False
    _done: threading.Event | None = None
    _lock: LockType = field(default_factory=threading.Lock)
    _followers: list[Callable[[], None]] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def finish(self, error: str | None = None, end_ns: int | None = None) -> None:
        """Note that it has arrived or left, or why it never will, and call the followers."""
        self.error, self.end_ns = error, time.perf_counter_ns() if end_ns is None else end_ns
        with self._lock:
            self._is_done = True
            if self._done is not None:
                self._done.set()
            followers, self._followers = self._followers, None
        # Outside the lock: a follower may take long, and may end parcels itself.
        for follower in followers or ():
            follower()

    def then(self, follower: Callable[[], None]) -> None:
        """Call `follower` once this has ended: at once, or later on the thread that ends it."""
        # The lock makes this one step with `finish`: every follower is called, and called once.
        with self._lock:
            if not self._is_done:
                self._followers = [*(self._followers or ()), follower]
                return
        follower()

    def once_due(self, start: Callable[[], None]) -> None:
        """Call `start` at once, or when the parcel that this comes `after` ends, on its thread."""
        if self.after is None:
            start()
        else:
            self.after.then(start)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came in time."""
        if self._is_done:
            return True
        with self._lock:
            if self._is_done:
                return True
            done = self._done = self._done or threading.Event()
        return done.wait(timeout_s)


class Transport(ABC):
    """Carries one rank's messages to the other ranks; all ranks share one store."""

    message_order: ClassVar[MessageOrder] = "any"

    def __init__(self, rank: int, size: int, store: Store, timeout_s: float) -> None:
        # A rank may keep another one waiting for so long.
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.store, self._failures = store, FailureRegistry(store, rank)
        self._barrier = StoreBarrier(store, rank, size, self._failures, timeout_s)

    def begin(self, part: DevicePlan, direction: Direction, row_bytes: RowBytes) -> None:
        """Begin a call of a plan."""
        self._failures.calls += 1

    @abstractmethod
    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting; a parcel with `after` starts behind it."""

    @abstractmethod
    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left, or have the current stream wait for it."""

    def _await(
        self, parcels: Sequence[Parcel], direction: Direction, limit_s: float, poll_s: float
    ) -> None:
        """Wait until threads have ended all parcels, looking at the failure registry meanwhile."""
        deadline = time.monotonic() + limit_s
        for parcel in parcels:
            while not parcel.wait(poll_s):
                is_lost = self._failures.is_lost([parcel.bundle.peer])
                if is_lost or time.monotonic() > deadline:
                    raise self._blame(parcel, direction)
            if parcel.error is not None:
                raise self._blame(parcel, direction)

    def _blame(self, parcel: Parcel, direction: Direction) -> PeerError:
        """Agree on the rank to blame for a parcel that does not come."""
        # A parcel that forwards a block waits for the rank that should have sent that block.
        while parcel.after is not None and (not parcel.after.wait(0) or parcel.after.error):
            parcel = parcel.after
        text = self._waited(parcel)
        status = Status("waiting", parcel.bundle.peer, direction, parcel.division, text)
        return self._failures.settle(status)

    def _waited(self, parcel: Parcel) -> str:
        return describe_wait(parcel.error, self.timeout_s) if parcel.error else ""

    def report(self, place: str, division: int | None, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on; `place` is a direction or a step."""
        self._failures.raised(place, division, error)

    def exchange_notes(self, note: str, place: str, *, is_error: bool = False) -> list[str]:
        """Wait for every rank at this place; see `StoreBarrier.exchange_notes`."""
        return self._barrier.exchange_notes(note, place, is_error=is_error)

    def expect(self, awaited: Awaited | None) -> None:
        """Note the batch of a data loader that all ranks are to meet for."""
        self._failures.awaited = awaited

    def end_data(self, iteration: int, batches: int, why: str) -> None:
        """Tell ranks that go on that an iteration over a data loader has ended on this one."""
        self._failures.end_data(iteration, batches, why)

    def compare_with_first(self, topic: Topic, value: str, place: str) -> None:
        """Compare a value without waiting; see `StoreBarrier.compare_with_first`."""
        self._barrier.compare_with_first(topic, value, place)

    def leave(self, why: str) -> None:
        """Tell the ranks that wait for this one, now or later, that it does not come."""
        self._barrier.leave(why)

    def catch_up(self) -> None:
        """Wait until the host knows the end of every message that a stream waits for."""
        return

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Return the events of all ranks on one clock on rank 0, ``None`` to others; collective."""
        raise NotImplementedError  # emulated ranks are not asked

    def close(self) -> None:
        """End the threads of this transport, which cannot be used after that."""
        return


def without_overlap(transport: Transport) -> Transport:
    """Have the messages of a transport start when its rank next waits, and return it.

    A run over it shows how much another run gains by overlap. Plans order launches and waits in one
    way for all devices, so no two ranks can wait for each other here either.
    """
    held, start, wait = list[Parcel](), transport.start, transport.wait

    def start_and_wait(parcels: Sequence[Parcel], direction: Direction) -> None:
        begun = held.copy()
        held.clear()
        start(begun)
        wait(begun, direction)  # of `parcels`, those not held were waited for before

    transport.start = held.extend  # type: ignore[method-assign, assignment]
    transport.wait = start_and_wait  # type: ignore[method-assign]
    return transport


_Value = TypeVar("_Value")


class Agreement(Protocol):
    """What ranks compare where they meet: a `Topic`, or something that judges for itself."""

    def compare(self, values: Sequence[str], place: str) -> None:
        """Compare the values of all ranks; raise an error that names a rank."""


def agree(
    transport: Transport,
    topics: Sequence[Agreement],
    place: str,
    propose: Callable[[], tuple[Sequence[str], _Value]],
) -> _Value:
    """Compare notes with those of every other rank; collective, a few store round trips.

    `propose` returns this rank's value of each topic, one line each and empty where it cannot know
    it, and the result of `agree` for this rank. If it raises an error, all ranks raise one that
    quotes it. Else the first topic that differs is named, with the rank that differs from most.
    """
    if transport.size == 1:
        return propose()[1]
    try:
        values, result = propose()
    except Exception as error:  # of any kind: no rank must wait for this one
        transport.exchange_notes(describe_error(error), place, is_error=True)
        raise
    notes = transport.exchange_notes("\n".join(values), place)
    for number, topic in enumerate(topics):
        topic.compare([other.split("\n")[number] for other in notes], place)
    return result
