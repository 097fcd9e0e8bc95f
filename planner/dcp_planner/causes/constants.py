"""Compare a run with its prediction by class of work, and name the constant behind a difference.

Each class of work, such as attention in forward or messages between nodes, has two or three
constants of the cluster that can make it slower. Each constant is fitted alone, until the class
takes as long in all as it did in the run. Of the fitted constants, the one that comes closest piece
by piece explains the difference: a rate stretches long pieces, a launch all of them alike. Found
constants are kept for the later classes: kernels and the host come first, then messages.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.causes.dependencies import COMPUTE, WAIT, PairedMessages
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import CONSTANTS_OF_WORK, MOST_OVERHEAD_S, MOST_RATE, Cluster
from dcp_planner.model.problem import DIRECTIONS, Direction
from dcp_planner.simulation.simulator import DirectionModel, PlanModel
from dcp_planner.simulation.trace import EVENT_KINDS, Trace
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.plan import Plan
from dcp_planner.tables.programs import ATTENTION, COPY, OPS, REDUCTION

WORTH_FITTING = 0.05
"""A class whose time differs from the prediction by a smaller share needs no constant."""
EXPLAINS = 0.5
"""A constant is named if it removes at least this share of a class's difference."""
SIZE_CLASSES = {"up to 64 KiB": 1 << 16, "up to 1 MiB": 1 << 20, "larger": 1 << 62}
_LINKS = ("inside nodes", "between nodes", "through the spine")
_STANDS_FOR = {
    "backward_flops_per_s": "flops_per_s", "inter_latency_s": "latency_s",
    "spine_bytes_per_s": "inter_bytes_per_s",
}  # fmt: skip
"""The constant that a cluster uses in place of one that it does not give."""
_AS_MUCH = 0.02  # shares that differ by less are alike
_STEPS = 8  # of a fit: the time of most classes is linear in their constants, so few are enough


@dataclass(frozen=True, slots=True)
class ClassTime:
    """Seconds of one class of work, predicted and measured."""

    name: str  # of the class, messages with their sizes
    pieces: int  # instructions, messages or, of the host, directions on devices
    # predicted_s, measured_s: of all pieces together; a message counts from its launch by both ends
    # until it has arrived
    predicted_s: float
    measured_s: float
    differs: bool  # whether the class, of all sizes, took another time than predicted
    # constant of the cluster that explains the difference; `None`: no single one
    constant: str | None
    # now, set_to: its present value, and the value that explains the run; 0 without a constant
    now: float
    set_to: float
    explains: float  # share of the difference, piece by piece, that the constant removes


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run beside its prediction."""

    # predicted_s, measured_s: forward and backward
    predicted_s: float
    measured_s: float
    fitted_s: float  # predicted with all found constants
    classes: tuple[ClassTime, ...]  # times of the classes of work, with their constants
    cluster: Cluster  # the plan's cluster with the found constants

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts and numbers."""
        return {
            "predicted_s": self.predicted_s, "measured_s": self.measured_s,
            "fitted_s": self.fitted_s, "classes": [asdict(one) for one in self.classes],
            "fitted_cluster": self.cluster.to_json(),
        }  # fmt: skip


def compare_with_run(plan: Plan, trace: Trace) -> RunComparison:
    """Compare a plan's prediction with a run of it; costs some 100 predictions."""
    flat, messages = expand_head_groups(plan), PairedMessages.of(trace)
    sizes = flat.transfers.size_bytes.copy()
    sizes[trace.transfer[messages.send]] = trace.size_bytes[messages.send]  # of the run's dtype
    sent = replace(flat, transfers=replace(flat.transfers, size_bytes=sizes))
    passes = _passes_of(trace)
    pieces = _Pieces.of(PlanModel.of(sent), trace, passes, messages)
    cluster, found = plan.cluster, dict[str, _Explanation]()
    for name in CONSTANTS_OF_WORK:
        found[name] = pieces.explain(name, cluster, tuple(found.values()))
        if found[name].constant:
            cluster = _with_cost(cluster, found[name].constant, found[name].cost)
    predicted, fitted = (pieces.model.predict(c).seconds for c in (plan.cluster, cluster))
    return RunComparison(
        predicted, _seconds(trace, passes), fitted, pieces.classes(found, plan.cluster), cluster
    )


@dataclass(frozen=True, slots=True)
class _Pass:
    """One device's run of one direction of one layer: rows of the trace, the copy first."""

    device: int
    is_backward: bool
    layer: int
    rows: Ints


def _passes_of(trace: Trace) -> list[_Pass]:
    """Cut the work and waits of every device where it begins a direction."""
    main = np.flatnonzero((trace.lane == COMPUTE) | (trace.lane == WAIT))
    main = main[np.lexsort((trace.end_ns[main], trace.start_ns[main], trace.device[main]))]
    begins = np.flatnonzero(trace.kind[main] == EVENT_KINDS.index("copy"))
    found, layers = [], Counter[tuple[int, bool]]()
    for rows in np.split(main, begins)[1:]:
        side = int(trace.device[rows[0]]), bool(trace.is_backward[rows[0]])
        # A pass reaches to the next copy of any device, so events of the next device may follow.
        found.append(_Pass(*side, layers[side], rows[trace.device[rows] == side[0]]))
        layers[side] += 1
    return found


def _seconds(trace: Trace, passes: Sequence[_Pass]) -> float:
    total = 0.0
    for backward in (False, True):
        spans: dict[int, list[tuple[int, int]]] = {}
        for one in passes:
            if one.is_backward == backward:
                ends = int(trace.start_ns[one.rows[0]]), int(trace.end_ns[one.rows].max())
                spans.setdefault(one.layer, []).append(ends)
        times = [max(b for _, b in span) - min(a for a, _ in span) for span in spans.values()]
        total += float(np.median(times)) / 1e9 if times else 0.0
    return total


@dataclass(frozen=True, slots=True)
class _Explanation:
    """A constant with its cost (see `_cost`) and the share that it explains; by default none."""

    constant: str = ""
    cost: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Pieces of work of both directions: instructions, then messages, ``[N]``."""

    model: PlanModel  # the plan's model, which predicts them
    steps: tuple[Ints, ...]  # rows of the instructions of each direction that take time
    measured: Floats  # float64 `[N]`, seconds in the run, the median of its layers; NaN: not in it
    size_bytes: Ints  # `[N]`, of messages, else 0
    members: Mapping[str, Ints]  # pieces of each class that are in the run

    @classmethod
    def of(
        cls, model: PlanModel, trace: Trace, passes: Sequence[_Pass], messages: PairedMessages
    ) -> "_Pieces":
        """Find each piece of a plan in a trace."""
        names: list[NDArray[np.str_]] = []
        measured, sent, steps = [], [], []
        transits = _transits(trace, messages, len(model.flat.transfers))
        for direction, part in model.directions.items():
            programs, counts = part.programs, np.diff(part.programs.item_ptr)
            rows = np.flatnonzero(np.isin(programs.op, (COPY, ATTENTION)) | (
                (programs.op == REDUCTION) & (counts > 0)))  # fmt: skip
            steps.append(rows)
            of_op = {ATTENTION: f"attention {direction}", REDUCTION: "reductions", COPY: "host"}
            names += [np.array([of_op[op] for op in programs.op[rows].tolist()], "U32"),
                      np.array([f"messages {name}" for name in _LINKS])[part.link]]  # fmt: skip
            measured += [_step_seconds(part, rows, trace, passes, direction), transits[part.rows]]
            sent += [np.zeros(len(rows), np.int64), part.transfers.size_bytes]
        name, seconds = np.concatenate(names), np.concatenate(measured)
        if np.isnan(seconds).all():
            raise PlanError(
                "the trace holds no whole direction of this plan on any device; record one with "
                "`dcpm run PLAN --trace TRACE.dcpplan`"
            )
        is_known = ~np.isnan(seconds)
        if model.plan.cluster.host_runs_ahead:  # no event shows what it does meanwhile
            is_known &= name != "host"
        members = {one: np.flatnonzero((name == one) & is_known) for one in CONSTANTS_OF_WORK}
        return cls(model, tuple(steps), seconds, np.concatenate(sent), members)

    def predicted(self, cluster: Cluster) -> Floats:
        """Predict the seconds of all pieces, float64 ``[N]``."""
        found = []
        for direction, rows in zip(DIRECTIONS, self.steps, strict=True):
            played = self.model.play(direction, cluster)
            found += [(played.ended - played.begun)[rows], played.arrived - played.ready_ns()]
        return np.asarray(np.concatenate(found) / 1e9, np.float64)

    def explain(
        self, name: str, cluster: Cluster, others: tuple[_Explanation, ...]
    ) -> _Explanation:
        """Find the constant that explains a class best, if any explains enough.

        If the cluster, with the constants found so far, predicts the class already, then one of
        these explains it, too.
        """
        best, predicted = _Explanation(), self.predicted(cluster)
        if not self.differs(name, predicted):
            own = {*CONSTANTS_OF_WORK[name], *map(_STANDS_FOR.get, CONSTANTS_OF_WORK[name])}
            return next((one for one in others if one.constant in own), best)
        rows = self.members[name]
        before, measured = predicted[rows], self.measured[rows]
        for constant in CONSTANTS_OF_WORK[name]:
            cost, after = self._fit(name, cluster, constant)
            share = 1 - float(np.abs(after - measured).sum() / np.abs(before - measured).sum())
            if share > max(EXPLAINS, best.share + _AS_MUCH):
                best = _Explanation(constant, cost, share)
        return best

    def differs(self, name: str, predicted: Floats) -> bool:
        """Tell whether the total time of a class differs from the prediction."""
        rows = self.members[name]
        measured = float(self.measured[rows].sum())
        return abs(float(predicted[rows].sum()) - measured) > WORTH_FITTING * measured

    def _fit(self, name: str, cluster: Cluster, constant: str) -> tuple[float, Floats]:
        """Fit a constant to the total of a class; return its cost and the times of the pieces."""
        rows = self.members[name]
        wanted, last = float(self.measured[rows].sum()), _cost(cluster, constant)
        pieces = self.predicted(cluster)[rows]
        took = float(pieces.sum())
        # The first guess takes the time for proportional to the cost; then the secant method, since
        # waiting for others bends the line.
        cost = last * wanted / took if last and took else (wanted - took) / len(rows)
        for _ in range(_STEPS):
            cost = max(0.0, cost)
            pieces = self.predicted(_with_cost(cluster, constant, cost))[rows]
            now, step = float(pieces.sum()), cost - last
            if now == took or not step or abs(now - wanted) <= 1e-4 * wanted:
                break
            last, took, cost = cost, now, cost + (wanted - now) * step / (now - took)
        return cost, pieces

    def classes(self, found: Mapping[str, _Explanation], cluster: Cluster) -> tuple[ClassTime, ...]:
        """List the classes of the run; those of messages are divided by size."""
        predicted, listed = self.predicted(cluster), []
        for name, rows in self.members.items():
            differs = self.differs(name, predicted)
            why = found[name] if differs else _Explanation()
            values = 0.0, 0.0
            if why.constant:
                now = _value(why.constant, _cost(cluster, why.constant))
                values = now, _value(why.constant, why.cost)
            for text, here in self._by_size(rows):
                listed.append(ClassTime(
                    name + text, len(here), float(predicted[here].sum()),
                    float(self.measured[here].sum()), differs, why.constant or None, *values,
                    why.share,
                ))  # fmt: skip
        return tuple(listed)

    def _by_size(self, rows: Ints) -> Iterator[tuple[str, Ints]]:
        """Divide messages among the classes of sizes; other pieces (size 0) stay together."""
        size, least = self.size_bytes[rows], 0
        if (size == 0).any():
            yield "", rows[size == 0]
        for text, most in SIZE_CLASSES.items():
            here = rows[(size > least) & (size <= most)]
            least = most
            if len(here):
                yield f", {text}", here


def _step_seconds(
    part: DirectionModel, rows: Ints, trace: Trace, passes: Sequence[_Pass], direction: Direction
) -> Floats:
    """Find the seconds of instructions in a run, NaN where it has none, float64 ``[n]``.

    The time of the host is the rest of a pass beside kernels and waits.
    """
    seconds = np.full(len(rows), np.nan)
    programs = part.programs
    kinds = np.array([EVENT_KINDS.index(OPS[op]) for op in programs.op[rows].tolist()])
    runs: dict[int, list[Floats]] = {}
    for one in passes:
        if one.is_backward != (direction == "backward"):
            continue
        mine = np.flatnonzero(programs.device[rows] == one.device)
        events = one.rows[trace.lane[one.rows] == COMPUTE]
        if not np.array_equal(trace.kind[events], kinds[mine]):
            continue  # the trace holds only a part of this pass
        took = (trace.end_ns - trace.start_ns)[events] / 1e9
        waits = one.rows[trace.lane[one.rows] == WAIT]
        span = int(trace.end_ns[one.rows].max() - trace.start_ns[events[0]])
        waited = int((trace.end_ns - trace.start_ns)[waits].sum())
        # A run records no host: the first instruction gets the rest of the pass.
        took[0] = max(0.0, (span - waited) / 1e9 - took[1:].sum())
        runs.setdefault(one.device, []).append(took)
    for device, found in runs.items():
        seconds[programs.device[rows] == device] = np.median(found, axis=0)
    return seconds


def _transits(trace: Trace, messages: PairedMessages, num_transfers: int) -> Floats:
    """Find the median seconds from launch to arrival of each transfer, NaN if it was not sent."""
    transfer = trace.transfer[messages.send]
    took = (trace.end_ns[messages.receive] - messages.launched.max(axis=0)) / 1e9
    # Sorted by time inside each transfer: the median is its middle row, the upper of two.
    order = np.lexsort((took, transfer))
    sent, first, count = np.unique(transfer[order], return_index=True, return_counts=True)
    found = np.full(num_transfers, np.nan)
    found[sent] = np.maximum(took[order][first + count // 2], 0.0)
    return found


def _cost(cluster: Cluster, constant: str) -> float:
    """Return a constant as seconds; for a rate, the seconds of one byte or FLOP.

    Times grow with seconds in a line, but not with rates: so fits work on costs.
    """
    value = getattr(cluster, constant)
    if value is None and constant in _STANDS_FOR:
        value = getattr(cluster, _STANDS_FOR[constant])
    return 0.0 if value is None else _value(constant, value)


def _value(constant: str, cost: float) -> float:
    """Turn the cost of a constant into its value, and back; the rate for no cost is the largest."""
    if not constant.endswith("_per_s"):
        return float(min(cost, MOST_OVERHEAD_S))
    return 1 / max(1 / MOST_RATE, float(cost))


def _with_cost(cluster: Cluster, constant: str, cost: float) -> Cluster:
    changed: dict[str, Any] = {constant: _value(constant, cost)}  # Any: fields of `Cluster`
    return replace(cluster, **changed)
