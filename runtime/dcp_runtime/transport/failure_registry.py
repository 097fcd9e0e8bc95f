"""The failure registry: all ranks agree on the rank that broke a run.

Every rank that cannot go on writes its status to the store: it raised an error, or it waits for a
peer. A rank that waits reads the status of its peer, and if the peer waits as well, that of the
peer's peers. The chain ends at a rank that raised an error, or at a rank that wrote nothing,
because it is dead or stalled. The first rank that comes to the end of its chain publishes the
failure, and all others raise the same. Ranks write nothing while all is well.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from torch._C._distributed_c10d import Store  # torch.distributed.Store, with its type

from dcp_dsl import DCPError
from dcp_runtime.errors import PeerError
from dcp_runtime.transport.group_store import SERVER

GRACE_S = 1.5
"""Seconds that a living rank gets to write its status before its silence counts."""
_LOST_STORE = f"; the store is lost as well, so the cause may be {SERVER}"


@dataclass(frozen=True, slots=True)
class Status:
    """Why a rank cannot go on.

    Attributes:
        kind: ``"waiting"`` for a message of `peer`, or ``"raised"`` an error.
        peer: rank that is waited for, or -1.
        place: where: ``"forward"``, ``"backward"``, or a step such as ``"prepare"``.
        division: of the direction, or -1.
        text: the low-level error, if there is one.
        others: ranks that it may be waiting for instead of `peer`.
    """

    kind: Literal["waiting", "raised"]
    peer: int
    place: str
    division: int
    text: str
    others: Sequence[int] = ()


class FailureRegistry:
    """Statuses and the agreed failure of a group, as keys in its store."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._is_reachable = True

    def is_marked(self) -> bool:
        """Return whether some rank wrote that it cannot go on."""
        return self._read("marked") is not None

    def post(self, status: Status) -> None:
        """Write this rank's status; ignore a lost store."""
        self._write(f"status/{self._rank}", json.dumps(asdict(status)))
        self._write("marked", "1")

    def raised(self, place: str, division: int, error: Exception) -> None:
        """Write that this rank raised an error."""
        kind = "" if isinstance(error, DCPError) else f"{type(error).__name__}: "
        self.post(Status("raised", -1, place, division, f"{kind}{error}"))

    def settle(self, own: Status) -> PeerError:
        """Post the status of this rank, and return the error that all ranks agree to raise."""
        self.post(own)
        deadline = time.monotonic() + GRACE_S
        while True:
            if (known := self._read("failure")) is not None:
                return PeerError(**json.loads(known))
            failure = self._follow(own, is_over=time.monotonic() > deadline)
            if failure is not None:
                return self._publish(failure)
            time.sleep(0.02)

    def _follow(self, own: Status, *, is_over: bool) -> PeerError | None:
        """Follow the chains of waiting ranks; return the failure once their end is certain."""
        known, silent = {self._rank: own}, None
        edges = [(self._rank, peer) for peer in (own.peer, *own.others)]
        for waiting, peer in edges:  # grows
            if peer in known:
                continue
            found = self._read(f"status/{peer}")
            if found is None:
                silent = silent or (waiting, peer)
                continue
            known[peer] = status = Status(**json.loads(found))
            if status.kind == "raised":
                text = f"rank {peer} failed in {_place(status)}: {status.text}"
                return _failure(peer, status, text)
            edges += [(peer, other) for other in (status.peer, *status.others)]
        if not is_over:
            return None
        return self._circle(known) if silent is None else self._silence(*silent, known)

    def _silence(self, waiting: int, peer: int, known: Mapping[int, Status]) -> PeerError:
        status = known[waiting]
        how = f", {status.text}" if status.text else ""
        text = (
            f"rank {peer} is dead or stalled: rank {waiting} waited for it in "
            f"{_place(status)}{how}{'' if self._is_reachable else _LOST_STORE}"
        )
        return _failure(peer, status, text)

    def _circle(self, known: Mapping[int, Status]) -> PeerError:
        chain = [self._rank]
        while (peer := known[chain[-1]].peer) not in chain:
            chain.append(peer)
        circle = ", ".join(map(str, chain[chain.index(peer) :]))
        status = known[chain[-1]]
        text = f"ranks {circle} wait for each other in {_place(status)}"
        return _failure(peer, status, text)

    def _publish(self, failure: PeerError) -> PeerError:
        """Write the failure unless another rank was first; return the failure that was first."""
        if not self._is_reachable:
            return failure
        try:
            is_first = self._store.add("failures", 1) == 1
        except RuntimeError:
            return failure
        if is_first:
            shared = {"message": str(failure), "rank": failure.rank, "division": failure.division}
            self._write("failure", json.dumps(shared))
            return failure
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            if (known := self._read("failure")) is not None:
                return PeerError(**json.loads(known))
            time.sleep(0.02)
        return failure

    def _read(self, key: str) -> str | None:
        found: str | None = None
        try:
            if self._is_reachable and self._store.check([key]):
                found = self._store.get(key).decode()
        except RuntimeError:  # the process that serves the store is gone
            self._is_reachable = False
        return found

    def _write(self, key: str, value: str) -> None:
        try:
            if self._is_reachable:
                self._store.set(key, value)
        except RuntimeError:
            self._is_reachable = False


def _place(status: Status) -> str:
    return status.place if status.division < 0 else f"division {status.division} of {status.place}"


def _failure(rank: int, status: Status, message: str) -> PeerError:
    """Blame a rank for what a waiting or failed rank reports."""
    division = None if status.division < 0 else status.division
    return PeerError(message, rank=rank, division=division)
