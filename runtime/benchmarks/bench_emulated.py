"""Plans on emulated clusters over real sockets, beside what the simulator predicts.

    sudo python runtime/benchmarks/bench_emulated.py --json OUT [--resume]    # --table OUT prints

Every device is a process in a network namespace of its own, whose links are shaped to the rates of
the preset a100-p4de divided by a dilation. It runs its program in the runtime's interpreter over
gloo: real messages of the plan's bytes, kernels that sleep for their predicted time. This needs
root, Linux and iproute2. Batches are recorded ones (planner/benchmarks/data). *Threads* is the same
interpreter in virtual time over a fabric of max-min fair ports (`dcpm run --emulate`), *fair* the
simulator with that rule. Rivals, on 4x4, are placements of other systems in our runtime
(planner/benchmarks/rivals.py), not those systems.

After every plan the results so far are written; `--resume` goes on with them.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planner" / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
import emulated_network
import emulated_ranks
from recorded_masks import sequences_of
from recording import Row, machine, markdown, provenance, shown, write
from rivals import CAUSAL_ONLY, RIVALS

from dcp_planner import (
    ModelShape,
    Plan,
    PlanConfig,
    build_plan,
    cut_blocks,
    fastest_block_size,
    find_cluster,
    simulate,
)
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_runtime.emulation.emulate import emulate_once

SCHEMA = "dcp.bench_emulated/1"
DATA = Path(__file__).resolve().parents[2] / "planner/benchmarks/data/workloads.json"
SHAPE = ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)
DILATIONS = {"2x4": 300, "4x2": 300, "4x4": 500, "4x8": 800}
"""Real seconds for an emulated one, by cluster: so much that two cores add little."""
BATCHES = (
    "longalign_like_dry65536_b2_causal", "ldc_like_msl131072_b0_causal",
    "ldc_like_dry65536_b1_shared_question",
)  # fmt: skip
"""Measured unless others are named; `--batches all` takes all that were recorded."""
LAYOUTS = {
    "default": "portfolio", "KaHyPar": "kahypar", "zigzag": "static:zigzag",
    "contiguous": "static:contiguous", "ring": "static:ring", "grid": "static:grid",
    "heads_context": "static:heads_context",
}  # fmt: skip
STATIC = ("zigzag", "contiguous", "ring", "grid", "heads_context")
RIVAL_CLUSTER = "4x4"
APART = 0.05  # two layouts that are predicted closer than this may change places


def main() -> None:
    """Measure and write a JSON document, or print the tables of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", default=",".join(DILATIONS), help="default: %(default)s")
    parser.add_argument("--batches", default=",".join(BATCHES), help="names, a number, or all")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--order", choices=["grouped", "any"], default="grouped")
    parser.add_argument("--dilation", type=float, help="instead of the one of each cluster")
    parser.add_argument("--skip-rivals", action="store_true")
    parser.add_argument("--resume", action="store_true", help="keep the rows of --json")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results there")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the tables of results")
    options = parser.parse_args()
    if options.table is not None:
        print(to_table(json.loads(options.table.read_text(encoding="utf-8"))))
        return
    if reason := emulated_network.why_not():
        print(f"bench_emulated measures over network namespaces: {reason}", file=sys.stderr)
        print("without them: dcpm run PLAN --emulate", file=sys.stderr)
        return
    if options.resume and options.json is None:
        parser.error("--resume goes on with the rows of a file: say --json OUT, too")
    print(to_table(run(options)))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all plans that have no row yet; return the document (`Any`: JSON)."""
    rows: list[Row] = []
    if options.resume and options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    for name in options.clusters.split(","):
        for workload in chosen(options.batches):
            known = {(r["cluster"], r["order"], r["batch"], r["layout"]) for r in rows}
            plans = [
                (layout, plan)
                for layout, plan in plans_of(workload, name, options)
                if (name, options.order, workload["id"], layout) not in known
            ]
            if plans:
                measure(plans, (workload["id"], name), options, rows)
    return document_of(rows)


def document_of(rows: list[Row]) -> dict[str, Any]:
    """Return the document of some rows (`Any`: JSON)."""
    return {"schema": SCHEMA, "machine": machine("torch"), "rows": rows}


def chosen(batches: str) -> list[dict[str, Any]]:
    """Return the recorded batches that an option names (`Any`: their JSON objects)."""
    workloads = json.loads(DATA.read_text(encoding="utf-8"))["workloads"]
    if batches == "all":
        return list(workloads)
    if batches.isdigit():
        # As many as are wanted, evenly over masks and lengths.
        step = max(1, len(workloads) // int(batches))
        return list(workloads[::step][: int(batches)])
    by_id = {each["id"]: each for each in workloads}
    names = batches.split(",")
    if unknown := [name for name in names if name not in by_id]:
        sys.exit(f"unknown batch {unknown[0]!r}; expected some of {', '.join(by_id)}")
    return [by_id[name] for name in names]


def plans_of(
    workload: dict[str, Any], name: str, options: argparse.Namespace
) -> Iterator[tuple[str, Plan]]:
    """Plan one batch by every layout and, on one cluster, as rivals place it (`Any`: JSON)."""
    cluster = replace(find_cluster(name), message_order=options.order)
    sequences = sequences_of(workload)
    sparsity = cut_blocks(sequences, fastest_block_size([sequences], SHAPE, cluster))
    for layout, partitioner in LAYOUTS.items():
        yield layout, build_plan(sparsity, SHAPE, cluster, PlanConfig(partitioner))
    if name != RIVAL_CLUSTER or options.skip_rivals:
        return
    work, config = build_workload(sparsity, SHAPE), PlanConfig(partials="input")
    for rival, place in RIVALS.items():
        if rival not in CAUSAL_ONLY or workload["mask"] == "causal":
            placed = place(work, cluster).placement
            schedule = make_schedule(work, placed, cluster, config)
            yield f"rival {rival}", assemble(work, cluster, placed, schedule, rival)


def measure(
    plans: Sequence[tuple[str, Plan]],
    where: tuple[str, str],
    options: argparse.Namespace,
    rows: list[Row],
) -> None:
    """Run the plans of one batch on one cluster; add a row for each, and write all rows."""
    batch, name = where
    dilation = options.dilation or DILATIONS.get(name, 50.0 * plans[0][1].num_devices)

    def done(number: int, runs: list[tuple[float, float]]) -> None:
        layout, plan = plans[number]
        fair = replace(plan, cluster=replace(plan.cluster, port_sharing="fair"))
        row = {
            "cluster": name, "order": options.order, "dilation": dilation, "batch": batch,
            "layout": layout, "predicted_s": simulate(plan).seconds(),
            "fair_s": simulate(fair).seconds(), "threads_s": emulate_once(plan).seconds(),
            "sockets_s": [sum(both) for both in runs],
        }  # fmt: skip
        rows.append(row)
        if options.json is not None:
            write(options.json, document_of(rows))
        ratio = statistics.median(row["sockets_s"]) / row["predicted_s"]
        print(f"{name} {batch} {layout}: sockets / predicted {ratio:.3f}", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        emulated_ranks.measure(
            [plan for _, plan in plans], dilation, options.repeats, Path(folder), done
        )


def sockets(row: Row) -> float:
    """Return the median time of a row over sockets."""
    return statistics.median(row["sockets_s"])


def to_table(document: dict[str, Any]) -> str:
    """Write the tables: times of layouts, and how well they were predicted (`Any`: JSON)."""
    rows = document["rows"]
    if not rows:
        return "no plan has been measured"
    parts = [_times(rows), _ratios(rows), _rivals(rows)]
    repeats = len(rows[0]["sockets_s"])
    note = f"Emulated: ms of the emulated cluster, predicted > over sockets, median of {repeats}"
    return "\n\n".join(part for part in parts if part) + f"\n{provenance(document, note)}"


def _groups(rows: list[Row]) -> dict[tuple[str, str, str], dict[str, Row]]:
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        key = row["cluster"], row["order"], row["batch"]
        found.setdefault(key, {})[row["layout"]] = row
    return found


def _times(rows: list[Row]) -> str:
    lines = []
    for (cluster, order, batch), own in _groups(rows).items():
        cells = [
            f"{own[name]['predicted_s'] * 1e3:.1f} > {sockets(own[name]) * 1e3:.1f}"
            if name in own else "-"
            for name in LAYOUTS
        ]  # fmt: skip
        best = []
        for taken in (lambda row: row["predicted_s"], sockets):
            static = [taken(own[name]) for name in STATIC if name in own]
            has_both = static and "default" in own
            best.append(min(static) / taken(own["default"]) if has_both else None)
        gain = " > ".join(shown(value) for value in best)
        lines.append([f"{cluster}, {order}, {batch}", *cells, gain])
    return markdown(["emulated cluster, order, batch", *LAYOUTS, "best static / default"], lines)


def _ratios(rows: list[Row]) -> str:
    lines = []
    for cluster, order in dict.fromkeys((row["cluster"], row["order"]) for row in rows):
        own = [row for row in rows if (row["cluster"], row["order"]) == (cluster, order)]
        pairs, changed = _order(own)
        cells = []
        for name in ("predicted_s", "fair_s", "threads_s"):
            ratios = [sockets(row) / row[name] for row in own]
            cells.append(
                f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        lines.append([f"{cluster}, {order}", str(len(own)), *cells, f"{changed} of {pairs}"])
    head = ["emulated cluster, order", "plans", "sockets / predicted", "/ fair", "/ threads",
            f"pairs over {APART:.0%} apart that change order"]  # fmt: skip
    return markdown(head, lines)


def _order(rows: list[Row]) -> tuple[int, int]:
    """Count pairs of plans of a batch that are predicted apart, and those that change places."""
    pairs = changed = 0
    for a, b in itertools.combinations(rows, 2):
        fast, slow = sorted((a, b), key=lambda row: float(row["predicted_s"]))
        if a["batch"] == b["batch"] and slow["predicted_s"] > (1 + APART) * fast["predicted_s"]:
            pairs += 1
            changed += sockets(fast) > sockets(slow)
    return pairs, changed


def _rivals(rows: list[Row]) -> str:
    """Compare placements of other systems with the default, by the times over sockets."""
    lines = []
    names = [name for name in dict.fromkeys(r["layout"] for r in rows) if name.startswith("rival ")]
    for name in names:
        both = [(own[name], own["default"]) for own in _groups(rows).values()
                if name in own and "default" in own]  # fmt: skip
        predicted = [theirs["predicted_s"] / ours["predicted_s"] for theirs, ours in both]
        measured = [sockets(theirs) / sockets(ours) for theirs, ours in both]
        cells = [f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})"
                 for x in (predicted, measured)]  # fmt: skip
        lines.append([name.removeprefix("rival "), str(len(both)), *cells])
    if not lines:
        return ""
    head = [f"placement of a rival in our runtime, emulated {RIVAL_CLUSTER}", "batches",
            "time / ours, predicted", "time / ours, over sockets"]  # fmt: skip
    return markdown(head, lines)


if __name__ == "__main__":
    main()
