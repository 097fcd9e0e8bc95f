"""The failure registry, by which ranks agree on the rank that broke a run.

Every rank that cannot go on writes its status to the store: it raised an error, or it waits for a
peer. All follow one chain from the rank that wrote first: to the peer that it waits for, and if
that waits as well, to the peer's peers. The chain ends at a rank that raised an error, or at a rank
that wrote nothing, because it is dead or stalled. The first rank that comes to the end publishes
the failure, and all others raise the same. Ranks write nothing while all is well, but where they
end: a rank says that its data are over, and that it closes its executor. Whoever then waits for it
in vain names it at once.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple, TypeVar

from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_dsl import DCPError
from dcp_runtime.errors import PeerError
from dcp_runtime.transport.group_store import SERVER, DeadlineStore

_Answer = TypeVar("_Answer")

GRACE_S = 1.5  # seconds that a living rank gets to write its status before its silence counts
SAME_BATCHES = (
    "give every rank the same rows, or let all ranks leave the loop over their batches after the "
    "same one"
)
"""The way out for ranks of which one has no further batch."""
_LOST_STORE = f"; the store is lost as well, so the cause may be {SERVER}"


@dataclass(frozen=True, slots=True)
class Status:
    """The reason why a rank cannot go on; of one that ``"left"``, which does not mean a failure."""

    kind: Literal["waiting", "raised", "left"]
    peer: int  # the rank whose message is missing, or -1
    place: str  # "forward", "backward", or a step such as "prepare"
    division: int | None  # of the direction; None for a step
    text: str  # the low-level error, if there is one; of a rank that left, why
    others: Sequence[int] = ()  # ranks whose message may be missing instead of that of `peer`
    calls: int = 0  # of layers that it had begun


class Awaited(NamedTuple):
    """A batch of a data loader that all ranks are to meet for."""

    iteration: int  # number of that over the loader, the same on all ranks
    place: int  # of the batch in that iteration
    name: str  # of the batch, and its rows


class FailureRegistry:
    """Statuses and the agreed failure of a group, as keys in its store.

    `is_settled` says whether this rank has got the error that all agree to raise, `calls` how many
    it has begun of layers, `awaited` which batch it meets the others for.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._is_reachable, self.is_settled, self._has_raised = True, False, False
        self._has_left, self.calls = False, 0
        self.awaited: Awaited | None = None

    def is_marked(self) -> bool:
        """Return whether some rank wrote that it cannot go on."""
        return self._read("marked") is not None

    def is_lost(self, ranks: Sequence[int]) -> bool:
        """Return whether waiting for a message of some ranks is in vain."""
        return self.is_marked() or any(map(self._is_behind, ranks))

    def is_off(self, meeting: int) -> bool:
        """Return whether a meeting that not all ranks have come to will not take place."""
        found = self.left_before(meeting)
        return self.is_marked() or found is not None or self.end_of_data() is not None

    def left_before(self, meeting: int) -> int | None:
        """Return a rank that left before a meeting that all others may come to, if any did."""
        rank = self._read(f"left/{meeting}")
        return None if rank is None else int(rank)

    def leave(self, why: str, meeting: int) -> None:
        """Write that this rank takes part in nothing any more, nor in the next meeting."""
        if isinstance(self._store, DeadlineStore):
            self._store.hurry(GRACE_S)  # it may have ended, or stand still
        if not (self._has_raised or self.is_settled or self._has_left):
            status = Status("left", -1, "", None, why, calls=self.calls)
            self._write(f"status/{self._rank}", json.dumps(asdict(status)))
            self._write(f"left/{meeting}", str(self._rank))
        self._has_left = True

    def end_data(self, iteration: int, batches: int, why: str) -> None:
        """Write that an iteration over a data loader ended here after so many batches, and why."""
        key, value = f"data/{iteration}", json.dumps([self._rank, batches, why])
        if self._has_left:
            return
        if isinstance(self._store, DeadlineStore):
            self._store.post(key, value)
        else:
            self._write(key, value)

    def end_of_data(self) -> PeerError | None:
        """Return the error of a rank whose data ended before the batch that this one awaits."""
        if self.awaited is None:
            return None
        found = self._read(f"data/{self.awaited.iteration}")
        rank, batches, why = (-1, math.inf, "") if found is None else json.loads(found)
        if batches > self.awaited.place:
            return None
        text = f"rank {rank} {why}; rank {self._rank} goes on with {self.awaited.name}"
        return PeerError(f"{text}; {SAME_BATCHES}", rank=rank)

    def post(self, status: Status) -> None:
        """Write this rank's status; ignore a lost store."""
        known = asdict(status) | {"calls": self.calls}
        self._write(f"status/{self._rank}", json.dumps(known))
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
        own = replace(own, calls=self.calls)
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

    def publish(self, failure: PeerError) -> PeerError:
        """Have all ranks raise a failure that this one has found; return what they agree on."""
        self.is_settled = True
        agreed = self._publish(failure)
        self._write("marked", str(self._rank))
        return agreed

    def _follow(self, own: Status, *, is_over: bool) -> PeerError | None:
        """Follow the chains of waiting ranks; return the failure once their end is certain."""
        # The search begins at the rank that wrote first. All others looked because of its mark,
        # while their own peers may still compute: silence of those peers proves nothing.
        first = self._read("first")
        root = self._rank if first is None else int(first)
        known, silent, left = dict[int, Status](), None, None
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
            if status.kind == "left":
                waits = known.get(waiting, own)
                text = f"rank {peer} {status.text}; rank {waiting} waits for it in {_place(waits)}"
                left = PeerError(f"{text}; {SAME_BATCHES}", rank=peer, division=waits.division)
                # It sent all that the calls it ran had to send.
                if waits.division is None or status.calls < waits.calls:
                    return left
                continue
            edges += [(peer, other) for other in (status.peer, *status.others)]
        # A silent rank may be about to write, also that it raised an error: that counts for more.
        if not is_over:
            return None
        if silent is None:
            return left or self._circle(root, known)
        waiting, peer = silent
        return self._silence(waiting, peer, known.get(waiting, own))

    def _is_behind(self, rank: int) -> bool:
        """Return whether a rank left before the call that this one is in."""
        status = self._status_of(rank)
        return status is not None and status.kind == "left" and status.calls < self.calls

    def lost_store(self, place: str, error: RuntimeError) -> PeerError:
        """Return the error of a meeting whose store is gone; each rank finds that out itself."""
        self._is_reachable, self.is_settled = False, True
        return PeerError(
            f"the store of the process group is lost: rank {self._rank} got no answer in {place}, "
            f"{str(error).splitlines()[0]}; the cause is {SERVER}"
        )

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
