"""Stands for the context-parallel hooks of NeMo Automodel, by their names and arguments.

Pinned: NVIDIA-NeMo/Automodel, commit 4cae89f1, `components/distributed/context_parallel`. A model
has `prepare_model_inputs_for_cp(batch, num_chunks)`, which returns a sharder; the trainer calls its
`shard_batch`, runs the model on the batch that comes back, and moves further tensors with the
layout: equal parts of a padded sequence, one after another by rank.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class ShardLayout:
    local_token_global_indices: torch.Tensor | None = None
    original_seq_len: int | None = None
    padded_seq_len: int | None = None
    input_row_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CPShardResult:
    context: AbstractContextManager
    batch: dict[str, Any]
    layout: ShardLayout | None = None


@dataclass(frozen=True)
class ContextParallelismSharder:
    shard_batch: Any
    local_token_global_indices: Any


def prepare_forward(model, batch, mesh, padding_token_id=0):
    """Return what the trainer runs the model with."""
    sharder = model.prepare_model_inputs_for_cp(batch, num_chunks=1)
    assert isinstance(sharder, ContextParallelismSharder)
    return sharder.shard_batch(
        mesh, None, dict(batch), loss_mask=None, padding_token_id=padding_token_id
    )


def shard(layout, tensor, fill):
    """Cut a tensor [1, S] of the whole batch as the model's inputs are."""
    missing = layout.padded_seq_len - tensor.shape[1]
    assert tensor.shape[1] == layout.original_seq_len
    padded = torch.nn.functional.pad(tensor, (0, missing), value=fill)
    return padded[:, layout.local_token_global_indices]


def gather(layout, tensor, ranks):
    """Join equal parts of all ranks in the order of the whole batch."""
    own = layout.local_token_global_indices
    assert layout.padded_seq_len == ranks * len(own)
    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    places = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, tensor.contiguous())
    dist.all_gather(places, own)
    whole = torch.empty_like(torch.cat(parts, 1))
    whole[:, torch.cat(places)] = torch.cat(parts, 1)
    return whole[:, : layout.original_seq_len]
