"""Calibrate this machine repeatedly, and compare predictions with runs.

```
python runtime/benchmarks/bench_calibration.py --json runtime/benchmarks/results/calibration.json
python runtime/benchmarks/bench_calibration.py --table runtime/benchmarks/results/calibration.json
```

Every calibration starts its processes, fits the constants of the cost model, and then predicts and
runs five plans that no constant was fitted to, forward and backward. A calibration that found the
machine busy says so itself: its errors stand in a line of their own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl/benchmarks"))
from recording import geomean, machine, markdown, write

from dcp_runtime.launch.calibration import calibrate_cpu

SCHEMA = "dcp.bench_calibration/1"
HEADER = (
    "ranks", "machine", "calibrations", "plans", "error, median", "worst decile from",
    "within 15 %", "predicted / measured, mean",
)  # fmt: skip


@click.command()
@click.option("--ranks", default="2,4", show_default=True, help="Comma list of process counts.")
@click.option("--runs", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--table", type=click.Path(exists=True, path_type=Path))
def main(ranks: str, runs: int, out: Path | None, table: Path | None) -> None:
    """Calibrate this machine, or print the table of earlier results."""
    if table is not None:
        click.echo(to_table(json.loads(table.read_text())))
        return
    document: dict[str, Any] = {"schema": SCHEMA, "machine": machine(), "runs": []}
    for number in range(runs):
        for count in map(int, ranks.split(",")):
            found = calibrate_cpu(count, lambda _: None).to_json()
            document["runs"].append({"ranks": count, **found})
            click.echo(f"run {number}, {count} ranks, noise {found['noise']:.0%}", err=True)
            if out is not None:
                write(out, document)
    click.echo(to_table(document))


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
    where = document["machine"]
    text = f"{where['processor']}, {where['cores']} cores, commit {where['commit']}."
    return f"{markdown(HEADER, lines)}\n\n{text}"


if __name__ == "__main__":
    main()
