"""Effort of the native search: counted in work, never in time."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Effort:
    """Work that one search may do.

    Attributes:
        starts: seeds to start from, the cheapest ones.
        runs: searches per level on the coarsest picture, dealt over the starts.
        sweeps: of all moves, in each run.
        noise: at the beginning of a run, in bytes of a middling row.
        coarse_tiles: tiles per part of the coarsest picture.
        fine_sweeps, fine_noise: after each refinement of the picture.
        polish_sweeps: most sweeps on all devices together.
        polish_work: most tiles times parts looked at there.
        longest: longest range of rows that moves together, in blocks.
        relief: moves of a tile or an owner that are valued with time as the objective.
    """

    starts: int
    runs: int
    sweeps: int
    noise: float
    coarse_tiles: int
    fine_sweeps: int
    fine_noise: float
    polish_sweeps: int
    polish_work: int
    longest: int
    relief: int


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "fast": Effort(2, 2, 8, 1.0, 48, 3, 0.25, 2, 1_000_000, 8, 30_000),
        "balanced": Effort(4, 8, 40, 1.0, 64, 10, 0.25, 12, 20_000_000, 8, 150_000),
        "best": Effort(4, 24, 120, 1.0, 64, 30, 0.25, 40, 100_000_000, 16, 2_000_000),
    }
)
"""Presets by the name that ``PlanConfig.budget`` takes."""


def efforts_of(budget: str) -> list[Effort]:
    """List the efforts of a budget: the largest also tries what the default finds."""
    return [EFFORTS[name] for name in (("balanced", "best") if budget == "best" else (budget,))]
