"""The choices of one planning run."""

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from dcp_planner.errors import PlanError

Routing: TypeAlias = Literal["direct", "node"]
"""Routes of blocks: straight from and to the owner, or once per node and on from there."""

MOST_TOLERANCE = 1e6
"""Largest tolerance: one below the number of devices already forbids nothing."""
Budget = Literal["fast", "balanced", "best"]
BUDGETS: tuple[Budget, ...] = ("fast", "balanced", "best")
"""Budgets of a search, smallest first."""
MOST_DIVISIONS = 1024
"""Most divisions of one direction."""
MOST_HEAD_GROUPS = 256
"""Most groups of heads of a plan."""
MOST_SECONDS = 86_400.0
"""Longest time limit, a day."""


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Choices for placing and scheduling a batch.

    Attributes:
        partitioner: a key of `PARTITIONERS`.
        candidates: external partitioners that the portfolio tries as well, for example
            ``("kahypar",)``; each takes its time, and has to be installed.
        kahypar_ini: path of a configuration file for KaHyPar instead of the one that comes along.
        divisions: most divisions per direction: one of local tiles, the others wait for inputs; at
            least 2. ``"auto"`` takes the number that the simulator finds fastest.
        compute_tolerance: how far above the mean the most loaded device may compute, as a share; at
            most `MOST_TOLERANCE`.
        token_tolerance: the same for tokens owned.
        budget: how much the native search may do, in work, not in time: the same input gives the
            same plan on a slow machine.
        seed: of every random choice; the same input and seed give the same plan.
        routing: ``"direct"``: from and to the owner; ``"node"``: once per node, on from there.
        memory_limit_bytes: most bytes that a device may need for what it receives and for partial
            results of others' tokens; ``None`` for no limit.
        head_groups: groups of heads that are placed on their own, at most `MOST_HEAD_GROUPS`: with
            1 all heads of a tile are computed on one device. ``"auto"`` also tries what shape and
            cluster allow, and takes what the simulator finds fastest. A group has equally many
            query heads, and whole key/value heads or a part of the readers of one.
        time_limit_s: wall-clock seconds an external partitioner may take in all, at most a day.

    Raises:
        PlanError: if a value is out of its range.

    >>> PlanConfig(divisions=1)
    Traceback (most recent call last):
    ...
    dcp_planner.errors.PlanError: PlanConfig.divisions: expected at least 2 ..., got 1
    """

    partitioner: str = "portfolio"
    divisions: int | Literal["auto"] = "auto"
    compute_tolerance: float = 0.1
    token_tolerance: float = 0.1
    budget: Budget = "balanced"
    seed: int = 0
    time_limit_s: float = 60.0
    routing: Routing = "node"
    memory_limit_bytes: int | None = None
    candidates: tuple[str, ...] = ()
    kahypar_ini: str | None = None
    head_groups: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        if not _is_auto_or_count(self.divisions, 2, MOST_DIVISIONS):
            raise PlanError(
                "PlanConfig.divisions: expected at least 2 (one for local tiles, one that waits "
                f"for inputs) and at most {MOST_DIVISIONS}, or 'auto', got {self.divisions!r}"
            )
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 0:
            raise PlanError(
                f"PlanConfig.memory_limit_bytes: expected at least 0, got {self.memory_limit_bytes}"
            )
        if self.kahypar_ini is not None and not Path(self.kahypar_ini).is_file():
            raise PlanError(
                "PlanConfig.kahypar_ini: expected a configuration file of KaHyPar, got "
                f"{self.kahypar_ini!r}, which is no file; leave it out for the one that comes along"
            )
        if not _is_auto_or_count(self.head_groups, 1, MOST_HEAD_GROUPS):
            raise PlanError(
                f"PlanConfig.head_groups: expected 1 to {MOST_HEAD_GROUPS} or 'auto', got "
                f"{self.head_groups!r}"
            )
        self._check_ranges()

    def _check_ranges(self) -> None:
        if self.budget not in BUDGETS:
            raise PlanError(
                f"PlanConfig.budget: expected one of {', '.join(BUDGETS)}, got {self.budget!r}"
            )
        for name in ("compute_tolerance", "token_tolerance"):
            if not 0 <= getattr(self, name) <= MOST_TOLERANCE:
                raise PlanError(
                    f"PlanConfig.{name}: expected 0 to {MOST_TOLERANCE:g}, got "
                    f"{getattr(self, name)}"
                )
        if self.routing not in get_args(Routing):
            raise PlanError(
                f"PlanConfig.routing: expected one of {get_args(Routing)}, got {self.routing!r}"
            )
        if not 0 <= self.seed < 2**31:
            raise PlanError(f"PlanConfig.seed: expected 0 to 2147483647, got {self.seed}")
        if not 0 < self.time_limit_s <= MOST_SECONDS:
            raise PlanError(
                "PlanConfig.time_limit_s: expected more than 0 and at most "
                f"{MOST_SECONDS:g} seconds, got {self.time_limit_s}"
            )


def _is_auto_or_count(value: object, least: int, most: int) -> bool:
    """Check that a value is what its annotation says: Python lets anything through."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return value == "auto"
    return least <= int(value) <= most
