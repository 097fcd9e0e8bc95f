"""Packed (THD) batches of Megatron-Core's own data, cut by plans.

Source: megatron-core 0.16, ``utils.get_thd_batch_on_this_cp_rank``; nothing of it is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Ints
from dcp_planner import Cluster, build_plan, choose_block_size, cut_blocks
from dcp_runtime.adapters.megatron import PlannedSequences
from dcp_runtime.data.choices import Planning
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.transport.group_store import process_group

_WHOLE = ("attention_mask", "cu_seqlens", "cu_seqlens_padded", "max_seqlen")
"""Entries of a batch that are no tensors by token."""


class PlannedBatches:
    """Cuts packed batches by plans, in the place of ``get_thd_batch_on_this_cp_rank``.

    Every rank makes the same plan, in the training process; a `DCPDataloader` plans ahead.

    Args:
        executor: of the context-parallel ranks.
        mask: of every sequence.
        planning: shape, config, block size, the cluster of these ranks, and their group.
    """

    def __init__(self, executor: DCPExecutor, mask: Mask, planning: Planning) -> None:
        self.executor, self.mask, self.planning = executor, mask, planning
        if (cluster := planning.cluster) is None:
            cluster = Cluster(1, dist.get_world_size(process_group(planning.group)))
        self.cluster = cluster

    def split(
        self,
        batch: Mapping[str, Any],  # Any: tensors, and what is no tensor by token
        cu_seqlens: Tensor,
        cu_seqlens_padded: Tensor | None = None,
        columns: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[dict[str, Any], PlannedSequences]:
        """Return this rank's tokens of a batch, and what to pass as ``packed_seq_params``.

        Collective.

        Args:
            batch: tensors ``[1, T]`` by token; ``attention_mask`` is left out. With positions of
                its own, as ``position_ids``; else they count from 0 in every sequence.
            cu_seqlens: where the sequences begin and end, ``[S+1]``.
            cu_seqlens_padded: where they lie in the batch, if they are padded; padding is left out.
            columns: of each sequence, for a mask that needs some.
        """
        lengths: Ints = cu_seqlens.cpu().long().diff().numpy()
        begins = np.asarray((cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded).cpu())
        given = [{}] * len(lengths) if columns is None else columns
        forms = [
            self.mask.bind(Sample(dict(values), int(length)))
            for values, length in zip(given, lengths, strict=True)
        ]
        shape, config = self.planning.shape, self.planning.config
        rates = self.planning.rates
        cluster = self.cluster if rates is None else rates.cluster
        block = self.planning.block_size or choose_block_size(forms, cluster, config)
        plan = build_plan(cut_blocks(forms, block), shape, cluster, config)
        inside = _positions(lengths)
        own = plan.local_tokens(self.executor.rank)
        rows = torch.from_numpy((np.repeat(begins[:-1], lengths) + inside)[own])
        cut = {
            name: value if name in _WHOLE else value.index_select(1, rows.to(value.device))
            for name, value in batch.items()
        }
        positions = cut.setdefault("position_ids", torch.from_numpy(inside[own])[None])
        cut["attention_mask"] = None
        return cut, PlannedSequences.prepare(self.executor, plan, positions[0])


def _positions(lengths: Ints) -> Ints:
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)
