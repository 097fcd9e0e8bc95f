"""Is planning hidden behind the training step? Measure the data loader beside a step of one second.

```
python runtime/benchmarks/bench_dataloader.py --json runtime/benchmarks/results/dataloader.json
python runtime/benchmarks/bench_dataloader.py --table runtime/benchmarks/results/dataloader.json
```

Batches of 131,072 tokens for 64 simulated devices, lengths drawn as a log-normal mix of short and
long documents. The step computes on one core for as long as `--step-s` says. The baseline plans in
the training process, when the batch is needed.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import machine, markdown, report, shown

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.plan import encode_parts
from dcp_runtime import DCPDataloader, LookAhead, Packing, Planning

TOKENS = 131_072
SPEC = Spec.from_text(
    "mask streaming_llm = causal and (k < 64 or q - k < 4k)\nmask document = causal\n"
)


def rows(seed: int, batches: int) -> list[dict[str, Any]]:
    """Return documents for about so many batches."""
    rng = np.random.default_rng(seed)
    found, left = [], batches * TOKENS
    while left > 0:
        length = int(np.clip(rng.lognormal(8.5, 1.4), 64, TOKENS))
        found.append({"tokens": np.zeros(length, np.uint8).tobytes()})
        left -= length
    return found


def work(seconds: float) -> None:
    """Keep one core busy, as a training step does."""
    until = time.perf_counter() + seconds
    values = np.ones((256, 256))
    while time.perf_counter() < until:
        values = np.tanh(values @ values / 256)


def measure(mask: str, processes: int, step_s: float, batches: int) -> dict[str, Any]:
    """Go through some batches; the first one, for which everything starts up, is not counted."""
    loader = DCPDataloader(
        rows(0, batches + 1),
        SPEC.mask(mask),
        Packing(TOKENS),
        planning=Planning(
            ModelShape(8, 2),
            Cluster(nodes=8, devices_per_node=8),
            PlanConfig(budget="fast"),
            rank=0,
        ),
        look_ahead=LookAhead(batches=2, processes=processes),
    )
    waits, parts = [], []
    with loader:
        started = time.perf_counter()
        for _, plan in loader:
            waits.append(time.perf_counter() - started)
            parts.append(max(map(len, encode_parts(plan))))
            work(step_s)
            started = time.perf_counter()
        metrics = loader.metrics
        return {
            "mask": mask,
            "processes": processes,
            "step_s": step_s,
            "batches": metrics.plans,
            "plan_s": metrics.plan_s / metrics.plans,
            "wait_s_median": median(waits[1:]),
            "wait_s_max": max(waits[1:]),
            "largest_part_bytes": max(parts),
        }


def table(document: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    header = ["mask", "planner processes", "planning a batch, ms", "waits, median", "most",
              "largest part, kB"]  # fmt: skip
    times = ("plan_s", "wait_s_median", "wait_s_max")
    lines = [
        [row["mask"], str(row["processes"]), *(shown(row[name], ".0f", 1e3) for name in times),
         shown(row["largest_part_bytes"], ".0f", 1e-3)]
        for row in document["rows"]
    ]  # fmt: skip
    return markdown(header, lines)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    return {
        "schema": "dcp.bench_dataloader/2",
        "machine": machine(),
        "seed": 0,
        "rows": [
            measure(mask, processes, options.step_s, options.batches)
            for mask in ("document", "streaming_llm")
            for processes in (0, 1)
        ],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--batches", type=int, default=8)
    report(parser, run, table)
