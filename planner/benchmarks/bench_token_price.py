"""Compare plans for the shortest step with default plans, on every third recorded batch.

    python planner/benchmarks/bench_token_price.py [a100-p4de:4x8 8 | h100-dgx:8x8 32]

The model is llama-8b, with so many of its 32 query heads on a device. Ratios are geometric means of
predicted times, with the token price over the default; CPU is that of planning.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench_plan import DATA
from recorded_masks import sequences_of

from dcp_planner import (
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    find_cluster,
)
from dcp_planner.model.cuts import choose_block_size
from dcp_planner.report import figures_of
from dcp_planner.step.report import STEP, batch_seconds
from dcp_planner.step.setting import step_model


def main(cluster_name: str = "a100-p4de:4x8", heads: str = "8") -> None:
    """Print one line for each batch, then the means."""
    cluster, shape = find_cluster(cluster_name), ModelShape(int(heads), int(heads) // 4)
    model = step_model("llama-8b", cluster.name).with_heads(shape)
    ratios = []
    for workload in json.loads((DATA / "workloads.json").read_text())["workloads"][::3]:
        sequences = sequences_of(workload)
        sparsity = cut_blocks(sequences, choose_block_size(sequences, cluster))
        found = []
        for price in (0.0, model.token_seconds):
            start = time.process_time()
            plan = build_plan(
                sparsity, shape, cluster, PlanConfig(token_seconds=price, partials="input")
            )
            cpu, figures = time.process_time() - start, figures_of(plan)
            times = batch_seconds(model, [figures])
            found.append([*(times[name] for name in STEP), figures.token_imbalance, cpu])
        ratios.append([b / a for a, b in zip(*found, strict=True)])
        print(workload["id"], *(f"{ratio:.3f}" for ratio in ratios[-1]), flush=True)
    for name, values in zip((*STEP, "max tokens", "cpu"), zip(*ratios, strict=True), strict=True):
        mean = statistics.geometric_mean(values)
        print(f"{name}: {mean:.3f} ({min(values):.3f} to {max(values):.3f}), {len(values)} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
