"""Megatron-Core's schedulers, whose samples are dealt to ranks by our planner.

Sources: ``pipeline_parallel.hybrid_cp_schedule.BalancedCPScheduler`` of megatron-core 0.16, and
``datasets.data_schedule.DpBalancedScheduler`` of Megatron-LM, commit d98e8a64.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.step import Documents, StepMesh, StepPlan, StepSetting, plan_step
from dcp_runtime.errors import RunError


class PlannedCPScheduler:
    """Deals samples to ranks by `plan_step`, in the place of ``BalancedCPScheduler``.

    Samples are dealt by the work of their own masks, not by the square of their lengths. Each goes
    to 1, 2, 4, ... ranks, whichever number is fastest. Give this object to a
    ``HybridCPDataLoaderWrapper`` as ``cp_balancing_scheduler``.

    Args:
        max_seq_len_per_rank: tokens of one group of samples that a rank may hold.
        setting: model and cluster; its mesh and token budget are not read.
        pairs: visible pairs of samples of these lengths, int64 ``[N]``; by default causal.

    Raises:
        RunError: if the number of ranks is no power of two: Megatron has no other groups.
    """

    def __init__(
        self,
        max_seq_len_per_rank: int,
        setting: StepSetting,
        pairs: Callable[[Ints], Floats] | None = None,
    ) -> None:
        self.devices = setting.cluster.num_devices
        if self.devices & (self.devices - 1):
            raise RunError(
                f"setting.cluster: expected a power of two of ranks, got {self.devices}: Megatron "
                "has no other groups; use 1, 2, 4, 8, ..."
            )
        self.most, self.setting, self.pairs = max_seq_len_per_rank, setting, pairs

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]], config: Any = None
    ) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Return the lengths and the ids of each rank's samples, group by group, as Megatron does.

        Raises:
            PlanError: if a sample is longer than all ranks may hold.
        """
        if not sample_id_seqlens:
            return [], []
        ids, lengths = np.array(sample_id_seqlens, np.int64).reshape(-1, 2).T
        plan = self._plan(_documents(lengths, self.pairs))
        # The rows of samples by group and rank; a sample on several ranks is listed on each.
        found: list[list[list[int]]] = [
            [[] for _ in range(self.devices)] for _ in range(plan.assignment.mesh.micro_batches)
        ]
        for group, first, width, rows in plan.assignment.groups():  # wide groups first on each rank
            for rank in range(first, first + width):
                found[group][rank] += rows.tolist()
        # Megatron runs the last sample of the last group apart: every rank must have one there.
        found.sort(key=all)
        return tuple(
            [[column[rows].tolist() for rows in group] for group in found]
            for column in (lengths, ids)
        )  # type: ignore[return-value]

    def _plan(self, documents: Documents) -> StepPlan:
        """Plan as few groups as hold the tokens, with at least one group without an idle rank."""
        room = self.most * self.devices
        fewest = -(-int(documents.tokens.sum()) // room)  # at least 1: no document is empty
        # First any number of ranks for a sample; then all ranks for each, where no rank is idle.
        for widths in (None, (self.devices,)):
            for count in range(fewest, len(documents) + 1):
                mesh = StepMesh(1, self.devices, micro_batches=count)
                plan = plan_step(
                    documents, replace(self.setting, mesh=mesh, token_budget=room, widths=widths)
                )
                # `max_tokens` is relative to the mean over all ranks and groups.
                held = plan.time.max_tokens * documents.tokens.sum() / (self.devices * count)
                busy = np.zeros((count, self.devices), np.bool_)
                for group, first, width, _ in plan.assignment.groups():
                    busy[group, first : first + width] = True
                if held <= self.most and busy.all(1).any():
                    return plan
        raise AssertionError("a group for each sample, on all ranks, holds it")  # else plan_step


def _documents(lengths: Ints, pairs: Callable[[Ints], Floats] | None) -> Documents:
    return Documents.causal(lengths) if pairs is None else Documents(lengths, pairs(lengths))


def planned_packing(
    scheduler: type, setting: StepSetting, pairs: Callable[[Ints], Floats] | None = None
) -> type:
    """Return Megatron's packing scheduler, whose packs take equally long under their masks.

    Megatron packs samples in their order, as many as fit. This class fills as few micro-batches as
    hold them, and deals each rank's packs by the work of their own masks. Put it in the place of
    Megatron's: ``scheduler_map[PackingSchedulerEnum.DP_BALANCED]``.

    Args:
        scheduler: ``DpBalancedScheduler``, whose other methods stay.
        setting: model and cluster; its mesh and token budget are not read.
        pairs: visible pairs of samples of these lengths, int64 ``[N]``; by default causal.

    The class refuses (RunError) a cluster of another number of devices, and too few samples.
    """

    def get_groups_and_subsamples(
        self: Any, sample_id_seqlens: Sequence[tuple[int, int]]
    ) -> list[list[list[int]]]:
        """Return the ids of the samples of each rank, micro-batch by micro-batch."""
        replicas, context = self.dp_size, self.cp_size
        if setting.cluster.num_devices != replicas * context:
            raise RunError(
                f"setting.cluster: expected {replicas} x {context} devices, data-parallel times "
                f"context-parallel ranks, got {setting.cluster.num_devices}; give "
                f"Cluster(1, {replicas * context})"
            )
        ids, lengths = np.array(sample_id_seqlens, np.int64).reshape(-1, 2).T
        documents = _documents(lengths, pairs)
        step = self.microbatch_group_size_per_vp_stage or 1  # interleaved stages take so many
        room = self.max_seqlen_per_dp_cp_rank * context
        fewest = -(-int(lengths.sum()) // (room * replicas * step)) * step
        for count in range(max(step, fewest), len(ids) // replicas + 1, step):
            mesh = StepMesh(replicas, context, micro_batches=count)
            plan = plan_step(
                documents, replace(setting, mesh=mesh, token_budget=room, widths=(context,))
            )
            packs: list[list[list[int]]] = [[[]] * (replicas * context) for _ in range(count)]
            held = 0
            for micro_batch, first, width, rows in plan.assignment.groups():
                packs[micro_batch][first : first + width] = [ids[rows].tolist()] * width
                held = max(held, int(lengths[rows].sum()))
            if held <= room and all(map(all, packs)):
                return packs
        raise RunError(
            f"planned_packing: {len(ids)} samples of {int(lengths.sum())} tokens do not fill "
            f"{replicas} ranks times a multiple of {step} micro-batches of at most {room} tokens; "
            "give larger global batches, or raise max_seqlen_per_dp_cp_rank"
        )

    own = {"get_groups_and_subsamples": get_groups_and_subsamples}
    return type("PlannedPacking", (scheduler,), own)
