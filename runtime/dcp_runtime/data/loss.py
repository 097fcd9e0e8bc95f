"""`next_token_loss`: this rank's share of the loss of a batch."""

import torch
from torch.nn import functional

from dcp_runtime.data.local_data import LocalData
from dcp_runtime.errors import RunError


def next_token_loss(
    logits: torch.Tensor, local_data: LocalData, num_targets: int | None = None
) -> torch.Tensor:
    """Give the cross entropy of this rank's targets, divided by the targets of all ranks.

    Losses, and gradients, of the ranks are to be **added**: the sum over the ranks is the mean over
    the targets of the batch. Each target counts with its weight; weights do not change what is
    divided by. A rank without targets, and a batch without any, has loss 0, through which
    `backward` runs as on the other ranks.

    Args:
        logits: ``[T_local, V]``, or ``[1, T_local, V]`` as Hugging Face's models give them.
        local_data: the batch, on the device of the logits.
        num_targets: what to divide by; by default `LocalData.num_targets`. Where several batches
            make one step, give the targets of all of them.

    Returns:
        A scalar in float32, in float64 for float64 logits.

    Raises:
        RunError: if the logits are not those of this rank's tokens.
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
    rows = logits.index_select(0, local_data.target_rows)
    if rows.dtype != torch.float64:
        rows = rows.float()
    losses = functional.cross_entropy(rows, local_data.target_ids, reduction="none")
    total = (losses * local_data.target_weights).sum()
    divisor = local_data.num_targets if num_targets is None else num_targets
    return total / max(1, divisor)
