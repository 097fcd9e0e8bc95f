"""`ProcessWorld`: one process per rank of this machine; they run plans one after the other.

Every rank is ``python -m dcp_runtime.launch.worker`` on this machine. Jobs and replies are JSON
lines over pipes, plans and tensors are files in a temporary folder. Whatever happens, no process is
left behind: the world ends all of them, and each ends by itself when its standard input closes.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from dcp_runtime.errors import RunError

if TYPE_CHECKING:
    from dcp_runtime.launch.jobs import TransportName

STARTUP_S = 60.0
"""Extra seconds that a silent process gets before its first sign of life: it imports torch."""
GRACE_S = 3.0
"""Seconds that the other ranks get to say what they know after a first failure."""
LOG_LINES = 15
WORKER = ("-m", "dcp_runtime.launch.worker")
"""Python's arguments that start a rank; its place in the world follows."""


@dataclass(slots=True)
class _Rank:
    """One process: how it is reached and what it said last."""

    number: int
    process: "subprocess.Popen[bytes]"
    log: Path
    buffer: bytes = b""
    last_sign_s: float = 0.0
    is_started: bool = False
    steps: int = -1
    doing: str | None = None
    division: int | None = None
    busy_rank: int = -1
    last_step_s: float = 0.0
    reply: dict[str, Any] | None = None  # Any: a JSON document
    has_ended: bool = False

    @property
    def pipe(self) -> IO[bytes]:
        """The pipe from which its replies come."""
        assert self.process.stdout is not None, "started with a pipe"
        return self.process.stdout


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
    transport: "TransportName" = "gloo"
    _members: list[_Rank] = field(default_factory=list)
    _folder: "tempfile.TemporaryDirectory[str] | None" = None
    _jobs: int = 0

    def __enter__(self) -> "ProcessWorld":
        self._folder = tempfile.TemporaryDirectory(prefix="dcp-run-")
        try:
            for rank in range(self._num_processes):
                self._members.append(self._start(rank))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """The folder of plans, tensors and logs of the jobs; gone after `close`."""
        assert self._folder is not None, "used outside its with statement"
        return Path(self._folder.name)

    @property
    def _num_processes(self) -> int:
        return 1 if self.transport == "loopback" else self.ranks

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each rank; empty once the world has ended."""
        return tuple(member.process.pid for member in self._members)

    def _start(self, rank: int) -> _Rank:
        log = self.folder / f"rank-{rank}.log"
        # One thread per rank, and gloo on the loopback device whatever the host's name resolves to.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        arguments = [str(self.folder), str(rank), str(self._num_processes), str(self.timeout_s)]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, *WORKER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone; we end them in order
            )
        return _Rank(rank, process, log)

    def next_job(self) -> str:
        """Return a name that no job of this world has had.

        Raises:
            RunError: if the processes have ended.
        """
        if not self._members:
            raise RunError("the processes of this world have ended; open a new one")
        self._jobs += 1
        return f"job-{self._jobs}"

    def run(self, job: Mapping[str, object]) -> list[dict[str, Any]]:
        """Send a job to all ranks and give their replies in rank order.

        Raises:
            RunError: names the rank that died, stalled or failed; all processes have ended then.
        """
        line = (json.dumps(job) + "\n").encode()
        now = time.monotonic()
        for member in self._members:
            member.reply, member.last_sign_s, member.doing = None, now, None
            assert member.process.stdin is not None, "started with a pipe"
            try:
                member.process.stdin.write(line)
                member.process.stdin.flush()
            except BrokenPipeError:
                member.has_ended = True
        try:
            self._collect()
            error = self._find_error()
        except BaseException:
            self.close()
            raise
        if error is not None:
            self.close()
            raise error
        return [member.reply for member in self._members if member.reply is not None]

    def _collect(self) -> None:
        """Read replies until every rank has given one, or a failure's grace is over."""
        give_up_s = float("inf")
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                selector.register(member.pipe, selectors.EVENT_READ, member)
            while any(m.reply is None and not m.has_ended for m in self._members):
                for key, _ in selector.select(timeout=0.1):
                    if not _read(key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if any(self._has_failed(m, now) for m in self._members):
                    give_up_s = min(give_up_s, now + GRACE_S)
                if now > give_up_s or self._is_explained():
                    return

    def _has_failed(self, member: _Rank, now: float) -> bool:
        if member.reply is not None:
            return bool(member.reply["kind"] == "failed")
        return member.has_ended or self._is_silent(member, now) or self._is_stuck(member, now)

    def _is_explained(self) -> bool:
        """Return whether nobody but the ranks that others blame has yet to reply."""
        replies = [m.reply for m in self._members if m.reply is not None]
        blamed = {reply["rank"] for reply in replies if reply.get("rank") is not None}
        open_ranks = {m.number for m in self._members if m.reply is None and not m.has_ended}
        return bool(blamed) and open_ranks <= blamed

    def _is_silent(self, member: _Rank, now: float) -> bool:
        allowed = self.timeout_s + (0.0 if member.is_started else STARTUP_S)
        return member.reply is None and now - member.last_sign_s > allowed

    def _is_stuck(self, member: _Rank, now: float) -> bool:
        """Return whether a rank that waits for nobody is late with its next instruction."""
        is_late = now - member.last_step_s > self.timeout_s
        return member.reply is None and member.doing is not None and is_late

    def _find_error(self) -> RunError | None:
        """Return what went wrong, the most certain evidence first."""
        failed = [m for m in self._members if m.reply is not None and m.reply["kind"] == "failed"]
        ended = [m for m in self._members if m.reply is None and m.has_ended]
        silent = [m for m in self._members if m.reply is None and not m.has_ended]
        blaming = [m.reply for m in failed if m.reply and m.reply.get("rank") is not None]
        division = blaming[0]["division"] if blaming else None
        if ended:
            return _ended_error(ended[0], blaming)
        for member in failed:
            if member.reply and member.reply["is_own"]:
                return _own_error(member)
        if blaming:
            return RunError(blaming[0]["message"], rank=blaming[0]["rank"], division=division)
        if silent and silent[0].doing is not None:
            return RunError(
                f"rank {silent[0].busy_rank} stalled: no progress within {self.timeout_s:g} s in "
                f"{silent[0].doing}",
                rank=silent[0].busy_rank,
                division=silent[0].division,
            )
        if silent:
            return RunError(
                f"rank {silent[0].number} stalled: no sign of life within {self.timeout_s:g} s",
                rank=silent[0].number,
            )
        return RunError(str(failed[0].reply["message"])) if failed and failed[0].reply else None

    def close(self) -> None:
        """End every process and remove the folder; safe to call twice."""
        for member in self._members:
            if member.process.poll() is None:
                member.process.kill()  # ends a stopped process too, which SIGTERM would not
        for member in self._members:
            member.process.wait()
            for pipe in (member.process.stdin, member.process.stdout):
                assert pipe is not None, "started with pipes"
                try:
                    pipe.close()
                except BrokenPipeError:  # a line that the process did not live to read
                    continue
        self._members = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _read(member: _Rank) -> bool:
    """Take in what a rank wrote; `False` once its pipe has ended."""
    data = os.read(member.pipe.fileno(), 65536)
    if not data:
        member.has_ended = True
        return False
    member.last_sign_s, member.is_started = time.monotonic(), True
    *lines, member.buffer = (member.buffer + data).split(b"\n")
    for line in lines:
        message = json.loads(line)
        if message["kind"] != "alive":
            member.reply = message
        elif (message["steps"], message["doing"]) != (member.steps, member.doing):
            member.steps, member.doing = message["steps"], message["doing"]
            member.last_step_s = time.monotonic()
            if member.doing is not None:
                member.division, member.busy_rank = message["division"], message["rank"]
    return True


def _ended_error(member: _Rank, blaming: list[dict[str, Any]]) -> RunError:
    code = member.process.wait(timeout=GRACE_S)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    message = f"rank {member.number} (process {member.process.pid}) {how}"
    named = [v for v in blaming if v["rank"] == member.number]
    if named:
        error = f"{message}; {named[0]['message']}"
        return RunError(error, rank=member.number, division=named[0]["division"])
    return RunError(f"{message}{_log_of(member)}", rank=member.number)


def _own_error(member: _Rank) -> RunError:
    assert member.reply is not None, "a failed rank has replied"
    text = str(member.reply["message"])
    if member.reply.get("is_bug"):
        text = f"rank {member.number} failed: {text}{_log_of(member)}"
    return RunError(text, rank=member.number)


def _log_of(member: _Rank) -> str:
    lines = member.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n  " + "\n  ".join(lines) if lines else ""
