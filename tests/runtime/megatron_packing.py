"""Stands for Megatron-LM's packing of sequences, by the names of its classes and methods.

Pinned: NVIDIA/Megatron-LM, commit d98e8a64, `megatron/core/datasets/data_schedule.py`. A scheduler
gets the ids and lengths of a global batch and says which samples each of ``dp x cp`` ranks packs in
each micro-batch; ranks of one context-parallel group get the same.
"""

import enum


class BasePackingScheduler:
    def __init__(
        self, max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage
    ):
        self.max_seqlen_per_dp_cp_rank = max_seqlen_per_dp_cp_rank
        self.cp_size = cp_size
        self.dp_size = dp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage


class DpBalancedScheduler(BasePackingScheduler):
    """The class without its messages between ranks."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_seq_len_all_ranks = self.max_seqlen_per_dp_cp_rank * self.cp_size

    def get_groups_and_subsamples(self, sample_id_seqlens):
        """Pack samples in their order, as many as fit; then split packs to a multiple of ranks."""
        packs, room = [], 0
        for number, (_, length) in enumerate(sample_id_seqlens):
            if length > room:
                packs.append([])
                room = self.max_seq_len_all_ranks
            packs[-1].append(number)
            room -= length
        multiple, at = self.dp_size * (self.microbatch_group_size_per_vp_stage or 1), len(packs) - 1
        while len(packs) % multiple:
            assert at > 0, "Not enough samples to move"
            if len(packs[at]) > 1:
                packs.append([packs[at].pop()])
            else:
                at -= 1
        return [
            [packs[first + rank // self.cp_size] for rank in range(self.cp_size * self.dp_size)]
            for first in range(0, len(packs), self.dp_size)
        ]

    def run(self, lengths):
        """Return what each rank packs, checked as `run` does."""
        sample_id_groups = self.get_groups_and_subsamples(list(enumerate(lengths)))
        set_gbs = {sample for group in sample_id_groups for sub in group for sample in sub}
        assert len(set_gbs) == len(lengths)
        return sample_id_groups


class PackingSchedulerEnum(enum.Enum):
    DP_BALANCED = "dp_balanced"


def new_map():
    """Return `scheduler_map`, which is a module's in Megatron."""
    return {PackingSchedulerEnum.DP_BALANCED: DpBalancedScheduler}


def wrap_data_iterator(scheduler_map, name, lengths, room, cp_size, dp_size, stages=None):
    """Make the scheduler of a name as Megatron does, and run it."""
    scheduler_type = PackingSchedulerEnum[name.upper()]
    return scheduler_map[scheduler_type](room, cp_size, dp_size, stages).run(lengths)
