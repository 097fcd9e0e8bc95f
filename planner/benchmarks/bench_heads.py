"""Compare predicted times and bytes with one head group, with several, and of static layouts.

    python planner/benchmarks/bench_heads.py --json OUT     # --table OUT prints the table

The recorded batches (`data/workloads.json`) of every kind of mask, with grouped query heads (8 and
2, as one of four tensor-parallel ranks holds them) and with as many key/value heads as query heads.
Times are relative to the portfolio with one head group.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import usual_cut, workloads
from recording import Row, geomean, machine, markdown, provenance, report, shown

from dcp_dsl import BlockSparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, find_cluster, measure, predict
from dcp_planner.search.partitioners import static_layouts
from dcp_planner.tables.head_groups import possible_groups

SCHEMA = "dcp.bench_heads/1"
BASE = "1 group"
METHODS: Mapping[str, dict[str, Any]] = {
    BASE: {},
    "2 groups": {"head_groups": 2},
    "4 groups": {"head_groups": 4},
    "8 groups": {"head_groups": 8},
    "auto": {"head_groups": "auto"},
    "static:zigzag": {"partitioner": "static:zigzag"},
    "static:heads": {"partitioner": "static:heads"},
    "static:heads_context": {"partitioner": "static:heads_context"},
}
"""Choices of `PlanConfig` by the name of the method (`Any`: values of its fields)."""


def run(options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    """Plan every chosen batch with every method on every cluster and shape."""
    rows: list[Row] = []
    batches = chosen(options.only, options.every)
    for name in options.clusters.split(","):
        cluster = find_cluster(name)
        for heads in options.heads.split(","):
            shape = ModelShape(*(int(part) for part in heads.split("/")), 128, 2)
            measured(batches[0], shape, cluster)
            for workload in batches:
                print(name, heads, workload["id"], file=sys.stderr)
                head = {"cluster": name, "heads": heads, "workload": workload["id"]}
                rows += [head | row for row in measured(workload, shape, cluster)]
    return {
        "schema": SCHEMA, "machine": machine(), "budget": "fast", "every": options.every,
        "rows": rows,
    }  # fmt: skip


def chosen(only: str, every: int) -> list[dict[str, Any]]:  # Any: JSON
    """Return the single documents, and one in so many packed batches with all their masks."""
    every_one = workloads()
    batches = list(dict.fromkeys(batch_of(w) for w in every_one))
    packed = [b for b in batches if not b.startswith("single")]
    kept = {*packed[::every], *(b for b in batches if b.startswith("single"))}
    return [w for w in every_one if batch_of(w) in kept and only in w["id"]]


def batch_of(workload: dict[str, Any]) -> str:  # Any: JSON
    """Return the name of a batch without its mask."""
    return str(workload["id"]).removesuffix(f"_{workload['mask']}")


def measured(workload: dict[str, Any], shape: ModelShape, cluster: Cluster) -> list[Row]:
    """Plan one batch with every method that heads and devices allow (`Any`: JSON)."""
    sparsity, rows = usual_cut(workload, cluster), []
    for method, choices in METHODS.items():
        name, groups = choices.get("partitioner", ""), choices.get("head_groups", 1)
        if name and name not in static_layouts(shape, cluster):
            continue
        if groups != "auto" and groups not in possible_groups(shape):
            continue
        config = PlanConfig(budget="fast", partials="input", **choices)
        rows.append({"mask": workload["mask"], "method": method} | figures(
            sparsity, shape, cluster, config))  # fmt: skip
    return rows


def figures(
    sparsity: BlockSparsity, shape: ModelShape, cluster: Cluster, config: PlanConfig
) -> Row:
    """Plan once, warm, and return the costs."""
    start = time.process_time()
    plan = build_plan(sparsity, shape, cluster, config)
    plan_s = time.process_time() - start
    found, predicted = measure(plan), predict(plan)
    return {
        "head_groups": plan.head_groups,
        "predicted_forward_s": predicted.forward_s,
        "predicted_backward_s": predicted.backward_s,
        "forward_bytes": found.forward.total_bytes,
        "forward_inter_bytes": found.forward.inter_node_bytes,
        "compute_imbalance": found.compute_imbalance,
        "token_imbalance": found.token_imbalance,
        "plan_cpu_s": plan_s,
    }


def to_table(document: dict[str, Any]) -> str:  # Any: JSON
    """Return a table of means per cluster and shape, and one of the single causal documents."""
    rows: list[Row] = document["rows"]
    texts = []
    for cluster, heads in dict.fromkeys((r["cluster"], r["heads"]) for r in rows):
        here = [r for r in rows if (r["cluster"], r["heads"]) == (cluster, heads)]
        masks = list(dict.fromkeys(r["mask"] for r in here))
        batches = len({r["workload"] for r in here})
        header = ("method", *masks, "least, most", "forward bytes", "between nodes", "plan CPU s")
        lines = [
            _line(method, masks, here)
            for method in METHODS
            if any(r["method"] == method for r in here)
        ]
        text = f"{cluster}, {heads} heads, {batches} batches: times faster than {BASE}, by mask"
        texts.append(f"{text}\n\n{markdown(header, lines)}\n")
    singles = [r for r in rows if r["workload"].startswith("single") and r["mask"] == "causal"]
    if singles:
        texts.append(f"One causal document of 131,072 tokens:\n\n{_singles(singles)}\n")
    return "\n".join(texts) + provenance(document, f"budget {document['budget']}")


def _line(method: str, masks: list[str], rows: list[Row]) -> list[str]:
    base = {r["workload"]: r for r in rows if r["method"] == BASE}
    mine = [r for r in rows if r["method"] == method]
    speed = {r["workload"]: _seconds(base[r["workload"]]) / _seconds(r) for r in mine}
    by_mask = [[speed[r["workload"]] for r in mine if r["mask"] == mask] for mask in masks]
    ratios = (
        [r[key] / base[r["workload"]][key] for r in mine if base[r["workload"]][key] and r[key]]
        for key in ("forward_bytes", "forward_inter_bytes")
    )
    cost = sum(r["plan_cpu_s"] for r in mine) / len(mine)
    return [
        method,
        *(shown(geomean(values)) for values in by_mask),
        f"{min(speed.values()):.2f}, {max(speed.values()):.2f}",
        *(shown(geomean(values)) for values in ratios),
        f"{cost:.2f}",
    ]


def _singles(rows: list[Row]) -> str:
    columns = list(dict.fromkeys((r["cluster"], r["heads"]) for r in rows))
    header = ("ms forward + backward, MB forward", *(f"{c}, {h}" for c, h in columns))
    lines = []
    for method in METHODS:
        found = {(r["cluster"], r["heads"]): r for r in rows if r["method"] == method}
        if found:
            lines.append([method, *(_cell(found.get(column)) for column in columns)])
    return markdown(header, lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{_seconds(row) * 1e3:.1f}, {row['forward_bytes'] / 1e6:,.0f}"


def _seconds(row: Row) -> float:
    return float(row["predicted_forward_s"] + row["predicted_backward_s"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", default="4x8")
    parser.add_argument("--heads", default="8/2,8/8", help="query/key heads, of 128")
    parser.add_argument("--only", default="", help="only workloads whose id contains this")
    parser.add_argument(
        "--every", type=int, default=4, help="of the packed batches, one in so many"
    )
    report(parser, run, to_table)
