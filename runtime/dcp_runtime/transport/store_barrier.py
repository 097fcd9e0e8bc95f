"""The store barrier: every rank waits for all others and reads a note from each.

Notes go up a tree of ranks and come down as one value, so that the store does O(ranks) work: where
every rank looked at the keys of all others, 1,024 of them made it look up a million keys a time.
"""

import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_runtime.transport.failure_registry import FailureRegistry, Status
from dcp_runtime.transport.limits import describe_wait

FIRST_NAP_S, LONGEST_NAP_S = 50e-6, 0.02
FAN = 16
"""Children of a rank in the tree."""


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
        self._written: list[str] = []  # of the last meeting: others may still read them

    def exchange_notes(self, note: str, place: str) -> list[str]:
        """Wait for all ranks and return their notes in rank order; collective.

        Raises:
            RunError: names a rank that did not come.
        """
        if self._size == 1:
            return [note]
        deadline = time.monotonic() + self._timeout_s
        meeting = self.meet(note)
        try:
            while True:
                self._wait(next(meeting), deadline, place)
        except StopIteration as end:
            notes: list[str] = end.value
            return notes
        except RuntimeError as error:  # the process that serves the store is gone
            status = Status("waiting", 0, place, -1, str(error).splitlines()[0])
            raise self._failures.settle(status) from error

    def meet(self, note: str) -> Generator[list[str], None, list[str]]:
        """Take part in a meeting: yields the keys to wait for, and returns all notes."""
        number, self._count = self._count, self._count + 1
        before, self._written = self._written, []
        found = {note: [self._rank]}
        self._write(_key(number, self._rank), found)
        first = FAN * self._rank + 1
        children = range(first, min(first + FAN, self._size))
        if children:
            keys = [_key(number, child, is_sum=self._has_children(child)) for child in children]
            yield keys
            for value in self._store.multi_get(keys):
                for text, ranks in json.loads(value).items():
                    found.setdefault(text, []).extend(ranks)
        if self._rank == 0:
            common = max(found, key=lambda text: len(found[text]))
            others = {rank: text for text in found if text != common for rank in found[text]}
            self._write(_key(number, 0, is_sum=True), [common, others])
        else:
            if children:
                self._write(_key(number, self._rank, is_sum=True), found)
            key = _key(number, 0, is_sum=True)
            yield [key]
            common, others = json.loads(self._store.get(key))
        for key in before:  # every rank has left the meeting before
            self._store.delete_key(key)
        notes = [common] * self._size
        for rank, text in others.items():
            notes[int(rank)] = text
        return notes

    def _write(self, key: str, value: object) -> None:
        self._store.set(key, json.dumps(value))
        self._written.append(key)

    def _has_children(self, rank: int) -> bool:
        return FAN * rank + 1 < self._size

    def _wait(self, keys: list[str], deadline: float, place: str) -> None:
        nap_s = FIRST_NAP_S
        while not self._store.check(keys):
            is_over = time.monotonic() > deadline
            if is_over or (nap_s == LONGEST_NAP_S and self._failures.is_marked()):
                self._give_up(place)
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, LONGEST_NAP_S)

    @contextmanager
    def waiting_for(self, peer: int, place: str) -> Iterator[None]:
        """Blame a rank for a message of torch's own that does not come."""
        try:
            yield
        except RuntimeError as error:
            text = describe_wait(str(error), self._timeout_s)
            raise self._failures.settle(Status("waiting", peer, place, -1, text)) from error

    def _give_up(self, place: str) -> None:
        number, ranks = self._count - 1, range(self._size)
        keys = {_key(number, rank): rank for rank in ranks}
        # Who has children comes behind them: the last of those that stopped between is to blame.
        inner = [rank for rank in reversed(ranks) if self._has_children(rank)]
        keys |= {_key(number, rank, is_sum=True): rank for rank in inner}
        peer = next((rank for key, rank in keys.items() if not self._store.check([key])), None)
        if peer in (None, self._rank):  # only the mark of another failure made us look
            peer = (self._rank + 1) % self._size
        raise self._failures.settle(Status("waiting", peer, place, -1, ""))


def _key(meeting: int, rank: int, *, is_sum: bool = False) -> str:
    """Return the key of a rank's own note, or of the notes of a rank and all below it."""
    return f"barrier/{meeting}/{rank}{'/sum' if is_sum else ''}"
