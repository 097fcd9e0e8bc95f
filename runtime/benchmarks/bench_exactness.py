"""Errors of bfloat16 attention by number of ranks, with both types of partial results.

    python runtime/benchmarks/bench_exactness.py --json OUT     # --table OUT prints the table

One causal sequence, in a layout in which keys travel and in one in which queries do as well; all
ranks are threads of one process. Dense attention in float64 is the reference: the norm of the error
by the norm of the tensor, the mean over seeds. Bytes are those of both directions and all ranks.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import machine, markdown, report, shown

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, measure
from dcp_runtime import ProcessWorld, RunConfig, open_world, run_plan

SCHEMA = "dcp.bench_exactness/1"
TOKENS, BLOCK, RANKS, SEEDS = 1024, 32, (1, 2, 4, 8), range(4)
SHAPE = ModelShape(4, 2, 64, dtype_bytes=2)
LAYOUTS = {"static:zigzag": "keys", "static:grid": "keys, queries"}
TENSORS = ("out", "dq", "dk", "dv")

Json = dict[str, Any]  # Any: a JSON document


def main() -> None:
    """Measure and write a JSON document, or print the table of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    report(parser, run, to_table)


def run(options: argparse.Namespace) -> Json:
    """Measure; return the document."""
    rows: list[Json] = []
    for ranks in RANKS:
        with open_world(ranks, transport="loopback") as world:
            rows += [
                measured(layout, ranks, partials, world)
                for layout in list(LAYOUTS)[: 2 if ranks > 1 else 1]
                for partials in ("input", "float32")
            ]
    rows.sort(key=lambda row: (row["layout"] == "static:grid", row["partials"] == "float32"))
    return {"schema": SCHEMA, "machine": machine(), "rows": rows}


def measured(
    layout: str, ranks: int, partials: Any, world: ProcessWorld
) -> Json:  # Any: of PlanConfig
    """Run one plan under every seed."""
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample(length=TOKENS))
    config = PlanConfig(layout, partials=partials)
    plan = build_plan(block_sparsity([mask], BLOCK, BLOCK), SHAPE, Cluster(1, ranks), config)
    errors = []
    for seed in SEEDS:
        options = RunConfig(ranks, None, "bfloat16", seed, verify=True, transport="loopback")
        run = run_plan(plan, options, world)
        errors.append({error.tensor: error for error in run.errors})
    found = measure(plan)
    return {
        "layout": layout, "partials": partials, "ranks": ranks,
        "bytes": found.forward.total_bytes + found.backward.total_bytes,
        **{name: statistics.fmean(e[name].relative for e in errors) for name in TENSORS},
        **{f"eager_{name}": statistics.fmean(e[name].eager for e in errors) for name in TENSORS},
    }  # fmt: skip


def to_table(document: Json) -> str:
    """Write a line per type and number of ranks."""
    header = ["travels", "partial results", "ranks", *TENSORS, "MB sent"]
    first = document["rows"][0]
    lines = [
        ["-", "eager attention", "1", *(shown(first[f"eager_{n}"], ".2e") for n in TENSORS), "-"]
    ]
    lines += [
        [LAYOUTS[row["layout"]] if row["ranks"] > 1 else "-",
         {"input": "bfloat16"}.get(row["partials"], row["partials"]), str(row["ranks"]),
         *(shown(row[name], ".2e") for name in TENSORS), shown(row["bytes"], ".1f", 1e-6)]
        for row in document["rows"]
    ]  # fmt: skip
    return markdown(header, lines)


if __name__ == "__main__":
    main()
