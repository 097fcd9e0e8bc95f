"""`planned_loss`: what a loss function returns to Megatron's loop for a batch of our loader."""

import torch
from torch import Tensor

from dcp_runtime.data.local_data import LocalData


def planned_loss(logits: Tensor, data: LocalData) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the summed loss of this rank's targets, how many they are, and both for the log.

    For ``calculate_per_token_loss=True``: Megatron adds both numbers up, over micro-batches and
    ranks, and divides the gradients. Each target counts with its weight, and a token may have
    several targets, under layouts with branches.

    Args:
        logits: ``[1, T_local, V / tensor-parallel ranks]``, of a model that is given no labels.
        data: the batch, on the device of the logits.
    """
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    rows = logits[0].index_select(0, data.target_rows)[:, None]
    losses = vocab_parallel_cross_entropy(rows, data.target_ids[:, None])[:, 0]
    total: Tensor = (losses * data.target_weights).sum()
    count = data.target_weights.sum(dtype=torch.float64)  # float32 holds even numbers from 2**24 on
    report = torch.stack([total.detach(), count.to(total)])
    return total, count.int(), {"lm loss": report}
