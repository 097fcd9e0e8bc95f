"""Print the table of docs/questions.md on what a plan saves, from the planner's bench_paper.py.

```
python docs/generate_tables.py
```
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

MASKS = {
    "causal": "causal",
    "lambda": "sinks and a window",
    "causal_blockwise": "causal blockwise",
    "shared_question": "shared question",
}
RINGS = ("RFA_ring", "RFA_zigzag", "TE")


def table(report: dict[str, Any]) -> str:  # Any: a JSON document
    """Return the Markdown table: for each mask, how many times faster a plan is."""
    lines = [
        "| mask | predicted: plans of dcp-dsl, than the best static layout "
        "| measured by the paper: DCP, than the best ring |",
        "|---|--:|--:|",
    ]
    for mask, label in MASKS.items():
        predicted, measured = ratios(report, mask)
        lines.append(f"| {label} | {_spread(predicted)} | {_spread(measured)} |")
    lines += [
        "",
        f"Median over {len(predicted)} settings, least and most in brackets; {report['cluster']}, "
        f"32 devices, commit {report['machine']['commit']}.",
    ]
    return "\n".join(lines) + "\n"


def ratios(report: dict[str, Any], mask: str) -> tuple[list[float], list[float]]:
    """Return speed-ups by setting: predicted for our plans, measured for DCP; Any: JSON."""
    of: dict[tuple[str, str], dict[str, Any]] = {}
    for row in report["rows"]:
        if row["mask"] == mask:
            of.setdefault((row["dataset"], row["scale"]), {})[row["method"]] = row
    predicted = [
        min(_seconds(r) for name, r in rows.items() if name.startswith("static:"))
        / _seconds(rows["ours"])
        for rows in of.values()
    ]
    measured = [
        min(_bar(rows[name]) for name in RINGS if name in rows) / _bar(rows["dcp-like"])
        for rows in of.values()
    ]
    return predicted, measured


def _seconds(row: dict[str, Any]) -> float:
    return float(row["forward_s"] + row["backward_s"])


def _bar(row: dict[str, Any]) -> float:
    return float(row["bar_forward_s"] + row["bar_backward_s"])


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, metavar="JSON")
    print(table(json.loads(parser.parse_args().table.read_text(encoding="utf-8"))), end="")
