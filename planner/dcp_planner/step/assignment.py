"""The documents of a step, and the micro-batch and the devices of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dcp_dsl.arrays import Floats, Indices, Ints, Record
from dcp_planner.errors import PlanError


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Record):
    """Lengths and visible pairs, one row a document.

    Attributes:
        tokens: tokens of each document, int64 ``[N]``, at least 1.
        pairs: visible pairs of each document in one layer, the mean over a stack's layers, float64
            ``[N]``.

    Raises:
        ValueError: if a column has another type or length.
        PlanError: if a document is empty.

    >>> Documents.causal([3, 2]).pairs.tolist()
    [6.0, 3.0]
    """

    tokens: Annotated[Ints, "N"]
    pairs: Annotated[Floats, "N"]

    def _check(self) -> None:
        if np.any(self.tokens < 1):
            place = int(np.argmax(self.tokens < 1))
            raise PlanError(
                f"document {place}: expected at least 1 token, got {self.tokens[place]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def causal(cls, lengths: Ints | list[int]) -> "Documents":
        """Build documents under a causal mask each."""
        tokens = np.asarray(lengths, np.int64)
        return cls(tokens, tokens * (tokens + 1) / 2.0)


@dataclass(frozen=True, slots=True)
class StepMesh:
    """Devices and micro-batches of a step.

    Attributes:
        replicas: groups of devices that hold the same tokens' worth of work in today's recipes.
        context_ranks: devices of a replica.
        micro_batches: micro-batches of a step.
        stages: pipeline stages; each has ``replicas * context_ranks`` devices.

    >>> StepMesh(8, 8, micro_batches=4).devices
    64
    """

    replicas: int
    context_ranks: int
    micro_batches: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        for name in ("replicas", "context_ranks", "micro_batches", "stages"):
            if getattr(self, name) < 1:
                raise PlanError(f"StepMesh.{name}: expected at least 1, got {getattr(self, name)}")

    @property
    def devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.replicas * self.context_ranks


@dataclass(frozen=True, slots=True, eq=False)
class Assignment(Record):
    """Micro-batch and devices of every document.

    A document runs on the devices ``first`` to ``first + width - 1`` of each pipeline stage.
    Documents of one micro-batch with the same devices form a group: one attention plan.

    Attributes:
        mesh: devices and micro-batches.
        micro_batch, first, width: int32 ``[N]``.

    Raises:
        ValueError: if a column has another type or length.
        PlanError: if a document is outside the mesh.
    """

    mesh: StepMesh
    micro_batch: Annotated[Indices, "N"]
    first: Annotated[Indices, "N"]
    width: Annotated[Indices, "N"]

    def _check(self) -> None:
        outside = (
            (self.micro_batch < 0)
            | (self.micro_batch >= self.mesh.micro_batches)
            | (self.first < 0)
            | (self.width < 1)
            | (self.first + self.width > self.mesh.devices)
        )
        if outside.any():
            raise PlanError(
                f"document {int(np.argmax(outside))} is outside the mesh of {self.mesh.devices} "
                f"devices and {self.mesh.micro_batches} micro-batches"
            )

    def groups(self) -> Iterator[tuple[int, int, int, Ints]]:
        """Yield each group: micro-batch, first device, width, its documents in their order."""
        keys = np.stack([self.micro_batch, self.first, -self.width])
        order = np.lexsort(keys[::-1])
        changes = np.flatnonzero(np.any(np.diff(keys[:, order], axis=1) != 0, axis=0)) + 1
        for rows in np.split(order, changes) if len(order) else ():
            row = rows[0]
            yield (
                int(self.micro_batch[row]),
                int(self.first[row]),
                int(self.width[row]),
                np.sort(rows).astype(np.int64),
            )
