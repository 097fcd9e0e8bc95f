"""`LocalData`: one rank's tokens of a packed batch, their targets, and the loss over them.

A window is a number of global batches that are dealt together; a rank takes its parts of their
micro-batches.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Ints
from dcp_runtime.data.choices import RowRules
from dcp_runtime.data.content import describe_content
from dcp_runtime.data.loss_masks import IGNORE_LABEL
from dcp_runtime.data.plan_sources import PendingPlan
from dcp_runtime.data.planner_pool import PlanReply
from dcp_runtime.data.screening import Screening, TargetCount
from dcp_runtime.data.sequences import PackedSequence, join_extra
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import SAME_ROWS, BatchNote, BatchPlan, StackedPlans, note_batch


@dataclass(slots=True)
class TargetFinder:
    """Finds the targets of sequences and records those left out.

    Warns of targets left out while `says` is true, and of targets that their predictor sees while
    `says_seen` is: on one rank, until it has.
    """

    rules: RowRules
    screening: Screening
    says: bool
    says_seen: bool
    count: TargetCount

    def find(self, sequences: Sequence[PackedSequence], planned: PlanReply) -> tuple[Ints, ...]:
        """Return the positions of the targets of each sequence, of at least one.

        `planned` says which of their tokens the tokens beside them see.
        """
        starts = np.cumsum([0, *(len(sequence.tokens) for sequence in sequences)])
        wanted = np.concatenate([sequence.columns.targets for sequence in sequences])
        counts = wanted != IGNORE_LABEL
        own = np.concatenate([sequence.columns.previous for sequence in sequences])
        counts[own < 0] = False  # the first of a sequence, or of a path
        begin = np.repeat(starts[:-1], np.diff(starts))
        # The masks were asked about the token right in front. Another token predicts the first of a
        # branch; nothing is known about that one.
        is_asked = own == np.arange(len(own)) - begin - 1
        if self.rules.hidden_targets != "keep":
            sees = np.ones(len(wanted), np.bool_)
            # The token behind a hidden token does not see the token that would predict it.
            for start, end in planned.hidden:
                sees[start + 1 : end + 1] = False
            sees |= ~is_asked
            left_out = np.flatnonzero(counts & ~sees)
            if len(left_out):
                self._record(sequences, left_out, f"{len(left_out)} of the {counts.sum()} targets")
            counts &= sees
        if self.says_seen and planned.seen:
            is_seen = np.zeros(len(wanted), np.bool_)
            for start, end in planned.seen:
                is_seen[start:end] = True
            copied = np.flatnonzero(counts & is_seen & is_asked)
            if len(copied):
                self.says_seen = False
                self._say_seen(sequences, copied, f"{len(copied)} of the {counts.sum()} targets")
        found = tuple(np.flatnonzero(counted) for counted in np.split(counts, starts[1:-1]))
        self.count.add(
            [len(sequence.tokens) for sequence in sequences],
            [len(targets) for targets in found],
            {member for batch in planned.batches for member in batch.members},
        )
        return found

    def _record(self, sequences: Sequence[PackedSequence], left_out: Ints, share: str) -> None:
        """Count the targets left out of each row; warn the first time."""
        ends = np.cumsum([len(sequence.tokens) for sequence in sequences])
        number = np.searchsorted(ends, left_out, side="right")
        for index, count in zip(*np.unique(number, return_counts=True), strict=True):
            self.screening.leave_out_targets(sequences[index].row, int(count))
        if self.says and self.rules.hidden_targets == "warn":
            self.says = False
            first = sequences[number[0]]
            # The place of the token in its own row.
            self._say(share, first, int(left_out[0] - ends[number[0]]) + len(first.tokens))

    def _say_seen(self, sequences: Sequence[PackedSequence], seen: Ints, share: str) -> None:
        ends = np.cumsum([len(sequence.tokens) for sequence in sequences])
        first = sequences[number := int(np.searchsorted(ends, seen[0], side="right"))]
        token = int(seen[0] - ends[number]) + len(first.tokens)
        masks = ", ".join(f"`{mask.name}`" for mask in first.masks)
        # Up through `find` and `_epoch` to the line of the training loop.
        warnings.warn(
            f"{share} of a batch are seen by the token that predicts them: the model can copy "
            f"them, and its loss falls though it learns nothing. The first is token {token} of row "
            f"{first.row}, which token {token - 1} sees under {masks}. Leave such targets out with "
            f"a loss_column with 0 or a labels column with {IGNORE_LABEL}, or take a mask under "
            "which these tokens see no later ones; where it is meant, as in masked-language-model "
            "training on labels of your own, nothing is to be done. The loader says this once",
            UserWarning,
            stacklevel=4,
        )

    def _say(self, share: str, sequence: PackedSequence, token: int) -> None:
        masks = ", ".join(f"`{mask.name}`" for mask in sequence.masks)
        positions = (
            "; position ids count on through the row, position_column= gives others"
            if self.rules.position_column is None
            else ""
        )
        # Up through `_record`, `find` and `_epoch` to the line of the training loop.
        warnings.warn(
            f"{share} of a batch are left out: these tokens do not see the token before them, "
            f"which would have to predict them. The first is token {token} of row {sequence.row}, "
            f"which does not see token {token - 1} under {masks}. Say what is meant with RowRules: "
            "hidden_targets='leave_out' leaves them out silently, 'keep' trains on them; a "
            f"labels column with {IGNORE_LABEL}, or a loss_column with 0, leaves single tokens out"
            f"{positions}. The loader says this once; loader.screening.hidden_targets counts on",
            UserWarning,
            stacklevel=5,
        )


@dataclass(frozen=True, slots=True)
class LocalData:
    """The tokens of one batch that a rank owns, in the order of ``plan.local_tokens(rank)``.

    Attributes:
        tokens: int64 ``[T_local]``.
        labels: int64 ``[T_local]``, the id that each token is to predict: the next token of the
            same sequence, whichever rank owns it, or its label; -100 where there is no target. The
            token in front of branches predicts the first token of each; its label is one of them,
            so `labels` lacks the others: never divide the sum of its losses by `num_targets`, use
            `next_token_loss`.
        loss_mask: bool ``[T_local]``, where `labels` is a target.
        position_ids: int64 ``[T_local]``, position within the sequence; with branches, within the
            path.
        sequence_ids: int64 ``[T_local]``, sequence of the batch.
        rows: rows of the data set in the batch; sequence i of the batch is ``rows[i]``.
        num_targets: targets of the whole global batch: of all its micro-batches, over all ranks and
            replicas, shared targets as often as `RowRules.shared_targets` says. Divide summed
            losses by it.
        target_rows: int64 ``[N]``, for each target of this rank the local token that is to predict
            it. A token may have several targets; `labels` then holds one of them.
        target_ids: int64 ``[N]``, the token id to predict.
        target_weights: float32 ``[N]``, the factor of each loss in `next_token_loss`: 1, or the
            number of paths that share the target.
        extra: `RowRules.extra_columns`, ``[T_local]`` each: bool, int64, or float32.
        target_extra: the same columns, ``[N]`` each, read at the token that is predicted, which
            another rank may own.
        micro_batch: number of the micro-batch within its global batch.
        micro_batches: of the global batch, the same on every replica.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    sequence_ids: Tensor
    rows: tuple[int, ...]
    num_targets: int
    target_rows: Tensor
    target_ids: Tensor
    target_weights: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    target_extra: Mapping[str, Tensor] = field(default_factory=dict)
    micro_batch: int = 0
    micro_batches: int = 1

    @property
    def ends_step(self) -> bool:
        """True for the last micro-batch of a global batch: the optimizer steps after it."""
        return self.micro_batch + 1 == self.micro_batches

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> "LocalData":
        """Return the same data with all tensors on a device.

        Args:
            device: the device to move them to.
            non_blocking: whether copies from pinned memory may still be under way on return.
        """
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "LocalData":
        """Return the same data in pinned memory, from which a GPU copies without the CPU."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "LocalData":
        changed: dict[str, Any] = {}  # Any: a field
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                changed[name] = change(value)
            elif isinstance(value, Mapping):
                changed[name] = {key: change(tensor) for key, tensor in value.items()}
        return replace(self, **changed)


def take_local(
    sequences: Sequence[PackedSequence],
    targets: Sequence[Ints],
    local: Ints,
    num_targets: int,
    like: PackedSequence,
) -> tuple[LocalData, str]:
    """Cut a rank's part out of a micro-batch; return also a line about the whole micro-batch.

    Args:
        sequences: in packed order; empty for a micro-batch without rows.
        targets: positions of each sequence's targets.
        local: packed positions of the rank's tokens.
        num_targets: of the whole global batch.
        like: any sequence; says which columns there are.
    """
    columns = [sequence.columns for sequence in sequences] or [like.columns.first(0)]
    lengths = [len(sequence.tokens) for sequence in sequences]
    starts = np.cumsum([0, *lengths[:-1]])
    empty = np.zeros(0, np.int64)
    # `at` are the packed positions of the targets, `previous` of the tokens that predict them.
    # Without sequences `starts` still has a 0, so these pairs cannot be strict.
    at = np.concatenate([empty, *(own + n for own, n in zip(targets, starts, strict=False))])
    tokens = np.concatenate([empty, *(sequence.tokens for sequence in sequences)])
    labels = np.full(len(tokens), IGNORE_LABEL, np.int64)
    wanted = np.concatenate([own.targets for own in columns])
    previous = np.concatenate(
        [empty, *(own.previous[t] + n for own, t, n in zip(columns, targets, starts, strict=False))]
    )
    # Of several targets of one token the last is its label; `target_ids` holds all.
    labels[previous] = wanted[at]
    position_ids = np.concatenate([own.positions for own in columns])
    sequence_ids = np.repeat(np.arange(len(sequences)), lengths)
    place = np.full(len(tokens), -1, np.int64)  # of each packed token among those of the rank
    place[local] = np.arange(len(local))
    is_mine = place[previous] >= 0
    mine, rows = at[is_mine], place[previous[is_mine]]
    # Sorted by the predicting row, so that gathering logits reads them in order.
    order = np.argsort(rows, kind="stable")
    mine, rows = mine[order], rows[order]
    weights = np.concatenate([own.weights for own in columns])
    extra = {
        name: join_extra(name, [own.extra[name] for own in columns]) for name in like.columns.extra
    }
    row_numbers = tuple(sequence.row for sequence in sequences)
    # Of the whole columns, which every rank reads: ranks compare this line.
    content = describe_content(row_numbers, num_targets, (tokens, wanted, position_ids), extra)
    data = LocalData(
        tokens=torch.from_numpy(tokens[local]),
        labels=torch.from_numpy(labels[local]),
        loss_mask=torch.from_numpy(labels[local] != IGNORE_LABEL),
        position_ids=torch.from_numpy(position_ids[local]),
        sequence_ids=torch.from_numpy(sequence_ids[local]),
        rows=row_numbers,
        num_targets=num_targets,
        target_rows=torch.from_numpy(rows),
        target_ids=torch.from_numpy(wanted[mine]),
        target_weights=torch.from_numpy(weights[mine]),
        extra={name: torch.from_numpy(values[local]) for name, values in extra.items()},
        target_extra={name: torch.from_numpy(values[mine]) for name, values in extra.items()},
    )
    return data, content


def next_token_loss(
    logits: Tensor,
    local_data: LocalData,
    num_targets: int | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross entropy of this rank's targets, divided by those of the global batch.

    Losses, and gradients, of ranks and micro-batches are to be **added**: their sum is the mean
    over the targets of the global batch. Each target counts with its weight; the divisor does not
    depend on weights. A rank without targets, like a batch without targets, has loss 0, through
    which `backward` runs as on the other ranks.

    Args:
        logits: ``[T_local, V]``, or ``[1, T_local, V]`` as Hugging Face's models give them.
        local_data: the batch, on the device of the logits.
        num_targets: the divisor; by default `LocalData.num_targets`. If several global batches make
            one step, give the targets of all of them.
        label_smoothing: the probability that is spread over all tokens of the vocabulary.

    Returns:
        A scalar in float32, in float64 for float64 logits.

    Raises:
        RunError: if the logits are not those of this rank's tokens, or a target is no token id of
            their vocabulary.
    """
    if logits.ndim == 3 and len(logits) == 1:
        logits = logits[0]
    tokens = len(local_data.tokens)
    if logits.ndim != 2 or len(logits) != tokens:
        raise RunError(
            f"next_token_loss: expected logits [{tokens}, V] or [1, {tokens}, V], one row per "
            f"local token, got {list(logits.shape)}; give the logits of the tokens of this "
            "local_data, unshifted"
        )
    if logits.device != local_data.target_rows.device:
        raise RunError(
            f"next_token_loss: the logits are on {logits.device}, the targets on "
            f"{local_data.target_rows.device}; give local_data.to(logits.device)"
        )
    _check_vocabulary(local_data, logits.shape[1])
    rows = logits.index_select(0, local_data.target_rows)
    if rows.dtype != torch.float64:
        rows = rows.float()
    losses = functional.cross_entropy(
        rows, local_data.target_ids, reduction="none", label_smoothing=label_smoothing
    )
    total = (losses * local_data.target_weights).sum()
    divisor = local_data.num_targets if num_targets is None else num_targets
    return total / max(1, divisor)


def _check_vocabulary(local_data: LocalData, size: int) -> None:
    # On CUDA the host waits here for the device. Without the check a wrong id would fail an
    # assertion there, which ends the process, and -100 would count as a loss of 0.
    wrong = (local_data.target_ids < 0) | (local_data.target_ids >= size)
    if bool(wrong.any()):
        number = int(wrong.nonzero()[0])
        row = local_data.rows[int(local_data.sequence_ids[local_data.target_rows[number]])]
        raise RunError(
            f"next_token_loss: expected targets from 0 to {size - 1}, the vocabulary of the "
            f"logits, got {int(local_data.target_ids[number])} in row {row}; tokenize the data set "
            "with the tokenizer of the model, or leave such targets out: labels column with "
            f"{IGNORE_LABEL}, or loss_column with 0"
        )


@dataclass(frozen=True, slots=True)
class Position:
    """The position of an iteration: the part of an epoch that the training loop has done.

    Attributes:
        step: global batches that are done, in whole windows.
        row: of a stream, the first row behind these.
        micro_batch: micro-batches of the next window that are done as well.
    """

    epoch: int = 0
    step: int = 0
    row: int = 0
    micro_batch: int = 0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Position":  # Any: what a file of JSON held
        """Read a position from the state of a loader."""
        numbers = [state.get(each.name) for each in fields(cls)]
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise RunError(
                "expected epoch, step, row and micro_batch of the state to be counts, got "
                f"{numbers}"
            )
        return cls(*map(int, numbers))  # type: ignore[arg-type]  # checked above


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows of the data set that are packed; of a stream, also the first row behind them."""

    sequences: tuple[PackedSequence, ...]
    behind: int = 0


@dataclass(frozen=True, slots=True)
class DealingWindow:
    """Global batches of all replicas that are dealt together; their plans are under way.

    The window begins at the position `start` and ends at `after`.
    """

    sequences: tuple[PackedSequence, ...]
    pending: PendingPlan
    start: Position
    after: Position

    def check_count(self, planned: PlanReply) -> None:
        """Check plans that another rank may have made against the rows of this one."""
        own, expected = len(self.sequences), len(planned.steps) + len(planned.left_out)
        if own != expected:
            raise other_rows(
                f"epoch {self.start.epoch}, step {self.start.step}: expected {expected} rows, for "
                f"which the first rank made the plans, got {own} on this rank"
            )


@dataclass(frozen=True, slots=True)
class WindowPlans:
    """This rank's parts of the micro-batches of a window.

    Attributes:
        window: with all its sequences.
        planned: its plans.
        kept: its sequences without those that do not fit their mask.
        targets: positions of the targets of each kept sequence.
        device: this rank, counted over all replicas.
        facts: figures of planning the window, for the record of each step.
    """

    window: DealingWindow
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


def other_rows(what: str) -> RunError:
    """Return the error of a rank that reads other rows than the rank that planned."""
    return RunError(f"{what}; {SAME_ROWS}")


def without_last(packs: Iterator[Pack], size: int) -> Iterator[Pack]:
    """Return packs without those of the last global batch, of `size` packs or fewer.

    A stream does not tell which batch is the last, so one is held back.
    """
    held: list[Pack] = []
    for pack in packs:
        if len(held) == size:
            yield from held
            held = []
        held.append(pack)
