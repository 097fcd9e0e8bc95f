"""One rank's part of a packed batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from dcp_runtime.data.batches import PackedSequence
from dcp_runtime.data.targets import Targets
from dcp_runtime.data.token_columns import IGNORE_LABEL, join
from dcp_runtime.plans.stacked_plans import BatchPlan


@dataclass(frozen=True, slots=True)
class LocalData:
    """The tokens of one batch that a rank owns, in the order of ``plan.local_tokens(rank)``.

    Attributes:
        tokens: int64 ``[T_local]``.
        labels: int64 ``[T_local]``, what each token is to predict: the next token of the same
            sequence, whichever rank owns it, or its label; -100 where there is no target.
        loss_mask: bool ``[T_local]``, where `labels` is a target.
        position_ids: int64 ``[T_local]``, position within the sequence.
        sequence_ids: int64 ``[T_local]``, sequence of the batch.
        rows: rows of the data set in the batch; sequence i of the batch is ``rows[i]``.
        num_targets: targets of the whole batch over all ranks; divide summed losses by it.
        target_rows: int64 ``[N]``, the targets of this rank one by one: the local token that is to
            predict each. A token may have several targets; `labels` then holds one of them.
        target_ids: int64 ``[N]``, the token id to predict.
        target_weights: float32 ``[N]``, what `next_token_loss` multiplies the loss of each by; 1.
        extra: `RowRules.extra_columns`, ``[T_local]`` each: bool, int64, or float32.
        target_extra: the same columns, ``[N]`` each, read at the token that is predicted, which
            another rank may own.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    sequence_ids: torch.Tensor
    rows: tuple[int, ...]
    num_targets: int
    target_rows: torch.Tensor
    target_ids: torch.Tensor
    target_weights: torch.Tensor
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    target_extra: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> "LocalData":
        """Give the same data with all tensors on a device.

        Args:
            device: where to.
            non_blocking: whether copies from pinned memory may still be under way on return.
        """
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "LocalData":
        """Give the same data in pinned memory, from which a GPU copies without the CPU."""
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "LocalData":
        return LocalData(**{f.name: _changed(getattr(self, f.name), change) for f in fields(self)})


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # Any: a field
    """Apply a change to a tensor, or to those of a mapping; other values stay."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: change(tensor) for name, tensor in value.items()}
    return value


def take_local(
    sequences: Sequence[PackedSequence], targets: Targets, plan: BatchPlan, rank: int
) -> LocalData:
    """Cut a rank's part out of a batch.

    Args:
        sequences: of the batch, in packed order; at least one.
        targets: of the whole batch.
        plan: plan of the batch, or its plans.
        rank: whose part.
    """
    local = plan.local_tokens(rank)
    lengths = [len(sequence.tokens) for sequence in sequences]
    tokens = np.concatenate([sequence.tokens for sequence in sequences])
    labels = np.full(len(tokens), IGNORE_LABEL, np.int64)
    labels[targets.row] = targets.id
    position_ids = np.concatenate([sequence.columns.positions for sequence in sequences])
    sequence_ids = np.repeat(np.arange(len(sequences)), lengths)
    place = np.full(len(tokens), -1, np.int64)  # of each packed token among those of the rank
    place[local] = np.arange(len(local))
    mine = np.flatnonzero(place[targets.row] >= 0)
    mine = mine[np.argsort(place[targets.row[mine]], kind="stable")]
    names = sequences[0].columns.extra
    extra = {name: join([s.columns.extra[name] for s in sequences]) for name in names}
    return LocalData(
        tokens=torch.from_numpy(tokens[local]),
        labels=torch.from_numpy(labels[local]),
        loss_mask=torch.from_numpy(labels[local] != IGNORE_LABEL),
        position_ids=torch.from_numpy(position_ids[local]),
        sequence_ids=torch.from_numpy(sequence_ids[local]),
        rows=tuple(sequence.row for sequence in sequences),
        num_targets=len(targets),
        target_rows=torch.from_numpy(place[targets.row[mine]]),
        target_ids=torch.from_numpy(targets.id[mine]),
        target_weights=torch.from_numpy(targets.weight[mine]),
        extra={name: torch.from_numpy(values[local]) for name, values in extra.items()},
        target_extra={
            name: torch.from_numpy(values[targets.token[mine]]) for name, values in extra.items()
        },
    )
