"""A plan in numbers as the pages show them: the planner's metrics, per device, of the traces."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import readonly
from dcp_planner import (
    Plan,
    PlanMetrics,
    Source,
    Trace,
    accumulator_bytes,
    receive_buffer_bytes,
)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTotals:
    """What each device owns, computes, sends and receives, forward and backward together.

    Attributes:
        tokens: int64 ``[R]``, tokens owned.
        tiles, pairs: int64 ``[R]``, tiles computed and their visible pairs.
        sent_bytes, received_bytes: int64 ``[R]``.
        traffic_bytes: int64 ``[R, R]``, from row to column.
        memory_bytes: int64 ``[R]``, receive buffers and partial sums of the direction that needs
            more of them.
    """

    tokens: NDArray[np.int64]
    tiles: NDArray[np.int64]
    pairs: NDArray[np.int64]
    sent_bytes: NDArray[np.int64]
    received_bytes: NDArray[np.int64]
    traffic_bytes: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]

    def __post_init__(self) -> None:
        size = len(self.tokens)
        for name in ("tokens", "tiles", "pairs", "sent_bytes", "received_bytes", "memory_bytes"):
            value = readonly(f"DeviceTotals.{name}", getattr(self, name), np.int64, (size,))
            object.__setattr__(self, name, value)
        traffic = readonly("DeviceTotals.traffic_bytes", self.traffic_bytes, np.int64, (size, size))
        object.__setattr__(self, "traffic_bytes", traffic)


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """One plan in numbers.

    Attributes:
        mask, origin: texts for people.
        num_sequences, num_devices, num_nodes: counts.
        num_heads, num_head_groups: query heads, and the groups of them that are placed apart.
        num_divisions: divisions of the forward schedule.
        metrics: the planner's figures.
        seconds: per source of a trace, from first start to last end.
        wait_share: per source, time that devices stand still over devices times `seconds`.
    """

    mask: str
    origin: str
    num_sequences: int
    num_devices: int
    num_heads: int
    num_head_groups: int
    num_nodes: int
    num_divisions: int
    metrics: PlanMetrics
    seconds: Mapping[Source, float]
    wait_share: Mapping[Source, float]

    @property
    def total_bytes(self) -> int:
        """Bytes that move, forward and backward."""
        return self.metrics.forward.total_bytes + self.metrics.backward.total_bytes

    @property
    def inter_node_share(self) -> float:
        """Share of the moved bytes that crosses between nodes."""
        crossing = self.metrics.forward.inter_node_bytes + self.metrics.backward.inter_node_bytes
        return crossing / self.total_bytes if self.total_bytes else 0.0


def summarise(plan: Plan, metrics: PlanMetrics, traces: Mapping[Source, Trace]) -> PlanSummary:
    """Collect what the list of plans shows of one."""
    provenance, size = plan.provenance, plan.num_devices
    return PlanSummary(
        mask=provenance.mask if provenance else "unnamed mask",
        origin=provenance.origin if provenance else "",
        num_sequences=len(plan.cu_seqlens) - 1,
        num_devices=size,
        num_heads=plan.shape.q_heads,
        num_head_groups=plan.head_groups,
        num_nodes=plan.cluster.nodes,
        num_divisions=int(plan.tiles.division.max(initial=-1)) + 1,
        metrics=metrics,
        seconds={source: trace.seconds() for source, trace in traces.items()},
        wait_share={source: wait_share(trace, size) for source, trace in traces.items()},
    )


def device_totals(plan: Plan, metrics: PlanMetrics) -> DeviceTotals:
    """Give the planner's figures per device, with tiles, pairs and the traffic matrix; O(W + X)."""
    size, tiles, transfers = plan.num_devices, plan.tiles, plan.transfers
    traffic = np.zeros((size, size), np.int64)
    np.add.at(traffic, (transfers.source, transfers.target), transfers.size_bytes)
    pairs = np.zeros(size, np.int64)
    np.add.at(pairs, tiles.device, tiles.pairs)
    forward, backward = metrics.forward, metrics.backward
    return DeviceTotals(
        tokens=np.array(metrics.owned_tokens),
        tiles=np.bincount(tiles.device, minlength=size),
        pairs=pairs,
        sent_bytes=np.add(forward.sent_bytes, backward.sent_bytes),
        received_bytes=np.add(forward.received_bytes, backward.received_bytes),
        traffic_bytes=traffic,
        memory_bytes=(receive_buffer_bytes(plan) + accumulator_bytes(plan)).max(axis=0),
    )


def imbalance(values: NDArray[np.int64]) -> float:
    """Give the largest value over the mean, 1.0 when all are 0.

    >>> imbalance(np.array([1, 1, 4]))
    2.0
    """
    total = int(values.sum())
    return float(values.max() * len(values) / total) if total else 1.0


def wait_share(trace: Trace, num_devices: int) -> float:
    """Give the share of all devices' time that they stand still, waiting for messages."""
    seconds = trace.seconds()
    if seconds == 0:
        return 0.0
    return float(trace.lane_seconds("wait", num_devices).sum() / (seconds * num_devices))
