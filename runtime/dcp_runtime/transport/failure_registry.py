"""The failure registry, by which ranks agree on the rank that broke a run, and the store barrier.

Every rank that cannot go on writes its status to the store: it raised an error, or it waits for a
peer. All follow one chain from the rank that wrote first: to the peer that it waits for, and if
that waits as well, to the peer's peers. The chain ends at a rank that raised an error, or at a rank
that wrote nothing, because it is dead or stalled. The first rank that comes to the end publishes
the failure, and all others raise the same. Ranks write nothing while all is well.

At the barrier every rank waits for all others and reads a note from each. Notes go up a tree of
ranks and come down as one value, so that the store does O(ranks) work. If every rank read the keys
of all others, 1,024 ranks would make the store look up a million keys per barrier.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeVar

from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_dsl import DCPError
from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.transport.group_store import SERVER
from dcp_runtime.transport.limits import describe_wait

_Answer = TypeVar("_Answer")

GRACE_S = 1.5
"""Seconds that a living rank gets to write its status before its silence counts."""
_LOST_STORE = f"; the store is lost as well, so the cause may be {SERVER}"


@dataclass(frozen=True, slots=True)
class Status:
    """The reason why a rank cannot go on.

    Attributes:
        kind: ``"waiting"`` for a message of `peer`, or ``"raised"`` an error.
        peer: the rank whose message is missing, or -1.
        place: ``"forward"``, ``"backward"``, or a step such as ``"prepare"``.
        division: of the direction; ``None`` for a step.
        text: the low-level error, if there is one.
        others: ranks whose message may be missing instead of that of `peer`.
    """

    kind: Literal["waiting", "raised"]
    peer: int
    place: str
    division: int | None
    text: str
    others: Sequence[int] = ()


class FailureRegistry:
    """Statuses and the agreed failure of a group, as keys in its store.

    Attributes:
        is_settled: whether this rank has got the error that all agree to raise.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._is_reachable, self.is_settled, self._has_raised = True, False, False

    def is_marked(self) -> bool:
        """Return whether some rank wrote that it cannot go on."""
        return self.marked_by() is not None

    def marked_by(self) -> int | None:
        """Return the latest rank that wrote that it cannot go on, if any."""
        rank = self._read("marked")
        return None if rank is None else int(rank)

    def post(self, status: Status) -> None:
        """Write this rank's status; ignore a lost store."""
        self._write(f"status/{self._rank}", json.dumps(asdict(status)))
        if self._count("posts") == 1:
            self._write("first", str(self._rank))
        # The mark comes last: a rank that sees it finds the other keys.
        self._write("marked", str(self._rank))

    def raised(self, place: str, division: int | None, error: Exception) -> None:
        """Write that this rank raised an error; its first one counts."""
        if not self._has_raised:
            self._has_raised = True
            self.post(Status("raised", -1, place, division, describe_error(error)))

    def settle(self, own: Status) -> PeerError:
        """Post the status of this rank, and return the error that all ranks agree to raise."""
        self.post(own)
        self.is_settled = True
        deadline = time.monotonic() + GRACE_S
        while True:
            if (known := self._read("failure")) is not None:
                return PeerError(**json.loads(known))
            failure = self._follow(own, is_over=time.monotonic() > deadline)
            if failure is not None:
                return self._publish(failure)
            time.sleep(0.02)

    def _follow(self, own: Status, *, is_over: bool) -> PeerError | None:
        """Follow the chains of waiting ranks; return the failure once their end is certain.

        The search begins at the rank that wrote first. All others looked because of its mark, while
        their own peers may still compute: silence of those peers proves nothing.
        """
        first = self._read("first")
        root = self._rank if first is None else int(first)
        known, silent = dict[int, Status](), None
        # Breadth first over (rank that waits, its peer); the list grows while it is read.
        edges = [(self._rank, root)]
        for waiting, peer in edges:
            if peer in known:
                continue
            status = own if peer == self._rank else self._status_of(peer)
            if status is None:
                silent = silent or (waiting, peer)
                continue
            known[peer] = status
            if status.kind == "raised":
                text = f"rank {peer} failed in {_place(status)}: {status.text}"
                return PeerError(text, rank=peer, division=status.division)
            edges += [(peer, other) for other in (status.peer, *status.others)]
        # A silent rank may be about to write, also that it raised an error: that counts for more.
        if not is_over:
            return None
        if silent is None:
            return self._circle(root, known)
        waiting, peer = silent
        return self._silence(waiting, peer, known.get(waiting, own))

    def _silence(self, waiting: int, peer: int, status: Status) -> PeerError:
        how = f", {status.text}" if status.text else ""
        text = (
            f"rank {peer} is dead or stalled: rank {waiting} waited for it in "
            f"{_place(status)}{how}{'' if self._is_reachable else _LOST_STORE}"
        )
        return PeerError(text, rank=peer, division=status.division)

    def _circle(self, root: int, known: Mapping[int, Status]) -> PeerError:
        # No rank is silent and none raised, so the chain of first peers ends in a circle.
        chain = [root]
        while (peer := known[chain[-1]].peer) not in chain:
            chain.append(peer)
        circle = ", ".join(map(str, chain[chain.index(peer) :]))
        status = known[chain[-1]]
        text = f"ranks {circle} wait for each other in {_place(status)}"
        return PeerError(text, rank=peer, division=status.division)

    def _publish(self, failure: PeerError) -> PeerError:
        """Write the failure unless another rank was first; return the failure that was first."""
        number = self._count("failures")
        if number is None:  # without a store nothing can be agreed on
            return failure
        if number == 1:
            shared = {"message": str(failure), "rank": failure.rank, "division": failure.division}
            self._write("failure", json.dumps(shared))
            return failure
        # The rank that counted first may die before it writes.
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            if (known := self._read("failure")) is not None:
                return PeerError(**json.loads(known))
            time.sleep(0.02)
        return failure

    def _status_of(self, rank: int) -> Status | None:
        found = self._read(f"status/{rank}")
        return None if found is None else Status(**json.loads(found))

    def _count(self, key: str) -> int | None:
        """Count one up and return the number; ``None`` if the store is lost."""
        return self._ask(lambda: self._store.add(key, 1))

    def _read(self, key: str) -> str | None:
        """Return a value; ``None`` if there is none, or the store is lost."""
        # Without the check `get` would wait for the key.
        found = self._ask(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if found is None else found.decode()

    def _write(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.set(key, value))

    def _ask(self, ask: Callable[[], _Answer]) -> _Answer | None:
        try:
            if self._is_reachable:
                return ask()
        except RuntimeError:  # the process that serves the store has ended
            self._is_reachable = False
        return None


def describe_error(error: Exception) -> str:
    """Return the text of an error for other ranks, with its type unless it is one of ours."""
    return str(error) if isinstance(error, DCPError) else f"{type(error).__name__}: {error}"


def _place(status: Status) -> str:
    if status.division is None:
        return status.place
    return f"division {status.division} of {status.place}"


FIRST_NAP_S, LONGEST_NAP_S = 50e-6, 0.02
"""Pauses between looks at the store, each twice as long as the last: ranks that come together go on
at once, and a long wait costs the store little."""
FAN = 16
"""Children of a rank in the tree: those of rank r are ``FAN * r + 1`` to ``FAN * r + FAN``."""


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
        self._written: list[str] = []  # keys of the last meeting: other ranks may still read them

    def exchange_notes(self, note: str, place: str, *, is_error: bool = False) -> list[str]:
        """Wait for all ranks and return their notes in rank order; collective.

        With `is_error` the note says why this rank cannot go on, and all others raise it.

        Raises:
            RunError: names a rank that did not come, came to another place, or cannot go on.
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
        compare(_STEP, came, place)
        return notes

    def _meet(self, note: str, place: str) -> list[str]:
        deadline = time.monotonic() + self._timeout_s
        meeting = self.meet(note)
        try:
            while True:
                keys = next(meeting)
                if not self._have_come(keys, deadline):
                    self._give_up(place)
        except StopIteration as end:
            notes: list[str] = end.value
            return notes
        except RuntimeError as error:  # the process that serves the store has ended
            status = Status("waiting", 0, place, None, str(error).splitlines()[0])
            raise self._failures.settle(status) from error

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

    def _have_come(self, keys: list[str], deadline: float) -> bool:
        """Wait for keys; return whether they came before the deadline and any failure."""
        nap_s = FIRST_NAP_S
        while not self._store.check(keys):
            is_over = time.monotonic() > deadline
            # The mark costs another look at the store, so only a long wait asks for it.
            if is_over or (nap_s == LONGEST_NAP_S and self._failures.is_marked()):
                # A rank may have written the last key, gone on and failed since.
                return self._store.check(keys)
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, LONGEST_NAP_S)
        return True

    def wait_for(self, keys: list[str], ranks: Sequence[int], place: str) -> None:
        """Wait for keys that some of the ranks write; blame the one that does not come.

        Raises:
            PeerError: names it.
        """
        text = ""
        try:
            if self._have_come(keys, time.monotonic() + self._timeout_s):
                return
        except RuntimeError as error:  # the process that serves the store has ended
            text = str(error).splitlines()[0]
        # All living ranks say that they wait for all others: the silent one is to blame.
        peer, *others = (rank for rank in ranks if rank != self._rank)
        status = Status("waiting", peer, place, None, text, others)
        raise self._failures.settle(status)

    @contextmanager
    def waiting_for(self, peer: int, place: str) -> Iterator[None]:
        """Blame a rank if a collective or a store of torch fails inside the block."""
        try:
            yield
        except RuntimeError as error:
            text = describe_wait(str(error), self._timeout_s)
            raise self._failures.settle(Status("waiting", peer, place, None, text)) from error

    def _give_up(self, place: str) -> None:
        # The rank to blame wrote no note of its own, or no sum although those below it are there.
        number, ranks = self._count - 1, range(self._size)
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


_ERROR = "error"
"""In a note, instead of the place: the rank cannot go on."""
_STEP = Topic("step", "all ranks prepare the same plans and run the same layers in the same order")


def compare(topic: Topic, values: Sequence[str], place: str) -> None:
    """Compare the values of all ranks; a rank that cannot know its value leaves it empty.

    Raises:
        RunError: names a rank whose value differs from that of most.
    """
    counts = Counter(value for value in values if value)
    if len(counts) <= 1:
        return
    # Most ranks are right; of two equal halves, the one with the first rank.
    common = max(counts, key=lambda v: (counts[v], -values.index(v)))
    odd = next(rank for rank, v in enumerate(values) if v not in ("", common))
    raise RunError(
        f"rank {odd} has another {topic.what} than rank {values.index(common)} in {place}: "
        f"expected {common}, got {values[odd]}; {topic.way_out}",
        rank=odd,
        division=0,
    )


def _key(meeting: int, rank: int, *, is_sum: bool = False) -> str:
    """Return the key of a rank's own note, or of the notes of a rank and all below it."""
    return f"barrier/{meeting}/{rank}{'/sum' if is_sum else ''}"
