"""Locate a cause: the device, port, document or number that a reader should look at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.causes.conditions import Free, cluster_without
from dcp_planner.causes.dependencies import COMPUTE, RECEIVE, SEND
from dcp_planner.causes.path import ACCOUNTS, STEPS, Accounting, CriticalPath
from dcp_planner.model.cost_model import computed_pairs
from dcp_planner.model.placement import loads_of
from dcp_planner.simulation.simulator import mean_compute_seconds
from dcp_planner.simulation.trace import EVENT_KINDS, Trace
from dcp_planner.tables.plan import Plan

_MOSTLY = 0.5
"""A document is named if it is at least this share of a device's pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A plan with one head group, its timeline, and where the time of that went."""

    plan: Plan
    trace: Trace
    path: CriticalPath
    accounting: Accounting

    @property
    def ideal(self) -> Plan:
        """The plan on a cluster without launches whose kernels waste nothing."""
        free: tuple[Free, ...] = ("launches", "waves", "tiles")
        return replace(self.plan, cluster=cluster_without(self.plan.cluster, free))

    @property
    def pairs_of_device(self) -> Ints:
        """Visible pairs that each device computes, int64 ``[R]``."""
        tiles = self.plan.tiles
        return loads_of(tiles.device, tiles.pairs, self.plan.num_devices)

    @property
    def idle_devices(self) -> Ints:
        """Devices without a visible pair to compute, if there are others."""
        pairs = self.pairs_of_device
        return np.flatnonzero(pairs == 0) if pairs.any() else np.zeros(0, np.int64)

    @property
    def compute_s(self) -> Floats:
        """Seconds that each device computes, float64 ``[R]``."""
        return self.trace.lane_seconds("compute", self.plan.num_devices)


def place_of(name: str, scene: Scene) -> dict[str, Any]:
    """Say where a cause shows; `Any`: numbers, texts and lists of numbers."""
    return _PLACES[name](scene)


def _busiest_device(scene: Scene) -> dict[str, Any]:
    """Name the device that computes longest, and the document that most of it belongs to."""
    seconds = scene.compute_s
    device, working = int(seconds.argmax()), seconds > 0
    mean = float(seconds[working].mean()) if working.any() else 0.0
    found: dict[str, Any] = {  # as of `place_of`
        "device": device,
        "seconds": float(seconds[device]),
        "times_mean": float(seconds[device] / mean) if mean else 1.0,
    }
    tiles, blocks = scene.plan.tiles, scene.plan.blocks
    mine = tiles.device == device
    sequence = blocks.sequence[tiles.q_block[mine]] % (len(scene.plan.cu_seqlens) - 1)
    pairs = np.bincount(sequence, tiles.pairs[mine]) if mine.any() else np.zeros(1)
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
    ends = {"send": trace.device[rows], "receive": trace.peer[rows]}
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
    """Count the messages that the critical path waits for, and name who waits longest for them."""
    path, trace = scene.path, scene.trace
    arriving = trace.lane[path.event] == RECEIVE
    rows, spent = path.event[arriving], (path.end_ns - path.start_ns)[arriving]
    found = {"messages_on_path": int(arriving.sum())}
    if len(rows):
        found["device"] = int(np.bincount(trace.device[rows], spent).argmax())
    return found


def _kernels(scene: Scene) -> dict[str, Any]:
    tiles, trace = scene.plan.tiles, scene.trace
    is_start = trace.kind == EVENT_KINDS.index("copy")
    is_kernel = (trace.lane == COMPUTE) & ~is_start
    kernels = np.bincount(trace.device[is_kernel], minlength=scene.plan.num_devices)
    side = 2 * trace.device[is_start] + trace.is_backward[is_start]
    on_host = np.bincount(side, (trace.end_ns - trace.start_ns)[is_start])
    columns = (tiles.division, tiles.backward_division)
    return {
        "kernels_of_device": int(kernels.max(initial=0)),
        "host_s": float(on_host.max(initial=0)) / 1e9,
        "divisions": 1 + max(int(column.max(initial=0)) for column in columns),
    }


def _kernel_tiles(scene: Scene) -> dict[str, Any]:
    tiles, tokens = scene.plan.tiles, scene.plan.blocks.num_tokens
    edge = scene.plan.cluster.kernel_tile
    computed = computed_pairs(tiles.pairs, tokens[tiles.q_block], tokens[tiles.kv_block], edge)
    ratio = float(computed.sum() / max(1, int(tiles.pairs.sum())))
    return {"kernel_tile": edge, "computed_over_visible": ratio}


def _waves(scene: Scene) -> dict[str, Any]:
    full = replace(scene.plan, cluster=cluster_without(scene.plan.cluster, ["waves"]))
    ratio = mean_compute_seconds(scene.plan) / max(1e-12, mean_compute_seconds(full))
    return {"sms": scene.plan.cluster.sms, "times_full": ratio}


def _most_waiting(scene: Scene) -> dict[str, Any]:
    """Name the device that stands still longest while others still compute what it needs."""
    spent = scene.accounting.spent_ns[:, :, ACCOUNTS.index("others")].sum(axis=0)
    device = int(spent.argmax())
    return {"device": device, "seconds": float(spent[device]) / 1e9}


def _idle(scene: Scene) -> dict[str, Any]:
    return {"devices": scene.idle_devices.tolist()}


_PLACES: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "balance": _busiest_device, "links": _busiest_port, "latency": _messages_on_path,
    "launches": _kernels, "waves": _waves, "tiles": _kernel_tiles, "order": _most_waiting,
    "idle": _idle,
}  # fmt: skip
