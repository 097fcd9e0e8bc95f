"""`ProcessWorld`: processes of this machine, one per rank, that run plans one after the other.

Whatever happens, no process is left behind: the world ends all of them, and they end with it.
"""

import os
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dcp_planner.workers import Worker, WorkerLost, WorkerProgram
from dcp_runtime.errors import RunError
from dcp_runtime.transport.choice import GroupTransportName

WorldTransport: TypeAlias = Literal[GroupTransportName, "loopback"]

STARTUP_S = 60.0
"""Extra seconds that a silent process gets before its first sign of life: it imports torch."""
GRACE_S = 3.0  # seconds in which the other ranks may report their view of a first failure
ENTRY = "dcp_runtime.launch.worker:start"  # starts a rank; the arguments are its place in the world
_Answer = tuple[dict[str, Any], bytes]  # Any: JSON values


@dataclass(slots=True)
class _Rank:
    """One worker process and its last message; `steps` and `doing` are as in `progress_of`."""

    number: int
    worker: Worker
    future: "Future[_Answer]" = field(default_factory=Future)
    last_sign_s: float = 0.0
    has_spoken: bool = False
    steps: int | None = None
    doing: str | None = None
    division: int | None = None
    busy_rank: int | None = None  # works, or worked last; a process may hold all ranks
    last_step_s: float = 0.0

    def begin(self, future: "Future[_Answer]") -> None:
        """Note a job that the process has received."""
        self.future, self.last_sign_s, self.doing = future, time.monotonic(), None

    def note(self, state: Mapping[str, Any]) -> None:
        """Note a sign of life, with the progress that `progress_of` found."""
        self.last_sign_s, self.has_spoken = time.monotonic(), True
        if (state["steps"], state["doing"]) != (self.steps, self.doing):
            self.last_step_s = self.last_sign_s
            if state["doing"] is not None:
                self.division, self.busy_rank = state["division"], state["rank"]
            self.steps, self.doing = state["steps"], state["doing"]

    @property
    def lost(self) -> WorkerLost | None:
        """The end of its process, if that ended before it replied."""
        error = self.future.exception() if self.future.done() else None
        return error if isinstance(error, WorkerLost) else None

    @property
    def failure(self) -> dict[str, Any] | None:
        """The failure that it replied, if it did."""
        if not self.future.done() or self.lost is not None:
            return None
        failure: dict[str, Any] | None = self.future.result()[0].get("failure")
        return failure


@dataclass(slots=True)
class ProcessWorld:
    """Starts `ranks` processes and runs jobs on them; a context manager.

    Attributes:
        ranks: how many processes.
        timeout_s: how long a rank may keep the others waiting before it counts as stalled.
        transport: ``"gloo"`` or ``"nccl"``, a process per rank; or ``"loopback"``, where all ranks
            are threads of one process.

    A failed job ends the world: its processes are gone and it runs nothing more.
    """

    ranks: int
    timeout_s: float
    transport: WorldTransport = "gloo"
    _members: list[_Rank] = field(default_factory=list)
    _store: int | None = None

    def __enter__(self) -> "ProcessWorld":
        # The ranks find each other in this file. It has no name, so no other run can take it, and
        # it ends with its processes.
        self._store = os.memfd_create("dcp-store")
        # One thread per rank. Gloo uses the loopback device, whatever the host's name resolves to.
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        size = 1 if self.transport == "loopback" else self.ranks
        try:
            for rank in range(size):
                place = (rank, size, self.timeout_s, self.transport, self._store)
                program = WorkerProgram(
                    ENTRY, tuple(map(str, place)), environment=environment, files=(self._store,),
                    is_quiet=True,
                )  # fmt: skip
                worker = Worker(program, f"rank {rank}")
                self._members.append(_Rank(rank, worker))
                worker.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Process of each rank; empty once the world has ended."""
        return tuple(member.worker.pid for member in self._members)

    def run(self, job: Mapping[str, object], blob: bytes = b"") -> list[_Answer]:
        """Send a job to all processes and return their answers in rank order.

        Raises:
            RunError: names the rank that died, stalled or failed; all processes have ended then.
        """
        if not self._members:
            raise RunError("the processes of this world have ended; open a new one")
        with ThreadPoolExecutor(len(self._members)) as threads:  # one for each process: they block
            try:
                for member in self._members:
                    call = member.worker.call
                    member.begin(threads.submit(call, job, blob=blob, on_note=member.note))
                self._collect()
                error = self._find_error()
            except BaseException:
                self.close()  # the threads end with the processes
                raise
            if error is not None:
                self.close()
                raise error
        return [member.future.result() for member in self._members]

    def _collect(self) -> None:
        """Wait until every rank has replied, or a failure's grace is over."""
        give_up_s = float("inf")
        while waiting := [m.future for m in self._members if not m.future.done()]:
            # No longer: a silent rank completes nothing, so only these looks find it.
            wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            now = time.monotonic()
            if any(self._has_failed(m, now) for m in self._members):
                # Other ranks often know better which one failed, and report within the grace.
                give_up_s = min(give_up_s, now + GRACE_S)
            if now > give_up_s or self._is_explained():
                return

    def _has_failed(self, member: _Rank, now: float) -> bool:
        """Return whether a rank has ended or failed, is silent, or is late though it computes."""
        if member.future.done():
            return member.lost is not None or member.failure is not None
        allowed = self.timeout_s + (0.0 if member.has_spoken else STARTUP_S)
        # A rank that waits for another has no work of its own that could be late.
        is_late = member.doing is not None and now - member.last_step_s > self.timeout_s
        return now - member.last_sign_s > allowed or is_late

    def _is_explained(self) -> bool:
        """Return whether all missing replies are those of ranks that others blame."""
        failures = [m.failure for m in self._members if m.failure is not None]
        blamed = {failure["rank"] for failure in failures if failure["rank"] is not None}
        open_ranks = {m.number for m in self._members if not m.future.done()}
        return bool(blamed) and open_ranks <= blamed

    def _find_error(self) -> RunError | None:
        """Return the error to raise, from the most certain evidence."""
        failures = [m.failure for m in self._members if m.failure is not None]
        blaming = [failure for failure in failures if failure["rank"] is not None]
        # A process that ended, then an error of a rank's own; then blame by its peers, which may
        # follow from either; then silence; at last lost contact, which blames no rank.
        for member in self._members:
            if member.lost is not None:
                return _lost_error(member.number, member.lost, blaming)
        for member in self._members:
            if member.failure is not None and member.failure["is_own"]:
                return RunError(member.failure["message"], rank=member.number)
        if blaming:
            first = blaming[0]
            return RunError(first["message"], rank=first["rank"], division=first["division"])
        silent = next((m for m in self._members if not m.future.done()), None)
        if silent is not None:
            return self._silent_error(silent)
        return RunError(failures[0]["message"]) if failures else None

    def _silent_error(self, member: _Rank) -> RunError:
        limit = f"within {self.timeout_s:g} s"
        rank, division = member.busy_rank, member.division
        what = f"no progress {limit} in {member.doing}"
        if member.doing is None:
            rank, division, what = member.number, None, f"no sign of life {limit}"
        return RunError(f"rank {rank} stalled: {what}", rank=rank, division=division)

    def close(self) -> None:
        """End every process; safe to call twice."""
        # All processes end before the first is waited for.
        for member in self._members:
            member.worker.end()
        for member in self._members:
            member.worker.close()
        self._members = []
        if self._store is not None:
            os.close(self._store)
            self._store = None


def _lost_error(rank: int, lost: WorkerLost, blaming: list[dict[str, Any]]) -> RunError:
    named = [failure for failure in blaming if failure["rank"] == rank]
    if named:
        error = f"{lost}; {named[0]['message']}"
        return RunError(error, rank=rank, division=named[0]["division"])
    log = "".join(f"\n  {line}" for line in lost.log.splitlines())
    return RunError(f"{lost}{log}", rank=rank)
