"""The store barrier, at which all ranks meet and read a note from each, and compare values.

Notes go up a tree of ranks and come down as one value, so that the store does O(ranks) work. If
every rank read the keys of all others, 1,024 ranks would make the store look up a million keys per
barrier.
"""

import json
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_runtime.errors import RunError
from dcp_runtime.transport.failure_registry import GRACE_S, FailureRegistry, Status
from dcp_runtime.transport.group_store import DeadlineStore
from dcp_runtime.transport.limits import describe_wait

FIRST_NAP_S, LONGEST_NAP_S = 50e-6, 0.02
"""Pauses between looks at the store, each twice as long as the last: ranks that come together go on
at once, and a long wait costs the store little."""
FAN = 16  # children of a rank in the tree: those of rank r are ``FAN * r + 1`` to ``FAN * r + FAN``


class StoreBarrier:
    """A barrier that exchanges notes through a store, which tells who has not come."""

    def __init__(
        self, store: Store, rank: int, size: int, failures: FailureRegistry, timeout_s: float
    ) -> None:
        self._store, self._failures = store, failures
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._count = 0
        self._written: list[str] = []  # keys of the last meeting: other ranks may still read them

    def exchange_notes(self, note: str, place: str, *, is_error: bool = False) -> list[str]:
        """Wait for all ranks and return their notes in rank order; collective.

        With `is_error` the note says why this rank cannot go on, and all others raise it.
        """
        if self._size == 1:
            return [note]
        sent = f"{_ERROR if is_error else place}\n{note}"
        split = [text.split("\n", 1) for text in self._meet(sent, place)]
        came, notes = [first for first, _ in split], [rest for _, rest in split]
        if is_error:  # the caller has an error of its own to raise
            return notes
        for rank, step in enumerate(came):
            if step == _ERROR:
                text = f"rank {rank} failed in {place}: {notes[rank]}"
                raise RunError(text, rank=rank, division=0)
        _STEP.compare(came, place)
        return notes

    def _meet(self, note: str, place: str) -> list[str]:
        deadline = time.monotonic() + self._timeout_s
        meeting = self.meet(note)
        try:
            while True:
                keys = next(meeting)
                if not self._have_come(keys, deadline, self._count - 1):
                    self._give_up(place)
        except StopIteration as end:
            notes: list[str] = end.value
            return notes
        except RuntimeError as error:  # the process that serves the store has ended
            raise self._failures.lost_store(place, error) from error

    def meet(self, note: str) -> Generator[list[str], None, list[str]]:
        """Take part in a meeting: yields the keys to wait for, and returns all notes."""
        number, self._count = self._count, self._count + 1
        before, self._written = self._written, []
        # Ranks by note: most ranks write the same note, so a sum over thousands of them is short.
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
        # The sum of all ranks has come, so each has begun this meeting and left the one before.
        for key in before:
            self._store.delete_key(key)
        notes = [common] * self._size
        for rank, text in others.items():  # JSON makes texts of the ranks
            notes[int(rank)] = text
        return notes

    def _write(self, key: str, value: object) -> None:
        self._store.set(key, json.dumps(value))
        self._written.append(key)

    def _has_children(self, rank: int) -> bool:
        return FAN * rank + 1 < self._size

    def _have_come(self, keys: list[str], deadline: float, meeting: int) -> bool:
        """Wait for keys; return whether they came before the deadline and any failure."""
        nap_s = FIRST_NAP_S
        while not self._store.check(keys):
            is_over = time.monotonic() > deadline
            # This costs further looks at the store, so only a long wait asks for it.
            if is_over or (nap_s == LONGEST_NAP_S and self._failures.is_off(meeting)):
                # A rank may have written the last key, gone on and failed since.
                return self._store.check(keys)
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, LONGEST_NAP_S)
        return True

    @contextmanager
    def waiting_for(self, peer: int, place: str) -> Iterator[None]:
        """Blame a rank if a collective or a store of torch fails inside the block."""
        try:
            yield
        except RuntimeError as error:
            text = describe_wait(str(error), self._timeout_s)
            raise self._failures.settle(Status("waiting", peer, place, None, text)) from error

    def leave(self, why: str) -> None:
        """Tell the ranks that wait for this one, now or later, that it does not come; waits not."""
        if self._size > 1:
            self._failures.leave(why, self._count)

    def compare_with_first(self, topic: "Topic", value: str, place: str) -> None:
        """Compare a last value with that of the rank that came first; no rank waits for another."""
        if self._size == 1 or not value:
            return
        if isinstance(self._store, DeadlineStore):
            self._store.hurry(GRACE_S)  # it may have ended, or stand still
        try:
            own = f"{self._rank} {value}"
            first = self._store.compare_set(f"first/{self._count}", "", own).decode()
        except RuntimeError:  # the process that serves the store has ended, as it may by then
            return
        rank, _, expected = first.partition(" ")
        if value != expected:
            raise _other(topic, place, (self._rank, value), (int(rank), expected))

    def _give_up(self, place: str) -> None:
        if (ended := self._failures.end_of_data()) is not None:
            raise self._failures.publish(ended)
        number, ranks = self._count - 1, range(self._size)
        if (left := self._failures.left_before(number)) is not None:
            raise self._failures.settle(Status("waiting", left, place, None, ""))
        # The rank to blame wrote no note of its own, or no sum although those below it are there.
        keys = {_key(number, rank): rank for rank in ranks}
        # Children have higher numbers than their parent, so a missing sum is found before those
        # that wait for it.
        inner = [rank for rank in reversed(ranks) if self._has_children(rank)]
        keys |= {_key(number, rank, is_sum=True): rank for rank in inner}
        peer = next((rank for key, rank in keys.items() if not self._store.check([key])), None)
        if peer in (None, self._rank):  # the mark of another failure ended the wait
            peer = (self._rank + 1) % self._size
        raise self._failures.settle(Status("waiting", peer, place, None, ""))


class Topic(NamedTuple):
    """A value on which ranks must agree: its name in messages, and the way out if they differ."""

    what: str
    way_out: str

    def compare(self, values: Sequence[str], place: str) -> None:
        """Compare the values of all ranks; a rank that cannot know its value leaves it empty."""
        counts = Counter(value for value in values if value)
        if len(counts) <= 1:
            return
        # Most ranks are right; of two equal halves, the one with the first rank.
        common = max(counts, key=lambda v: (counts[v], -values.index(v)))
        odd = next(rank for rank, v in enumerate(values) if v not in ("", common))
        raise _other(self, place, (odd, values[odd]), (values.index(common), common))


_ERROR = "error"  # in a note, instead of the place: the rank cannot go on
_STEP = Topic("step", "all ranks prepare the same plans and run the same layers in the same order")


def _other(topic: Topic, place: str, odd: tuple[int, str], right: tuple[int, str]) -> RunError:
    """Return the error of a rank whose value differs from that of a rank that is right."""
    return RunError(
        f"rank {odd[0]} has another {topic.what} than rank {right[0]} in {place}: expected "
        f"{right[1]}, got {odd[1]}; {topic.way_out}",
        rank=odd[0],
        division=0,
    )


def _key(meeting: int, rank: int, *, is_sum: bool = False) -> str:
    """Return the key of a rank's own note, or of the notes of a rank and all below it."""
    return f"barrier/{meeting}/{rank}{'/sum' if is_sum else ''}"
