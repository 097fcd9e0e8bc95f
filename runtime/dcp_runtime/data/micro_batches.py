"""This rank's parts of the micro-batches of a window: plans, targets, tokens."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Ints
from dcp_runtime.data.content import DataIdentity
from dcp_runtime.data.local_data import LocalData, take_local
from dcp_runtime.data.packing import Position
from dcp_runtime.data.plan_sources import PlanSource
from dcp_runtime.data.planner_pool import PlanReply
from dcp_runtime.data.replica_check import compare_replicas
from dcp_runtime.data.screening import Screening
from dcp_runtime.data.sequences import PackedSequence
from dcp_runtime.data.targets import TargetFinder
from dcp_runtime.data.windows import DealingWindow, other_rows
from dcp_runtime.plans.batch_plans import BatchNote, BatchPlan, StackedPlans, note_batch

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WindowTaker:
    """Takes the plans of windows, and finds what this rank trains on."""

    plans: PlanSource
    screening: Screening
    targets: TargetFinder
    device: int  # this rank, counted over all replicas
    token_budget: int  # of a replica in a micro-batch, for a message
    identity: DataIdentity
    compares: bool  # the first window with other replicas
    _has_overflown: bool = field(default=False, init=False)

    def take(self, window: DealingWindow, queued: int) -> "WindowPlans":
        """Wait for the plans of a window, with so many windows behind it."""
        if self.compares:
            self.compares = False
            at, read = window.start, window.sequences
            compare_replicas(self.device, self.identity.describe(read, at.epoch, at.step))
        planned = self.plans.take(window.pending, queued)
        window.check_count(planned)
        self._say_overflow(planned.overflow)
        kept = self._kept(window.sequences, planned)
        targets = self.targets.find(kept, planned) if kept else ()
        return WindowPlans(window, planned, kept, targets, self.device, self._facts())

    def _kept(
        self, sequences: tuple[PackedSequence, ...], planned: PlanReply
    ) -> list[PackedSequence]:
        """Record the sequences that do not fit their mask, and return the others."""
        unfit = dict(planned.left_out)
        for number, why in unfit.items():
            row = sequences[number].row
            self.screening.leave_out(row, "unfit", f"row {row}: {why}")
        return [sequence for n, sequence in enumerate(sequences) if n not in unfit]

    def _facts(self) -> dict[str, float]:
        """Return the figures of planning, and of rows so far, for the record of a step."""
        of = self.plans.metrics
        return {
            "planning_s": of.latest_s, "waited_s": of.latest_waited_s, "queued": of.queued,
            "lost": of.lost, "skipped": sum(self.screening.counts.values()),
        }  # fmt: skip

    def _say_overflow(self, tokens: int) -> None:
        """Warn once that a global batch was not dealt by work."""
        if not tokens or self._has_overflown:
            return
        self._has_overflown = True
        if self.device == 0:
            logger.warning(
                "packs are dealt in turn: by work, a replica would get %d tokens in a micro-batch, "
                "more than token_budget=%d; a larger budget, or shorter or more rows in a pack, "
                "let them be dealt by work",
                tokens,
                self.token_budget,
            )


@dataclass(frozen=True, slots=True)
class WindowPlans:
    """This rank's parts of the micro-batches of a window."""

    window: DealingWindow
    planned: PlanReply
    kept: Sequence[PackedSequence]  # sequences that fit their mask
    targets: Sequence[Ints]  # positions of those of each kept sequence
    device: int  # this rank, counted over all replicas
    facts: Mapping[str, float]  # of planning the window, for the record of each step

    @property
    def numbers(self) -> range:
        """Numbers of the micro-batches that are not done."""
        return range(self.window.start.micro_batch, len(self.planned.batches))

    def behind(self, number: int) -> Position:
        """Return the position behind a micro-batch."""
        if number + 1 == len(self.planned.batches):
            return self.window.after
        return replace(self.window.start, micro_batch=number + 1)

    def of(self, number: int) -> tuple[LocalData, BatchPlan]:
        """Return a micro-batch."""
        start, batch = self.window.start, self.planned.batches[number]
        members = [self.kept[member] for member in batch.members]
        # Micro-batches of a global batch; those of a window come global batch by global batch.
        count = len(self.planned.batches) // (self.window.after.step - start.step)
        step, micro_batch = divmod(number, count)
        name = f"epoch {start.epoch}, batch {start.step * count + number}"
        rows = tuple(sequence.row for sequence in members)
        named = batch.named(rows, tuple(sequence.name for sequence in members))
        self._check_lengths(named.plan, members, name)
        own = zip(self.kept, self.targets, self.planned.steps, strict=True)
        # In float64: from 2**24 on, float32 holds even numbers only.
        num_targets = sum(
            int(each.columns.weights[targets].sum(dtype=np.float64))
            for each, targets, at in own
            if at == step
        )
        data, content = take_local(
            members,
            [self.targets[member] for member in batch.members],
            named.plan.local_tokens(self.device - batch.first),
            num_targets,
            like=self.kept[0],
        )
        note = BatchNote(
            name, batch.facts, self.facts, content, masks_of(named.plan, members),
            max((int(each.columns.positions.max()) for each in members), default=-1),
        )  # fmt: skip
        plan = note_batch(named.plan, note)
        return replace(data, micro_batch=micro_batch, micro_batches=count), plan

    def _check_lengths(self, plan: BatchPlan, members: Sequence[PackedSequence], name: str) -> None:
        """Check a plan that another rank may have made against the rows of this one."""
        planned = np.diff(plan.cu_seqlens).tolist()
        own = [len(sequence.tokens) for sequence in members]
        if own != planned:
            rows = ", ".join(str(sequence.row) for sequence in members[:8])
            raise other_rows(
                f"{name}: expected rows of {planned[:8]} tokens, for which the first rank made "
                f"the plan, got rows {rows} of {own[:8]} tokens on device {self.device}"
            )


def masks_of(plan: BatchPlan, members: Sequence[PackedSequence]) -> list[list[tuple[Mask, Sample]]]:
    """Return for each plan of a batch the masks of its sequences, with their samples."""
    cycle = plan.cycle if isinstance(plan, StackedPlans) else (0,)
    layers = {number: layer for layer, number in enumerate(cycle) if number >= 0}
    return [
        [
            (each.masks[each.cycle[layers[number] % len(each.cycle)]], each.sample)
            for each in members
        ]
        for number in sorted(layers)
    ]
