"""Time the stages after the placement: divide, route, emit and simulate some 10,000 tiles.

    python planner/benchmarks/bench_schedule.py --json OUT     # --table OUT prints the table

One causal document on 4 x 8 devices, placed once by the native search; every stage is then timed on
its own, warm, the median of the repeats. The greedy scheduler of the DCP artifact, in C++, took
12 to 119 ms for batches of this size when it was measured on two cores of another machine.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import sequences_of
from recording import machine, markdown, provenance, shown, stage_lines, stage_rows, write

from dcp_dsl import block_sparsity
from dcp_planner import ModelShape, PlanConfig, predict, preset, simulate, validate
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule

SCHEMA = "dcp.bench_schedule/1"
TOKENS = 131_072
RECORDED_MS = (12.0, 119.0)
"""Least and most of the C++ greedy of the DCP artifact for some 10,000 tiles."""


@click.command()
@click.option("--block", type=click.IntRange(min=128), default=928, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Tokens, fewer than the usual.")
@click.option("--repeats", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--table", type=click.Path(exists=True), help="Print the table of such a file.")
def main(block: int, limit: int | None, repeats: int, out: str | None, table: str | None) -> None:
    """Run the benchmark, or print the table of its results."""
    if table is not None:
        click.echo(to_table(json.loads(Path(table).read_text())))
        return
    document = run(block, min(TOKENS, limit or TOKENS), repeats)
    if out is not None:
        write(Path(out), document)
    click.echo(to_table(document))


def run(block: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Place once, then time every stage (`Any`: JSON)."""
    workload = {"id": "schedule", "mask": "causal", "mask_params": {}, "seqlens": [tokens]}
    sparsity = block_sparsity(sequences_of(workload), block, block)
    cluster = preset("a100-p4de", 4, 8)
    config = PlanConfig(partitioner="native", budget="fast", routing="node", divisions=4)
    searched = replace(config, divisions="auto")
    work = build_workload(sparsity, ModelShape())
    placed = place(work, cluster, config)
    divided = make_schedule(work, placed, cluster, config)
    plan = assemble(work, cluster, placed, divided, config.partitioner)
    stages: dict[str, Callable[[], object]] = {
        "divide into 4": lambda: make_schedule(work, placed, cluster, config),
        "divide as is fastest": lambda: make_schedule(work, placed, cluster, searched),
        "route and emit": lambda: assemble(work, cluster, placed, divided, config.partitioner),
        "predict": lambda: predict(plan),
        "simulate with timeline": lambda: simulate(plan),
        "validate": lambda: validate(plan),
    }
    return {
        "schema": SCHEMA, "machine": machine(), "repeats": repeats, "seed": 0,
        "tiles": work.num_tiles, "blocks": work.num_blocks, "transfers": len(plan.transfers),
        "devices": cluster.num_devices, "rows": stage_rows(stages, repeats, time.perf_counter),
        "recorded_greedy_s": [ms / 1e3 for ms in RECORDED_MS],
    }  # fmt: skip


def to_table(document: dict[str, Any]) -> str:
    """Return the Markdown table (`Any`: the JSON of a run)."""
    lines = stage_lines(document["rows"], ".2f")
    least, most = document["recorded_greedy_s"]
    lines.append(["DCP's greedy, recorded", "-", shown(least, ".0f", 1e3), shown(most, ".0f", 1e3)])
    what = f"{document['tiles']:,} tiles, {document['transfers']:,} transfers, forward and backward"
    header = ("stage", "median ms", "least", "most")
    return markdown(header, lines) + "\n" + provenance(document, what)


if __name__ == "__main__":
    main()
