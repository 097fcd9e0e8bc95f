"""The price of reproducible plans on recorded batches: predicted time and bytes over default plans.

    python planner/benchmarks/bench_reproducible.py --json OUT     # --table OUT prints the table

Three other designs keep bits, too. They are priced by their bytes alone, on the same owners. In
place of exact sums travel: the queries, to the owners of the keys that they see; or float32 sums
for each block of queries; or float32 sums for each node of a binary tree over these blocks.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import usual_cut, workloads
from recording import Row, geomean, machine, markdown, provenance, report, shown

from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    TransferKind,
    build_plan,
    find_cluster,
    predict,
)

SCHEMA = "dcp.bench_reproducible/1"
DESIGNS = ("queries", "blocks", "tree")


def run(options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    """Plan every chosen batch both ways, on every cluster and shape."""
    rows: list[Row] = []
    for name in options.clusters.split(","):
        cluster = find_cluster(name)
        for heads in options.heads.split(","):
            shape = ModelShape(*(int(part) for part in heads.split("/")), 128, 2)
            for workload in workloads(options.every):
                print(name, heads, workload["id"], file=sys.stderr)
                head = {"cluster": name, "heads": heads, "workload": workload["id"]}
                rows.append(head | {"mask": workload["mask"]} | measured(workload, shape, cluster))
    return {"schema": SCHEMA, "machine": machine(), "every": options.every, "rows": rows}


def measured(workload: dict[str, Any], shape: ModelShape, cluster: Cluster) -> Row:
    """Return times and bytes of the default and of the reproducible plan (`Any`: JSON)."""
    sparsity, found = usual_cut(workload, cluster), Row()
    for name, is_reproducible in (("default", False), ("reproducible", True)):
        config = PlanConfig(budget="fast", reproducible=is_reproducible)
        plan = build_plan(sparsity, shape, cluster, config)
        times = predict(plan)
        found[f"{name}_forward_s"], found[f"{name}_backward_s"] = times
        found[f"{name}_bytes"] = int(plan.transfers.size_bytes.sum())
    # The same owners as the reproducible plan, the last one made.
    return found | {f"{design}_bytes": bytes_of(plan, design) for design in DESIGNS}


def bytes_of(plan: Plan, design: str) -> int:
    """Return the bytes of another design on the owners of a plan."""
    tiles, owner, tokens = plan.tiles, plan.blocks.owner, plan.blocks.num_tokens
    keys_in = (plan.transfers.kind == TransferKind.KV) & ~plan.transfers.is_backward
    inputs = 2 * int(plan.transfers.size_bytes[keys_in].sum())  # forward, and dq
    remote = np.flatnonzero(tiles.device != owner[tiles.kv_block])
    kv, q, device = tiles.kv_block[remote], tiles.q_block[remote], tiles.device[remote]
    if design == "queries":
        blocks, _ = np.unique(np.stack([q, owner[kv]]), axis=1)
        return inputs + int(tokens[blocks].sum()) * plan.shape.q_backward_bytes
    if design == "tree":
        apart = int((tree_nodes(kv, q, device) * tokens[np.unique(kv)]).sum())
    else:
        apart = int(tokens[kv].sum())
    return inputs + apart * 2 * plan.shape.kv_heads * plan.shape.head_dim * 4


def tree_nodes(kv: np.ndarray, q: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Count for each block of keys the whole nodes of a binary tree that one device computes."""
    found = []
    for block in np.unique(kv):
        mine = kv == block
        nodes = dict(zip(q[mine].tolist(), device[mine].tolist(), strict=True))
        count = 0
        while nodes:
            pairs = {n // 2 for n in nodes if nodes.get(n) == nodes.get(n ^ 1)}
            count += sum(n // 2 not in pairs for n in nodes)
            nodes = {n: nodes[2 * n] for n in pairs}
        found.append(count)
    return np.array(found, np.int64)


def to_table(document: dict[str, Any]) -> str:  # Any: JSON
    """Return the ratios to the default plan by mask, per cluster and heads."""
    rows: list[Row] = document["rows"]
    lines = []
    for cluster, heads in dict.fromkeys((r["cluster"], r["heads"]) for r in rows):
        here = [r for r in rows if (r["cluster"], r["heads"]) == (cluster, heads)]
        for mask in (*dict.fromkeys(r["mask"] for r in here), "all"):
            chosen = [r for r in here if mask in (r["mask"], "all")]
            times = [_seconds(r, "reproducible") / _seconds(r, "default") for r in chosen]
            base = [max(r["default_bytes"], 1) for r in chosen]
            totals = [
                [r[f"{name}_bytes"] for r in chosen]
                for name in ("reproducible", *DESIGNS)
            ]  # fmt: skip
            ratios = [
                geomean(max(a, 1) / b for a, b in zip(each, base, strict=True)) for each in totals
            ]
            lines.append([
                cluster, heads, mask, str(len(chosen)), shown(geomean(times)),
                f"{min(times):.2f}, {max(times):.2f}", *map(shown, ratios),
            ])  # fmt: skip
    header = ("cluster", "heads", "mask", "batches", "time", "least, most", "bytes",
              "of queries", "of blocks", "of a tree")  # fmt: skip
    return f"{markdown(header, lines)}\n\n{provenance(document, 'budget fast')}"


def _seconds(row: Row, name: str) -> float:
    return float(row[f"{name}_forward_s"] + row[f"{name}_backward_s"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", default="4x8")
    parser.add_argument("--heads", default="8/2,8/8", help="query/key heads, of 128")
    parser.add_argument("--every", type=int, default=1, help="of the batches, one in so many")
    report(parser, run, to_table)
