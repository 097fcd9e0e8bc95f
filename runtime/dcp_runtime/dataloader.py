"""`DCPDataloader`: rows of a data set in, this rank's tokens and the plan of each batch out.

Every rank packs all batches itself. It plans them itself too, or the first rank does and sends
every rank its part; packing and planning are deterministic, so all ranks hold the same either way.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch.distributed as dist

from dcp_dsl import Dataset, DatasetError
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, PlanPart
from dcp_runtime.data.batches import PackedSequence, RowReader
from dcp_runtime.data.epochs import EpochConfig, PackingOrder, pack_epoch
from dcp_runtime.data.local_data import LocalData, take_local
from dcp_runtime.data.look_ahead import LookAhead, PendingPlan, PlanningMetrics, PlanSource
from dcp_runtime.data.plan_exchange import PlanExchange
from dcp_runtime.data.plan_request import PlanRequest, SequenceRequest, plan_slabs
from dcp_runtime.data.planner_pool import PlannerPool
from dcp_runtime.data.resolution import MaskFunction, make_resolver, open_rows
from dcp_runtime.data.rows import IndexedRows, Row, StreamedRows, TokenColumn
from dcp_runtime.data.screening import RowPolicy, Screening
from dcp_runtime.data.shared_plans import SharedPlans
from dcp_runtime.errors import RunError

State: TypeAlias = dict[str, Any]  # Any: integers and texts, fit for JSON

Planning: TypeAlias = Literal["each", "first"]

SCHEMA = "dcp.dataloader/1"
PLAN_TIME_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Position:
    """Where an iteration stands: the next batch of an epoch, or the next row of a stream."""

    epoch: int = 0
    batch: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch whose plan is under way, and where to go on behind it."""

    sequences: tuple[PackedSequence, ...]
    pending: PendingPlan
    after: _Position


class DCPDataloader:
    """Packs samples to a token budget, plans each batch, and yields this rank's part of it.

    Every sample is in exactly one batch of an epoch. Iterating gives one epoch, one iteration at a
    time; iterating again gives the next one (the same batches unless they are shuffled).
    `state_dict` says how far the training loop has come, `load_state_dict` goes on from there.

    Args:
        dataset: what `read_dataset` gives, a Hugging Face data set, a sequence of rows, or an
            iterable of rows (which is packed in order and cannot be shuffled).
        mask_fn: a loaded spec, which finds the mask by its ``for ... use``; a mask for all samples;
            or a function from a row to its mask.
        token_budget: most tokens of a batch.
        block_size: most tokens per planning block; by default chosen for every batch, so that
            whole blocks fill every rank's share.
        cluster: devices to plan for; by default one node with a device for every rank.
        shape: heads of the attention layer on one rank.
        config: how to plan.
        rank: whose part is yielded; by default the rank in the default process group, else 0.
        order: ``"in_order"`` keeps the order of the data set, ``"decreasing"`` packs tighter.
        path: where an in-memory data set counts as lying when a spec looks for its ``for ... use``.
        shuffle: whether each epoch has an order of its own, the same on every rank.
        seed: of the shuffle.
        drop_last: whether the last batch of an epoch is left out.
        batches: row numbers of every batch, instead of packing.
        policy: what becomes of rows that are empty, longer than the budget or do not fit their
            mask: ``"error"``; ``"skip"`` them; ``"truncate"`` those too long. `screening` counts
            them.
        token_column: column of the tokens; by default ``tokens``, else ``input_ids``.
        loss_column: column with 0 or 1 per token, 1 where the loss counts it as a target.
        look_ahead: batches that are planned before they are needed.
        planners: processes that plan them; 0 plans in this process, when a batch is needed.
        planning: ``"each"`` rank makes the same plan itself, or the ``"first"`` of the group makes
            it and sends every rank its part.
        group: ranks that share the batches, for ``planning="first"``; ``None`` for all.

    Raises:
        DatasetError: if a row is longer than the budget, has no tokens, or lacks a column.
        RunError: if the rank is none of the cluster's devices, or options contradict each other.
    """

    def __init__(  # noqa: PLR0913 - one keyword per choice of the user; all but two have defaults
        self,
        dataset: Dataset | Sequence[Row] | Iterable[Row],
        mask_fn: MaskFunction,
        *,
        token_budget: int = 8192,
        block_size: int | None = None,
        cluster: Cluster | None = None,
        shape: ModelShape | None = None,
        config: PlanConfig | None = None,
        rank: int | None = None,
        order: PackingOrder = "in_order",
        path: str = "",
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        batches: Sequence[Sequence[int]] | None = None,
        policy: RowPolicy = "error",
        token_column: str | None = None,
        loss_column: str | None = None,
        look_ahead: int = 2,
        planners: int = 0,
        planning: Planning = "each",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._cluster = cluster or Cluster(devices_per_node=_world_size())
        self._rank = _own_rank() if rank is None else rank
        if not 0 <= self._rank < self._cluster.num_devices:
            raise RunError(
                f"expected a rank from 0 to {self._cluster.num_devices - 1}, the devices of the "
                f"cluster, got {self._rank}; give the cluster of all ranks that share a batch, and "
                "the rank among these"
            )
        _check_counts(token_budget=token_budget, block_size=1 if block_size is None else block_size)
        _check_counts(least=0, look_ahead=look_ahead, planners=planners)
        self._epochs = EpochConfig(token_budget, order, shuffle, seed, drop_last)
        self._block_size = block_size
        self._shape = shape or ModelShape()
        self._config = config or PlanConfig()
        self._rows = open_rows(dataset, TokenColumn(token_column))
        resolve = make_resolver(self._rows, dataset, mask_fn, path)
        self.screening = Screening(policy)
        self._reader = RowReader(resolve, token_budget, self.screening, loss_column)
        self._look_ahead = look_ahead
        self._plans = _plan_source(planning, planners, group, self._cluster)
        self._waiting: deque[_Batch] = deque()
        self._position = _Position()
        self._batches = self._fixed_batches(batches)
        self._usable = self._screened() if isinstance(self._rows, IndexedRows) else None
        if self._usable is None and (shuffle or order != "in_order" or batches is not None):
            raise RunError(
                "a stream of rows is packed in order: expected shuffle=False, order='in_order' and "
                "no batches; read_dataset(path) or list(rows) gives rows with numbers"
            )
        if self._usable is not None:
            self._batches_of(0)  # what cannot be packed is said now

    def __len__(self) -> int:
        """Number of batches of the epoch that comes next.

        Raises:
            TypeError: for a stream of rows, whose end is not known.
        """
        if self._usable is None:
            raise TypeError("a stream of rows has no length")
        return len(self._batches_of(self._position.epoch))

    def __iter__(self) -> Iterator[tuple[LocalData, Plan | PlanPart]]:
        """Give the rest of the epoch, one batch after the other, with plans made ahead."""
        coming = self._coming()
        waiting = self._waiting
        waiting.clear()
        while True:
            while len(waiting) <= self._look_ahead:
                batch = next(coming, None)
                if batch is None:
                    break
                waiting.append(batch)
            if not waiting:
                break
            batch = waiting.popleft()
            plan = self._plans.take(batch.pending, len(waiting))
            local = self._local(batch.sequences, plan)
            self._position = batch.after
            yield local, plan
        self._position = _Position(epoch=self._position.epoch + 1)

    @property
    def metrics(self) -> PlanningMetrics:
        """What planning cost so far."""
        return self._plans.metrics

    def state_dict(self) -> State:
        """Give what is needed to go on behind the batch that was yielded last, fit for JSON."""
        position = self._position
        return {
            "schema": SCHEMA,
            "epoch": position.epoch,
            "batch": position.batch,
            "row": position.row,
            "fingerprint": self._fingerprint(),
        }

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
        self._position = _Position(*map(int, numbers))  # type: ignore[arg-type]  # checked above

    def close(self) -> None:
        """End the planner processes, if there are any."""
        self._plans.close()

    def _coming(self) -> Iterator[_Batch]:
        """Give batches from the present position on, each with its plan under way."""
        groups = self._indexed() if isinstance(self._rows, IndexedRows) else self._streamed()
        for sequences, after in groups:
            if sequences:  # all rows of a batch may have been left out
                yield _Batch(sequences, self._start_plan(sequences), after)

    def _indexed(self) -> Iterator[tuple[tuple[PackedSequence, ...], _Position]]:
        assert isinstance(self._rows, IndexedRows)
        start = self._position
        for number, rows in enumerate(self._batches_of(start.epoch)[start.batch :], start.batch):
            found: list[PackedSequence] = []
            for index in rows:
                tokens = self._rows.tokens(index)
                sequence = self._reader.read(index, self._rows.row(index), tokens)
                if sequence is not None:
                    found.append(sequence)
            yield tuple(found), _Position(start.epoch, number + 1)

    def _streamed(self) -> Iterator[tuple[tuple[PackedSequence, ...], _Position]]:
        assert isinstance(self._rows, StreamedRows)
        start, number = self._position, self._position.batch
        found: list[PackedSequence] = []
        used = last = 0
        for index, row, tokens in self._rows.rows_from(start.row):
            sequence = self._reader.read(index, row, tokens)
            if sequence is None:
                continue
            if found and used + len(sequence.tokens) > self._epochs.token_budget:
                number += 1
                yield tuple(found), _Position(start.epoch, number, index)
                found, used = [], 0
            found.append(sequence)
            used += len(sequence.tokens)
            last = index
        if found and not self._epochs.drop_last:
            yield tuple(found), _Position(start.epoch, number + 1, last + 1)

    def _start_plan(self, sequences: tuple[PackedSequence, ...]) -> PendingPlan:
        rows = ", ".join(str(sequence.row) for sequence in sequences)
        request = PlanRequest(
            tuple(SequenceRequest.of(s.mask, s.sample, len(s.tokens)) for s in sequences),
            self._block_size,
            self._shape,
            self._cluster,
            self._config,
            f"rows {rows}",
        )
        slabs = [sequence.slabs for sequence in sequences]
        return self._plans.start(request, lambda: plan_slabs(request, slabs))

    def _local(self, sequences: tuple[PackedSequence, ...], plan: Plan | PlanPart) -> LocalData:
        return take_local(
            [sequence.tokens for sequence in sequences],
            plan,
            self._rank,
            tuple(sequence.row for sequence in sequences),
            [sequence.is_target for sequence in sequences],
        )

    def _screened(self) -> tuple[list[int], list[int]]:
        """Give the rows that can be used by their length, and how many tokens of each are."""
        assert isinstance(self._rows, IndexedRows)
        rows, counts = [], []
        for row, length in enumerate(self._rows.lengths.tolist()):
            count = self._reader.usable_tokens(row, length)
            if count:
                rows.append(row)
                counts.append(count)
        return rows, counts

    def _batches_of(self, epoch: int) -> Sequence[tuple[int, ...]]:
        if self._batches is not None:
            return self._batches
        assert self._usable is not None, "streams are packed as they come"
        return pack_epoch(*self._usable, self._epochs, epoch)

    def _fixed_batches(
        self, batches: Sequence[Sequence[int]] | None
    ) -> tuple[tuple[int, ...], ...] | None:
        """Check the batches that the user chose."""
        if batches is None or isinstance(self._rows, StreamedRows):
            return None
        if self._epochs.shuffle:
            raise RunError("expected no shuffle beside batches: their order is the one given")
        fixed = tuple(tuple(int(row) for row in rows) for rows in batches)
        lengths = self._rows.lengths
        for number, rows in enumerate(fixed):
            for row in rows:
                if not 0 <= row < len(lengths):
                    raise DatasetError(
                        f"batches[{number}] names row {row}; the data set has {len(lengths)} rows"
                    )
            total = int(lengths[list(rows)].sum())
            if total > self._epochs.token_budget and len(rows) > 1:
                raise DatasetError(
                    f"batches[{number}] has {total} tokens, the token budget is "
                    f"{self._epochs.token_budget}; give fewer rows or raise the budget"
                )
        return fixed

    def _fingerprint(self) -> str:
        """Name the data set and the packing; equal ones give equal batches."""
        sha = hashlib.sha256(f"{self._epochs} {self.screening.policy} {self._batches}".encode())
        if isinstance(self._rows, IndexedRows):
            sha.update(np.ascontiguousarray(self._rows.lengths, "<i8").tobytes())
        return sha.hexdigest()[:16]


def _plan_source(
    planning: Planning, planners: int, group: dist.ProcessGroup | None, cluster: Cluster
) -> PlanSource:
    if planning not in get_args(Planning):
        raise RunError(
            f"expected planning to be one of {', '.join(get_args(Planning))}, got {planning!r}"
        )
    if planning == "each":
        return LookAhead(PlannerPool(planners, PLAN_TIME_LIMIT_S) if planners else None)
    exchange = PlanExchange(group, 2 * PLAN_TIME_LIMIT_S)
    if exchange.size != cluster.num_devices:
        raise RunError(
            f"planning='first': the cluster has {cluster.num_devices} devices, the group "
            f"{exchange.size} ranks; give the group of the ranks that share a batch"
        )
    is_planner = planners and exchange.rank == 0
    return SharedPlans(PlannerPool(planners, PLAN_TIME_LIMIT_S) if is_planner else None, exchange)


def _check_counts(least: int = 1, **counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise RunError(f"DCPDataloader: expected {name} to be at least {least}, got {value!r}")


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _own_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
