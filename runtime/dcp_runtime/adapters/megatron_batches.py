"""Megatron-Core's own data under DCP: packed batches cut by plans, samples dealt by `plan_step`.

Source: megatron-core 0.16: ``utils.get_thd_batch_on_this_cp_rank`` and
``pipeline_parallel.hybrid_cp_schedule.BalancedCPScheduler``; nothing of it is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Floats, Ints
from dcp_planner import Cluster, build_plan, choose_block_size, cut_blocks
from dcp_planner.step import Documents, StepMesh, StepPlan, StepSetting, plan_step
from dcp_runtime.adapters.megatron import PlannedSequences
from dcp_runtime.data.choices import Planning
from dcp_runtime.errors import RunError
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
        block = self.planning.block_size or choose_block_size(forms, self.cluster, config)
        plan = build_plan(cut_blocks(forms, block), shape, self.cluster, config)
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


class PlannedCPScheduler:
    """Deals samples to ranks by `plan_step`, in the place of ``BalancedCPScheduler``.

    Samples are dealt by the work of their own masks, not by the square of their lengths, and to as
    many ranks, 1, 2, 4, ..., as is fastest. Give it to a ``HybridCPDataLoaderWrapper`` as
    ``cp_balancing_scheduler``.

    Args:
        max_seq_len_per_rank: tokens that a rank may hold of one group of samples.
        setting: model and cluster; its mesh and token budget are not read.
        pairs: visible pairs of samples of these lengths, int64 ``[N]``; by default causal.

    Raises:
        RunError: if the ranks are no power of two: Megatron has no other groups.
    """

    def __init__(
        self,
        max_seq_len_per_rank: int,
        setting: StepSetting,
        pairs: Callable[[Ints], Floats] | None = None,
    ) -> None:
        self.devices = setting.cluster.num_devices
        if self.devices & (self.devices - 1):
            raise RunError(f"expected a power of two of ranks, got {self.devices}")
        self.most, self.setting, self.pairs = max_seq_len_per_rank, setting, pairs

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]], config: Any = None
    ) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Return the lengths and the ids of each rank's samples, group by group, as Megatron does.

        Raises:
            PlanError: if a sample is longer than all ranks may hold.
        """
        ids, lengths = np.array(sample_id_seqlens, np.int64).reshape(-1, 2).T
        documents = Documents.causal(lengths)
        if self.pairs is not None:
            documents = Documents(lengths, self.pairs(lengths))
        plan = self._plan(documents)
        found: list[list[list[int]]] = [
            [[] for _ in range(self.devices)] for _ in range(plan.assignment.mesh.micro_batches)
        ]
        for group, first, width, rows in plan.assignment.groups():  # wide ones first on each rank
            for rank in range(first, first + width):
                found[group][rank] += rows.tolist()
        found.sort(key=lambda group: all(group))  # no rank may be idle in the last one
        return tuple(
            [[column[rows].tolist() for rows in group] for group in found]
            for column in (lengths, ids)
        )  # type: ignore[return-value]

    def _plan(self, documents: Documents) -> StepPlan:
        """Plan as few groups as hold the tokens, one of them without an idle rank."""
        room = self.most * self.devices
        fewest = max(1, -(-int(documents.tokens.sum()) // room))
        for widths in (None, (self.devices,)):  # with all ranks for every sample none is idle
            for count in range(fewest, len(documents) + 1):
                mesh = StepMesh(1, self.devices, micro_batches=count)
                plan = plan_step(
                    documents, replace(self.setting, mesh=mesh, token_budget=room, widths=widths)
                )
                held = plan.time.max_tokens * documents.tokens.sum() / (self.devices * count)
                if held <= self.most and _busy_groups(plan):
                    return plan
        raise AssertionError("a group for each sample, on all ranks, holds it")  # else plan_step


def _busy_groups(plan: StepPlan) -> list[int]:
    """Return the groups that no rank is idle in."""
    mesh = plan.assignment.mesh
    busy = np.zeros((mesh.micro_batches, mesh.devices), np.bool_)
    for group, first, width, _ in plan.assignment.groups():
        busy[group, first : first + width] = True
    return np.flatnonzero(busy.all(1)).tolist()
