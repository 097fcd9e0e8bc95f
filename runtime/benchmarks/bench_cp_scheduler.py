"""Work of Megatron-Core's groups of samples, as its scheduler and as `plan_step` deals them.

Usage: python runtime/benchmarks/bench_cp_scheduler.py [--batches 20] [--json OUT]

A group is as long as its fullest rank; work is that of an 8B model's FLOPs. Messages do not count.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner import Cluster
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime.adapters.megatron import PlannedCPScheduler

RANKS, ROOM, SAMPLES = 8, 8192, 60
FLOPS_OF_A_PAIR, FLOPS_OF_A_TOKEN = 1.8e6, 4.8e10


def drawn(seed: int) -> Ints:
    """Lengths of a global batch, padded to 16 tokens."""
    lengths = np.exp(np.random.default_rng(seed).normal(7, 1.4, SAMPLES)).clip(64, RANKS * ROOM)
    return lengths.astype(np.int64) // 16 * 16


def pairs_in(window: int) -> Callable[[Ints], Floats]:
    """Visible pairs of causal samples that see so many tokens."""

    def pairs(lengths: Ints) -> Floats:
        seen = np.minimum(lengths, window)
        return seen * (seen + 1) / 2.0 + (lengths - seen) * seen

    return pairs


def work_of(groups: list[list[list[int]]], work: Floats) -> float:
    """Work of the fullest rank of each group, added up."""
    total = 0.0
    for group in groups:
        busy = np.zeros(RANKS)
        for sample in {sample for ids in group for sample in ids}:
            ranks = [rank for rank, ids in enumerate(group) if sample in ids]
            busy[ranks] += work[sample] / len(ranks)
        total += float(busy.max())
    return total


def main() -> None:
    """Print the ratios under a causal mask and under a window."""
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    found = {}
    setting = StepSetting(
        StepMesh(1, RANKS), step_model("llama-8b"), Cluster(devices_per_node=RANKS), 0
    )
    for name, window in (("causal", RANKS * ROOM), ("causal, window of 512", 512)):
        ours = PlannedCPScheduler(ROOM, setting, pairs_in(window))
        theirs = BalancedCPScheduler(ROOM, SimpleNamespace(size=lambda: RANKS))
        ratios = []
        for seed in range(options.batches):
            lengths = drawn(seed)
            work = pairs_in(window)(lengths) * FLOPS_OF_A_PAIR + lengths * FLOPS_OF_A_TOKEN
            theirs_s, ours_s = (
                work_of(
                    scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)[1], work
                )
                for scheduler in (theirs, ours)
            )
            ratios.append(theirs_s / ours_s)
        middle = statistics.median(ratios)
        print(f"{name}: {middle:.2f} x less work ({min(ratios):.2f} to {max(ratios):.2f})")
        found[name] = ratios
    if options.json:
        document = {"schema": "dcp.bench_cp_scheduler/1", "work_ratios": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
