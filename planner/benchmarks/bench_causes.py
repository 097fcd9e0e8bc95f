"""Time finding the causes of a plan's time: dependencies, critical path, a dozen predictions.

    python planner/benchmarks/bench_causes.py --json OUT     # --table OUT prints the table

One causal document on 8 x 8 devices, cut so finely that the timeline has some 50,000 events; CPU
seconds of every stage, warm, the median of the repeats. The baseline is the earlier method: the
plan's prediction under four conditions, without dependencies, path, accounting or places.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import sequences_of
from recording import machine, markdown, provenance, stage_lines, stage_rows, write

from dcp_dsl import block_sparsity
from dcp_planner import ModelShape, PlanConfig, build_plan, preset, simulate
from dcp_planner.causes import find_causes, find_causes_of_run
from dcp_planner.causes.alternatives import Free, seconds_without
from dcp_planner.causes.dependencies import find_dependencies
from dcp_planner.causes.path import account_for, critical_path
from dcp_planner.simulation.simulator import PlanModel

SCHEMA = "dcp.bench_causes/1"
TOKENS = 131_072
FOUR: tuple[tuple[Free, ...], ...] = (
    (), ("links", "latency"), ("balance",), ("links", "latency", "balance"),
)  # fmt: skip


@click.command()
@click.option("--block", type=click.IntRange(min=128), default=768, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Tokens, fewer than the usual.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
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
    """Plan once, then time every stage (`Any`: JSON)."""
    workload = {"id": "causes", "mask": "causal", "mask_params": {}, "seqlens": [tokens]}
    sparsity = block_sparsity(sequences_of(workload), block, block)
    config = PlanConfig(partitioner="static:zigzag", partials="input")
    plan = build_plan(sparsity, ModelShape(), preset("a100-p4de", 8, 8), config)
    trace = simulate(plan)
    found = find_dependencies(plan, trace)
    stages: dict[str, Callable[[], object]] = {
        "baseline: four predictions": lambda: [
            seconds_without(PlanModel.of(plan), free) for free in FOUR
        ],
        "simulate with timeline": lambda: simulate(plan),
        "dependencies": lambda: find_dependencies(plan, trace),
        "path and accounting": lambda: (
            critical_path(trace, found), account_for(trace, found, plan.num_devices)
        ),
        "causes of the trace": lambda: find_causes_of_run(plan, trace),
        "causes of the plan": lambda: find_causes(plan),
    }  # fmt: skip
    return {
        "schema": SCHEMA, "machine": machine(), "repeats": repeats,
        "events": len(trace), "tiles": len(plan.tiles),
        "rows": stage_rows(stages, repeats, time.process_time),
    }  # fmt: skip


def to_table(document: dict[str, Any]) -> str:
    """Write the results as a Markdown table (`Any`: JSON)."""
    what = f"{document['events']:,} events, {document['tiles']:,} tiles"
    table = markdown(
        ("stage", "median CPU ms", "least", "most"), stage_lines(document["rows"], ".1f")
    )
    return table + "\n" + provenance(document, what)


if __name__ == "__main__":
    main()
