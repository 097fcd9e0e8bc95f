"""`DCPDataloader`: from rows of a data set to this rank's tokens and the plan of each micro-batch.

Every rank packs all global batches. Either every rank also deals and plans them, or the first rank
of its replica does and sends every rank its part. All of this is deterministic, so all ranks have
the same batches either way.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from typing import Any, Self, TypeAlias

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from dcp_dsl import Dataset, DatasetError
from dcp_runtime.data.choices import (
    LookAhead,
    Packing,
    Planning,
    Replicas,
    RowRules,
    check_count,
    dealing_of,
    find_replicas,
)
from dcp_runtime.data.content import SAMPLED_ROWS, DataHashes, describe_sequences, hash_data
from dcp_runtime.data.local_data import (
    DealingWindow,
    LocalData,
    Pack,
    Position,
    TargetFinder,
    WindowPlans,
    without_last,
)
from dcp_runtime.data.plan_sources import PendingPlan, PlanningMetrics, make_plan_source
from dcp_runtime.data.planner_pool import MaskText, PlanReply, PlanRequest, SequenceRequest
from dcp_runtime.data.replica_check import compare_replicas, is_known
from dcp_runtime.data.rows import (
    IndexedRows,
    MaskFunction,
    Packs,
    Row,
    StreamedRows,
    make_resolver,
    open_rows,
    pack_epoch,
)
from dcp_runtime.data.screening import Screening, TargetCount
from dcp_runtime.data.sequences import PackedSequence, RowReader
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, Iteration
from dcp_runtime.transport.failure_registry import describe_error

State: TypeAlias = dict[str, Any]  # Any: integers and texts, fit for JSON

SCHEMA = "dcp.dataloader/2"

logger = logging.getLogger(__name__)


class DCPDataloader(IterableDataset[tuple[LocalData, BatchPlan]]):
    """Packs samples into global batches, deals them to ranks, plans, and yields this rank's part.

    A global batch holds the samples of ``replicas * micro_batches`` packs of the token budget; by
    default one, which all ranks share. Every sample is in exactly one global batch of an epoch, and
    in one micro-batch of it. `LocalData.num_targets` counts the targets of the global batch, and
    `LocalData.ends_step` says where it ends.

    Every iteration begins the next epoch, also if the last iteration was left before its end (the
    batches are the same unless they are shuffled). `set_epoch` chooses another epoch. `state_dict`
    says how far the training loop has come; after `load_state_dict` the first iteration gives the
    rest of that epoch.

    ``torch.utils.data.DataLoader(loader, batch_size=None)`` gives the same batches; batches are
    planned ahead by `look_ahead`, not by workers of torch.

    Yields `LocalData` and the plan of each micro-batch; where a stack gives layers different masks,
    the plans of all of them as `StackedPlans`, over one ownership of tokens. The plan is for the
    ranks that share the micro-batch: those of a replica, or of all (`Packing.group`).

    Args:
        dataset: what `read_dataset` gives, a Hugging Face data set, a sequence of rows, or an
            iterable of rows (which is packed in order and cannot be shuffled).
        mask_fn: a loaded spec, which finds the mask or the stack by its ``for ... use``; a mask or
            a stack for all samples; or a function from a row to its mask or stack.
        packing: which rows share a global batch and a micro-batch: token budget, order, replicas.
        rows: how rows are read, and whether bad rows raise an error, are left out or cut.
        planning: heads, devices, and how to plan for them.
        look_ahead: which process plans, and how early.

    Raises:
        DatasetError: if a row is longer than the budget, has no tokens, or lacks a column, or there
            are fewer rows than micro-batches; or, in an iteration, if a whole epoch has no batch.
        RunError: if the rank is not a device of the cluster, ranks do not divide into replicas, or
            options contradict each other.
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
        for name, given, kind in (
            ("packing", packing, Packing), ("rows", rows, RowRules),
            ("planning", planning, Planning), ("look_ahead", look_ahead, LookAhead),
        ):  # fmt: skip
            if not isinstance(given, kind):
                raise RunError(
                    f"{name}: expected a {kind.__name__}, got {given!r:.60}; give {name}="
                    f"{kind.__name__}(...), which holds the choices of this kind"
                )
        self._replicas = find_replicas(packing, planning)
        self._packing, self._planning, self._look_ahead = packing, planning, look_ahead
        self._dealing = dealing_of(packing, planning, self._replicas)
        self._rows, self._mask_fn = open_rows(dataset, rows.token_column), mask_fn
        resolve = make_resolver(self._rows, dataset, mask_fn, rows.path)
        self.screening = Screening(rows.policy, says=self._replicas.device == 0)
        room = self._dealing.room(self._dealing.widest)
        self._reader = RowReader(
            resolve, room, self._dealing.way_out, self.screening, rows, self._rows.faults
        )
        is_first = self._replicas.device == 0
        # Where all rows have targets but those of one replica, its first rank says so.
        is_first_own = self._replicas.device % self._replicas.context_ranks == 0
        self._count = TargetCount(self._replicas.replica, is_first, is_first_own)
        self._targets = TargetFinder(rows, self.screening, is_first, is_first, self._count)
        self._plans = make_plan_source(look_ahead, self._replicas)
        self._compares = is_known(planning, self._replicas)  # with other replicas, once
        self._waiting: deque[DealingWindow] = deque()
        self._position = Position()  # behind the micro-batch that was yielded last
        # Begin of the next iteration, from `set_epoch` or `load_state_dict`.
        self._next: Position | None = None
        self._iterations = 0  # begun so far: an older iterator must not move the position
        self._is_begun = False  # whether a micro-batch was yielded since the last `__iter__`
        self._is_under_way = self._has_overflown = False
        # Numbers and lengths of the rows that can be used; None for a stream.
        self._usable: tuple[list[int], list[int]] | None = None
        self._packed: tuple[int, Packs] = -1, ()  # the latest epoch, and its packs
        if isinstance(self._rows, IndexedRows):
            self._usable = self._screened()
            self._packs_of(0)  # raises now, not at the first batch, if rows cannot be packed
            if not self._rows.is_table:
                # On all ranks alike: rows that draw random numbers draw as many on each.
                _ = self._hashes
        elif packing.shuffle or packing.order != "in_order":
            raise RunError(
                "a stream of rows is packed in order: expected shuffle=False and order='in_order'; "
                "read_dataset(path) or list(rows) gives rows with numbers"
            )
        if packing.window > 1 and self._replicas.device == 0:
            logger.warning(
                "Packing.window=%d: rows move between %d neighbouring global batches, so that the "
                "order of sampling is not that of the data set",
                packing.window,
                packing.window,
            )

    def __len__(self) -> int:
        """Number of micro-batches of the epoch under way, as a whole; else of the next epoch.

        Under ``policy="skip"`` it is the most that there can be: rows that do not fit their mask
        still count, since only reading them tells.
        """
        if self._usable is None:
            raise TypeError("a stream of rows has no length")
        position = self._position if self._is_under_way else self._start()
        return self._count_of(position.epoch)

    def _count_of(self, epoch: int) -> int:
        steps = -(-len(self._packs_of(epoch)) // self._dealing.packs)
        return steps * self._dealing.micro_batches

    def __iter__(self) -> Iterator[tuple[LocalData, BatchPlan]]:
        """Begin an epoch, or continue a loaded epoch; plans are made ahead."""
        if get_worker_info() is not None:
            raise RunError(
                "DCPDataloader cannot be read by workers of torch's DataLoader: each would give "
                "all batches, and none says how far training has come; give DataLoader "
                "num_workers=0, LookAhead(processes=...) plans ahead"
            )
        for window in self._waiting:  # those of an iteration that was left
            window.pending.cancel()
        self._waiting.clear()
        self._position, self._next, self._is_begun = self._start(), None, False
        self._iterations += 1
        return self._epoch(self._iterations)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch; a loaded state of the same epoch stays in force.

        Raises:
            RunError: if it is no integer from 0 on.
        """
        check_count("epoch", epoch, 0)
        if self._next is None or self._next.epoch != epoch:
            self._next = Position(epoch)

    @property
    def packing(self) -> Packing:
        """The choices of packing."""
        return self._packing

    @property
    def replicas(self) -> Replicas:
        """The ranks by replica, for which batches are dealt."""
        return self._replicas

    @property
    def metrics(self) -> PlanningMetrics:
        """The cost of planning so far."""
        return self._plans.metrics

    def state_dict(self) -> State:
        """Return the state that resumes after the last yielded micro-batch, as JSON values."""
        # A position that was set for the next iteration is the present one until that begins.
        position = self._position if self._is_under_way or self._next is None else self._next
        state = {"schema": SCHEMA, **asdict(position), "fingerprint": self._fingerprint}
        state |= self._hashes._asdict()
        if position.micro_batch:  # the rest of the window must be dealt as its beginning was
            state["dealing"] = self._dealing.name
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was called: the next iteration gives the rest of that epoch.

        Raises:
            RunError: if the state is of another data set, of other masks or of other packing
                options.
        """
        if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
            raise RunError(
                f"expected a state of schema {SCHEMA!r}, as state_dict() gives it, got "
                f"{str(state)[:80]}"
            )
        if state.get("fingerprint") != self._fingerprint:
            raise RunError(
                "the state was saved with other rows, token_budget, order, shuffle, seed, "
                "drop_last, replicas, micro_batches, window or policy; resume with the same data "
                "set and options, or start anew"
            )
        for name, own in self._hashes._asdict().items():
            # States of older versions have no hashes; rows computed at random have none either.
            if own and state.get(name) and state[name] != own:
                raise RunError(
                    f"the state was saved with other {name}: expected the hash {state[name]}, got "
                    f"{own} of {SAMPLED_ROWS} rows or fewer, from the first to the last; resume "
                    "with the same data set and the same spec or mask, or start anew with a new "
                    "loader"
                )
        position = Position.of(state)
        if position.micro_batch and state.get("dealing") != self._dealing.name:
            raise RunError(
                "the state was saved inside a global batch that was dealt for other ranks, another "
                "model or other options of dealing; resume with the same ones, or from a state "
                "that was saved where LocalData.ends_step is true"
            )
        self._next = position

    def __enter__(self) -> Self:
        """Return the loader, which closes where the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the planner processes, if there are any; they also end with the loader itself."""
        self._plans.close()

    def _start(self) -> Position:
        """Return where the next iteration begins."""
        if self._next is not None:
            return self._next
        return Position(self._position.epoch + 1) if self._is_begun else self._position

    def _epoch(self, iteration: int) -> Iterator[tuple[LocalData, BatchPlan]]:
        """Return the micro-batches from the present position to the end of its epoch."""
        self._check_newest(iteration)
        coming, waiting, begin = self._coming(), self._waiting, self._position
        self._count.begin()
        with self._told(iteration) as told:
            while True:
                # One window to take now, and so many more that are planned meanwhile.
                waiting.extend(islice(coming, self._look_ahead.batches + 1 - len(waiting)))
                if not waiting:
                    break
                window = waiting.popleft()
                if self._compares:
                    self._compares = False
                    compare_replicas(self._replicas.device, self._describe(window))
                planned = self._plans.take(window.pending, len(waiting))
                window.check_count(planned)
                self._say_overflow(planned.overflow)
                kept = self._kept(window.sequences, planned)
                targets = self._targets.find(kept, planned) if kept else ()
                parts = WindowPlans(
                    window, planned, kept, targets, self._replicas.device, self._facts()
                )
                for number in range(window.start.micro_batch, len(planned.batches)):
                    # Set before the yield: a state that the loop saves is behind this micro-batch.
                    self._position, self._is_begun = parts.behind(number), True
                    data, plan = parts.of(number)
                    yield data, told.add(plan)
                    self._plans.patience_s = told.patience_s
                    # Meanwhile the training loop may have begun another iteration.
                    self._check_newest(iteration)
                # No micro-batch has moved the position if all rows of the window were left out.
                self._position = window.after
            if begin == Position(begin.epoch) and not self._is_begun:
                self._position = begin  # the next iteration finds the same
                rows = self._rows
                total = len(rows) if isinstance(rows, IndexedRows) else rows.passed
                raise self.screening.no_batch(begin.epoch, total)
            if begin == Position(begin.epoch):  # else a rest, which may be short
                self._count.end()
            self._position, self._is_begun = Position(self._position.epoch + 1), False

    @contextmanager
    def _told(self, number: int) -> Iterator[Iteration]:
        """Note that an iteration is under way; tell ranks that go on where and why it ends here."""
        epoch, device = self._position.epoch, self._replicas.device
        told = Iteration(self._length_of(epoch), device if self._planning.rank is None else None)
        told.latest, why = f"the begin of epoch {epoch}", "left the loop over its batches"
        self._plans.iteration, self._is_under_way = number, True
        try:
            yield told
            why = "has no more rows"
        except Exception as error:
            why = f"failed in its data loader ({describe_error(error)})"
            raise
        finally:
            # A newer iteration may be under way when this one is closed.
            if number == self._iterations:
                self._is_under_way = False
            told.end(f"{why} after {told.latest}")
            self._plans.end(number, f"{why} after {told.latest}")

    def _length_of(self, epoch: int) -> str:
        if not isinstance(self._rows, IndexedRows):
            return ""
        return f"{len(self._rows)} rows, {self._count_of(epoch)} batches in epoch {epoch}"

    def _describe(self, window: DealingWindow) -> str:
        """Return a line that is the same on all ranks that read the same data."""
        # Rows that are augmented at random may differ between replicas, but for their lengths.
        is_fixed = not isinstance(self._rows, IndexedRows) or bool(self._hashes.tokens)
        start = window.start
        is_table = isinstance(self._rows, IndexedRows) and self._rows.is_table
        line = describe_sequences(window.sequences, is_fixed=is_fixed, is_table=is_table)
        data = f"{self._fingerprint}-{'-'.join(self._hashes)}"
        return f"{line} in epoch {start.epoch}, step {start.step} of the data set {data}"

    def _facts(self) -> dict[str, float]:
        """Return the figures of planning, and of rows so far, for the record of a step."""
        of = self.metrics
        return {
            "planning_s": of.latest_s, "waited_s": of.latest_waited_s, "queued": of.queued,
            "lost": of.lost, "skipped": sum(self.screening.counts.values()),
        }  # fmt: skip

    def _say_overflow(self, tokens: int) -> None:
        """Warn once that a global batch was not dealt by work."""
        if not tokens or self._has_overflown:
            return
        self._has_overflown = True
        if self._replicas.device == 0:
            logger.warning(
                "packs are dealt in turn: by work, a replica would get %d tokens in a micro-batch, "
                "more than token_budget=%d; a larger budget, or shorter or more rows in a pack, "
                "let them be dealt by work",
                tokens,
                self._packing.token_budget,
            )

    def _check_newest(self, iteration: int) -> None:
        if iteration != self._iterations:
            raise RunError(
                "another iteration over this DCPDataloader has begun and ended this one: expected "
                "one at a time; make a loader for each"
            )

    def _coming(self) -> Iterator[DealingWindow]:
        """Return windows from the present position on, each with its plans under way."""
        start, packs, size = self._position, self._packs(), self._dealing.packs
        while found := list(islice(packs, size * self._packing.window)):
            steps = -(-len(found) // size)
            after = Position(start.epoch, start.step + steps, found[-1].behind)
            sequences = tuple(sequence for pack in found for sequence in pack.sequences)
            if sequences:  # else all rows were left out
                yield DealingWindow(sequences, self._start_plan(sequences, steps), start, after)
            start = after

    def _packs(self) -> Iterator[Pack]:
        """Return packs from the present position on."""
        if isinstance(self._rows, StreamedRows):
            packs, drops_last = self._streamed(self._rows), self._packing.drop_last
            yield from without_last(packs, self._dealing.packs) if drops_last else packs
            return
        start = self._position
        for pack in self._packs_of(start.epoch)[start.step * self._dealing.packs :]:
            read = (self._reader.read(index, *self._rows.read(index)) for index in pack)
            yield Pack(tuple(sequence for sequence in read if sequence is not None))

    def _streamed(self, rows: StreamedRows) -> Iterator[Pack]:
        """Pack rows as they come; a pack closes when the next row does not fit."""
        found: list[PackedSequence] = []
        used = last = 0
        for index, row, tokens in rows.rows_from(self._position.row):
            sequence = self._reader.read(index, row, tokens)
            if sequence is None:
                continue
            if found and used + len(sequence.tokens) > self._reader.room:
                yield Pack(tuple(found), index)
                found, used = [], 0
            found.append(sequence)
            used += len(sequence.tokens)
            last = index
        if found:
            yield Pack(tuple(found), last + 1)

    def _start_plan(self, sequences: tuple[PackedSequence, ...], steps: int) -> PendingPlan:
        # Masks by their spec and call: rows may bring objects of their own for the same mask.
        masks = {(id(m.scope), m.call): m for s in sequences for m in s.masks}
        number, rates = {key: index for index, key in enumerate(masks)}, self._planning.rates
        asked = []
        for s in sequences:
            own = [number[id(mask.scope), mask.call] for mask in s.masks]
            cycle = tuple(own[index] if index >= 0 else index for index in s.cycle)
            asked.append(SequenceRequest(s.row, cycle, s.sample.to_json(), len(s.tokens)))
        request = PlanRequest(
            masks=tuple(map(MaskText.of, masks.values())),
            sequences=tuple(asked),
            dealing=self._dealing.over(steps),
            replica=self._replicas.replica,
            may_skip=self.screening.policy == "skip",
            block_size=self._planning.block_size,
            shape=self._planning.shape,
            cluster=self._replicas.cluster if rates is None else rates.cluster,
            config=self._planning.config,
        )
        return self._plans.start(request)

    def _kept(
        self, sequences: tuple[PackedSequence, ...], planned: PlanReply
    ) -> list[PackedSequence]:
        """Record the sequences that do not fit their mask, and return the others."""
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
            if count := self._reader.usable_tokens(row, length):
                rows.append(row)
                counts.append(count)
        self.screening.begin_reading(len(self._rows))
        if 0 < len(rows) < self._packing.micro_batches:
            raise DatasetError(
                f"expected at least one row per micro-batch, got {len(rows)} usable rows for "
                f"micro_batches={self._packing.micro_batches}; use at most {len(rows)}"
            )
        return rows, counts

    def _packs_of(self, epoch: int) -> Packs:
        assert self._usable is not None, "streams are packed as they come"
        if self._packed[0] != epoch:
            self._packed = epoch, pack_epoch(*self._usable, self._packing, self._dealing, epoch)
        return self._packed[1]

    @cached_property
    def _hashes(self) -> DataHashes:
        """Hashes of some rows and their masks."""
        return hash_data(self._rows, self._mask_fn, self._reader.resolve)

    @cached_property
    def _fingerprint(self) -> str:
        """A name of the data set and the packing: equal names give equal global batches."""
        # The number of replicas as found: None and the number that it stands for pack alike.
        packing = replace(self._packing, replicas=self._replicas.count)
        sha = hashlib.sha256(f"{packing} {self.screening.policy}".encode())
        if isinstance(self._rows, IndexedRows):
            sha.update(np.ascontiguousarray(self._rows.lengths, "<i8").tobytes())
        return sha.hexdigest()[:16]
