"""One rank's part of a packed batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dcp_runtime.data.rows import Tokens
from dcp_runtime.stacked_plans import BatchPlan

IGNORE_LABEL = -100
"""Label of a token whose successor is no target, as ``torch.nn.CrossEntropyLoss`` ignores it."""


@dataclass(frozen=True, slots=True)
class LocalData:
    """The tokens of one batch that a rank owns, in the order of ``plan.local_tokens(rank)``.

    Attributes:
        tokens: int64 ``[T_local]``.
        labels: int64 ``[T_local]``, the next token of the same sequence, whichever rank owns it;
            `IGNORE_LABEL` where there is no target.
        loss_mask: bool ``[T_local]``, where `labels` is a target.
        position_ids: int64 ``[T_local]``, position within the sequence.
        sequence_ids: int64 ``[T_local]``, sequence of the batch.
        rows: rows of the data set in the batch; sequence i of the batch is ``rows[i]``.
        num_targets: targets of the whole batch over all ranks; divide summed losses by it.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    sequence_ids: torch.Tensor
    rows: tuple[int, ...]
    num_targets: int


def take_local(
    tokens: Sequence[Tokens],
    plan: BatchPlan,
    rank: int,
    rows: tuple[int, ...],
    is_target: Sequence[NDArray[np.bool_]] | None = None,
) -> LocalData:
    """Cut a rank's part out of a batch.

    Args:
        tokens: int64 ``[length]`` of each sequence of the batch.
        plan: plan of the batch, or its plans.
        rank: whose part.
        rows: rows of the data set, for the record.
        is_target: bool ``[length]`` of each sequence, whether the loss counts the token as a
            target; by default all but the first of a sequence are.
    """
    cu = plan.cu_seqlens.astype(np.int64)
    lengths = np.diff(cu)
    packed = np.concatenate([np.empty(0, np.int64), *tokens])
    wanted = np.concatenate([np.empty(0, bool), *is_target]) if is_target is not None else None
    last = cu[1:][lengths > 0] - 1
    has_target = np.ones(len(packed), bool) if wanted is None else np.append(wanted[1:], False)
    has_target[last] = False  # no target across sequences
    labels = np.where(has_target, np.append(packed[1:], IGNORE_LABEL)[: len(packed)], IGNORE_LABEL)
    sequence_ids = np.repeat(np.arange(len(lengths)), lengths)
    position_ids = np.arange(len(packed)) - cu[:-1][sequence_ids]
    local = plan.local_tokens(rank)
    return LocalData(
        tokens=torch.from_numpy(packed[local]),
        labels=torch.from_numpy(labels[local]),
        loss_mask=torch.from_numpy(has_target[local]),
        position_ids=torch.from_numpy(position_ids[local]),
        sequence_ids=torch.from_numpy(sequence_ids[local]),
        rows=rows,
        num_targets=int(has_target.sum()),
    )
