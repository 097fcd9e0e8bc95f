"""Windows: global batches that are dealt together, and this rank's parts of their micro-batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_runtime.data.batches import PackedSequence
from dcp_runtime.data.local_data import LocalData, take_local
from dcp_runtime.data.look_ahead import PendingPlan
from dcp_runtime.data.plan_reply import PlanReply
from dcp_runtime.plans.batch_plans import BatchNote, BatchPlan, note_batch


@dataclass(frozen=True, slots=True)
class Position:
    """The position of an iteration.

    Attributes:
        epoch: number of the epoch.
        step: global batches that are behind, whole windows of them.
        row: next row of a stream behind these.
        micro_batch: micro-batches of the next window that are behind as well.
    """

    epoch: int = 0
    step: int = 0
    row: int = 0
    micro_batch: int = 0

    @property
    def is_begun(self) -> bool:
        """True once a micro-batch of the epoch has been yielded."""
        return self.step > 0 or self.micro_batch > 0


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows of the data set that are packed, and the first row behind them of a stream."""

    sequences: tuple[PackedSequence, ...]
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Global batches that are dealt together, whose plans are under way.

    Attributes:
        sequences: of all replicas, in packed order.
        pending: their plans.
        start, after: before its first micro-batch, behind its last.
    """

    sequences: tuple[PackedSequence, ...]
    pending: PendingPlan
    start: Position
    after: Position


@dataclass(frozen=True, slots=True)
class WindowPlans:
    """This rank's parts of the micro-batches of a window.

    Attributes:
        window: its place in the epoch.
        planned: its plans.
        kept: its sequences without those that were left out.
        targets: positions of the targets of each.
        device: this rank, counted over all replicas.
        facts: what the record of each step says about planning the window.
    """

    window: Window
    planned: PlanReply
    kept: Sequence[PackedSequence]
    targets: Sequence[Ints]
    device: int
    facts: Mapping[str, float]

    def behind(self, number: int) -> Position:
        """Return the position behind a micro-batch."""
        if number + 1 == len(self.planned.batches):
            return self.window.after
        return replace(self.window.start, micro_batch=number + 1)

    def of(self, number: int) -> tuple[LocalData, BatchPlan]:
        """Return a micro-batch."""
        start, batch = self.window.start, self.planned.batches[number]
        count = len(self.planned.batches) // (self.window.after.step - start.step)
        step, micro_batch = divmod(number, count)
        name = f"epoch {start.epoch}, batch {start.step * count + number}"
        plan = note_batch(batch.plan, BatchNote(name, batch.facts, self.facts))
        own = zip(self.kept, self.targets, self.planned.steps, strict=True)
        num_targets = sum(
            int(each.columns.weights[targets].sum(dtype=np.float64))
            for each, targets, at in own
            if at == step
        )
        data = take_local(
            [self.kept[member] for member in batch.members],
            [self.targets[member] for member in batch.members],
            plan.local_tokens(self.device - batch.first),
            num_targets,
            like=self.kept[0],
        )
        return replace(data, micro_batch=micro_batch, micro_batches=count), plan


def without_last(packs: Iterator[Pack], size: int) -> Iterator[Pack]:
    """Return packs without those of the last global batch, of `size` packs or fewer."""
    held: list[Pack] = []
    for pack in packs:
        if len(held) == size:
            yield from held
            held = []
        held.append(pack)
