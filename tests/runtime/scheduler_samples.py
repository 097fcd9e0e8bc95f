"""Samples of a global batch for schedulers of Megatron-Core, and the work of what they deal."""

import numpy as np

from dcp_planner import Cluster
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime.adapters.megatron import PlannedCPScheduler

RANKS, ROOM = 8, 8192


def planned(window=None):
    cluster = Cluster(devices_per_node=RANKS)
    setting = StepSetting(StepMesh(1, RANKS), step_model("llama-8b"), cluster, 0)

    def pairs(lengths):
        seen = np.minimum(lengths, window)
        return seen * (seen + 1) / 2.0 + (lengths - seen) * seen

    return PlannedCPScheduler(ROOM, setting, None if window is None else pairs)


def drawn(seed):
    """Lengths of a global batch as Megatron pads them, a few of them long."""
    lengths = np.exp(np.random.default_rng(seed).normal(7, 1.4, 60)).clip(64, RANKS * ROOM)
    return (lengths.astype(int) // 16 * 16).tolist()


def work_of(groups, length_of, window):
    """FLOPs of an 8B model; a group is as long as its fullest rank. Messages are not counted."""
    total = 0.0
    for group in groups:
        busy = np.zeros(RANKS)
        for sample in {i for ids in group for i in ids}:
            ranks, n = [r for r, ids in enumerate(group) if sample in ids], length_of[sample]
            pairs = sum(min(token, window or n) for token in range(1, n + 1))
            busy[ranks] += (1.8e6 * pairs + 4.8e10 * n) / len(ranks)
        total += busy.max()
    return total
