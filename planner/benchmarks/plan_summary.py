"""Summarise rows of `bench_plan`: geometric means against references, and their tables.

A ratio below `LEAST_RATIO` counts as that, so that a batch without bytes between nodes does not
decide everything.
"""

import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from recording import Row, geomean, markdown, provenance, shown
from referee import MACHINES

RECORDED = "dcp-recorded"
GONE = "mtkahypar"
"""A partitioner that only recorded rows still have."""
EXTERNAL = ("kahypar", GONE)
ALONE = ":alone"
"""Behind the name of an external partitioner: its own result, without our caps and search."""
LEAST_RATIO = 0.01
CAP = 1.101
"""Most tokens over their mean that the default config allows a device, rounded."""


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
    result: dict[str, Any] = {"workloads": len(own)}
    for name in ("compute_imbalance", "token_imbalance"):
        values = [row[name] for row in own]
        result[f"{name}_mean"] = statistics.mean(values) if values else None
        result[f"{name}_max"] = max(values, default=None)
    seconds = [row["plan_s"] for row in own]
    result["plan_s_median"] = statistics.median(seconds) if seconds else None
    result["plan_s_max"] = max(seconds, default=None)
    recorded = [(cell[method], cell[RECORDED]) for cell in cells if RECORDED in cell]
    result["workloads_of_dcp"] = len(recorded)
    for kind in ("inter_bytes", "bytes"):
        ratios = [_bytes(ours, kind) / max(1, _bytes(theirs, kind)) for ours, theirs in recorded]
        result[f"{kind}_vs_dcp"] = geomean(max(LEAST_RATIO, ratio) for ratio in ratios)
    result["weighted_bytes_vs_hypergraph"] = geomean(_ratios(pairs, "weighted_bytes"))
    alone = tuple(f"{name}{ALONE}" for name in EXTERNAL)
    pairs = [(cell[method], _better(cell, alone, "weighted_bytes")) for cell in cells]
    result["weighted_bytes_vs_hypergraph_alone"] = geomean(_ratios(pairs, "weighted_bytes"))
    rivals = [[cell[m] for m in static if m in cell] for cell in cells if method != RECORDED]
    fair = [[row for row in rows if row["token_imbalance"] <= CAP] for rows in rivals]
    for name, theirs in (("", rivals), ("_within_token_cap", fair)):
        result |= _speedup(f"speedup_vs_best_static{name}", own, theirs, _seconds)
    ports = [row["busiest_port"] for row in own if "busiest_port" in row]
    result["busiest_port_mean"] = statistics.mean(ports) if ports else None
    result["busiest_port_max"] = max(ports, default=None)
    for machine in MACHINES if ports else ():
        result |= _speedup(f"referee_{machine}", own, fair, partial(_judged_seconds, machine))
    return result


def _speedup(
    name: str, own: list[Row], rivals: list[list[Row]], seconds: Callable[[Row], float]
) -> dict[str, Any]:
    """Compare with the fastest rival of each batch that has one: mean, worst, batches lost."""
    ratios = [
        min(map(seconds, rows)) / seconds(ours)
        for ours, rows in zip(own, rivals, strict=False)  # none without a prediction
        if rows and ours["predicted_forward_s"] is not None
    ]
    lost = sum(ratio < 1 - 1e-9 for ratio in ratios)
    return {
        name: geomean(ratios), f"{name}_min": min(ratios, default=None),
        f"{name}_lost": lost, f"{name}_of": len(ratios),
    }  # fmt: skip


def _ratios(pairs: Iterable[tuple[Row, Row | None]], key: str) -> list[float]:
    """Return ours over theirs, where there is a reference to divide by."""
    return [
        max(LEAST_RATIO, ours[key] / theirs[key])
        for ours, theirs in pairs
        if theirs is not None and theirs[key]
    ]


def _better(cell: dict[str, Row], methods: Iterable[str], key: str) -> Row | None:
    return min((cell[m] for m in methods if m in cell), key=lambda row: row[key], default=None)


def _seconds(row: Row) -> float:
    return float(row["predicted_forward_s"] + row["predicted_backward_s"])


def _judged_seconds(machine: str, row: Row) -> float:
    return float(row["referee_s"][machine])


def _bytes(row: Row, kind: str) -> float:
    return float(row[f"forward_{kind}"] + row[f"backward_{kind}"])


HEADER = (
    "method", "compute max/mean, mean (worst)", "tokens, mean (worst)",
    "bytes between nodes / DCP", "all bytes / DCP", "weighted bytes / KaHyPar with our search",
    "/ KaHyPar alone", "plan CPU ms, median (worst)", "times best static (worst, slower in)",
    "times best static within token cap (worst, slower in)", "busiest port / mean (worst)",
    *(f"the referee's, {name} (worst, slower in)" for name in MACHINES),
)  # fmt: skip


SHOWN = (0, 1, 2, 3, 4, 7, 8, 9)
"""Columns of `summary_table`: balance, bytes beside DCP, planning time, gains over layouts."""


def summary_table(document: dict[str, Any]) -> str:
    """Return one short Markdown table for all clusters (`Any`: JSON of `run`)."""
    lines = []
    for cluster, methods in geomeans_of(document["rows"]).items():
        for name, found in methods.items():
            is_shown = not name.endswith(ALONE) and not name.startswith(GONE)
            if cluster != "all" and is_shown and found["workloads"]:
                line = _summary_line(name, found)
                lines.append([cluster, *(line[column] for column in SHOWN)])
    header = ("cluster", *(HEADER[column] for column in SHOWN))
    return f"{markdown(header, lines)}\n{provenance(document)}"


def full_table(document: dict[str, Any]) -> str:
    """Return Markdown tables of all figures, one for each cluster (`Any`: JSON of `run`)."""
    parts = []
    for cluster, methods in geomeans_of(document["rows"]).items():
        if cluster == "all":
            continue
        lines = [
            _summary_line(name, found) for name, found in methods.items() if found["workloads"]
        ]
        count = max(found["workloads"] for found in methods.values())
        of_dcp = max(found["workloads_of_dcp"] for found in methods.values())
        heading = f"{cluster}, {count} batches, {of_dcp} of them recorded of DCP:"
        parts.append(f"{heading}\n\n{markdown(HEADER, lines)}\n")
    return "\n".join(parts) + provenance(document)


def _summary_line(name: str, found: dict[str, Any]) -> list[str]:
    compute, tokens = (
        _cell(found[f"{n}_imbalance_mean"], found[f"{n}_imbalance_max"])
        for n in ("compute", "token")
    )
    ratios = [
        shown(found[key])
        for key in (
            "inter_bytes_vs_dcp", "bytes_vs_dcp",
            "weighted_bytes_vs_hypergraph", "weighted_bytes_vs_hypergraph_alone",
        )
    ]  # fmt: skip
    speeds = [
        _cell(found[key], found[f"{key}_min"], found[f"{key}_lost"], of=found[f"{key}_of"])
        for key in ("speedup_vs_best_static", "speedup_vs_best_static_within_token_cap")
    ]
    ports = _cell(found["busiest_port_mean"], found["busiest_port_max"])
    judged = [
        _cell(
            found.get(key),
            found.get(f"{key}_min"),
            found.get(f"{key}_lost"),
            of=found.get(f"{key}_of"),
        )
        for key in (f"referee_{name}" for name in MACHINES)
    ]
    times = _cell(found["plan_s_median"], found["plan_s_max"], form=",.0f", scale=1e3)
    return [name, compute, tokens, *ratios, times, *speeds, ports, *judged]


def _cell(
    value: float | None, worst: float | None, lost: int | None = None, *,
    of: int | None = None, form: str = ".2f", scale: float = 1.0,
) -> str:  # fmt: skip
    """Return a figure with its worst and the batches lost of all; a dash where nothing is known."""
    if value is None:
        return "-"
    behind = shown(worst, form, scale) + ("" if lost is None else f", {lost} of {of}")
    return f"{shown(value, form, scale)} ({behind})"
