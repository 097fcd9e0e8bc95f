"""Ranks of an emulated cluster: a forked process per device runs programs over gloo's sockets.

The interpreter, the programs and `GlooTransport` are those of the runtime. Kernels sleep for the
time that the cost model predicts, times the dilation; messages carry the plan's bytes.
"""

import heapq
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import emulated_network
import torch
import torch.distributed as dist
from torch import Tensor

from dcp_planner import Direction, Plan
from dcp_runtime.emulation.emulate import ReadyPlan
from dcp_runtime.emulation.interpreter import EmulatedInterpreter, EmulatedPass
from dcp_runtime.emulation.transport import Turns
from dcp_runtime.kernels.kernel import ReferenceKernel
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.plans.transfers import Bundle
from dcp_runtime.transport.gloo_transport import GlooTransport, Posted
from dcp_runtime.transport.recorder import HostClock, Recorder
from dcp_runtime.transport.transport import Parcel, RowBytes

TIMEOUT_S = 120.0
LEAD_S = 0.05  # seconds between the agreement on a begin and the begin
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


class SleepingClock(HostClock):
    """Real time; a virtual nanosecond takes `dilation` of it."""

    def __init__(self, dilation: float) -> None:
        self.dilation = dilation

    def sleep(self, duration_ns: int) -> None:
        """Stand still for a while of virtual time."""
        time.sleep(duration_ns * self.dilation / 1e9)


class Later:
    """Calls functions at given moments, on a thread of its own."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._changed, self._count = threading.Condition(), 0
        threading.Thread(target=self._run, daemon=True).start()

    def at(self, moment_s: float, call: Callable[[], None]) -> None:
        """Call a function at a moment of the monotonic clock."""
        with self._changed:
            self._count += 1
            heapq.heappush(self._due, (moment_s, self._count, call))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    left = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(left)
                _, _, call = heapq.heappop(self._due)
            call()


class SocketTransport(GlooTransport):
    """`GlooTransport` whose messages arrive a latency later, in groups where NCCL groups them."""

    def __init__(self, dilation: float) -> None:
        super().__init__(None, TIMEOUT_S)
        self._dilation, self._later, self._lock = dilation, Later(), threading.RLock()
        self._ready: ReadyPlan | None = None
        self._turns: Turns | None = None
        self.under_way = 0

    def take(self, ready: ReadyPlan) -> None:
        """Take the plan that runs next."""
        self._ready = ready

    def begin(self, part: DevicePlan, direction: Direction, row_bytes: RowBytes) -> None:
        """Begin a call of a plan."""
        super().begin(part, direction, row_bytes)
        assert self._ready is not None
        # Every message has a thread of its own: ends come in any order.
        self._passed_on = frozenset(t.index for t in part.transfers.values())
        is_grouped = self._ready.costs.order == "grouped"
        self._turns = Turns(part, direction) if is_grouped else None

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start parcels, each when the turn of its group has come."""
        with self._lock:
            for parcel in parcels:
                self.under_way += 1
                parcel.then(partial(self._ended, parcel))
                super().start([parcel] if self._turns is None else self._turns.enter(parcel))

    def _ended(self, parcel: Parcel) -> None:
        with self._lock:
            self.under_way -= 1
            if self._turns is not None:
                super().start(self._turns.end(parcel))

    def _end(self, posted: Posted) -> None:
        parcel = posted.parcel
        if parcel.bundle.is_send or self._ready is None:
            super()._end(posted)
            return
        error = None
        try:
            for work in posted.works:
                work.wait(timedelta(seconds=TIMEOUT_S))
        except RuntimeError as failure:
            error = str(failure)
        latency_ns = int(self._ready.costs.latency_ns[parcel.bundle.index])
        due_s = time.monotonic() + latency_ns * self._dilation / 1e9
        self._later.at(due_s, partial(parcel.finish, error))


class RealPass(EmulatedPass):
    """A pass whose messages have their bytes: parts of two pieces of memory, of any content."""

    def __init__(self, direction: Direction, ready: ReadyPlan, memory: list[Tensor]) -> None:
        super().__init__(direction, ready.model.flat.transfers.size_bytes)
        self._memory = memory

    def _part(self, bundle: Bundle, which: int) -> tuple[Tensor, ...]:
        size = int(self._size_bytes[[t.index for t in bundle.transfers]].sum())
        if len(self._memory[which]) < size:
            self._memory[which] = torch.zeros(size, dtype=torch.uint8)
        return (self._memory[which][:size],)

    def outgoing(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """Return memory to send from."""
        return self._part(bundle, 0)

    def incoming(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """Return memory to receive into."""
        return self._part(bundle, 1)


def run_rank(
    rank: int, size: int, folder: Path, settings: Sequence[ReadyPlan], dilation: float, repeats: int
) -> None:
    """Run all plans on one rank; a line of JSON for each run goes into the rank's file."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = emulated_network.INTERFACE
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    transport, clock = SocketTransport(dilation), SleepingClock(dilation)
    memory = [torch.zeros(0, dtype=torch.uint8) for _ in range(2)]
    with (folder / f"rank-{rank}.jsonl").open("a") as out:
        # The first plan runs twice, because its first run connects.
        for number, ready in enumerate([settings[0], *settings], -1):
            transport.take(ready)
            for _ in range(repeats if number >= 0 else 1):
                spent = [
                    _run_direction(rank, transport, clock, ready, direction, memory)
                    for direction in DIRECTIONS
                ]
                if number >= 0:
                    out.write(json.dumps({"job": number, "end_s": spent}) + "\n")
                    out.flush()
    transport.exchange_notes("", "the end")
    os._exit(0)  # a fork of a process with torch has nothing of its own to end


def _run_direction(
    rank: int,
    transport: SocketTransport,
    clock: SleepingClock,
    ready: ReadyPlan,
    direction: Direction,
    memory: list[Tensor],
) -> float:
    """Run one direction from a moment that all ranks agree on; return the seconds to its end."""
    recorder = Recorder(rank, is_on=False, clock=clock)
    durations = {name: spent[rank] for name, spent in ready.durations.items()}
    interpreter = EmulatedInterpreter(
        ready.parts[rank], ReferenceKernel(), transport, recorder, False,
        clock=clock, durations_ns=durations, slowdown=ready.slowdown,
    )  # fmt: skip
    notes = transport.exchange_notes(f"{time.monotonic():.6f}", "the begin")
    begin_s = max(map(float, notes)) + LEAD_S
    time.sleep(max(0.0, begin_s - time.monotonic()))
    interpreter.run(RealPass(direction, ready, memory))
    return time.monotonic() - begin_s


def measure(
    plans: Sequence[Plan],
    dilation: float,
    repeats: int,
    folder: Path,
    done: Callable[[int, list[tuple[float, float]]], None],
) -> None:
    """Run plans for one cluster over sockets; call `done` with seconds of each plan's repeats.

    Raises:
        RuntimeError: if a rank ended before its last plan.
    """
    settings = [ReadyPlan.of(plan, overlap=True) for plan in plans]
    size = plans[0].num_devices
    with emulated_network.network(plans[0].cluster, dilation) as names:
        children = {_fork(rank, names, folder, settings, dilation, repeats): rank
                    for rank in range(size)}  # fmt: skip
        try:
            _collect(children, folder, settings, dilation, repeats, done)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _fork(
    rank: int, names: Sequence[str], folder: Path, settings: Sequence[ReadyPlan], dilation: float,
    repeats: int,
) -> int:  # fmt: skip
    child = os.fork()
    if child:
        return child
    try:
        emulated_network.enter(names[rank])
        run_rank(rank, len(names), folder, settings, dilation, repeats)
    except BaseException as error:
        (folder / f"rank-{rank}.error").write_text(repr(error))
    os._exit(1)


def _collect(
    children: dict[int, int],
    folder: Path,
    settings: Sequence[ReadyPlan],
    dilation: float,
    repeats: int,
    done: Callable[[int, list[tuple[float, float]]], None],
) -> None:
    """Wait for the lines of all ranks, plan by plan."""
    for number, ready in enumerate(settings):
        wanted = (number + 1) * repeats
        while min(map(len, lines := [_lines(folder, rank) for rank in children.values()])) < wanted:
            for child in list(children):
                ended, _ = os.waitpid(child, os.WNOHANG)
                if ended:
                    rank = children.pop(child)
                    path = folder / f"rank-{rank}.error"
                    told = path.read_text() if path.exists() else "no message"
                    raise RuntimeError(f"rank {rank} ended early: {told}")
            time.sleep(0.1)
        found = []
        for repeat in range(wanted - repeats, wanted):
            ends = [each[repeat]["end_s"] for each in lines]
            both = [max(end[way] for end in ends) / dilation for way in range(2)]
            held = [max(s, ready.host_ns[d] / 1e9) for s, d in zip(both, DIRECTIONS, strict=True)]
            found.append((held[0], held[1]))
        done(number, found)


def _lines(folder: Path, rank: int) -> list[dict[str, list[float]]]:
    path = folder / f"rank-{rank}.jsonl"
    if not path.exists():
        return []
    # The last line may be half written.
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")]  # fmt: skip
