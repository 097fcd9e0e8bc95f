"""Stores of a process group that fail instead of waiting: for a server, or for a rank.

torch's client reads the answers of a `TCPStore` without a limit: where the serving process is
stopped, or its machine out of reach, looking up a key would never return.
"""

import queue
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # of torch.distributed, with their types
from torch.distributed.device_mesh import DeviceMesh

from dcp_runtime.errors import RunError

Group: TypeAlias = dist.ProcessGroup | DeviceMesh

_Call: TypeAlias = "tuple[Callable[[], Any], Future[Any]]"
"""A question on its way through the thread that talks to the store, and where the answer goes."""

SERVER = "the process that serves it: often rank 0, or torchrun on the first node"


def process_group(group: Group | None) -> dist.ProcessGroup | None:
    """Return the group of a mesh's ranks; a group, or ``None`` for all ranks, as it is."""
    if not isinstance(group, DeviceMesh):
        return group
    if group.ndim != 1:
        raise RunError(
            f"expected a DeviceMesh of one dim, got {group.ndim} dims {group.mesh_dim_names}; pass "
            "the one whose ranks share the attention, for example mesh['cp']"
        )
    return group.get_group()


def open_store(group: dist.ProcessGroup | None, name: str, timeout_s: float) -> "DeadlineStore":
    """Return keys of our own in the store of a group: the n-th caller of a rank shares them."""
    found = group or dist.group.WORLD
    assert found is not None, "torch.distributed is initialised"
    store = found.get_group_store()
    try:
        number = DeadlineStore(store, timeout_s).add(f"{name}/{found.rank()}", 1)
    except RuntimeError as error:
        raise RunError(f"{error}; the cause is {SERVER}") from error
    return DeadlineStore(PrefixStore(f"{name}-keys/{number}", store), timeout_s)


class DeadlineStore(Store):
    """Wraps a store: asks it in a separate thread and gives up after a deadline.

    Whoever asks gets a ``RuntimeError`` then, as from a store whose process has ended; after one
    answer that did not come within `timeout_s` the store counts as lost.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        super().__init__()
        self._store, self._timeout_s = store, timeout_s
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._is_lost = False
        # A daemon: an answer that never comes must not keep a failed process alive. It ends with
        # the last one who could ask.
        threading.Thread(target=_serve, args=(self._calls,), name="store", daemon=True).start()
        weakref.finalize(self, self._calls.put, None)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._ask(lambda: self._store.set(key, value))  # type: ignore[arg-type]  # bytes as well

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


class MeetingStore(Store):
    """A store for meetings of torch's own, which end by our deadline and name the rank that misses.

    torch would wait for minutes, hold Python's lock all the while, and name nobody. Its keys begin
    with the number of the meeting, ``"CUDASymmetricMemory/7/0"``, and it counts all meetings of a
    process: ranks that met others before would not find each other. So they are counted here anew.

    Args:
        store: of all ranks.
        name: of the meetings; others may be held at the same time.
        wait_for: waits until keys of `store` are there, or raises.
    """

    def __init__(self, store: Store, name: str, wait_for: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._store, self._name, self._wait_for = store, name, wait_for
        self._numbers: dict[str, int] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._store.set(self._key(key), value)  # type: ignore[arg-type]  # bytes as well

    def add(self, key: str, value: int) -> int:
        """Add to a number and give the sum."""
        return self._store.add(self._key(key), value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for values; the limit is ours, whatever torch asks for."""
        self._wait_for(list(map(self._key, keys)))

    def get(self, key: str) -> bytes:
        """Wait for a value and read it."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Wait for values and read them."""
        self.wait(keys)
        return self._store.multi_get(list(map(self._key, keys)))

    def _key(self, key: str) -> str:
        numbered = re.match(r".*?/\d+", key)
        meeting = key if numbered is None else numbered[0]
        number = self._numbers.setdefault(meeting, len(self._numbers))
        return f"{self._name}/{number}{key[len(meeting) :]}"


def _serve(calls: "queue.SimpleQueue[_Call | None]") -> None:
    while (call := calls.get()) is not None:
        ask, answer = call
        try:
            answer.set_result(ask())
        except RuntimeError as error:
            answer.set_exception(error)
        del call, ask, answer  # or their store would never be forgotten
