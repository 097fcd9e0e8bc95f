"""Times of two traces by kind of event and direction."""

from dataclasses import dataclass

import numpy as np

from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.facts.text import DIRECTIONS
from dcp_dashboard.facts.traces import phase_of
from dcp_dsl.arrays import Floats
from dcp_planner import Direction
from dcp_planner.simulation import EVENT_KINDS


@dataclass(frozen=True, slots=True)
class KindRow:
    """Time of one kind of event in one direction.

    Attributes:
        kind: of `EVENT_KINDS`.
        direction: of the events.
        first, second: seconds of the mean device on either side.
    """

    kind: str
    direction: Direction
    first: float
    second: float

    @property
    def ratio(self) -> float | None:
        """The second time over the first; ``None`` if there is no first."""
        return self.second / self.first if self.first else None


def compare_kinds(comparison: Comparison) -> tuple[KindRow, ...]:
    """Return the times of all kinds that either side has, forward first; O(E)."""
    rows = []
    for direction in DIRECTIONS:
        first, second = (
            _seconds(side, direction) for side in (comparison.first, comparison.second)
        )
        for kind, a, b in zip(EVENT_KINDS, first.tolist(), second.tolist(), strict=True):
            if a or b:
                rows.append(KindRow(kind, direction, a, b))
    return tuple(rows)


def _seconds(side: Side, direction: Direction) -> Floats:
    trace = phase_of(side.trace, direction)
    total = np.zeros(len(EVENT_KINDS))
    np.add.at(total, trace.kind, (trace.end_ns - trace.start_ns) / (1e9 * side.num_devices))
    return total
