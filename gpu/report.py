"""Print the results of `first_light.py` as tables, and join its documents in one file.

``python gpu/report.py DIR [--json OUT]`` reads ``DIR/STAGE.json``; ``--table OUT`` prints the
tables of a joined file.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Json = dict[str, Any]  # Any: a JSON document
Rows = list[Json]
RIVAL = "torch flash"  # the kernel that the speeds of `kernels/cost.py` are relative to
WAYS = ("forward_tflops", "backward_tflops")  # a row has only the first where backward failed


def main() -> None:
    """Print the tables of a folder or of a joined file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where first light wrote its stages")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all stages as one document")
    parser.add_argument("--table", type=Path, metavar="JSON", help="a document written by --json")
    options = parser.parse_args()
    if (options.folder is None) == (options.table is None):
        parser.error("expected a folder, or --table with a document")
    stages = json.loads(options.table.read_text()) if options.table else read(options.folder)
    print(to_tables(stages))
    if options.json:
        options.json.write_text(json.dumps(stages, indent=1) + "\n")


def read(folder: Path) -> dict[str, Json]:
    """Read the documents of a folder, by stage."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    # A joined document of --json may lie there as well.
    return {document["stage"]: document for document in documents if "stage" in document}


def to_tables(stages: dict[str, Json]) -> str:
    """Return all that stages measured, as Markdown."""
    makers = {"machine": machine, "kernels": exactness, "ranks": ranks, "speed": speed,
              "executor": executor, "overlap": overlap, "tiles": tiles}  # fmt: skip
    parts = []
    for name, make in makers.items():
        document = stages.get(name, {})
        if rows := document.get("rows"):
            parts.append(make(rows))
        if document and document["status"] != "passed":
            parts.append(f"Stage `{name}`: {document['status']}. {document.get('reason', '')}")
        wrong = [
            row for row in document.get("rows", ()) if "error" in row or row.get("ok") is False
        ]
        parts += [f"Wrong in `{name}`: {json.dumps(row)}" for row in wrong]
    return "\n\n".join(part.strip() for part in parts)


def machine(rows: Rows) -> str:
    """Return versions and rates as a sentence."""
    (row,) = rows
    return (
        f"{row['device'] or 'CPU'}, Python {row['python']}, torch {row['torch']}, Triton "
        f"{row['triton']}; a matrix product reaches {row['matmul_tflops']:.3g} TFLOP/s, a copy "
        f"{row['copy_gb_per_s']:,.0f} GB/s."
    )


def exactness(rows: Rows) -> str:
    """Return, of each kernel and type, how many cases are exact and how many repeat their bits."""
    groups: dict[tuple[str, str], Rows] = defaultdict(list)
    for row in rows:
        groups[row["kernel"], row["dtype"].removeprefix("torch.")].append(row)
    lines = []
    for (kernel, dtype), group in groups.items():
        ran = [row for row in group if "errors" in row]
        exact, same = (sum(row[key] for row in ran) for key in ("ok", "bitwise_repeatable"))
        largest = max((max(row["errors"].values()) for row in ran), default=0.0)
        cells = [f"{exact} of {len(group)}", f"{same} of {len(group)}", f"{largest:.1e}"]
        if not ran:
            cells = ["-", "-", group[0].get("skipped", "failed")]
        lines.append([kernel, dtype, *cells])
    return table(["kernel", "type", "exact", "same bits", "largest error, or why not"], lines)


def ranks(rows: Rows) -> str:
    """Return the largest error of each world of ranks."""
    lines = [[r["case"], f"{max(r['errors'].values()):.1e}"] for r in rows if "errors" in r]
    return table(["ranks on one device", "largest error"], lines)


def speed(rows: Rows) -> str:
    """Return TFLOP/s by case and kernel, and how they compare with torch's flash attention."""
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    cases: dict[str, dict[str, Json]] = defaultdict(dict)
    for row in rows:
        cases[row["case"]][row["kernel"]] = row
    lines = [[case, *(_both(found.get(k)) for k in kernels)] for case, found in cases.items()]
    tables = [table(["TFLOP/s, forward / backward", *kernels], lines)]
    ratios = []
    for case, found in cases.items():
        if "forward_tflops" in found.get(RIVAL, {}):
            cells = (_ratio(found.get(k), found[RIVAL]) for k in kernels)
            ratios.append([case, *cells])
    if ratios:
        tables.append(table([f"times {RIVAL}", *kernels], ratios))
    refused = {row["kernel"]: row["refused"] for row in rows if "refused" in row}
    tables += [f"No `{kernel}`: {reason}" for kernel, reason in refused.items()]
    return "\n\n".join(tables)


def _both(row: Json | None) -> str:
    if row is None or "forward_tflops" not in row:
        return "-"
    return " / ".join(f"{row[way]:.0f}" if way in row else "-" for way in WAYS)


def _ratio(row: Json | None, rival: Json) -> str:
    if row is None or "forward_tflops" not in row:
        return "-"
    cells = (f"{row[w] / rival[w]:.2f}" if w in row and w in rival else "-" for w in WAYS)
    return " / ".join(cells)


def executor(rows: Rows) -> str:
    """Return the time of layers through the executor over their kernel, and the host's time."""
    lines = [
        [r["case"], r["kernel"], f"{r['forward_s'] * 1e3:.2f} / {r['backward_s'] * 1e3:.2f}",
         f"{r['forward_over_kernel'] - 1:+.1%} / {r['backward_over_kernel'] - 1:+.1%}",
         f"{r['prepare_s'] * 1e3:.1f}", f"{r['host_forward_s'] * 1e3:.2f}",
         f"{(r['peak_bytes'] - r['input_bytes']) / 2**30:.2f}"]
        for r in rows if "forward_s" in r
    ]  # fmt: skip
    names = ["layer", "kernel", "ms", "over kernel", "prepare, ms", "host, ms", "peak, GiB"]
    return table(names, lines)


def overlap(rows: Rows) -> str:
    """Return how long a step takes and how long the rank that waits most waits."""
    lines = []
    for row in rows:
        for way in ("overlap", "no overlap"):
            if found := row.get(way):
                step_s = found["step_s"] * 1e3
                cells = [row["backend"], row["case"], way, f"{step_s:.2f}"]
                lines.append([*cells, f"{found['exposed']:.1%}"])
    return table(["backend", "case", "", "step, ms", "waiting"], lines)


def tiles(rows: Rows) -> str:
    """Return the rate of the launch shape in use and the three fastest, by kernel and case."""
    groups: dict[tuple[str, str], Rows] = defaultdict(list)
    for row in rows:
        groups[row["kernel"], row["case"]].append(row)
    lines = []
    for (kernel, case), group in groups.items():
        best = sorted(group, key=_rate, reverse=True)[:3]
        used = [row for row in group if row["in_use"]]
        cells = [f"{_rate(r):.0f} {r['shape']}" for r in (*used[:1], *best)]
        lines.append([kernel, case, *([] if used else ["-"]), *cells])
    return table(["kernel", "case", "TFLOP/s in use", "fastest", "second", "third"], lines)


def _rate(row: Json) -> float:
    return float(row.get("forward_tflops", row.get("backward_tflops", 0.0)))


def table(names: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    rows = [names, ["---"] * len(names), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


if __name__ == "__main__":
    main()
