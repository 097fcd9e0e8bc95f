"""`DCPDataloader`: rows of a data set in, this rank's tokens and the plan of each batch out.

Every rank packs all batches itself. It plans them itself too, or the first rank does and sends
every rank its part; packing and planning are deterministic, so all ranks hold the same either way.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from dcp_dsl import Dataset
from dcp_planner import Cluster
from dcp_runtime.data.batches import (
    MaskFunction,
    PackedSequence,
    RowReader,
    check_batches,
    make_resolver,
    open_rows,
    pack_epoch,
)
from dcp_runtime.data.choices import LookAhead, Packing, Planning, RowRules, check_count, check_kind
from dcp_runtime.data.local_data import LocalData, TargetFinder, take_local
from dcp_runtime.data.look_ahead import OwnPlans, PendingPlan, PlanningMetrics, PlanSource
from dcp_runtime.data.plan_request import (
    PlanReply,
    PlanRequest,
    SequenceRequest,
    make_plans,
)
from dcp_runtime.data.planner_pool import PlannerPool
from dcp_runtime.data.rows import IndexedRows, Row, StreamedRows
from dcp_runtime.data.screening import Screening
from dcp_runtime.data.shared_plans import PlanExchange, SharedPlans
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, name_batch

State: TypeAlias = dict[str, Any]  # Any: integers and texts, fit for JSON

SCHEMA = "dcp.dataloader/1"
PLAN_TIME_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of an iteration: the next batch of an epoch, or the next row of a stream."""

    epoch: int = 0
    batch: int = 0
    row: int = 0


@dataclass(slots=True)
class _Batch:
    """A batch with its pending plan, and the position after it."""

    sequences: tuple[PackedSequence, ...]
    pending: PendingPlan
    after: _Position


class DCPDataloader(IterableDataset[tuple[LocalData, BatchPlan]]):
    """Packs samples to a token budget, plans each batch, and yields this rank's part of it.

    Every sample is in exactly one batch of an epoch. Every iteration begins an epoch: the next one,
    also where the last was left before its end (the same batches unless they are shuffled).
    `set_epoch` chooses another. `state_dict` says how far the training loop has come; after
    `load_state_dict` the first iteration gives the rest of that epoch.

    ``torch.utils.data.DataLoader(loader, batch_size=None)`` gives the same batches; batches are
    planned ahead by `look_ahead`, not by workers of torch.

    Yields `LocalData` and the plan of the batch; where a stack gives layers different masks, the
    plans of all of them as `StackedPlans`, over one ownership of tokens.

    Args:
        dataset: what `read_dataset` gives, a Hugging Face data set, a sequence of rows, or an
            iterable of rows (which is packed in order and cannot be shuffled).
        mask_fn: a loaded spec, which finds the mask or the stack by its ``for ... use``; a mask or
            a stack for all samples; or a function from a row to its mask or stack.
        packing: which rows share a batch: token budget, order, shuffle.
        rows: how rows are read, and what becomes of those that cannot be used.
        planning: heads, devices, and how to plan for them.
        look_ahead: which process plans, and how early.

    Raises:
        DatasetError: if a row is longer than the budget, has no tokens, or lacks a column.
        RunError: if the rank is none of the cluster's devices, or options contradict each other.
    """

    def __init__(
        self,
        dataset: Dataset | Sequence[Row] | Iterable[Row],
        mask_fn: MaskFunction,
        packing: Packing = Packing(),  # noqa: B008 - frozen
        *,
        rows: RowRules = RowRules(),  # noqa: B008 - frozen
        planning: Planning = Planning(),  # noqa: B008 - frozen
        look_ahead: LookAhead = LookAhead(),  # noqa: B008 - frozen
    ) -> None:
        check_kind("packing", packing, Packing)
        check_kind("rows", rows, RowRules)
        check_kind("planning", planning, Planning)
        check_kind("look_ahead", look_ahead, LookAhead)
        self._packing, self._planning, self._look_ahead = packing, planning, look_ahead
        self._cluster, self._rank = planning.devices, planning.own_rank
        self._rows = open_rows(dataset, rows.token_column)
        resolve = make_resolver(self._rows, dataset, mask_fn, rows.path)
        self.screening = Screening(rows.policy)
        self._reader = RowReader(resolve, packing.token_budget, self.screening, rows)
        self._targets = TargetFinder(rows, self.screening, says=self._rank == 0)
        self._plans = _plan_source(look_ahead, planning, self._cluster)
        self._waiting: deque[_Batch] = deque()
        self._position = _Position()  # behind the batch that was yielded last
        self._next: _Position | None = None  # where the next iteration begins, if somebody said it
        self._iterations = 0
        self._is_under_way = False
        self._usable: tuple[list[int], list[int]] | None = None
        if isinstance(self._rows, IndexedRows):
            if packing.batches is not None:
                check_batches(packing.batches, self._rows.lengths, packing.token_budget)
            self._usable = self._screened()
            self._batches_of(0)  # what cannot be packed is said now
        elif packing.shuffle or packing.order != "in_order" or packing.batches is not None:
            raise RunError(
                "a stream of rows is packed in order: expected shuffle=False, order='in_order' and "
                "no batches; read_dataset(path) or list(rows) gives rows with numbers"
            )

    def __len__(self) -> int:
        """Number of batches of the whole epoch under way, else of the one that comes next."""
        if self._usable is None:
            raise TypeError("a stream of rows has no length")
        position = self._position if self._is_under_way else self._start()
        return len(self._batches_of(position.epoch))

    def __iter__(self) -> Iterator[tuple[LocalData, BatchPlan]]:
        """Begin an epoch, or go on in the one that was loaded; plans are made ahead."""
        if get_worker_info() is not None:
            raise RunError(
                "DCPDataloader cannot be read by workers of torch's DataLoader: each would give "
                "all batches, and none says how far training has come; give DataLoader "
                "num_workers=0, LookAhead(processes=...) plans ahead"
            )
        for batch in self._waiting:  # of an iteration that was left
            batch.pending.cancel()
        self._waiting.clear()
        self._position, self._next = self._start(), None
        self._iterations += 1
        return self._epoch(self._iterations)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration give an epoch, from its start; a state loaded from it stays.

        Raises:
            RunError: if it is no count.
        """
        check_count("epoch", epoch, 0)
        if self._next is None or self._next.epoch != epoch:
            self._next = _Position(epoch)

    @property
    def metrics(self) -> PlanningMetrics:
        """The cost of planning so far."""
        return self._plans.metrics

    def state_dict(self) -> State:
        """Return the state that resumes after the last yielded batch, as JSON values."""
        position = self._position if self._is_under_way or self._next is None else self._next
        return {"schema": SCHEMA, **asdict(position), "fingerprint": self._fingerprint()}

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was called: the next iteration gives the rest of that epoch.

        Raises:
            RunError: if the state is of another data set or of other packing options.
        """
        if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
            raise RunError(
                f"expected a state of schema {SCHEMA!r}, as state_dict() gives it, got "
                f"{str(state)[:80]}"
            )
        if state.get("fingerprint") != self._fingerprint():
            raise RunError(
                "the state was saved with other rows, token_budget, order, shuffle, seed, "
                "drop_last, policy or batches; resume with the same data set and options, or start "
                "anew"
            )
        numbers = [state.get(name) for name in ("epoch", "batch", "row")]
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise RunError(
                f"expected epoch, batch and row of the state to be counts, got {numbers}"
            )
        self._next = _Position(*map(int, numbers))  # type: ignore[arg-type]  # checked above

    def close(self) -> None:
        """End the planner processes, if there are any; they also end with the loader itself."""
        self._plans.close()

    def _start(self) -> _Position:
        """Return where the next iteration begins."""
        if self._next is not None:
            return self._next
        was_left = self._position.batch > 0
        return _Position(self._position.epoch + 1) if was_left else self._position

    def _epoch(self, iteration: int) -> Iterator[tuple[LocalData, BatchPlan]]:
        """Return the batches from the present position to the end of its epoch."""
        self._check_newest(iteration)
        coming, waiting = self._coming(), self._waiting
        self._is_under_way = True
        try:
            while True:
                waiting.extend(islice(coming, self._look_ahead.batches + 1 - len(waiting)))
                if not waiting:
                    break
                batch = waiting.popleft()
                planned = self._plans.take(batch.pending, len(waiting))
                kept = self._kept(batch.sequences, planned)
                self._position = batch.after
                if kept:  # all rows of a batch may have been left out
                    plan = name_batch(planned.plan, batch.after.epoch, batch.after.batch - 1)
                    targets = self._targets.find(kept, planned.hidden)
                    yield take_local(kept, targets, plan, self._rank), plan
                    self._check_newest(iteration)
            self._position = _Position(self._position.epoch + 1)
        finally:
            if iteration == self._iterations:
                self._is_under_way = False

    def _check_newest(self, iteration: int) -> None:
        if iteration != self._iterations:
            raise RunError(
                "another iteration over this DCPDataloader has begun and ended this one: expected "
                "one at a time; make a loader for each"
            )

    def _coming(self) -> Iterator[_Batch]:
        """Return batches from the present position on, each with its plan under way."""
        groups = self._indexed() if isinstance(self._rows, IndexedRows) else self._streamed()
        for sequences, after in groups:
            if sequences:  # all rows of a batch may have been left out
                yield _Batch(sequences, self._start_plan(sequences), after)

    def _indexed(self) -> Iterator[tuple[tuple[PackedSequence, ...], _Position]]:
        assert isinstance(self._rows, IndexedRows)
        start = self._position
        for number, rows in enumerate(self._batches_of(start.epoch)[start.batch :], start.batch):
            read = (self._reader.read(index, *self._rows.read(index)) for index in rows)
            yield tuple(s for s in read if s is not None), _Position(start.epoch, number + 1)

    def _streamed(self) -> Iterator[tuple[tuple[PackedSequence, ...], _Position]]:
        assert isinstance(self._rows, StreamedRows)
        start, number = self._position, self._position.batch
        found: list[PackedSequence] = []
        used = last = 0
        for index, row, tokens in self._rows.rows_from(start.row):
            sequence = self._reader.read(index, row, tokens)
            if sequence is None:
                continue
            if found and used + len(sequence.tokens) > self._packing.token_budget:
                number += 1
                yield tuple(found), _Position(start.epoch, number, index)
                found, used = [], 0
            found.append(sequence)
            used += len(sequence.tokens)
            last = index
        if found and not self._packing.drop_last:
            yield tuple(found), _Position(start.epoch, number + 1, last + 1)

    def _start_plan(self, sequences: tuple[PackedSequence, ...]) -> PendingPlan:
        masks = {(id(m.scope), m.call): m for s in sequences for m in s.masks}
        number = {key: index for index, key in enumerate(masks)}
        request = PlanRequest(
            masks=tuple(
                (m.scope.program.text, m.scope.program.name, m.call) for m in masks.values()
            ),
            sequences=tuple(_sequence_request(s, number) for s in sequences),
            may_skip=self.screening.policy == "skip",
            block_size=self._planning.block_size,
            shape=self._planning.shape,
            cluster=self._cluster,
            config=self._planning.config,
        )
        samples = [sequence.sample for sequence in sequences]
        return self._plans.start(
            request, lambda: make_plans(request, list(masks.values()), samples)
        )

    def _kept(
        self, sequences: tuple[PackedSequence, ...], planned: PlanReply
    ) -> list[PackedSequence]:
        """Record the sequences that do not fit their mask and give the others."""
        unfit = dict(planned.left_out)
        for number, why in unfit.items():
            row = sequences[number].row
            self.screening.leave_out(row, "unfit", f"row {row}: {why}")
        return [sequence for n, sequence in enumerate(sequences) if n not in unfit]

    def _screened(self) -> tuple[list[int], list[int]]:
        """Return the rows that can be used by their length, and how many tokens of each are."""
        assert isinstance(self._rows, IndexedRows)
        rows, counts = [], []
        for row, length in enumerate(self._rows.lengths.tolist()):
            count = self._reader.usable_tokens(row, length)
            if count:
                rows.append(row)
                counts.append(count)
        return rows, counts

    def _batches_of(self, epoch: int) -> Sequence[Sequence[int]]:
        if self._packing.batches is not None:
            return self._packing.batches
        assert self._usable is not None, "streams are packed as they come"
        return pack_epoch(*self._usable, self._packing, epoch)

    def _fingerprint(self) -> str:
        """Name the data set and the packing; equal ones give equal batches."""
        sha = hashlib.sha256(f"{self._packing} {self.screening.policy}".encode())
        if isinstance(self._rows, IndexedRows):
            sha.update(np.ascontiguousarray(self._rows.lengths, "<i8").tobytes())
        return sha.hexdigest()[:16]


def _sequence_request(
    sequence: PackedSequence, number: Mapping[tuple[int, str], int]
) -> SequenceRequest:
    """Describe a sequence; `number` finds its masks among those of the batch."""
    own = [number[id(mask.scope), mask.call] for mask in sequence.masks]
    cycle = tuple(own[index] for index in sequence.cycle)
    return SequenceRequest(sequence.row, cycle, sequence.sample.to_json(), len(sequence.tokens))


def _plan_source(look_ahead: LookAhead, planning: Planning, cluster: Cluster) -> PlanSource:
    processes = look_ahead.num_processes
    if look_ahead.planner == "each":
        return OwnPlans(PlannerPool(processes, PLAN_TIME_LIMIT_S) if processes else None)
    exchange = PlanExchange(planning.process_group, 2 * PLAN_TIME_LIMIT_S)
    if exchange.size != cluster.num_devices:
        raise RunError(
            f"planner='first': the cluster has {cluster.num_devices} devices, the group "
            f"{exchange.size} ranks; give the group of the ranks that share a batch"
        )
    is_planner = processes and exchange.rank == 0
    return SharedPlans(PlannerPool(processes, PLAN_TIME_LIMIT_S) if is_planner else None, exchange)
