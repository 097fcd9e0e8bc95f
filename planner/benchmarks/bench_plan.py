"""Compare planners on recorded batches, with DCP's recorded figures in the same table.

    python planner/benchmarks/bench_plan.py --clusters 4x8,8x8 --heads tp4 --json OUT
    python planner/benchmarks/bench_plan.py --table OUT

Rows `dcp-recorded` are plans of the DCP artifact for the same batches, recorded elsewhere, at the
block size with the fewest forward bytes between nodes; they have no predicted times, and their
`plan_s` are CPU seconds of another machine. Every other method runs here, one after the other in
this process (KaHyPar in one of its own). `portfolio` chooses the length of its blocks by predicted
time, as `dcpm plan` does; the others share the usual length. `kahypar` is KaHyPar with our caps and
search behind it, `kahypar:alone` its own result, at its own balance. `plan_s` counts the CPU
seconds of this process and its children for choosing the block size, cutting the masks and
`build_plan` with its validation, warm: the median of the repeats. External partitioners run once:
they take seconds.

Static layouts are baselines with our routing and schedule, not what other systems make of them.
Every plan is also written to a file that `referee.py` judges by itself; an inconsistency ends the
run. Geometric means take workloads where both sides have a figure; a ratio below 0.01 counts as
0.01, so that a batch without bytes between nodes does not decide everything.
"""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from plan_summary import (
    ALONE,
    EXTERNAL,
    RECORDED,
    full_table,
    geomeans_of,
    summary_table,
)
from recorded_masks import DATA, sequences_of
from recording import Row, machine, write
from referee import judge

from dcp_dsl import BlockSparsity, DCPError, block_sparsity
from dcp_planner import (
    PARTITIONERS,
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
    write_plan,
)
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import static_layouts
from dcp_planner.simulation.schedules import make_schedule

SCHEMA = "dcp.bench_plan/1"
BUDGETS = ("fast", "balanced")
TUNED = "portfolio"
"""The method that chooses the length of its blocks by predicted time."""
BETWEEN_NODES_PRICE = 8
"""Weight of a byte between nodes in `weighted_bytes`: see planner/LOG.md."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of the benchmark."""

    workloads: list[dict[str, Any]]  # JSON objects
    recorded: dict[str, Any]  # figures by ``workload|cluster|heads``
    clusters: tuple[str, ...]  # as the command line names them
    shape: ModelShape
    heads: str  # name of the shape
    methods: tuple[str, ...]
    block: int | None  # tokens per block, ``None``: chosen by the planner
    repeats: int  # timed runs of our own methods


@click.command()
@click.option("--peers", type=click.Path(exists=True), default=str(DATA / "peers.json"))
@click.option("--clusters", default="4x8,8x8", show_default=True)
@click.option("--heads", default="tp4", show_default=True, help="Key of `heads` in the workloads.")
@click.option("--methods", default="", help="Comma list.  [default: all that run here]")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N workloads.")
@click.option("--only", default="", help="Only workloads whose id contains this.")
@click.option("--block", default="auto", show_default=True, help="Tokens per block, or auto.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--table", type=click.Path(exists=True), help="Print the table of such a file.")
@click.option("--full", is_flag=True, help="With --table: all methods and figures.")
def main(out: str | None, table: str | None, full: bool, **options: Any) -> None:
    """Run the benchmark, or print a table of its results."""
    if table is not None:
        document = json.loads(Path(table).read_text())
        click.echo(full_table(document) if full else summary_table(document))
        return
    document = run(read_setting(options), None if out is None else Path(out))
    click.echo(summary_table(document))


def read_setting(options: dict[str, Any]) -> Setting:
    """Read the files and choices of the command line (`Any`: click's values)."""
    text = json.loads((DATA / "workloads.json").read_text())
    chosen = [w for w in text["workloads"] if options["only"] in w["id"]][: options["limit"]]
    heads = text["heads"].get(options["heads"])
    if heads is None:
        raise click.UsageError(f"--heads: expected one of {', '.join(text['heads'])}")
    sizes = {"bf16": 2, "fp16": 2, "fp32": 4}
    methods = tuple(m for m in options["methods"].split(",") if m) or all_methods()
    known = all_methods()
    if not set(methods) <= set(known):
        raise click.UsageError(f"--methods: expected some of {', '.join(known)}")
    peers = json.loads(Path(options["peers"]).read_text())
    return Setting(
        workloads=chosen,
        recorded=peers.get("peers", peers),
        clusters=tuple(options["clusters"].split(",")),
        shape=ModelShape(
            heads["q_heads"], heads["kv_heads"], heads["head_dim"], sizes[heads["dtype"]]
        ),
        heads=options["heads"],
        methods=methods,
        block=None if options["block"] == "auto" else int(options["block"]),
        repeats=options["repeats"],
    )


def all_methods() -> tuple[str, ...]:
    """Return the methods that can run here: registry names, those with budgets once for each."""
    found: list[str] = []
    for name, partitioner in PARTITIONERS.items():
        if partitioner.unavailable() is None:
            found += [f"{name}:{budget}" for budget in BUDGETS] if name == "native" else [name]
            found += [f"{name}{ALONE}"] if name in EXTERNAL else []
    return (*found, RECORDED)


def run(setting: Setting, out: Path | None) -> dict[str, Any]:
    """Measure everything; the file is written anew after every workload (`Any`: JSON)."""
    document: dict[str, Any] = {
        "schema": SCHEMA, "machine": machine(), "heads": setting.heads,
        "block": setting.block or "auto", "repeats": setting.repeats,
        "routing": "node", "seed": 0,
        "methods": list(setting.methods), "rows": [], "geomeans": {},
    }  # fmt: skip
    rows: list[Row] = document["rows"]
    for name in setting.clusters:
        warm_up(setting, find_cluster(name))
        for workload in setting.workloads:
            click.echo(f"{name} {workload['id']}", err=True)
            rows += measure_workload(setting, workload, name)
            document["geomeans"] = geomeans_of(rows)
            if out is not None:
                write(out, document)
    return document


def methods_on(setting: Setting, cluster: Cluster) -> tuple[str, ...]:
    """Return the methods of a run, without layouts whose heads do not divide among the devices."""
    possible = static_layouts(setting.shape, cluster)
    return tuple(m for m in setting.methods if not m.startswith("static:") or m in possible)


def warm_up(setting: Setting, cluster: Cluster) -> None:
    """Let everything that is compiled or imported on first use happen before the clock runs."""
    sequences = sequences_of(setting.workloads[0])[:1]
    sparsity = block_sparsity(sequences, 1024, 1024)
    for method in methods_on(setting, cluster):
        if method != RECORDED and not method.startswith(EXTERNAL):
            build_plan(sparsity, setting.shape, cluster, config_of(method))


def measure_workload(setting: Setting, workload: dict[str, Any], cluster_name: str) -> list[Row]:
    """Run every method on one workload and cluster (`Any`: its JSON object)."""
    cluster = find_cluster(cluster_name)
    usual, usual_s = compile_batch(setting, workload, cluster, config_of("native:fast"))
    rows = []
    for method in methods_on(setting, cluster):
        head = {"workload": workload["id"], "cluster": cluster_name, "method": method}
        if method == RECORDED:
            key = f"{workload['id']}|{cluster_name}"
            found = setting.recorded.get(f"{key}|{setting.heads}", setting.recorded.get(key))
            rows += [head | recorded_row(found["dcp"])] if found and found.get("dcp") else []
            continue
        sparsity, cut_s = usual, usual_s
        try:
            if method == TUNED:
                config = config_of(method)
                sparsity, cut_s = compile_batch(setting, workload, cluster, config)
            row = measured_row(setting, sparsity, cluster, method)
            rows.append(head | row | {"plan_s": row["plan_s"] + cut_s})
        except DCPError as error:
            click.echo(f"  {method}: {error}", err=True)
            rows.append(head | {"backend": method, "error": str(error)})
    return rows


def compile_batch(
    setting: Setting, workload: dict[str, Any], cluster: Cluster, config: PlanConfig
) -> tuple[BlockSparsity, float]:
    """Return the block sparsity of one workload for a method, and its CPU seconds (`Any`: JSON)."""
    seconds = []
    for _ in range(setting.repeats):
        start = cpu_seconds()
        sequences = sequences_of(workload)
        if setting.block is None:
            block = fastest_block_size([sequences], setting.shape, cluster, config)
            sparsity = cut_blocks(sequences, block)
        else:
            sparsity = block_sparsity(sequences, setting.block, setting.block)
        seconds.append(cpu_seconds() - start)
    return sparsity, statistics.median(seconds)


def config_of(method: str) -> PlanConfig:
    """Return the configuration of a method: a registry name, or one with ``:budget`` behind it."""
    name, _, budget = method.rpartition(":")
    config = PlanConfig(partials="input")  # the type in which DCP's bytes were recorded
    if method in PARTITIONERS or method.endswith(ALONE):
        return replace(config, partitioner=method.removesuffix(ALONE))
    checked: Any = budget  # by PlanConfig
    return replace(config, partitioner=name, budget=checked)


def measured_row(setting: Setting, sparsity: BlockSparsity, cluster: Cluster, method: str) -> Row:
    """Plan, time and simulate one batch with one method."""
    config, seconds = config_of(method), []
    make = plan_alone if method.endswith(ALONE) else build_plan
    for _ in range(1 if config.partitioner in EXTERNAL else setting.repeats):
        start = cpu_seconds()
        plan = make(sparsity, setting.shape, cluster, config)
        seconds.append(cpu_seconds() - start)
    return figures_row(plan) | {"plan_s": statistics.median(seconds)}


def cpu_seconds() -> float:
    """Return the CPU seconds so far of this process and of the children that run or have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = 0.0
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            times = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
            running += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def plan_alone(
    sparsity: BlockSparsity, shape: ModelShape, cluster: Cluster, config: PlanConfig
) -> Plan:
    """Plan with an external partitioner's own placement, without our caps and search."""
    workload = build_workload(sparsity, shape)
    placement = PARTITIONERS[config.partitioner].place(workload, cluster, config)
    schedule = make_schedule(workload, placement, cluster, config)
    return assemble(workload, cluster, placement, schedule, f"{config.partitioner}{ALONE}")


def figures_row(plan: Plan) -> Row:
    """Return the figures of a plan."""
    found, predicted = measure(plan), predict(plan)
    sides = (found.forward, found.backward)
    return {
        "backend": plan.partitioner,
        "blocks": found.blocks,
        "tiles": found.tiles,
        "compute_imbalance": found.compute_imbalance,
        "token_imbalance": found.token_imbalance,
        "forward_bytes": found.forward.total_bytes,
        "forward_inter_bytes": found.forward.inter_node_bytes,
        "backward_bytes": found.backward.total_bytes,
        "backward_inter_bytes": found.backward.inter_node_bytes,
        "weighted_bytes": sum(
            s.total_bytes + (BETWEEN_NODES_PRICE - 1) * s.inter_node_bytes for s in sides
        ),
        "predicted_forward_s": predicted.forward_s,
        "predicted_backward_s": predicted.backward_s,
        "warnings": list(map(str, plan.warnings)),
    } | referee_row(plan)


def referee_row(plan: Plan) -> Row:
    """Return the referee's figures of a plan file: its busiest port, its own seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "judged.dcpplan"
        write_plan(path, plan)
        found = judge(str(path))
    if found["errors"]:
        raise SystemExit(f"the referee refuses a plan of {plan.partitioner}: {found['errors']}")
    return {"busiest_port": found["nic"], "referee_s": found["seconds"]}


def recorded_row(by_block: dict[str, dict[str, float]]) -> Row:
    """Return the recorded figures at the block size with the fewest forward bytes between nodes."""
    block, best = min(by_block.items(), key=lambda item: item[1]["fw_inter"])
    return {
        "backend": RECORDED,
        "block": int(block),
        "compute_imbalance": best["comp_imb"],
        "token_imbalance": best["mem_imb"],
        "forward_bytes": best["fw_total"],
        "forward_inter_bytes": best["fw_inter"],
        "backward_bytes": best["bw_total"],
        "backward_inter_bytes": best["bw_inter"],
        "weighted_bytes": best["fw_total"] + best["bw_total"]
        + (BETWEEN_NODES_PRICE - 1) * (best["fw_inter"] + best["bw_inter"]),
        "plan_s": best["cpu_plan_total"],
        "predicted_forward_s": None,
        "predicted_backward_s": None,
    }  # fmt: skip


if __name__ == "__main__":
    main()
