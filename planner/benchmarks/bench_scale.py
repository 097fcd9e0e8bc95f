"""Time planning of large batches: one million tokens on 64 devices, four million on 1,024.

    python planner/benchmarks/bench_scale.py --json OUT        # --table OUT prints the table

Two batches: one causal document, and documents with the lengths of the recorded LDC-like batches
one behind the other, each under a causal mask. One document of four million tokens gets one block
for each device: that makes 524,800 tiles already. Seconds are of one core, warm, the median of the
repeats, stage by stage: `compile` from bound masks to block sparsity, `plan` `build_plan` as a
whole with validation, `predict` the simulation. Memory is the peak of the process so far.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import sequences_of, workloads
from recording import Row, machine, markdown, provenance, report, shown

from dcp_dsl import block_sparsity
from dcp_planner import ModelShape, PlanConfig, build_plan, measure, predict, preset

SCHEMA = "dcp.bench_scale/1"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Size:
    """One size: tokens on nodes of eight devices, cut into blocks of `block` tokens."""

    name: str
    tokens: int
    nodes: int
    block: int
    batches: tuple[str, ...] = ("documents", "one document")


SIZES = (
    Size("131k on 64", 131_072, 8, 1024),
    Size("1M on 64", 1 << 20, 8, 8192),
    Size("4M on 1,024", 1 << 22, 128, 2048, ("documents",)),
    Size("4M on 1,024", 1 << 22, 128, 4096, ("one document",)),
)


def run(options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    """Plan every size with every method."""
    rows = []
    for size in SIZES[: options.limit]:
        for batch in size.batches:
            for method in options.methods.split(","):
                print(f"{size.name}, {batch}, {method}", file=sys.stderr)
                rows.append(measure_size(size, batch, method, options.repeats))
    return {
        "schema": SCHEMA, "machine": machine(), "repeats": options.repeats, "seed": 0, "rows": rows,
    }  # fmt: skip


def measure_size(size: Size, batch: str, method: str, repeats: int) -> Row:
    """Plan one size `repeats` times after a small warm-up."""
    shape, config = ModelShape(), config_of(method)
    small = block_sparsity(sequences_of(workload_of([8192, 5000])), 1024, 1024)
    predict(build_plan(small, shape, preset("a100-p4de", size.nodes, 8), config))
    sequences = sequences_of(workload_of(lengths_of(batch, size.tokens)))
    cluster = preset("a100-p4de", size.nodes, 8)
    sparsity, compile_s = timed(lambda: block_sparsity(sequences, size.block, size.block), repeats)
    plan, plan_s = timed(lambda: build_plan(sparsity, shape, cluster, config), repeats)
    predicted, predict_s = timed(lambda: predict(plan), repeats)
    found = measure(plan)
    return {
        "size": size.name, "batch": batch, "method": method, "devices": cluster.num_devices,
        "tokens": found.tokens, "blocks": found.blocks, "tiles": found.tiles,
        "compile_s": statistics.median(compile_s), "plan_s": statistics.median(plan_s),
        "plan_spread_s": max(plan_s) - min(plan_s), "predict_s": statistics.median(predict_s),
        "compute_imbalance": found.compute_imbalance, "token_imbalance": found.token_imbalance,
        "forward_bytes": found.forward.total_bytes,
        "forward_inter_bytes": found.forward.inter_node_bytes,
        "predicted_s": predicted.seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def timed(work: Callable[[], _T], repeats: int) -> tuple[_T, list[float]]:
    """Run `work`, give its last result and the seconds of every run."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return result, seconds


def config_of(method: str) -> PlanConfig:
    """Return the configuration of a registry name, or of ``native:BUDGET``; routed by node."""
    if method.startswith("native:"):
        budget: Any = method.removeprefix("native:")  # checked by PlanConfig
        return PlanConfig(partitioner="native", budget=budget, routing="node", partials="input")
    return PlanConfig(partitioner=method, routing="node", partials="input")


def lengths_of(batch: str, tokens: int) -> list[int]:
    """Return the sequence lengths of one of the two batches."""
    if batch == "one document":
        return [tokens]
    recorded = [w for w in workloads() if w["id"].startswith("ldc_like") and w["mask"] == "causal"]
    pool = [length for workload in recorded for length in workload["seqlens"]]
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, pool[len(lengths) % len(pool)]))
    return lengths


def workload_of(lengths: list[int]) -> dict[str, Any]:
    """Return causal sequences as a workload (`Any`: its JSON object)."""
    return {"id": "scale", "mask": "causal", "mask_params": {}, "seqlens": lengths}


def to_table(document: dict[str, Any]) -> str:
    """Return the Markdown table (`Any`: the JSON of a run)."""
    header = ("tokens on devices", "batch", "method", "tiles", "compile s", "plan s", "predict s",
              "compute max/mean", "tokens", "peak GB")  # fmt: skip
    lines = [
        [
            row["size"], row["batch"], row["method"], f"{row['tiles']:,}",
            shown(row["compile_s"], ".3f"), shown(row["plan_s"], ".2f"),
            shown(row["predict_s"], ".3f"), shown(row["compute_imbalance"]),
            shown(row["token_imbalance"]), shown(row["peak_memory_bytes"], ".2f", 1e-9),
        ]
        for row in document["rows"]
    ]  # fmt: skip
    return markdown(header, lines) + "\n" + provenance(document)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", default="native:fast", help="comma list")
    parser.add_argument("--limit", type=int, help="only the first N sizes")
    parser.add_argument("--repeats", type=int, default=3)
    report(parser, run, to_table)
