"""The plans of one batch, one per distinct mask, and the name of the batch."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Indices, Ints
from dcp_planner import Plan, digest
from dcp_planner.plan import PlanPart
from dcp_runtime.errors import RunError
from dcp_runtime.run_log.record import PlanFacts

_notes: "WeakKeyDictionary[BatchPlan, BatchNote]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class BatchNote:
    """Words of a data loader about a batch.

    Attributes:
        name: of the batch; empty if no loader yielded it.
        plans: numbers of its plans, one by one.
        facts: what the record of the step says about planning it.
    """

    name: str = ""
    plans: Sequence[PlanFacts] = ()
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StackedPlans:
    """Plans over one ownership of tokens, and which of them each layer runs.

    `LayerPlans.prepare` takes it.

    Attributes:
        plans: one per distinct mask, or this rank's parts of them.
        cycle: for each layer the number of its plan, -1 for a linear one, which attends to nothing;
            the cycle repeats over the model's layers.

    Raises:
        RunError: if the plans place tokens differently, or the cycle names one that is not there.
    """

    plans: tuple[Plan | PlanPart, ...]
    cycle: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.plans)
        if not count or not self.cycle or not all(-1 <= index < count for index in self.cycle):
            raise RunError(
                f"expected a cycle over {count} plans, got {self.cycle}; give for each layer the "
                "number of its plan"
            )
        blocks, *others = (blocks_of(plan) for plan in self.plans)
        for other in others:
            if any(not np.array_equal(a, b) for a, b in zip(other, blocks, strict=True)):
                raise RunError(
                    "the plans of a stack place tokens on different ranks; plan all masks of a "
                    "stack in one build_stack call, which gives them one placement"
                )

    @property
    def num_devices(self) -> int:
        """Ranks that share the batch."""
        return self.plans[0].num_devices

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed batch."""
        return self.plans[0].num_tokens

    @property
    def cu_seqlens(self) -> Indices:
        """Sequences of the packed batch, int32 ``[S+1]``."""
        return self.plans[0].cu_seqlens

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the whole plans; equal on all ranks."""
        return tuple(map(digest_of, self.plans))

    def local_tokens(self, device: int) -> Ints:
        """Return packed positions of the tokens that a device owns, the same in every layer."""
        return self.plans[0].local_tokens(device)


BatchPlan: TypeAlias = Plan | PlanPart | StackedPlans
"""The plans that a loader yields beside the data: one for all layers, or one per distinct mask."""


def digest_of(plan: Plan | PlanPart) -> str:
    """Return the digest of a plan, or of the whole plan that a part was cut from."""
    return plan.digest if isinstance(plan, PlanPart) else digest(plan)


def blocks_of(plan: Plan | PlanPart) -> tuple[NDArray[np.generic], ...]:
    """Return the borders and owners of a plan's token blocks."""
    blocks = plan.plan.blocks if isinstance(plan, PlanPart) else plan.blocks
    return blocks.start, blocks.end, blocks.owner


def note_batch(plan: BatchPlan, note: BatchNote) -> BatchPlan:
    """Attach a note to a plan.

    Returns:
        The plan, or a shallow copy if it has a note already: batches may share a cached plan.
    """
    if plan in _notes:
        plan = copy(plan)
    _notes[plan] = note
    return plan


def batch_note(plan: object) -> BatchNote:
    """Return the note of a plan's batch; an empty one if no data loader yielded the plan."""
    if not isinstance(plan, Plan | PlanPart | StackedPlans):
        return BatchNote()
    if isinstance(plan, StackedPlans) and plan not in _notes:
        return batch_note(plan.plans[0])
    return _notes.get(plan, BatchNote())
