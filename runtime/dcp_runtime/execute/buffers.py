"""Working buffers: a device's own tokens first, then room for what arrives."""

import torch

from dcp_planner import TransferKind
from dcp_runtime.plans.device_plan import DirectionPlan, Transfer


def working_buffer(own: torch.Tensor, receive_rows: int) -> torch.Tensor:
    """Give a buffer for own rows and received ones; the own tensor itself if nothing arrives.

    >>> own = torch.ones(2, 3)
    >>> working_buffer(own, 0) is own, working_buffer(own, 4).shape
    (True, torch.Size([6, 3]))
    """
    if receive_rows == 0:
        return own.contiguous()
    return own.new_empty(len(own) + receive_rows, *own.shape[1:])


def rows_of(plan: DirectionPlan, transfer: Transfer) -> slice:
    """Give the rows of a transfer's block in the buffers of queries or of keys."""
    is_kv = transfer.kind in (TransferKind.KV, TransferKind.DKV)
    start = int((plan.rows.kv if is_kv else plan.rows.q)[transfer.block])
    return slice(start, start + transfer.num_tokens)
