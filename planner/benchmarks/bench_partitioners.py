"""Partitioners side by side on recorded batches, the peers' recorded figures in the same table.

    python planner/benchmarks/bench_partitioners.py [--block-size 2048] [--cluster 4x8] [--json]

Rows `recorded ...` were measured elsewhere on the same batches with the same bytes per token in
forward (a copy that is relayed inside a node counts there; we do not relay yet). Backward is ours
alone: the peers send another bundle. Times are medians of the repeats, with the spread; the
machine's other load is in them.
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from recorded_masks import sparsity_of

from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    measure,
    simulate,
)

DATA = Path(__file__).parent / "data"
SCHEMA = "dcp.bench_partitioners/1"


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one batch; megabytes, milliseconds, seconds; ``None`` if not recorded."""

    workload: str
    method: str
    tiles: int | None
    forward_mb: float
    forward_inter_mb: float
    backward_mb: float | None
    backward_inter_mb: float | None
    compute_imbalance: float
    token_imbalance: float | None
    predicted_ms: float | None
    plan_s: float | None
    plan_spread_s: float | None


@click.command()
@click.option("--block-size", type=click.IntRange(min=128), default=2048, show_default=True)
@click.option("--cluster", type=click.Choice(["4x8", "8x8"]), default="4x8", show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--only", default="", help="Batches whose name contains this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(block_size: int, cluster: str, repeats: int, seed: int, only: str, as_json: bool) -> None:
    """Run the benchmark."""
    workloads = json.loads((DATA / "workloads.json").read_text())["workloads"]
    peers = json.loads((DATA / "peers.json").read_text())["peers"]
    rows: list[Row] = []
    for workload in workloads:
        if only not in workload["id"]:
            continue
        click.echo(workload["id"], err=True)
        rows += _ours(workload, cluster, block_size, repeats, seed)
        rows += _recorded(workload["id"], peers.get(f"{workload['id']}|{cluster}", {}), block_size)
    if as_json:
        setting = {"block_size": block_size, "cluster": cluster, "repeats": repeats, "seed": seed}
        document = {"schema": SCHEMA, "machine": _machine(), **setting}
        click.echo(json.dumps(document | {"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        _print(rows)


def _ours(
    workload: dict[str, Any], cluster_name: str, block_size: int, repeats: int, seed: int
) -> list[Row]:
    nodes, devices = (int(n) for n in cluster_name.split("x"))
    cluster, sparsity = Cluster(nodes, devices), sparsity_of(workload, block_size)
    rows = []
    for name in PARTITIONERS:
        config, seconds = PlanConfig(partitioner=name, seed=seed), []
        for _ in range(repeats + 1):  # the first one warms up
            start = time.perf_counter()
            plan = build_plan(sparsity, ModelShape(), cluster, config)
            seconds.append(time.perf_counter() - start)
        found = measure(plan)
        rows.append(
            Row(
                workload["id"],
                name,
                found.tiles,
                found.forward.total_bytes / 1e6,
                found.forward.inter_node_bytes / 1e6,
                found.backward.total_bytes / 1e6,
                found.backward.inter_node_bytes / 1e6,
                found.compute_imbalance,
                found.token_imbalance,
                simulate(plan).seconds() * 1e3,
                statistics.median(seconds[1:]),
                max(seconds[1:]) - min(seconds[1:]),
            )
        )
    return rows


def _recorded(workload: str, peers: dict[str, Any], block_size: int) -> list[Row]:
    found = {f"recorded {name}": values for name, values in peers.get("static", {}).items()}
    if str(block_size) in peers.get("dcp", {}):
        found["recorded dcp"] = peers["dcp"][str(block_size)]
    return [
        Row(
            workload=workload,
            method=name,
            tiles=None,
            forward_mb=values["fw_total"] / 1e6,
            forward_inter_mb=values["fw_inter"] / 1e6,
            backward_mb=None,
            backward_inter_mb=None,
            compute_imbalance=values["comp_imb"],
            token_imbalance=values.get("mem_imb"),
            predicted_ms=None,
            plan_s=values.get("cpu_plan_total"),
            plan_spread_s=None,
        )
        for name, values in found.items()
    ]


def _machine() -> dict[str, str]:
    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    packages = {name: version_of(name) for name in ("dcp-dsl", "numpy", "kahypar")}
    return {"platform": platform.platform(), "python": platform.python_version()} | {
        "processor": platform.machine(), "commit": commit or "unknown", **packages,
    }  # fmt: skip


def _print(rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "batch", "method", "fw MB", "inter", "bw MB", "inter", "compute", "tokens", "pred ms",
        "plan s",
    ):  # fmt: skip
        table.add_column(name, justify="left" if name in ("batch", "method") else "right")
    before = ""
    for row in rows:
        table.add_row(
            row.workload if row.workload != before else "",
            row.method,
            *(
                "" if value is None else f"{value:.{digits}f}"
                for value, digits in (
                    (row.forward_mb, 0), (row.forward_inter_mb, 0), (row.backward_mb, 0),
                    (row.backward_inter_mb, 0), (row.compute_imbalance, 2),
                    (row.token_imbalance, 2), (row.predicted_ms, 2), (row.plan_s, 2),
                )
            ),
        )  # fmt: skip
        before = row.workload
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
