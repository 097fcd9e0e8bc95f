"""Global batches that are dealt and planned together, and what a planner is asked about them."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dcp_runtime.data.choices import Planning, Replicas
from dcp_runtime.data.dealing import Dealing
from dcp_runtime.data.packing import Pack, Position
from dcp_runtime.data.plan_sources import PendingPlan, PlanSource
from dcp_runtime.data.planner_pool import MaskText, PlanRequest, SequenceRequest
from dcp_runtime.data.sequences import PackedSequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DealingWindow:
    """Global batches of all replicas that are dealt together; their plans are under way."""

    sequences: tuple[PackedSequence, ...]
    pending: PendingPlan
    start: Position
    after: Position


@dataclass(frozen=True, slots=True)
class WindowOpener:
    """Opens windows over packs, and starts their plans."""

    dealing: Dealing  # of one global batch
    replicas: Replicas
    planning: Planning
    plans: PlanSource
    window: int  # global batches of a window
    may_skip: bool  # sequences that do not fit their mask

    def __post_init__(self) -> None:
        if self.window > 1 and self.replicas.device == 0:
            logger.warning(
                "Packing.window=%d: rows move between %d neighbouring global batches, so that the "
                "order of sampling is not that of the data set",
                self.window,
                self.window,
            )

    def open_windows(self, packs: Iterator[Pack], start: Position) -> Iterator[DealingWindow]:
        """Return windows from a position on, each with its plans under way."""
        size = self.dealing.packs
        while found := list(islice(packs, size * self.window)):
            steps = -(-len(found) // size)
            after = Position(start.epoch, start.step + steps, found[-1].behind)
            sequences = tuple(sequence for pack in found for sequence in pack.sequences)
            if sequences:  # else all rows were left out
                pending = self.plans.start(self._request(sequences, steps))
                yield DealingWindow(sequences, pending, start, after)
            start = after

    def _request(self, sequences: tuple[PackedSequence, ...], steps: int) -> PlanRequest:
        """Return what a planner is asked about sequences that are so many global batches."""
        # Masks by their spec and call: rows may bring objects of their own for the same mask.
        masks = {(id(m.scope), m.call): m for s in sequences for m in s.masks}
        number, rates = {key: index for index, key in enumerate(masks)}, self.planning.rates
        asked = []
        for s in sequences:
            own = [number[id(mask.scope), mask.call] for mask in s.masks]
            cycle = tuple(own[index] if index >= 0 else index for index in s.cycle)
            asked.append(SequenceRequest(s.row, cycle, s.sample.to_json(), len(s.tokens)))
        return PlanRequest(
            masks=tuple(map(MaskText.of, masks.values())),
            sequences=tuple(asked),
            dealing=self.dealing.over(steps),
            replica=self.replicas.replica,
            may_skip=self.may_skip,
            block_size=self.planning.block_size,
            shape=self.planning.shape,
            cluster=self.replicas.cluster if rates is None else rates.cluster,
            config=self.planning.config,
        )
