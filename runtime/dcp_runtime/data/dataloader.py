"""`DCPDataloader`: from rows of a data set to this rank's tokens and the plan of each micro-batch.

The path, an arrow a function in the file of its name:

```
data set  rows.open_rows          numbered or streamed rows; rows.make_resolver finds their masks
screened  screening.screen        by lengths; sequences.RowReader.read, a row with masks and columns
packed    packing.RowPacker       to the token budget, epoch by epoch
windows   windows.WindowOpener    global batches that are planned together, and their requests
dealt     dealing.deal_documents  to micro-batches and devices, in the process that plans
planned   make_plans.plan_request ahead of need: plan_sources, planner_pool
taken     micro_batches           plans taken; targets.TargetFinder finds what counts
local     local_data.take_local   this rank's tokens and targets
```
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Self

from torch.utils.data import IterableDataset, get_worker_info

from dcp_dsl import Dataset
from dcp_runtime.data.choices import (
    LookAhead,
    Packing,
    Planning,
    RowRules,
    check_kinds,
    dealing_of,
    find_replicas,
)
from dcp_runtime.data.content import DataIdentity, is_known
from dcp_runtime.data.local_data import LocalData
from dcp_runtime.data.micro_batches import WindowTaker
from dcp_runtime.data.packing import Position, RowPacker
from dcp_runtime.data.plan_sources import PlanningMetrics, make_plan_source
from dcp_runtime.data.progress import Progress, State, load_state, save_state
from dcp_runtime.data.rows import MaskFunction, Row, make_resolver, open_rows
from dcp_runtime.data.screening import Screening, TargetCount
from dcp_runtime.data.sequences import RowReader
from dcp_runtime.data.targets import TargetFinder
from dcp_runtime.data.windows import DealingWindow, WindowOpener
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, Iteration
from dcp_runtime.transport.failure_registry import describe_error


class DCPDataloader(IterableDataset[tuple[LocalData, BatchPlan]]):
    """Packs samples into global batches, deals them to ranks, plans, and yields this rank's part.

    A global batch holds the samples of ``replicas * micro_batches`` packs of the token budget; by
    default one, which all ranks share. Every sample is in exactly one global batch of an epoch, and
    in one micro-batch of it. `LocalData.num_targets` counts the targets of the global batch, and
    `LocalData.ends_step` says where it ends.

    Every iteration begins the next epoch, also if the last one was left before its end. `set_epoch`
    chooses another epoch. `state_dict` says how far the training loop has come; after
    `load_state_dict` the first iteration gives the rest of that epoch.

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

    Attributes:
        packing, replicas: as given; the ranks by replica, for which batches are dealt.
        screening: rows and targets that are left out.

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
        check_kinds(packing=packing, rows=rows, planning=planning, look_ahead=look_ahead)
        self.replicas = replicas = find_replicas(packing, planning)
        self.packing, self._look_ahead = packing, look_ahead
        self._is_rank = planning.rank is None  # else it reads the part of another rank
        self._dealing = dealing = dealing_of(packing, planning, replicas)
        found, is_first = open_rows(dataset, rows.token_column), replicas.device == 0
        self.screening = Screening(rows.policy, says=is_first)
        reader = RowReader(
            make_resolver(found, dataset, mask_fn, rows.path),
            dealing.room(dealing.widest), dealing.way_out, self.screening, rows, found.faults,
        )  # fmt: skip
        # Where all rows have targets but those of one replica, its first rank says so.
        is_first_own = replicas.device % replicas.context_ranks == 0
        self._count = TargetCount(replicas.replica, is_first, is_first_own)
        targets = TargetFinder(rows, self.screening, self._count, is_first, is_first)
        self._plans = make_plan_source(look_ahead, replicas)
        self._waiting: deque[DealingWindow] = deque()
        self._progress = Progress()
        as_found = replace(packing, replicas=replicas.count)
        self._identity = DataIdentity(found, mask_fn, reader.resolve, as_found, rows.policy)
        self._packer = RowPacker(found, reader, packing, dealing)
        self._identity.settle()
        self._taker = WindowTaker(
            self._plans, self.screening, targets, replicas.device, packing.token_budget,
            self._identity, is_known(planning, replicas),
        )  # fmt: skip
        self._windows = WindowOpener(
            dealing, replicas, planning, self._plans, packing.window, rows.policy == "skip"
        )

    def __len__(self) -> int:
        """Number of micro-batches of the epoch under way, as a whole; else of the next epoch.

        Under ``policy="skip"`` it is the most that there can be: rows that do not fit their mask
        still count, since only reading them tells.
        """
        progress = self._progress
        position = progress.position if progress.is_under_way else progress.start
        return self._packer.count_of(position.epoch)

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
        return self._epoch(self._progress.begin())

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch; a loaded state of the same epoch stays in force.

        Raises:
            RunError: if it is no integer from 0 on.
        """
        self._progress.choose(epoch)

    @property
    def metrics(self) -> PlanningMetrics:
        """The cost of planning so far."""
        return self._plans.metrics

    def state_dict(self) -> State:
        """Return the state that resumes after the last yielded micro-batch, as JSON values."""
        return save_state(self._progress.saved, self._identity, self._dealing)

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was called: the next iteration gives the rest of that epoch.

        Raises:
            RunError: if the state is of another data set, of other masks or of other packing
                options.
        """
        self._progress.chosen = load_state(state, self._identity, self._dealing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the planner processes, if there are any; they also end with the loader itself."""
        self._plans.close()

    def _epoch(self, iteration: int) -> Iterator[tuple[LocalData, BatchPlan]]:
        """Return the micro-batches from the present position to the end of its epoch."""
        progress, waiting = self._progress, self._waiting
        progress.check_newest(iteration)
        coming, begin = self._coming(), progress.position
        self._count.begin()
        with self._told(iteration) as told:
            while True:
                # One window to take now, and so many more that are planned meanwhile.
                waiting.extend(islice(coming, self._look_ahead.batches + 1 - len(waiting)))
                if not waiting:
                    break
                window = waiting.popleft()
                for behind, data, plan in self._taker.take(window, len(waiting)):
                    # Before the yield: a state that the loop saves is behind this micro-batch.
                    progress.move(behind)
                    yield data, told.add(plan)
                    self._plans.patience_s = told.patience_s
                    # Meanwhile the training loop may have begun another iteration.
                    progress.check_newest(iteration)
                # No micro-batch has moved the position if all rows of the window were left out.
                progress.position = window.after
            is_whole = begin == Position(begin.epoch)
            if is_whole and not progress.is_begun:
                progress.position = begin  # the next iteration finds the same
                raise self.screening.no_batch(begin.epoch, self._packer.rows_seen)
            if is_whole:  # else a rest, which may be short
                self._count.end()
            progress.position, progress.is_begun = Position(progress.position.epoch + 1), False

    def _coming(self) -> Iterator[DealingWindow]:
        """Return windows from the present position on, each with its plans under way."""
        start = self._progress.position
        return self._windows.open_windows(self._packer.packs(start), start)

    @contextmanager
    def _told(self, number: int) -> Iterator[Iteration]:
        """Note that an iteration is under way; tell ranks that go on where and why it ends here."""
        progress, device = self._progress, self.replicas.device
        epoch = progress.position.epoch
        told = Iteration(self._packer.length_of(epoch), device if self._is_rank else None)
        told.latest, why = f"the begin of epoch {epoch}", "left the loop over its batches"
        self._plans.iteration, progress.is_under_way = number, True
        try:
            yield told
            why = "has no more rows"
        except Exception as error:
            why = f"failed in its data loader ({describe_error(error)})"
            raise
        finally:
            # A newer iteration may be under way when this one is closed.
            if number == progress.iterations:
                progress.is_under_way = False
            told.end(f"{why} after {told.latest}")
            self._plans.end(number, f"{why} after {told.latest}")
