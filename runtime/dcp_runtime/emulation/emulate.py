"""`emulate_plan` runs a plan's programs on an emulated cluster, and compares with the prediction.

First in virtual time, where the host takes none; then several times in dilated time, where it does.
The two differ by the share of the host alone.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch._C._distributed_c10d import HashStore  # torch.distributed.HashStore, with its type

from dcp_planner import Direction, Plan, Trace, simulate
from dcp_planner.simulation import EVENT_KINDS, PlanModel
from dcp_planner.tables import expand_head_groups
from dcp_runtime.emulation.clocks import Clock, DilatedClock, VirtualClock
from dcp_runtime.emulation.fabric import Costs, Fabric
from dcp_runtime.emulation.interpreter import EmulatedInterpreter, EmulatedPass
from dcp_runtime.emulation.transport import EmulatedTransport
from dcp_runtime.errors import RunError
from dcp_runtime.kernels.kernel import ReferenceKernel
from dcp_runtime.plans.device_plan import DevicePlan, outline_device
from dcp_runtime.transport.recorder import Recorder, merge_timelines
from dcp_runtime.transport.transport import without_overlap

MOST_DEVICES = 32  # most devices that are emulated; two cores carry them
MOST_DILATION = 1e6
REPEATS = 3
MOST_HOST_SHARE = 0.05  # share of the measured time that the host may add
_AIMED_SHARE = 0.04  # of the host's own work in a run; it adds a fraction of that to the time
_MOST_TRIALS = 3
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Emulation:
    """Times of a plan on an emulated cluster, in seconds of that cluster.

    Attributes:
        devices: of the plan.
        dilation: real seconds for each emulated one.
        predicted_s: what the simulator predicts for the plan.
        virtual_s: in virtual time, where the host takes none.
        seconds: of each repeat, forward and backward.
        trace: measured events of the median repeat.
        is_overlapped: whether messages travelled during compute.
    """

    devices: int
    dilation: float
    predicted_s: float
    virtual_s: float
    seconds: tuple[float, ...]
    trace: Trace
    is_overlapped: bool

    @property
    def median_s(self) -> float:
        """The time of the middle repeat."""
        return sorted(self.seconds)[len(self.seconds) // 2]

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.median_s / self.predicted_s if self.predicted_s else 1.0

    @property
    def spread(self) -> float:
        """Slowest over fastest repeat, less 1."""
        return max(self.seconds) / min(self.seconds) - 1 if min(self.seconds) else 0.0

    @property
    def host_share(self) -> float:
        """Share of the measured time that this machine's own work added."""
        return max(0.0, 1 - self.virtual_s / self.median_s) if self.median_s else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ReadyPlan:
    """A plan made ready to be emulated; durations are nanoseconds of each instruction."""

    model: PlanModel  # of its prediction
    parts: tuple[DevicePlan, ...]  # of each device
    costs: Costs
    durations: dict[Direction, list[np.ndarray[tuple[int], np.dtype[np.int64]]]]
    slowdown: float  # of attention while messages of its device are under way
    host_ns: dict[Direction, int]  # of each direction, work of the busiest host that runs ahead
    overlap: bool  # messages travel during compute

    @classmethod
    def of(cls, plan: Plan, *, overlap: bool) -> "ReadyPlan":
        """Outline the devices of a plan, and price their work; O(plan)."""
        flat, model = expand_head_groups(plan), PlanModel.of(plan)
        parts = tuple(outline_device(flat, plan.head_groups, d) for d in range(plan.num_devices))
        durations, host_ns, slowdown = {}, {}, 1.0
        for direction in _DIRECTIONS:
            prices, steps = model.price(direction), model.directions[direction].steps
            durations[direction] = np.split(prices.duration_ns, steps.row_ptr[1:-1])
            is_ahead = plan.cluster.host_runs_ahead
            host_ns[direction] = int(prices.host_ns.max(initial=0)) if is_ahead else 0
            slowdown = prices.slowdown
        costs = Costs.of_plan(model, flat)
        return cls(model, parts, costs, durations, slowdown, host_ns, overlap)


def check_emulation(plan: Plan, dilation: float | None) -> None:
    """Refuse a plan for too many devices, and a dilation that makes no sense."""
    if plan.num_devices > MOST_DEVICES:
        raise RunError(
            f"expected a plan for at most {MOST_DEVICES} devices to emulate, got "
            f"{plan.num_devices}; plan for fewer devices, or look at its prediction with "
            "`dcpm simulate`"
        )
    if dilation is not None and not 1 <= dilation <= MOST_DILATION:
        raise RunError(
            f"expected a dilation of 1 to {MOST_DILATION:.0f} real seconds for an emulated one, "
            f"got {dilation:g}"
        )


def emulate_plan(
    plan: Plan,
    dilation: float | None = None,
    *,
    overlap: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Emulation:
    """Run a plan, forward and backward, on an emulated cluster of its devices.

    Every device is a thread that runs its program in the interpreter; attention, reductions and the
    host take the time that the cost model predicts, and messages share their ports fairly.

    Args:
        plan: a valid plan for at most `MOST_DEVICES` devices.
        dilation: real seconds for an emulated one; ``None``: so many that the host adds little.
        overlap: send while computing.
        say: is told what is done next.

    Raises:
        RunError: if the plan has too many devices, or the dilation makes no sense.
    """
    check_emulation(plan, dilation)
    ready = ReadyPlan.of(plan, overlap=overlap)
    predicted_s = simulate(plan).seconds()
    say(f"emulating {plan.num_devices} devices in virtual time")
    virtual = run_once(ready, None)
    begin_s = time.process_time()
    run_once(ready, None)
    host_s = time.process_time() - begin_s  # without what the first run compiled and loaded
    virtual_s = virtual.seconds()
    wanted = host_s / _AIMED_SHARE / max(virtual_s, 1e-9)
    chosen = dilation or float(min(max(1.0, float(f"{wanted:.1g}")), MOST_DILATION))
    trials = 1 if dilation is not None else _MOST_TRIALS
    while True:
        found = _repeat(ready, chosen, say)
        spent = [trace.seconds() for trace in found]
        median = found[int(np.argsort(spent)[len(spent) // 2])]
        result = Emulation(
            plan.num_devices, chosen, predicted_s, virtual_s, tuple(spent), median, overlap
        )
        trials -= 1
        if not trials or result.host_share <= MOST_HOST_SHARE:
            return result
        say(f"this machine added {result.host_share:.0%}: again, more slowly")
        chosen *= 2.5


def _repeat(ready: ReadyPlan, dilation: float, say: Callable[[str], None]) -> list[Trace]:
    found: list[Trace] = []
    for number in range(REPEATS):
        about = ""
        if found:
            about = f", {statistics.mean(t.seconds() for t in found) * dilation:.1f} s each"
        say(f"emulating {dilation:g} times slower, run {number + 1} of {REPEATS}{about}")
        found.append(run_once(ready, dilation))
    return found


class EmulatedRun:
    """Ranks of one plan as threads, whose own code runs between the calls of `attend`.

    Args:
        plan: a valid plan for at most `MOST_DEVICES` devices.
        dilation: real seconds for an emulated one; ``None``: virtual time, in which only attention
            takes time.
        overlap: send while computing.

    >>> from dcp_dsl import Sample, Spec, block_sparsity
    >>> from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
    >>> mask = Spec.from_text("").mask("causal").bind(Sample(length=256))
    >>> cluster = Cluster(devices_per_node=2)
    >>> plan = build_plan(block_sparsity([mask], 64, 64), ModelShape(), cluster, PlanConfig())
    >>> run, ranks = EmulatedRun(plan), []
    >>> def work(rank):
    ...     run.attend(rank, "forward")
    ...     ranks.append(rank)
    >>> run.run(work).source, sorted(ranks)
    ('measured', [0, 1])
    """

    def __init__(self, plan: Plan, dilation: float | None = None, *, overlap: bool = True) -> None:
        check_emulation(plan, dilation)
        self._prepare(ReadyPlan.of(plan, overlap=overlap), dilation)

    @classmethod
    def of(cls, ready: ReadyPlan, dilation: float | None) -> "EmulatedRun":
        """Make another run of a plan that is ready."""
        made = cls.__new__(cls)
        made._prepare(ready, dilation)
        return made

    def _prepare(self, ready: ReadyPlan, dilation: float | None) -> None:
        size, fabric = len(ready.parts), Fabric(ready.costs)
        self._ready = ready
        self._clock: Clock = (
            VirtualClock(size, fabric) if dilation is None else DilatedClock(size, fabric, dilation)
        )
        store, is_grouped = HashStore(), ready.costs.order == "grouped"
        self._recorders = [Recorder(rank, is_on=True, clock=self._clock) for rank in range(size)]
        own = [
            EmulatedTransport(self._clock, rank, store, is_grouped=is_grouped)
            for rank in range(size)
        ]
        self._ranks = [
            EmulatedInterpreter(
                ready.parts[rank], ReferenceKernel(),
                each if ready.overlap else without_overlap(each), self._recorders[rank],
                False, clock=self._clock,
                durations_ns={way: spent[rank] for way, spent in ready.durations.items()},
                slowdown=ready.slowdown,
            )
            for rank, each in enumerate(own)
        ]  # fmt: skip

    def attend(self, rank: int, direction: Direction) -> None:
        """Run one direction of a rank's program; collective, on the rank's own thread.

        All ranks begin together: the next direction begins when the slowest has ended this one.
        """
        self._clock.meet()
        size_bytes = self._ready.model.flat.transfers.size_bytes
        self._ranks[rank].run(EmulatedPass(direction, size_bytes))

    def run(self, work: Callable[[int], None]) -> Trace:
        """Call `work` with each rank, on a thread each, and return what all ranks did.

        Raises:
            Exception: the first that a rank raises; all have ended then.
        """
        self._clock.run(work)
        timeline = merge_timelines([each.table() for each in self._recorders], 0.0)
        return held_by_hosts(timeline.trace, self._ready.host_ns, len(self._ranks))


def run_once(ready: ReadyPlan, dilation: float | None) -> Trace:
    """Run both directions, in virtual time or in slowed time, and return what all ranks did."""
    made = EmulatedRun.of(ready, dilation)

    def work(rank: int) -> None:
        for direction in _DIRECTIONS:
            made.attend(rank, direction)

    return made.run(work)


def emulate_once(plan: Plan, *, overlap: bool = True) -> Trace:
    """Run a plan in virtual time; like `emulate_plan`, without the host's share."""
    ready = ReadyPlan.of(plan, overlap=overlap)
    return run_once(ready, None)


def held_by_hosts(trace: Trace, host_ns: dict[Direction, int], devices: int) -> Trace:
    """Add the time for which devices wait for hosts that run ahead, as the simulator does."""
    # In a stack of equal layers a direction takes as long as its devices, or as long as the busiest
    # host, whichever is longer. What the host needs longer stands at the begin, on all devices.
    begin_ns, held = 0, []
    start, end, ready = trace.start_ns.copy(), trace.end_ns.copy(), trace.ready_ns.copy()
    for is_backward, direction in enumerate(_DIRECTIONS):
        chosen = trace.is_backward == bool(is_backward)
        if not chosen.any():
            continue
        taken = int(trace.end_ns[chosen].max() - trace.start_ns[chosen].min())
        extra = max(0, host_ns[direction] - taken)
        for times in (start, end, ready):
            times[chosen] += extra if not is_backward else begin_ns + extra
        if extra:
            first = int(start[chosen].min()) - extra
            held += [(first, first + extra, device, is_backward) for device in range(devices)]
        begin_ns += extra
    moved = replace(trace, start_ns=start, end_ns=end, ready_ns=ready)
    if not held:
        return moved
    columns: list[Any] = [  # Any: columns of several types
        moved.start_ns, moved.end_ns, moved.ready_ns, moved.device, moved.kind, moved.is_backward,
        moved.division, moved.peer, moved.size_bytes, moved.transfer,
    ]  # fmt: skip
    kind = EVENT_KINDS.index("copy")
    rows = np.column_stack(columns).astype(np.int64)
    added = [(a, b, a, device, kind, backward, 0, -1, 0, -1) for a, b, device, backward in held]
    names = [*(moved.name_of(event) for event in range(len(moved))), *["copy"] * len(held)]
    return Trace.of_rows("measured", np.concatenate([rows, np.array(added, np.int64)]), names)
