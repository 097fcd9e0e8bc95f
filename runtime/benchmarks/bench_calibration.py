"""Calibrate this machine repeatedly, and compare predictions with runs.

```
python runtime/benchmarks/bench_calibration.py --json runtime/benchmarks/results/calibration.json
python runtime/benchmarks/bench_calibration.py --table runtime/benchmarks/results/calibration.json
```

Every calibration starts its processes, fits the constants of the cost model, and then predicts and
runs five plans that no constant was fitted to, forward and backward. A calibration that found the
machine busy says so itself: its errors stand in a line of their own.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl/benchmarks"))
from recording import geomean, machine, markdown, provenance, report, write

from dcp_runtime.launch.calibration import calibrate_cpu

SCHEMA = "dcp.bench_calibration/1"
HEADER = (
    "ranks", "machine", "calibrations", "plans", "error, median", "worst decile from",
    "within 15 %", "predicted / measured, mean",
)  # fmt: skip


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Calibrate this machine; return the document."""
    document: dict[str, Any] = {"schema": SCHEMA, "machine": machine(), "runs": []}
    for number in range(options.runs):
        for count in options.ranks:
            found = calibrate_cpu(count, lambda _: None).to_json()
            document["runs"].append({"ranks": count, **found})
            print(f"run {number}, {count} ranks, noise {found['noise']:.0%}", file=sys.stderr)
            if options.json is not None:
                write(options.json, document)
    return document


def to_table(document: dict[str, Any]) -> str:
    """Return the errors as Markdown, for each number of ranks on a quiet and a busy machine."""
    runs = document["runs"]
    groups = sorted({(run["ranks"], run["is_busy"]) for run in runs})
    lines = []
    for ranks, is_busy in groups:
        own = [run for run in runs if (run["ranks"], run["is_busy"]) == (ranks, is_busy)]
        checks = [check for run in own for check in run["checks"]]
        errors = np.array([check["error"] for check in checks])
        mean = geomean(check["predicted_s"] / check["measured_s"] for check in checks)
        lines.append([
            str(ranks), "busy" if is_busy else "quiet", str(len(own)), str(len(checks)),
            f"{np.median(errors):.0%}", f"{np.quantile(errors, 0.9):.0%}",
            f"{np.mean(errors <= 0.15):.0%}", f"{mean:.2f}",
        ])  # fmt: skip
    return f"{markdown(HEADER, lines)}\n{provenance(document)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="process counts")
    parser.add_argument("--runs", type=int, default=10)
    report(parser, run, to_table)
