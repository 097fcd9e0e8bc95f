"""The store barrier: every rank waits for all others and reads a note from each."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_runtime.transport.failure_registry import FailureRegistry, Status
from dcp_runtime.transport.limits import describe_wait

FIRST_NAP_S, LONGEST_NAP_S = 50e-6, 0.02


class StoreBarrier:
    """A barrier of all ranks that exchanges notes through the store of their group.

    Unlike a collective, the store can tell which rank has not come.
    """

    def __init__(
        self, store: Store, rank: int, size: int, failures: FailureRegistry, timeout_s: float
    ) -> None:
        self._store, self._failures = store, failures
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._count = 0

    def exchange_notes(self, note: str, place: str) -> list[str]:
        """Wait for all ranks and return their notes in rank order; collective.

        Raises:
            RunError: names a rank that did not come.
        """
        if self._size == 1:
            return [note]
        number, self._count = self._count, self._count + 1
        keys = [f"barrier/{number}/{rank}" for rank in range(self._size)]
        deadline = time.monotonic() + self._timeout_s
        nap_s = FIRST_NAP_S
        try:
            self._store.set(keys[self._rank], note)
            while not self._store.check(keys):
                if self._failures.is_marked() or time.monotonic() > deadline:
                    self._give_up(keys, place)
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, LONGEST_NAP_S)
            notes = [value.decode() for value in self._store.multi_get(keys)]
            if number:  # every rank has left the barrier before
                self._store.delete_key(f"barrier/{number - 1}/{self._rank}")
        except RuntimeError as error:  # the process that serves the store is gone
            status = Status("waiting", 0, place, -1, str(error).splitlines()[0])
            raise self._failures.settle(status) from error
        return notes

    @contextmanager
    def waiting_for(self, peer: int, place: str) -> Iterator[None]:
        """Blame a rank for a message of torch's own that does not come."""
        try:
            yield
        except RuntimeError as error:
            text = describe_wait(str(error), self._timeout_s)
            raise self._failures.settle(Status("waiting", peer, place, -1, text)) from error

    def _give_up(self, keys: list[str], place: str) -> None:
        missing = [r for r, key in enumerate(keys) if not self._store.check([key])]
        # All are here after all: only the mark of another failure made us look.
        peer = missing[0] if missing else (self._rank + 1) % self._size
        raise self._failures.settle(Status("waiting", peer, place, -1, ""))
