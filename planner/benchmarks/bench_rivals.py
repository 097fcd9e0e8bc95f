"""Our default beside placements of other systems, on the recorded batches.

    python planner/benchmarks/bench_rivals.py --clusters 4x8,8x8 --json OUT    # --table OUT prints

`rivals.py` says how each rival places and what it sends. Its time is that of our simulator with our
schedule, kernels and transfers, which send no unread keys: the time that the rival's placement
could reach in our runtime, gateways included, not the time of its own runtime. Blocks are those
that our planner chooses, or a quarter of them, 128 tokens at least: the faster of both counts. Cuts
inside a block are not seen, so of short documents te-thd's balance is better than shown, and its
kernels are smaller.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import sequences_of, workloads
from recording import Row, geomean, machine, markdown, provenance, report, shown
from rivals import CAUSAL_ONLY, RIVALS, Sent

from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    build_plan,
    cut_blocks,
    fastest_block_size,
    find_cluster,
    measure,
    predict,
)
from dcp_planner.model.cuts import choose_block_size
from dcp_planner.model.problem import Placement, Workload, build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule

SCHEMA = "dcp.bench_rivals/1"
LEAST_BLOCK = 128
SHAPE = ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)
CONFIG = PlanConfig(partials="input")


def run(options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    """Place every batch on every cluster."""
    rows: list[Row] = []
    for name in options.clusters.split(","):
        for workload in workloads(options.step):
            print(name, workload["id"], file=sys.stderr)
            rows += rows_of(workload, name)
    return {"schema": SCHEMA, "machine": machine(), "step": options.step, "rows": rows}


def rows_of(workload: dict[str, Any], cluster_name: str) -> list[Row]:
    """Plan one batch with our default and place it as each rival does (`Any`: its JSON object)."""
    cluster, sequences = find_cluster(cluster_name), sequences_of(workload)
    block = choose_block_size(sequences, cluster)
    coarse = cut_blocks(sequences, block)
    fine = cut_blocks(sequences, max(LEAST_BLOCK, block // 4))
    head = {"workload": workload["id"], "mask": workload["mask"], "cluster": cluster_name}
    chosen = fastest_block_size([sequences], SHAPE, cluster, CONFIG)
    tuned = cut_blocks(sequences, chosen)
    ours = build_plan(tuned, SHAPE, cluster, CONFIG)
    rows = [head | {"method": "dcp-dsl"} | figures(ours, sent_by(ours))]
    for name, rival_of in RIVALS.items():
        if name in CAUSAL_ONLY and workload["mask"] != "causal":
            continue
        found = []
        for sparsity in (coarse, fine, tuned):
            work = build_workload(sparsity, SHAPE)
            rival = rival_of(work, cluster)
            schedule = make_schedule(work, rival.placement, cluster, CONFIG)
            plan = assemble(work, cluster, rival.placement, schedule, name)
            sent = rival.sent or sent_by(plan_directly(work, rival.placement, cluster))
            found.append(figures(plan, sent))
        rows.append(head | {"method": name} | min(found, key=lambda row: float(row["seconds"])))
    return rows


def plan_directly(workload: Workload, placement: Placement, cluster: Cluster) -> Plan:
    """Emit a plan in which every message goes straight to its target."""
    schedule = make_schedule(workload, placement, cluster, replace(CONFIG, routing="direct"))
    return assemble(workload, cluster, placement, schedule, "direct")


def sent_by(plan: Plan) -> Sent:
    """Return the bytes of all transfers of a plan."""
    sides = (measure(plan).forward, measure(plan).backward)
    return Sent(sum(s.total_bytes for s in sides), sum(s.inter_node_bytes for s in sides))


def figures(plan: Plan, sent: Sent) -> Row:
    """Return the figures of a plan; bytes as they are sent."""
    found = measure(plan)
    return {
        "seconds": predict(plan).seconds, "compute": found.compute_imbalance,
        "tokens": found.token_imbalance, "bytes": sent.total, "inter_bytes": sent.inter,
    }  # fmt: skip


def to_table(document: dict[str, Any]) -> str:
    """Write medians and geometric means over batches, ours as 1 (`Any`: JSON values)."""
    lines = []
    for cluster in dict.fromkeys(row["cluster"] for row in document["rows"]):
        for mask in ("causal", "other masks"):
            own = [r for r in document["rows"] if r["cluster"] == cluster
                   and (r["mask"] == "causal") == (mask == "causal")]  # fmt: skip
            ours = {r["workload"]: r for r in own if r["method"] == "dcp-dsl"}
            for method in RIVALS:
                pairs = [(r, ours[r["workload"]]) for r in own if r["method"] == method]
                if pairs:
                    lines.append([f"{cluster}, {mask}", method, *_line(pairs)])
    heads = ("batches", "method", "time / ours", "least to most", "slower in", "bytes / ours",
             "between nodes / ours", "compute, tokens max/mean (worst)")  # fmt: skip
    return f"{markdown(heads, lines)}\n\n{provenance(document)}"


def _line(pairs: Sequence[tuple[Row, Row]]) -> list[str]:
    times = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs]
    ratios = {
        name: geomean(t[name] / o[name] for t, o in pairs if t[name] and o[name])
        for name in ("bytes", "inter_bytes")
    }
    balance = (max(t[name] for t, _ in pairs) for name in ("compute", "tokens"))
    return [
        shown(geomean(times), ".2f"), f"{min(times):.2f} to {max(times):.2f}",
        f"{sum(t > 1 for t in times)} of {len(times)}",
        shown(ratios["bytes"], ".2f"), shown(ratios["inter_bytes"], ".2f"),
        ", ".join(f"{most:.2f}" for most in balance),
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", default="4x8,8x8")
    parser.add_argument("--step", type=int, default=1, help="every n-th recorded batch")
    report(parser, run, to_table)
