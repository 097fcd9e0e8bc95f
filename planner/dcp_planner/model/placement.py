"""Placements: an owner for every token block, a device for every tile, and the caps of both."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from dcp_dsl.arrays import Indices, Record
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import Caps, cap_of
from dcp_planner.model.workload import Workload

WarningCode: TypeAlias = Literal[
    "compute_above_tolerance", "tokens_above_tolerance", "placed_by_layout"
]
"""Reasons to warn: a tolerance is missed, or a static layout replaced what needed too much."""


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """A wish of the configuration that a plan could not meet.

    Attributes:
        code: what programs may decide on.
        message: a sentence for people.
    """

    code: WarningCode
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, eq=False)
class Placement(Record):
    """Owner of every token block and device of every tile.

    Attributes:
        device_of_data: int32 ``[D]``, owner of each token block.
        device_of_compute: int32 ``[G W]``, device of each tile: of all tiles in head group 0, then
            of all in group 1, ...
        warnings: what could not be met; empty if everything was.
        head_groups: groups of heads G.
    """

    device_of_data: Annotated[Indices, "D"]
    device_of_compute: Annotated[Indices, "GW"]
    warnings: tuple[PlanWarning, ...] = ()
    head_groups: int = 1


class Partitioner(ABC):
    """An adapter that places a workload."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Key in the registry."""

    @property
    def is_fixed(self) -> bool:
        """True if the result is taken as it is; others are repaired to the caps."""
        return True

    def unavailable(self) -> str | None:
        """Explain why it cannot run here, with the way out; ``None`` if it can."""
        return None

    @abstractmethod
    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Place every token block and tile; need not meet the caps unless `is_fixed`."""


def caps_of(workload: Workload, parts: int, config: PlanConfig) -> Caps:
    """Compute the caps of a configuration, widened to what whole tiles and blocks allow."""
    return Caps(
        pairs=cap_of(workload.compute_pairs, parts, config.compute_tolerance),
        tokens=cap_of(workload.block_tokens, parts, config.token_tolerance),
    )
