"""Key-value stores of a process group that raise an error instead of waiting without end.

`DeadlineStore` gives up on a server that does not answer: torch's client reads the answers of a
`TCPStore` without a limit, so where the serving process is stopped, or its machine out of reach,
looking up a key would never return.
"""

import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # of torch.distributed, with their types
from torch.distributed.device_mesh import DeviceMesh

from dcp_runtime.errors import RunError

Group: TypeAlias = dist.ProcessGroup | DeviceMesh

_Call: TypeAlias = "tuple[Callable[[], Any], Future[Any]]"
"""A call for the thread that talks to the store, and the place of its answer."""

POST_S = 1.0  # seconds that a note to other ranks gets to be written, before its sender goes on
SERVER = "the process that serves it: often rank 0, or torchrun on the first node"
"""Ends messages about a lost store."""


def process_group(group: Group | None) -> dist.ProcessGroup | None:
    """Return the group of a mesh's ranks. A group, or ``None`` for all ranks, stays as it is."""
    if not isinstance(group, DeviceMesh):
        return group
    if group.ndim != 1:
        raise RunError(
            f"expected a DeviceMesh of one dim, got {group.ndim} dims {group.mesh_dim_names}; pass "
            "the one whose ranks share the attention, for example mesh['cp']"
        )
    return group.get_group()


def open_store(group: dist.ProcessGroup | None, name: str, timeout_s: float) -> "DeadlineStore":
    """Return a part of a group's store, the same for the n-th call of each rank."""
    found = group or dist.group.WORLD
    assert found is not None, "torch.distributed is initialised"
    store = found.get_group_store()
    try:
        # A count for each rank: a rank numbers its calls without waiting for the others.
        number = DeadlineStore(store, timeout_s).add(f"{name}/{found.rank()}", 1)
    except RuntimeError as error:
        raise RunError(f"{error}; the cause is {SERVER}") from error
    return DeadlineStore(PrefixStore(f"{name}-keys/{number}", store), timeout_s)


class DeadlineStore(Store):
    """A store that is asked in a separate thread, with a time limit for each answer.

    After the limit the caller gets a ``RuntimeError``, as from a store whose process has ended, and
    so does every later caller: one answer that is missing makes the store count as lost.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        super().__init__()
        self._store, self._timeout_s = store, timeout_s
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._is_lost = False
        # A daemon: an answer that never comes must not keep a failed process alive. The thread
        # ends with this object, so it must not hold a reference to it.
        self._thread = threading.Thread(
            target=_serve, args=(self._calls,), name="store", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._calls.put, None)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._ask(lambda: self._store.set(key, value))  # type: ignore[arg-type]  # bytes as well

    def post(self, key: str, value: str) -> None:
        """Write a value; wait a moment for it, and not where the wait might be for this thread."""
        # Python may call this on any thread, where it frees what is no longer used.
        answer: Future[Any] = Future()
        self._calls.put((lambda: self._store.set(key, value), answer))
        if not sys.is_finalizing() and threading.current_thread() is not self._thread:
            with suppress(TimeoutError, RuntimeError):
                answer.result(POST_S)

    def hurry(self, timeout_s: float) -> None:
        """Wait no longer than this for an answer, from now on."""
        self._timeout_s = min(self._timeout_s, timeout_s)

    def get(self, key: str) -> bytes:
        """Read a value that is there."""
        value: bytes = self._ask(lambda: self._store.get(key))
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read values that are there."""
        values: list[bytes] = self._ask(lambda: self._store.multi_get(keys))
        return values

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return bool(self._ask(lambda: self._store.check(keys)))

    def add(self, key: str, value: int) -> int:
        """Add to a number and give the sum."""
        return int(self._ask(lambda: self._store.add(key, value)))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write a value if the present one is as expected, or "" and missing; return the value."""
        value: bytes = self._ask(lambda: self._store.compare_set(key, expected, desired))
        return value

    def delete_key(self, key: str) -> bool:
        """Forget a value."""
        return bool(self._ask(lambda: self._store.delete_key(key)))

    def _ask(self, ask: Callable[[], Any]) -> Any:  # Any: whatever the store answers
        answer: Future[Any] = Future()
        if not self._is_lost:
            self._calls.put((ask, answer))
            try:
                return answer.result(self._timeout_s)
            except TimeoutError:
                self._is_lost = True
        raise RuntimeError("the store of the process group does not answer")


def _serve(calls: "queue.SimpleQueue[_Call | None]") -> None:
    while (call := calls.get()) is not None:
        ask, answer = call
        try:
            answer.set_result(ask())
        except RuntimeError as error:
            answer.set_exception(error)
        # `ask` holds the store. Kept while the queue is empty, it would keep the store alive, and
        # the `None` that ends this thread comes when the store is freed.
        del call, ask, answer
