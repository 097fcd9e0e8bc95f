"""`plan_step` as the scheduler of Megatron-Core's dynamic context parallel.

Source: megatron-core 0.16, ``pipeline_parallel.hybrid_cp_schedule.BalancedCPScheduler``; nothing of
it is imported.
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
