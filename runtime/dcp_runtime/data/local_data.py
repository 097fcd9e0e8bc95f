"""`LocalData`: one rank's tokens of a packed batch, their targets, and the loss over them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from dcp_dsl.arrays import Ints
from dcp_runtime.data.content import describe_content
from dcp_runtime.data.loss_masks import IGNORE_LABEL, Values
from dcp_runtime.data.rollouts import Terms
from dcp_runtime.data.sequences import PackedSequence, TokenColumns, join_extra
from dcp_runtime.errors import RunError


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
        target_terms: int64 ``[N]``, number of each target among those of the whole micro-batch.
        rollout_terms: of rows that `group_rows` made, by number of the rollout: for each of its
            tokens the number of its target, -1 for none; `by_rollout` reads both.
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
    target_terms: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.int64, device="cpu")
    )
    rollout_terms: Mapping[int, Tensor] = field(default_factory=dict)

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

    `targets` are positions in each sequence, `local` the packed positions of the rank's tokens,
    `num_targets` counts those of the whole global batch. `like` is any sequence: it says which
    columns there are, also where `sequences` are empty.
    """
    columns = [sequence.columns for sequence in sequences] or [like.columns.first(0)]
    lengths = [len(sequence.tokens) for sequence in sequences]
    found = _Targets.of(columns, targets, np.cumsum([0, *lengths[:-1]]), like.columns.extra)
    tokens = np.concatenate([np.zeros(0, np.int64), *(sequence.tokens for sequence in sequences)])
    labels = np.full(len(tokens), IGNORE_LABEL, np.int64)
    wanted = np.concatenate([own.targets for own in columns])
    # Of several targets of one token the last is its label; `target_ids` holds all.
    labels[found.previous] = found.ids
    position_ids = np.concatenate([own.positions for own in columns])
    sequence_ids = np.repeat(np.arange(len(sequences)), lengths)
    place = np.full(len(tokens), -1, np.int64)  # of each packed token among those of the rank
    place[local] = np.arange(len(local))
    rows = place[found.previous]
    # Sorted by the predicting row, so that gathering logits reads them in order.
    mine = np.flatnonzero(rows >= 0)[np.argsort(rows[rows >= 0], kind="stable")]
    extra = {
        name: join_extra(name, [own.extra[name] for own in columns]) for name in like.columns.extra
    }
    row_numbers = tuple(sequence.row for sequence in sequences)
    # Of the whole columns, which every rank reads: ranks compare this line.
    content = describe_content(
        row_numbers, num_targets, (tokens, wanted, position_ids), extra | found.told()
    )
    data = LocalData(
        tokens=torch.from_numpy(tokens[local]),
        labels=torch.from_numpy(labels[local]),
        loss_mask=torch.from_numpy(labels[local] != IGNORE_LABEL),
        position_ids=torch.from_numpy(position_ids[local]),
        sequence_ids=torch.from_numpy(sequence_ids[local]),
        rows=row_numbers,
        num_targets=num_targets,
        target_rows=torch.from_numpy(rows[mine]),
        target_ids=torch.from_numpy(found.ids[mine]),
        target_weights=torch.from_numpy(found.weights[mine]),
        extra={name: torch.from_numpy(values[local]) for name, values in extra.items()},
        target_extra={name: torch.from_numpy(values[mine]) for name, values in found.extra.items()},
        target_terms=torch.from_numpy(mine),
        rollout_terms=found.rollouts,
    )
    return data, content


@dataclass(frozen=True, slots=True, eq=False)
class _Targets:
    """The targets of a whole micro-batch, ``[N]`` each."""

    at: Ints  # their packed positions
    previous: Ints  # packed positions of the tokens that predict them
    ids: Ints
    weights: Values
    extra: Mapping[str, Values]
    rollouts: dict[int, Tensor]  # of trees, the target of each of its tokens, -1 for none

    @classmethod
    def of(
        cls,
        columns: Sequence[TokenColumns],
        targets: Sequence[Ints],
        starts: Ints,
        names: Iterable[str],
    ) -> "_Targets":
        """Join the targets of sequences, which begin at packed positions `starts`."""
        # Without sequences there is one begin and no targets, so these pairs cannot be strict.
        terms = [own.terms_of(found) for own, found in zip(columns, targets, strict=False)]
        empty, parts = np.zeros(0, np.int64), list(zip(columns, terms, starts, strict=False))
        return cls(
            np.concatenate([empty, *(own.token + n for _, own, n in parts)]),
            np.concatenate([empty, *(row.previous[own.token] + n for row, own, n in parts)]),
            np.concatenate([empty, *(own.label for own in terms)]),
            np.concatenate([np.zeros(0, np.float32), *(own.weight for own in terms)]),
            {name: join_extra(name, [own.extra[name] for own in terms or columns])
             for name in names},
            _rollouts_of(terms),
        )  # fmt: skip

    def told(self) -> dict[str, Values]:
        """Return what ranks compare of rollouts beside the columns of the rows."""
        if not self.rollouts:
            return {}
        columns = {f"term {name}": values for name, values in self.extra.items()}
        return {"terms": self.at, "term_ids": self.ids, **columns}


def _rollouts_of(terms: Sequence[Terms]) -> dict[int, Tensor]:
    """Return for every rollout of the trees of a batch the term of each token, -1 for none."""
    found, begin = {}, 0
    for own in terms:
        for number, chosen in own.of.items():
            found[number] = torch.from_numpy(np.where(chosen < 0, -1, chosen + begin))
        begin += len(own.token)
    return found


def by_rollout(
    values: Tensor, local_data: LocalData, group: dist.ProcessGroup | None = None
) -> dict[int, Tensor]:
    """Return for every rollout in the trees of a batch its values, such as log-probabilities.

    Values are added over the ranks, gradients pass through. All ranks get all rollouts: a loss that
    each of them computes from these is to be divided by the number of ranks.

    Args:
        values: ``[N]``, one for each target of this rank.
        local_data: the batch, of rows that `group_rows` made.
        group: the ranks that share the batch; by default all.

    Returns:
        For each number of a row that `group_rows` was given a tensor ``[n]``: at each of its tokens
        the value of that token as a target, 0 where its loss counts none.

    Raises:
        RunError: if `values` are not one per target, or the batch holds no trees of rollouts.
    """
    if not local_data.rows:
        return {}
    if not local_data.rollout_terms:
        raise RunError(
            "by_rollout: expected a batch of trees, got rows without rollouts; give the loader "
            "the rows of group_rows"
        )
    if values.shape != local_data.target_terms.shape:
        raise RunError(
            f"by_rollout: expected values [{len(local_data.target_terms)}], one per target, got "
            f"{list(values.shape)}; compute them at local_data.target_rows"
        )
    terms = torch.cat(list(local_data.rollout_terms.values()))
    size, own = int(terms.max()) + 1, local_data.target_terms
    of_rollouts = own < size  # rows that are no trees may have targets behind these
    # One more place: -1 is the last, for tokens that are no targets.
    every = values.new_zeros(size + 1).index_add(0, own[of_rollouts], values[of_rollouts])
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        every = _SumOverRanks.apply(every, group)  # type: ignore[no-untyped-call]  # of torch
    found = every[terms].split_with_sizes([len(each) for each in local_data.rollout_terms.values()])
    return dict(zip(local_data.rollout_terms, found, strict=True))


class _SumOverRanks(torch.autograd.Function):
    """Adds tensors over ranks; what all ranks make of the sum flows back to each of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup | None) -> Tensor:  # Any: torch
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


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
