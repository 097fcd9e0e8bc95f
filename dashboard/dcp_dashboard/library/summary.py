"""A plan in numbers: the planner's metrics, totals per device, groups of heads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Floats, Ints, Record
from dcp_dsl.forms import BlockKind
from dcp_planner import Direction, Plan, Source, Trace
from dcp_planner.tables import PlanMetrics, accumulator_bytes, receive_buffer_bytes

KINDS = {"full": BlockKind.FULL, "partial": BlockKind.PARTIAL}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTotals(Record):
    """Totals of every device ``[R]``, forward and backward together; traffic from row to column.

    A tile of every head group counts; `memory_bytes` is of the direction that needs more.
    """

    tokens: Annotated[Ints, "R"]
    tiles: Annotated[Ints, "R"]
    pairs: Annotated[Floats, "R"]
    sent_bytes: Annotated[Ints, "R"]
    received_bytes: Annotated[Ints, "R"]
    traffic_bytes: Annotated[Ints, "R", "R"]
    memory_bytes: Annotated[Ints, "R"]


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan in numbers, the planner's figures among them; times are by the source of a trace.

    ``wait_share`` is the time that all devices wait, over devices times ``seconds``.
    """

    mask: str
    origin: str
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
    """Collect the figures of a plan that its pages show."""
    provenance, size = plan.provenance, plan.num_devices
    return PlanSummary(
        mask=provenance.mask if provenance else "unnamed mask",
        origin=provenance.origin if provenance else "",
        metrics=metrics,
        seconds={source: trace.seconds() for source, trace in traces.items()},
        wait_share={source: wait_share(trace, size) for source, trace in traces.items()},
    )


def device_totals(plan: Plan, metrics: PlanMetrics) -> DeviceTotals:
    """Compute tokens, tiles, pairs, bytes and traffic per device; O(W + X)."""
    size, transfers = plan.num_devices, plan.transfers
    traffic = np.zeros((size, size), np.int64)
    np.add.at(traffic, (transfers.source, transfers.target), transfers.size_bytes)
    return DeviceTotals(
        tokens=np.array(metrics.owned_tokens),
        tiles=np.bincount(plan.tiles.device, minlength=size),
        pairs=device_pairs(plan),
        sent_bytes=traffic.sum(axis=1),
        received_bytes=traffic.sum(axis=0),
        traffic_bytes=traffic,
        memory_bytes=(receive_buffer_bytes(plan) + accumulator_bytes(plan)).max(axis=0),
    )


def device_pairs(plan: Plan, chosen: NDArray[np.bool_] | slice = slice(None)) -> Floats:
    """Sum the visible pairs of the chosen tiles on each device, float64 ``[R]``; O(W).

    With G groups of heads every group computes each pair for its own heads; the pair counts 1 / G.
    """
    device, pairs = plan.tiles.device[chosen], plan.tiles.pairs[chosen]
    # `bincount` adds weights as float64, exact up to 2**53 pairs.
    work = np.bincount(device, weights=pairs, minlength=plan.num_devices)
    return work / plan.head_groups


def count_divisions(plan: Plan, direction: Direction) -> int:
    """Count the steps of a direction's schedule."""
    tiles = plan.tiles
    division = tiles.division if direction == "forward" else tiles.backward_division
    return int(division.max(initial=-1)) + 1  # 0 for a plan without tiles


def count_kinds(plan: Plan, blocks: Bools) -> dict[str, int]:
    """Count the full, partial and empty tiles of whole sequences by their blocks, bool ``[D]``."""
    # A tile never leaves its sequence, so the block of its queries says whether it counts.
    found = plan.tiles.kind[blocks[plan.tiles.q_block]]
    kinds = {name: int((found == kind).sum()) for name, kind in KINDS.items()}
    # A plan has no rows for empty tiles: of n blocks of a sequence all n * n tiles but those found.
    pairs = int((np.bincount(plan.blocks.sequence[blocks]) ** 2).sum())
    kinds["empty"] = pairs * plan.head_groups - len(found)
    return kinds


def imbalance(amounts: Floats, shares: Floats | float = 1.0) -> float:
    """Return the largest amount over its share of the mean, 1.0 if all amounts are 0.

    Devices of unequal rates are level where each has its share; shares have the mean 1.
    """
    mean = float(amounts.mean())
    return float((amounts / shares).max()) / mean if mean else 1.0


def wait_share(trace: Trace, num_devices: int) -> float:
    """Return the share of all devices' time in which they wait for messages."""
    seconds = trace.seconds()
    if seconds == 0:
        return 0.0
    return float(trace.lane_seconds("wait", num_devices).sum() / (seconds * num_devices))


def group_labels(plan: Plan) -> list[str]:
    """Return the query heads of every group, counted from 1: ``["1-2", "3-4"]``, ``["1", "2"]``."""
    return head_labels(plan.shape.q_heads, plan.head_groups)


def head_labels(heads: int, groups: int) -> list[str]:
    """Write the heads of each group as text, counted from 1; all groups have the same size.

    >>> head_labels(4, 2), head_labels(2, 2)
    (['1-2', '3-4'], ['1', '2'])
    """
    each = heads // groups
    return [
        f"{group * each + 1}-{(group + 1) * each}" if each > 1 else str(group + 1)
        for group in range(groups)
    ]


def tiles_of_group(plan: Plan, group: int) -> NDArray[np.intp]:
    """Return the rows of `plan.tiles` of one group, all of them in a plan of one group; O(W)."""
    if plan.tiles.group is None:
        return np.arange(len(plan.tiles))
    return np.flatnonzero(plan.tiles.group == group)


def caption_of_first_group(plan: Plan) -> str:
    """Name the heads that a still picture shows, the first group's; empty if there is one group."""
    if plan.head_groups == 1:
        return ""
    word = "heads" if plan.head_groups < plan.shape.q_heads else "head"
    return (
        f"{word} {group_labels(plan)[0]} of {plan.shape.q_heads}, "
        f"the first of {plan.head_groups} groups"
    )
