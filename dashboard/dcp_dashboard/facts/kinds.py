"""Times of two traces by kind of event and direction, and the constants that they follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.quantities import digits, size
from dcp_dashboard.facts.text import DIRECTIONS
from dcp_dashboard.facts.traces import phase_of
from dcp_dsl.arrays import Floats
from dcp_planner import Cluster, Direction
from dcp_planner.simulation import EVENT_KINDS

CONSTANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention": ("flops_per_s",),
        "reduction": ("copy_bytes_per_s",),
        "copy": ("copy_bytes_per_s",),
        "send": ("inter_bytes_per_s", "intra_bytes_per_s", "latency_s"),
        "receive": ("inter_bytes_per_s", "intra_bytes_per_s", "latency_s"),
    }
)
"""Constants of `Cluster` that a kind's time follows; waiting follows from the others."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """Time of one kind of event in one direction.

    Attributes:
        kind: of `EVENT_KINDS`.
        direction: of the events.
        first, second: seconds of the mean device on either side.
        cause: the constants that the time follows, and for a prediction beside its run the value
            of a rate that would make both equal; empty if there is none.
    """

    kind: str
    direction: Direction
    first: float
    second: float
    cause: str

    @property
    def ratio(self) -> float | None:
        """The second time over the first; ``None`` if there is no first."""
        return self.second / self.first if self.first else None


def compare_kinds(comparison: Comparison) -> tuple[KindRow, ...]:
    """Return the times of all kinds that either side has, forward first; O(E)."""
    a, b = comparison.first, comparison.second
    is_run = comparison.is_same_plan and (a.source, b.source) == ("simulated", "measured")
    rows = []
    for direction in DIRECTIONS:
        sides = (_seconds(side, direction).tolist() for side in (a, b))
        for kind, first, second in zip(EVENT_KINDS, *sides, strict=True):
            if first or second:
                cluster = a.loaded.plan.cluster if is_run else None
                cause = _cause(kind, direction, cluster, second / first if first else None)
                rows.append(KindRow(kind, direction, first, second, cause))
    return tuple(rows)


def _seconds(side: Side, direction: Direction) -> Floats:
    trace = phase_of(side.trace, direction)
    spent = (trace.end_ns - trace.start_ns) / (1e9 * side.num_devices)
    total = np.zeros(len(EVENT_KINDS))
    np.add.at(total, trace.kind, spent)
    return total


def _cause(kind: str, direction: Direction, cluster: Cluster | None, ratio: float | None) -> str:
    names = list(CONSTANTS.get(kind, ()))
    if kind == "attention" and direction == "backward":
        names = ["backward_flops_per_s"]
    if cluster is None or not ratio or len(names) != 1:
        return ", ".join(names)
    rate = getattr(cluster, names[0]) or (cluster.flops_per_s if kind == "attention" else None)
    if rate is None:
        return names[0]
    if kind == "attention":
        return f"{names[0]} {digits(rate / 1e12)}e12; {digits(rate / ratio / 1e12)}e12 would fit"
    return f"{names[0]} {size(rate)}/s; {size(rate / ratio)}/s would fit"
