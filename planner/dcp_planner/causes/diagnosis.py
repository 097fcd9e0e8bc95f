"""Divide the predicted time of a plan among causes; a cause costs the time saved without it.

A timeline shows symptoms, not causes. Devices that compute little wait for the one that computes
much, so uneven compute looks like waiting for messages. Therefore the plan is predicted again
without each cause. `order` is the rest when everything else is free: waiting for the earlier work
of others. `memory` is the time that a plan loses because it gives buffers back early.

Each cause comes with its place: the device, port, document or number to look at.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from dcp_planner.causes.alternatives import (
    FREE,
    NEEDS,
    REPLAYED,
    Free,
    PlanInputs,
    Recording,
    cluster_without,
    costly,
    divisions_of,
    seconds_without,
)
from dcp_planner.causes.dependencies import COMPUTE, RECEIVE, SEND, Dependencies, find_dependencies
from dcp_planner.causes.path import (
    ACCOUNTS,
    STEPS,
    Accounting,
    CriticalPath,
    Scene,
    account_for,
    critical_path,
)
from dcp_planner.model.cost_model import computed_pairs
from dcp_planner.model.problem import DIRECTIONS
from dcp_planner.simulation.schedules import schedules_kept
from dcp_planner.simulation.simulator import PlanModel, mean_compute_seconds
from dcp_planner.simulation.trace import EVENT_KINDS, Trace, measure_trace
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes
from dcp_planner.tables.plan import Plan

_MOSTLY = 0.5
"""A document is named if it is at least this share of a device's pairs."""


def _busiest_device(scene: Scene) -> dict[str, Any]:
    """Name the device that computes longest, and the document that most of it belongs to."""
    seconds = scene.compute_s
    device, working = int(seconds.argmax()), seconds > 0
    mean = float(seconds[working].mean()) if working.any() else 0.0
    found: dict[str, Any] = {  # as of `_PLACES`
        "device": device,
        "seconds": float(seconds[device]),
        "times_mean": float(seconds[device] / mean) if mean else 1.0,
    }
    tiles, blocks = scene.plan.tiles, scene.plan.blocks
    mine = tiles.device == device
    # The expanded batch of head groups has every sequence once for each group.
    sequence = blocks.sequence[tiles.q_block[mine]] % (len(scene.plan.cu_seqlens) - 1)
    pairs = np.bincount(sequence, tiles.pairs[mine])
    if pairs.sum() and pairs.max() >= _MOSTLY * pairs.sum():
        most, names = int(pairs.argmax()), scene.plan.sequence_names
        found["sequence"] = most
        if names:
            found["sequence_name"] = names[most]
    return found


def _busiest_port(scene: Scene) -> dict[str, Any]:
    """Name the device whose sending, or receiving, takes most of the critical path."""
    path, trace, devices = scene.path, scene.trace, scene.plan.num_devices
    at = path.step == STEPS.index("links")
    if not at.any():
        return {}
    rows, spent = path.event[at], (path.end_ns - path.start_ns)[at]
    here, there = trace.device[rows], trace.peer[rows]
    is_send = trace.lane[rows] == SEND  # in a run a message is on the path as it is received, too
    ends = {"send": np.where(is_send, here, there), "receive": np.where(is_send, there, here)}
    load = {side: np.bincount(device, spent, devices) for side, device in ends.items()}
    side = max(load, key=lambda name: float(load[name].max()))
    device = int(load[side].argmax())
    lane = trace.lane == (SEND if side == "send" else RECEIVE)
    sizes = np.bincount(trace.device[lane], trace.size_bytes[lane], devices)
    return {
        "device": device,
        "side": side,
        "seconds_on_path": float(load[side][device]) / 1e9,
        "bytes": int(sizes[device]),
        "times_mean": float(sizes[device] / max(1.0, sizes.mean())),
    }


def _messages_on_path(scene: Scene) -> dict[str, Any]:
    """Count the messages that the critical path waits for, and name the device that waits most."""
    path, trace = scene.path, scene.trace
    arriving = trace.lane[path.event] == RECEIVE
    rows, spent = path.event[arriving], (path.end_ns - path.start_ns)[arriving]
    found = {"messages_on_path": int(arriving.sum())}
    if len(rows):
        found["device"] = int(np.bincount(trace.device[rows], spent).argmax())
    return found


def _kernels(scene: Scene) -> dict[str, Any]:
    """Count the kernels of the device with most of them, and its divisions; time the host."""
    trace = scene.trace
    is_start = trace.kind == EVENT_KINDS.index("copy")
    is_kernel = (trace.lane == COMPUTE) & ~is_start
    kernels = np.bincount(trace.device[is_kernel], minlength=scene.plan.num_devices)
    side = len(DIRECTIONS) * trace.device[is_start] + trace.is_backward[is_start]
    on_host = np.bincount(side, (trace.end_ns - trace.start_ns)[is_start])
    return {
        "kernels_of_device": int(kernels.max()),
        "host_s": float(on_host.max(initial=0)) / 1e9,
        "divisions": divisions_of(scene.plan),
    }


def _kernel_tiles(scene: Scene) -> dict[str, Any]:
    """Compute how many pairs kernels compute for each visible one."""
    tiles, tokens = scene.plan.tiles, scene.plan.blocks.num_tokens
    edge = scene.plan.cluster.kernel_tile
    computed = computed_pairs(tiles.pairs, tokens[tiles.q_block], tokens[tiles.kv_block], edge)
    ratio = float(computed.sum() / max(1.0, tiles.pairs.sum()))
    return {"kernel_tile": edge, "computed_over_visible": ratio}


def _waves(scene: Scene) -> dict[str, Any]:
    """Compute how many times longer kernels take than on multiprocessors that are always busy."""
    cluster = cluster_without(scene.plan.cluster, ["launches"])
    taken, full = (
        mean_compute_seconds(replace(scene.plan, cluster=machine))
        for machine in (cluster, cluster_without(cluster, ["waves"]))
    )
    return {"sms": cluster.sms, "times_full": taken / max(1e-12, full)}


def _most_waiting(scene: Scene) -> dict[str, Any]:
    """Name the device that waits longest for the compute of others."""
    spent = scene.accounting.spent_ns[:, :, ACCOUNTS.index("others")].sum(axis=0)
    device = int(spent.argmax())
    return {"device": device, "seconds": float(spent[device]) / 1e9}


def _idle(scene: Scene) -> dict[str, Any]:
    return {"devices": scene.idle_devices.tolist()}


# Any: numbers, texts and lists of numbers
_PLACES: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "balance": _busiest_device, "links": _busiest_port, "latency": _messages_on_path,
    "launches": _kernels, "waves": _waves, "tiles": _kernel_tiles, "order": _most_waiting,
    "idle": _idle,
}  # fmt: skip
"""Functions that name the place of each cause."""

Name = Free | Literal["order", "memory"]
Kind = Literal["compute", "links", "latency", "order", "launches", "memory", "idle"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_OF: Mapping[Name, Kind] = {
    "waves": "compute",
    "tiles": "compute",
    "balance": "compute",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that costs a plan time."""

    name: Name  # of the cause
    saves_s: float  # seconds that the plan takes less if this cause alone costs nothing
    saves_last_s: float  # the same if everything else costs nothing already
    where: Mapping[str, Any]  # its place: devices, messages, numbers

    @property
    def kind(self) -> Kind:
        """The class of the cause."""
        return _KIND_OF.get(self.name, self.name)  # type: ignore[arg-type]  # the rest are kinds

    @property
    def part_s(self) -> float:
        """Seconds that count for it; a cost that two causes share counts half for each."""
        return (self.saves_s + self.saves_last_s) / 2

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts, numbers and lists of them."""
        return {
            "kind": self.kind, "name": self.name, "saves_s": self.saves_s,
            "saves_last_s": self.saves_last_s, "where": dict(self.where),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Causes of a plan's predicted time, the largest saving first."""

    seconds: float  # forward and backward, with all costs
    work_s: float  # compute of the mean device, without launches and kernel tiles
    causes: tuple[Cause, ...]  # all that were tried, also those that save nothing

    def of(self, name: Name) -> Cause | None:
        """Return a cause by its name, ``None`` if it was not tried."""
        return next((cause for cause in self.causes if cause.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: see `Cause.to_json`."""
        return {
            "seconds": self.seconds,
            "work_s": self.work_s,
            "causes": [cause.to_json() for cause in self.causes],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Why:
    """The full explanation of a plan's time."""

    trace: Trace  # the predicted timeline
    dependencies: Dependencies  # the events before each of its events
    path: CriticalPath  # the events that decided the end
    accounting: Accounting  # how every device spent its time
    diagnosis: Diagnosis  # the causes

    @property
    def hidden_share(self) -> float:
        """Share of the time of messages during which devices compute."""
        return measure_trace(self.trace, self.accounting.spent_ns.shape[1]).overlap


@schedules_kept()
def find_causes(plan: Plan) -> Why:
    """Predict a plan, follow its critical path, and find the causes of its time.

    Costs a timeline and about a dozen predictions.
    """
    model = PlanModel.of(plan)
    scene, found = _seen(plan, model.simulate())
    tried = _tried(scene, FREE)
    times = _Times.of(tried, lambda free: seconds_without(model, free))
    # With everything free, devices compute their mean; whatever lies above that is waiting.
    work = mean_compute_seconds(scene.ideal)
    causes = [*times.causes(scene), *_of_schedule(scene, times, times.least - work)]
    return _why(scene, found, times, work, causes)


def find_causes_of_run(plan: Plan, trace: Trace) -> Why:
    """Find the causes of the time of a recorded trace, of one layer or of several.

    Its events are moved in time, each behind those it waited for (`Recording`). A trace cannot tell
    latency from links, nor the cost of a schedule.
    """
    scene, found = _seen(plan, trace)
    recording = Recording.of(trace, found, plan.num_devices)
    times = _Times.of(_tried(scene, REPLAYED), recording.seconds_without)
    work = float(scene.compute_s.mean())
    order = times.least - work  # as in a prediction: the time above the mean device's compute
    found_causes = (*times.causes(scene), Cause("order", order, order, _PLACES["order"](scene)))
    # Shared evenly, compute of a device that began late ends later: unevenness cost nothing there.
    causes = [
        replace(c, saves_s=max(0.0, c.saves_s), saves_last_s=max(0.0, c.saves_last_s))
        for c in found_causes
    ]
    return _why(scene, found, times, work, causes)


def diagnose(plan: Plan) -> Diagnosis:
    """Find the causes of a plan's predicted time; like `find_causes`."""
    return find_causes(plan).diagnosis


def _seen(plan: Plan, trace: Trace) -> tuple[Scene, Dependencies]:
    found = find_dependencies(plan, trace)
    path = critical_path(trace, found)
    accounting = account_for(trace, found, plan.num_devices)
    return Scene(expand_head_groups(plan), trace, path, accounting), found


def _why(
    scene: Scene, found: Dependencies, times: "_Times", work_s: float, causes: list[Cause]
) -> Why:
    causes.sort(key=lambda cause: -cause.saves_s)
    diagnosis = Diagnosis(times.as_it_is, work_s, tuple(causes))
    return Why(scene.trace, found, scene.path, scene.accounting, diagnosis)


@dataclass(frozen=True, slots=True)
class _Times:
    """Predicted times while some causes cost nothing."""

    tried: tuple[Free, ...]  # all causes that can be imagined away
    seconds: Mapping[frozenset[Free], float]  # by the set of causes that cost nothing

    @classmethod
    def of(
        cls, tried: tuple[Free, ...], predict_without: Callable[[frozenset[Free]], float]
    ) -> "_Times":
        """Predict under every condition that causes are found by."""
        return cls(tried, {free: predict_without(free) for free in _conditions(tried)})

    @property
    def as_it_is(self) -> float:
        """Seconds while nothing is free."""
        return self.seconds[frozenset()]

    @property
    def least(self) -> float:
        """Seconds while everything is free."""
        return self.seconds[frozenset(self.tried)]

    def causes(self, scene: Scene) -> list[Cause]:
        """List the causes with their savings, alone and last."""
        every, found = frozenset(self.tried), []
        for name in self.tried:
            base, after = _around(name, every)
            saves = self.seconds[base] - self.seconds[base | {name}]
            saves_last = self.seconds[after - {name}] - self.seconds[after]
            found.append(Cause(name, saves, saves_last, _PLACES[name](scene)))
        return found


def _tried(scene: Scene, names: Iterable[Free]) -> tuple[Free, ...]:
    """Return the causes of `names` that can cost anything here."""
    # Without idle devices `idle` would be predicted as `balance` is.
    found = set(costly(scene.plan.cluster))
    if not len(scene.idle_devices):
        found.discard("idle")
    return tuple(name for name in names if name in found)


def _conditions(tried: Iterable[Free]) -> set[frozenset[Free]]:
    """List the sets of causes whose absence is predicted."""
    every = frozenset(tried)
    found: set[frozenset[Free]] = {frozenset(), every}
    for name in every:
        base, after = _around(name, every)
        found |= {base | {name}, after, after - {name}}
    return found


def _around(name: Free, every: frozenset[Free]) -> tuple[frozenset[Free], frozenset[Free]]:
    """Return the free causes when one comes first, without it, and when it comes last, with it.

    First, only the causes that it needs are free; last, all causes but those that need it.
    """
    behind = {other for other, needed in NEEDS.items() if name in needed}
    return NEEDS.get(name, frozenset()) & every, every - behind


def _of_schedule(scene: Scene, times: _Times, waits_s: float) -> list[Cause]:
    """Find the cost of late launches, if they save memory, and the cost of order beside it.

    `waits_s` is the time that is left above the mean device's work when everything is free.
    """
    parts = PlanInputs.of(scene.plan)
    # If launching early needs no more buffers, the plan does not give them back early.
    sizes = [_buffer_bytes(plan) for plan in (scene.plan, parts.launched_early())]
    if sizes[0] >= sizes[1]:
        return [Cause("order", waits_s, waits_s, _PLACES["order"](scene))]
    free = parts.unlimited()
    model = PlanModel.of(free)
    saves = times.as_it_is - seconds_without(model, ())
    saves_last = times.least - seconds_without(model, times.tried)
    where = {"buffer_bytes": sizes[0], "unlimited_bytes": _buffer_bytes(free)}
    # Waiting that disappears without the limit belongs to `memory`, not to `order` as well.
    order = max(0.0, waits_s - saves_last)
    return [
        Cause("memory", saves, saves_last, where),
        Cause("order", order, order, _PLACES["order"](scene)),
    ]


def _buffer_bytes(plan: Plan) -> int:
    """Compute the most bytes that a device needs for received blocks and for partial results."""
    return int((receive_buffer_bytes(plan) + accumulator_bytes(plan)).max())
