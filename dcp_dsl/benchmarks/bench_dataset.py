"""Measure `dcpm check --dataset` on the rows of a data set, beside deciding them one by one.

The baseline reads the same file and asks the same guard about every row alone, as a data loader
does; it is measured on the first `BASELINE_ROWS` rows. Both give the same rows refused.

```
python dcp_dsl/benchmarks/bench_dataset.py --json dcp_dsl/benchmarks/results/dataset.json
python dcp_dsl/benchmarks/bench_dataset.py --table dcp_dsl/benchmarks/results/dataset.json
```
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from recording import machine, provenance, report

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_dsl.coverage.dataset_checker import check_dataset

BASELINE_ROWS = 2000
SPECS = {
    "shared question": """
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
for "*" use shared
""",
    "GRPO groups (lists of lists)": 'for "*" use grpo',
    "packed documents": 'for "*" use document',
    "causal, length from input_ids": 'for "*" use causal',
    "window by a column (proved for each batch)": """
for "*" having window use sliding(window = window)
""",
}


def make_rows(name: str, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the columns of a data set; one row in ten thousand is wrong."""

    def lists(low: int, high: int, most: int) -> list[list[int]]:
        return [rng.integers(low, high, n).tolist() for n in rng.integers(1, most, count)]

    columns: dict[str, Any]
    if name.startswith("shared"):
        columns = {"question_len": rng.integers(10, 2000, count), "answer_lens": lists(5, 800, 6)}
        length = columns["question_len"] + [sum(x) for x in columns["answer_lens"]]
    elif name.startswith("GRPO"):
        groups = [
            [rng.integers(50, 500, 8).tolist() for _ in range(n)] for n in rng.integers(1, 4, count)
        ]
        columns = {
            "prompt_lens": [rng.integers(20, 400, len(g)).tolist() for g in groups],
            "rollout_lens": groups,
        }
        prompts = [sum(p) for p in columns["prompt_lens"]]
        length = np.array([p + sum(map(sum, g)) for p, g in zip(prompts, groups, strict=True)])
    elif name.startswith("packed"):
        columns = {"doc_lens": lists(16, 4096, 24)}
        length = np.array([sum(x) for x in columns["doc_lens"]])
    elif name.startswith("causal"):
        return {"input_ids": lists(0, 32_000, 256)}
    else:
        length = rng.integers(64, 65_536, count)
        window = rng.integers(1, 4096, count)
        window[rng.integers(0, count, max(1, count // 10_000))] = 0
        return {"window": window, "length": length}
    wrong = rng.integers(0, count, max(1, count // 10_000))
    length = length.copy()
    length[wrong] += 1
    return {**columns, "length": length}


def bench(name: str, count: int, repeats: int, seed: int, folder: Path) -> dict[str, Any]:
    """Measure one data set."""
    path = folder / "rows.parquet"
    pq.write_table(pa.table(make_rows(name, count, np.random.default_rng(seed))), path)
    spec = Spec.from_text(SPECS[name])
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        coverage = check_dataset(spec, str(path))
        seconds.append(time.perf_counter() - started)
    refused = [row.row for row in coverage.statements[0].refused]
    baseline_s, expected = one_by_one(spec, path, min(BASELINE_ROWS, count))
    assert [row for row in refused if row < BASELINE_ROWS] == expected, "both decide alike"
    low, median, high = np.percentile(seconds, [10, 50, 90])
    return {
        "data": name, "rows": count, "tokens": int(coverage.statements[0].lengths.total),
        "refused": coverage.num_refused, "median_s": float(median), "p10_s": float(low),
        "p90_s": float(high), "rows_per_s": count / float(median),
        "one_by_one_rows_per_s": min(BASELINE_ROWS, count) / baseline_s,
    }  # fmt: skip


def one_by_one(spec: Spec, path: Path, count: int) -> tuple[float, list[int]]:
    """Decide the first rows alone; give the seconds and the rows refused."""
    dataset = read_dataset(path)
    attachment = spec.attachment(path, dataset.columns)
    guard = attachment.guard()
    refused = []
    started = time.perf_counter()
    for row in range(count):
        try:
            values = dataset[row]
            if "input_ids" in values:
                values["tokens"] = values["input_ids"]
            guard.check(attachment.sample(values))
        except DatasetError:
            refused.append(row)
    return time.perf_counter() - started, refused


def table(document: dict[str, Any]) -> str:
    """Return the Markdown table of a document."""
    lines = [
        "| data set | rows | tokens | refused | seconds (10-90 %) | rows/s | one by one, rows/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        spread = f"{row['median_s']:.2f} ({row['p10_s']:.2f}-{row['p90_s']:.2f})"
        lines.append(
            f"| {row['data']} | {row['rows']:,} | {row['tokens']:,} | {row['refused']:,} | "
            f"{spread} | {row['rows_per_s']:,.0f} | {row['one_by_one_rows_per_s']:,.0f} |"
        )
    return "\n".join([*lines, provenance(document, f"one core, seed {document['seed']}")])


def main() -> None:
    """Measure, or print the table of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    report(parser, run, table)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = options.rows, options.repeats, options.seed, Path(folder)
        rows = [bench(name, *chosen) for name in SPECS]
    return {
        "schema": "dcp.bench_dataset/1", "machine": machine("pyarrow"), "seed": options.seed,
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    main()
