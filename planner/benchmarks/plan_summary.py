"""Rows of `bench_plan` summed up: geometric means against references, and the tables of them.

A ratio below `LEAST_RATIO` counts as that, so that a batch without bytes between nodes does not
decide everything.
"""

import statistics
from collections.abc import Iterable
from typing import Any

from recording import Row, geomean, markdown, provenance, shown

RECORDED = "dcp-recorded"
EXTERNAL = ("kahypar", "mtkahypar")
ALONE = ":alone"
"""Behind the name of an external partitioner: its own result, without our caps and search."""
LEAST_RATIO = 0.01


def geomeans_of(rows: list[Row]) -> dict[str, dict[str, dict[str, Any]]]:
    """Summarise each method on each cluster, and over all clusters (`Any`: numbers, ``None``)."""
    clusters = dict.fromkeys(row["cluster"] for row in rows)
    methods = dict.fromkeys(row["method"] for row in rows)
    done = [row for row in rows if "error" not in row]
    return {
        cluster: {
            method: _summary([r for r in done if cluster in (r["cluster"], "all")], method)
            for method in methods
        }
        for cluster in (*clusters, "all")
    }


def _summary(rows: list[Row], method: str) -> dict[str, Any]:
    by_place: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        by_place.setdefault((row["workload"], row["cluster"]), {})[row["method"]] = row
    cells = [cell for cell in by_place.values() if method in cell]
    own = [cell[method] for cell in cells]
    pairs = [(cell[method], _better(cell, EXTERNAL, "weighted_bytes")) for cell in cells]
    static = [m for m in dict.fromkeys(r["method"] for r in rows) if m.startswith("static:")]
    times = [(_seconds(cell[method]), _best_time(cell, static)) for cell in cells]
    result: dict[str, Any] = {"workloads": len(own)}
    for name in ("compute_imbalance", "token_imbalance"):
        values = [row[name] for row in own]
        result[f"{name}_mean"] = statistics.mean(values) if values else None
        result[f"{name}_max"] = max(values, default=None)
    seconds = [row["plan_s"] for row in own]
    result["plan_s_median"] = statistics.median(seconds) if seconds else None
    result["plan_s_max"] = max(seconds, default=None)
    for side in ("forward", "backward"):
        key = f"{side}_inter_bytes"
        recorded = [(cell[method], cell.get(RECORDED)) for cell in cells]
        result[f"{key}_vs_dcp"] = geomean(_ratios(recorded, key))
    result["weighted_bytes_vs_hypergraph"] = geomean(_ratios(pairs, "weighted_bytes"))
    alone = tuple(f"{name}{ALONE}" for name in EXTERNAL)
    pairs = [(cell[method], _better(cell, alone, "weighted_bytes")) for cell in cells]
    result["weighted_bytes_vs_hypergraph_alone"] = geomean(_ratios(pairs, "weighted_bytes"))
    speed = [best / ours for ours, best in times if ours and best]
    result["speedup_vs_best_static"] = geomean(speed)
    result["speedup_vs_best_static_min"] = min(speed, default=None)
    return result


def _ratios(pairs: Iterable[tuple[Row, Row | None]], key: str) -> list[float]:
    """Return ours over theirs, where there is a reference to divide by."""
    return [
        max(LEAST_RATIO, ours[key] / theirs[key])
        for ours, theirs in pairs
        if theirs is not None and theirs[key]
    ]


def _better(cell: dict[str, Row], methods: Iterable[str], key: str) -> Row | None:
    return min((cell[m] for m in methods if m in cell), key=lambda row: row[key], default=None)


def _seconds(row: Row) -> float | None:
    if row["predicted_forward_s"] is None:
        return None
    return float(row["predicted_forward_s"] + row["predicted_backward_s"])


def _best_time(cell: dict[str, Row], methods: list[str]) -> float | None:
    times = [_seconds(cell[m]) for m in methods if m in cell]
    return min((t for t in times if t is not None), default=None)


HEADER = (
    "method", "compute max/mean, mean (worst)", "tokens, mean (worst)",
    "forward between nodes / DCP", "backward", "weighted bytes / hypergraph", "/ it alone",
    "plan ms, median (worst)", "times best static (worst)",
)  # fmt: skip


def summary_table(document: dict[str, Any]) -> str:
    """Return the Markdown tables, one for each cluster (`Any`: JSON of `run`)."""
    parts = []
    for cluster, methods in geomeans_of(document["rows"]).items():
        if cluster == "all":
            continue
        lines = [
            _summary_line(name, found) for name, found in methods.items() if found["workloads"]
        ]
        count = max(found["workloads"] for found in methods.values())
        parts.append(f"{cluster}, {count} batches:\n\n{markdown(HEADER, lines)}\n")
    return "\n".join(parts) + provenance(document)


def _summary_line(name: str, found: dict[str, Any]) -> list[str]:
    compute, tokens = (
        f"{shown(found[f'{n}_imbalance_mean'])} ({shown(found[f'{n}_imbalance_max'])})"
        for n in ("compute", "token")
    )
    speed = shown(found["speedup_vs_best_static"])
    worst = shown(found["speedup_vs_best_static_min"])
    ms = [shown(found[f"plan_s_{n}"], ",.0f", 1e3) for n in ("median", "max")]
    ratios = [
        shown(found[key])
        for key in (
            "forward_inter_bytes_vs_dcp", "backward_inter_bytes_vs_dcp",
            "weighted_bytes_vs_hypergraph", "weighted_bytes_vs_hypergraph_alone",
        )
    ]  # fmt: skip
    return [name, compute, tokens, *ratios, f"{ms[0]} ({ms[1]})", f"{speed} ({worst})"]


def by_workload_table(document: dict[str, Any]) -> str:
    """Return one Markdown line for each row (`Any`: JSON of `run`)."""
    header = ("batch", "cluster", "method", "compute", "tokens", "fw MB", "between", "bw MB",
              "between", "plan ms", "fw ms", "bw ms")  # fmt: skip
    lines = []
    for row in document["rows"]:
        place = [row["workload"], row["cluster"], row["method"]]
        if "error" in row:
            lines.append([*place, *["-"] * 9])
            continue
        sizes = [shown(row[f"{s}_bytes"], ",.0f", 1e-6) for s in (
            "forward", "forward_inter", "backward", "backward_inter")]  # fmt: skip
        balance = [shown(row[f"{n}_imbalance"]) for n in ("compute", "token")]
        times = [shown(row[k], ",.1f", 1e3) for k in (
            "plan_s", "predicted_forward_s", "predicted_backward_s")]  # fmt: skip
        lines.append([*place, *balance, *sizes, *times])
    return markdown(header, lines)
