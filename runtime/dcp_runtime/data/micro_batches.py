"""This rank's parts of the micro-batches of a window: plans, targets, tokens."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Ints
from dcp_runtime.data.content import DataIdentity, compare_replicas
from dcp_runtime.data.local_data import LocalData, take_local
from dcp_runtime.data.packing import Position
from dcp_runtime.data.plan_sources import PlanSource
from dcp_runtime.data.planner_pool import PlanReply
from dcp_runtime.data.screening import Screening
from dcp_runtime.data.sequences import PackedSequence
from dcp_runtime.data.targets import TargetFinder
from dcp_runtime.data.windows import DealingWindow
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import SAME_ROWS, BatchNote, BatchPlan, StackedPlans, note_batch

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

    def take(
        self, window: DealingWindow, queued: int
    ) -> Iterator[tuple[Position, LocalData, BatchPlan]]:
        """Wait for the plans of a window, with so many windows behind it.

        Yields those of its micro-batches that are not done, each with the position behind it.
        """
        start = window.start
        if self.compares:
            self.compares = False
            note = self.identity.describe(window.sequences, start.epoch, start.step)
            compare_replicas(self.device, note)
        planned = self.plans.take(window.pending, queued)
        # Another rank may have made the plans.
        own, expected = len(window.sequences), len(planned.steps) + len(planned.left_out)
        if own != expected:
            raise RunError(
                f"epoch {start.epoch}, step {start.step}: expected {expected} rows, for which the "
                f"first rank made the plans, got {own} on this rank; {SAME_ROWS}"
            )
        self._say_overflow(planned.overflow)
        kept = self._kept(window.sequences, planned)
        targets, facts = self.targets.find(kept, planned) if kept else (), self._facts()
        for number in range(start.micro_batch, len(planned.batches)):
            is_last = number + 1 == len(planned.batches)
            behind = window.after if is_last else replace(start, micro_batch=number + 1)
            yield behind, *self._cut(window, planned, kept, targets, number, facts)

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

    def _cut(
        self,
        window: DealingWindow,
        planned: PlanReply,
        kept: Sequence[PackedSequence],
        targets: Sequence[Ints],
        number: int,
        facts: Mapping[str, float],
    ) -> tuple[LocalData, BatchPlan]:
        """Return this rank's part of a micro-batch of the sequences that fit their mask."""
        start, batch = window.start, planned.batches[number]
        members = [kept[member] for member in batch.members]
        # Micro-batches of a global batch; those of a window come global batch by global batch.
        count = len(planned.batches) // (window.after.step - start.step)
        step, micro_batch = divmod(number, count)
        name = f"epoch {start.epoch}, batch {start.step * count + number}"
        rows = tuple(sequence.row for sequence in members)
        named = batch.named(rows, tuple(sequence.name for sequence in members))
        self._check_lengths(named.plan, members, name)
        # In float64: from 2**24 on, float32 holds even numbers only.
        num_targets = sum(
            int(each.columns.weights[own].sum(dtype=np.float64))
            for each, own, at in zip(kept, targets, planned.steps, strict=True)
            if at == step
        )
        data, content = take_local(
            members,
            [targets[member] for member in batch.members],
            named.plan.local_tokens(self.device - batch.first),
            num_targets,
            like=kept[0],
        )
        note = BatchNote(
            name, batch.facts, facts, content, masks_of(named.plan, members),
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
            raise RunError(
                f"{name}: expected rows of {planned[:8]} tokens, for which the first rank made "
                f"the plan, got rows {rows} of {own[:8]} tokens on device {self.device}; "
                f"{SAME_ROWS}"
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
