"""Measure what streaming within memory limits costs, beside no limit and a double-buffered ring.

    python planner/benchmarks/bench_memory.py --json OUT     # --table OUT prints the table

One causal document of 65,536 and one of 131,072 tokens, then recorded batches of packed documents
and of sparse masks, on 4 x 8 A100 at the benchmark's heads. A limit is a multiple of the local
tensors: q, k, v, out and log-sum-exp of the fullest device's own tokens in the plan without a
limit. The ring by formula: two receives of the keys and values of an equal share of the tokens, and
in backward two of their gradients in float32.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import usual_cut, workloads
from recording import Row, geomean, machine, markdown, provenance, report, shown

from dcp_dsl import BlockSparsity
from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    build_plan,
    predict,
    preset,
)
from dcp_planner.tables import accumulator_bytes, receive_buffer_bytes
from dcp_planner.tables.metrics import measure_memory

SCHEMA = "dcp.bench_memory/1"
LONG: list[dict[str, Any]] = [
    {"id": f"one document, {n:,} tokens", "mask": "causal", "mask_params": {}, "seqlens": [n]}
    for n in (65_536, 131_072)
]
TIMES = (4.0, 3.0, 2.0, 1.0)
SHAPE = ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)


def run(options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    """Plan every batch without a limit and within each."""
    alone = [workload for workload in LONG if workload["seqlens"][0] <= options.longest]
    rows = [row for workload in (*alone, *workloads(options.step)) for row in rows_of(workload)]
    return {"schema": SCHEMA, "machine": machine(), "rows": rows}


def rows_of(workload: dict[str, Any]) -> list[Row]:
    """Plan one batch without a limit and within each (`Any`: a JSON object)."""
    cluster = preset("a100-p4de", 4, 8)
    sparsity = usual_cut(workload, cluster)
    free = build_plan(sparsity, SHAPE, cluster)
    local = int(measure_memory(free).saved.max())
    share = sum(workload["seqlens"]) / cluster.num_devices
    ring = [2 * share * SHAPE.kv_bytes, 6 * share * SHAPE.kv_bytes]
    rows = []
    for times in (None, *TIMES):
        limit = None if times is None else int(times * local)
        row = planned(sparsity, cluster, limit)
        rows.append({"workload": workload["id"], "times": times, "local_bytes": local,
                     "ring_bytes": ring, "limit_bytes": limit} | row)  # fmt: skip
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def planned(sparsity: BlockSparsity, cluster: Cluster, limit: int | None) -> Row:
    """Plan within a limit; if that is refused, return the least limit that works."""
    start = time.process_time()
    try:
        plan = build_plan(sparsity, SHAPE, cluster, PlanConfig(memory_limit_bytes=limit))
    except BufferLimitError as error:
        return {"least_bytes": error.least, "plan_cpu_s": time.process_time() - start}
    cpu, seconds = time.process_time() - start, predict(plan)
    return figures(plan) | {
        "plan_cpu_s": cpu, "forward_s": seconds.forward_s, "backward_s": seconds.backward_s,
    }  # fmt: skip


def figures(plan: Plan) -> Row:
    """Return what a plan holds and sends."""
    held = (receive_buffer_bytes(plan) + accumulator_bytes(plan)).max(axis=1)
    sent, back = plan.transfers.size_bytes, plan.transfers.is_backward
    divisions = (plan.tiles.division, plan.tiles.backward_division)
    return {
        "partitioner": plan.partitioner,
        "held_bytes": held.tolist(),
        "sent_bytes": [int(sent[~back].sum()), int(sent[back].sum())],
        "divisions": [int(column.max(initial=0)) + 1 for column in divisions],
    }


def to_table(document: dict[str, Any]) -> str:
    """Return a line for every limit of the long documents, then one for each of all batches."""
    rows = document["rows"]
    free = {row["workload"]: row for row in rows if row["times"] is None}
    names = {workload["id"] for workload in LONG}
    long = markdown(
        ("limit", "MB", "held, MB", "sent, MB", "divisions", "placed by", "ms", "over no limit",
         "plan CPU s"),
        [_line(row, free[row["workload"]]) for row in rows if row["workload"] in names],
    )  # fmt: skip
    batches = [row for row in rows if row["workload"] not in names]
    summary = markdown(
        ("limit", "batches planned", "over no limit, mean", "worst", "bytes sent, mean"),
        [_summary([r for r in batches if r["times"] == times], free, times) for times in TIMES],
    )
    ring = ", ".join(
        f"{name}: {' and '.join(shown(b, '.1f', 1e-6) for b in free[name]['ring_bytes'])}"
        for name in sorted(names) if name in free
    )  # fmt: skip
    text = f"A double-buffered ring holds, MB forward and backward: {ring}"
    return f"{long}\n\n{summary}\n{provenance(document, text)}"


def _line(row: Row, free: Row) -> list[str]:
    name = row["workload"].removeprefix("one document, ")
    times = "none" if row["times"] is None else f"{row['times']:g}x local"
    head = [f"{name}, {times}", shown(row["limit_bytes"], ".1f", 1e-6)]
    if "held_bytes" not in row:
        least = shown(row["least_bytes"], ".1f", 1e-6)
        return [*head, f"refused: {least} is least", *"-----", shown(row["plan_cpu_s"])]
    pairs = (
        " / ".join(shown(value, ".1f", 1e-6) for value in row[key])
        for key in ("held_bytes", "sent_bytes")
    )
    divisions = " / ".join(map(str, row["divisions"]))
    return [*head, *pairs, divisions, row["partitioner"], shown(_seconds(row), ".2f", 1e3),
            shown(_seconds(row) / _seconds(free)), shown(row["plan_cpu_s"])]  # fmt: skip


def _summary(rows: list[Row], free: dict[str, Row], times: float) -> list[str]:
    kept = [row for row in rows if "held_bytes" in row]
    slower = [_seconds(row) / _seconds(free[row["workload"]]) for row in kept]
    more = [sum(r["sent_bytes"]) / max(1, sum(free[r["workload"]]["sent_bytes"])) for r in kept]
    return [f"{times:g}x local", f"{len(kept)} of {len(rows)}", shown(geomean(slower)),
            shown(max(slower, default=None)), shown(geomean(m for m in more if m))]  # fmt: skip


def _seconds(row: Row) -> float:
    return float(row["forward_s"] + row["backward_s"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, default=10, help="every n-th recorded batch")
    parser.add_argument("--longest", type=int, default=131_072, help="tokens of a single document")
    report(parser, run, to_table)
