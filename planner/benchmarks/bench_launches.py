"""Compare prices of launches by CTAs with prices by FLOPs alone.

    python planner/benchmarks/bench_launches.py --json OUT
    python planner/benchmarks/bench_launches.py --table OUT

Every recorded batch is planned twice on the same blocks: for the preset, and for the preset with
one multiprocessor and no fixed cost of a CTA (``by FLOPs``). Times are predicted ms of forward and
backward; *the other's price* is the plan that was made by FLOPs, predicted by CTAs. CPU seconds are
those of `build_plan`, warm, both in one process.
"""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))
from recorded_masks import sequences_of
from recording import geomean, machine, markdown, provenance, write

from dcp_planner import (
    ModelShape,
    Plan,
    PlanConfig,
    build_plan,
    choose_block_size,
    cut_blocks,
    find_cluster,
    predict,
)

DATA = Path(__file__).parent / "data" / "workloads.json"
SHAPE = ModelShape(8, 2, 128, 2)
LAYOUTS = ("static:contiguous", "static:zigzag", "static:grid")


@click.command()
@click.option("--clusters", default="4x8,h100-dgx:8x8", show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Only every N-th workload.")
@click.option("--json", "out", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--table", type=click.Path(exists=True), help="Print the table of such a file.")
def main(clusters: str, limit: int | None, out: str | None, table: str | None) -> None:
    """Run the benchmark, or print the table of its results."""
    if table is not None:
        click.echo(table_of(json.loads(Path(table).read_text())))
        return
    workloads = json.loads(DATA.read_text())["workloads"][:: limit or 1]
    # Any: JSON values
    document: dict[str, Any] = {"schema": "dcp.bench_launches/1", "machine": machine(), "rows": []}
    for name in clusters.split(","):
        for workload in (workloads[0], *workloads):  # the first time warms up
            row = {"cluster": name, "workload": workload["id"], **measure(workload, name)}
            document["rows"].append(row)
        del document["rows"][-len(workloads) - 1]
    if out is not None:
        write(Path(out), document)
    click.echo(table_of(document))


def measure(workload: dict[str, Any], name: str) -> dict[str, Any]:  # Any: JSON values
    """Plan one batch both ways."""
    by_ctas = find_cluster(name)
    by_flops = replace(by_ctas, sms=1, cta_keys=0)
    masks = sequences_of(workload)
    sparsity = cut_blocks(masks, choose_block_size(masks, by_ctas))
    found: dict[str, Any] = {}
    for key, cluster in (("flops", by_flops), ("ctas", by_ctas)):
        start = time.process_time()
        plan = build_plan(sparsity, SHAPE, cluster, PlanConfig(partitioner="native", budget="fast"))
        found[f"{key}_cpu_s"] = time.process_time() - start
        found[f"{key}_ms"] = predict(plan).seconds * 1e3
        found[f"{key}_divisions"] = divisions(plan)
        layouts = [
            build_plan(sparsity, SHAPE, cluster, PlanConfig(partitioner=kind)) for kind in LAYOUTS
        ]
        found[f"{key}_static_ms"] = min(predict(layout).seconds for layout in layouts) * 1e3
        if key == "flops":
            found["repriced_ms"] = predict(replace(plan, cluster=by_ctas)).seconds * 1e3
    return found


def divisions(plan: Plan) -> list[int]:
    """Return how many divisions forward and backward have, the local one included."""
    tiles = plan.tiles
    return [int(column.max(initial=0)) + 1 for column in (tiles.division, tiles.backward_division)]


def table_of(document: dict[str, Any]) -> str:  # Any: JSON values
    """Write one line per cluster."""
    rows = document["rows"]
    names = list(dict.fromkeys(row["cluster"] for row in rows))
    head = (
        "cluster", "batches", "ms by FLOPs", "by CTAs", "ratio, median (worst)",
        "plan by FLOPs, priced by CTAs / ours", "divisions by FLOPs", "by CTAs",
        "best static / ours by FLOPs", "by CTAs", "plan CPU by CTAs / by FLOPs",
    )  # fmt: skip
    lines = []
    for name in names:
        chosen = [row for row in rows if row["cluster"] == name]
        ratios = [r["ctas_ms"] / r["flops_ms"] for r in chosen]
        cpu = [sum(r[f"{key}_cpu_s"] for r in chosen) for key in ("ctas", "flops")]
        lines.append([
            name, str(len(chosen)),
            *(f"{statistics.mean(r[f'{k}_ms'] for r in chosen):.2f}" for k in ("flops", "ctas")),
            f"{statistics.median(ratios):.2f} ({max(ratios):.2f})",
            f"{geomean(r['repriced_ms'] / r['ctas_ms'] for r in chosen):.3f}",
            *(mean_divisions(chosen, key) for key in ("flops", "ctas")),
            *(
                f"{geomean(r[f'{key}_static_ms'] / r[f'{key}_ms'] for r in chosen):.2f}"
                for key in ("flops", "ctas")
            ),
            f"{cpu[0] / cpu[1]:.2f}",
        ])  # fmt: skip
    return markdown(head, lines) + "\n" + provenance(document, "native, budget fast")


def mean_divisions(rows: Sequence[dict[str, Any]], key: str) -> str:  # Any: JSON values
    """Write the mean divisions of forward and backward."""
    means = [statistics.mean(row[f"{key}_divisions"][side] for row in rows) for side in (0, 1)]
    return f"{means[0]:.1f}, {means[1]:.1f}"


if __name__ == "__main__":
    main()
