"""Measure how long a user waits for `dcpm check`, and a training run for one sample.

A text of fifty lines with every statement is parsed and checked (names, proofs, claims, lints); the
baseline decides the same statements on generated samples with the dense oracle, without proofs. A
sample of 131,072 tokens with nine segments is bound and decided; the baseline decides a dense mask.

```
python dcp_dsl/benchmarks/bench_check.py --json dcp_dsl/benchmarks/results/check.json
python dcp_dsl/benchmarks/bench_check.py --table dcp_dsl/benchmarks/results/check.json
```
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from recording import machine, provenance, report

from dcp_dsl import Guard, Sample, Spec, check_report, dense_mask
from dcp_dsl.claims.lints.registry import mask_steps
from dcp_dsl.claims.testing import Testing, claim_steps
from dcp_dsl.errors import Budget
from dcp_dsl.syntax.parser import parse_all

FIFTY = Path(__file__).parent / "data" / "fifty.dcpm"
TOKENS = 131_072
DENSE_TOKENS = 2048
SPEC = """
segment part = question[question_len] answer[answer_lens]*
token evict
mask shared = causal and (k in question or same(answer))
mask kept = causal and q < k.evict
mask near(reach: tokens) = causal and (q - k < reach or k in question)
mask by_column = near(row.reach)
"""


def measure(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return median and spread in milliseconds."""
    for _ in range(2):
        run()
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        spent.append((time.perf_counter() - started) * 1e3)
    low, median, high = np.percentile(spent, [10, 50, 90])
    return {"median_ms": float(median), "p10_ms": float(low), "p90_ms": float(high)}


def bench_text(repeats: int) -> list[dict[str, Any]]:
    """Measure a text of fifty lines; Any: texts and numbers."""
    text = FIFTY.read_text(encoding="utf-8")
    scope = Spec.from_text(text).scope

    def search() -> None:
        testing = Testing(scope, proofs=Budget(0))  # nothing can be proved
        for step in (*claim_steps(testing), *mask_steps(testing)):
            step.look()

    report = check_report(text)
    assert not report.diagnostics, "the text has no findings"
    return [
        {"what": "50 lines: parse", **measure(lambda: parse_all(text), repeats)},
        {"what": "50 lines: parse, names, kinds", **measure(lambda: Spec.from_text(text), repeats)},
        {
            "what": f"50 lines: whole check ({report.summary()})",
            **measure(lambda: check_report(text), repeats),
        },
        {"what": "baseline: the same statements searched, not proved", **measure(search, 3)},
    ]


def bench_sample(repeats: int, seed: int) -> list[dict[str, Any]]:
    """Measure binding and deciding one sample; Any: texts and numbers."""
    rng = np.random.default_rng(seed)
    borders = np.sort(rng.integers(1, TOKENS, 8))
    question, *answers = np.diff([0, *borders, TOKENS]).tolist()
    spec = Spec.from_text(SPEC)
    columns = {
        "question_len": question, "answer_lens": answers, "reach": 4096,
        "evict": np.minimum(np.arange(TOKENS) + 1 + rng.integers(0, 4096, TOKENS), TOKENS),
    }  # fmt: skip

    def sample(name: str) -> Sample:
        return Sample({c: columns[c] for c in spec.mask(name).columns}, TOKENS)

    rows = []
    shared = sample("shared")
    mask = spec.mask("shared")
    rows.append(
        {"what": "131,072 tokens, 9 segments: bind", **measure(lambda: mask.bind(shared), repeats)}
    )
    for name, what in (
        ("shared", "proved once, layout per row"), ("by_column", "bound per row"),
    ):  # fmt: skip
        guard, chosen = Guard.of([spec.mask(name)]), sample(name)
        run = measure(lambda g=guard, s=chosen: g.check(s), repeats)
        rows.append({"what": f"131,072 tokens: decide a row, {what}", **run})
    small = Sample({"question_len": 48, "answer_lens": [250] * 8}, DENSE_TOKENS)

    def decide_dense() -> bool:
        seen = dense_mask(mask, small)
        return bool(np.triu(seen, 1).any() or not seen.any(1).all())

    rows.append({"what": "baseline: 2,048 tokens, dense", **measure(decide_dense, 3)})
    return rows


def table(document: dict[str, Any]) -> str:
    """Return the Markdown table of a document; Any: JSON."""
    lines = ["| what | median | 10 % to 90 % |", "|---|--:|--:|"]
    for row in document["rows"]:
        spread = f"{row['p10_ms']:.2f} to {row['p90_ms']:.2f} ms"
        lines.append(f"| {row['what']} | {row['median_ms']:.2f} ms | {spread} |")
    return "\n".join([*lines, provenance(document)])


def main() -> None:
    """Measure, or print the table of earlier results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    report(parser, run, table)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    rows = bench_text(options.repeats) + bench_sample(options.repeats, options.seed)
    return {
        "schema": "dcp.bench_check/1", "machine": machine("lark"), "seed": options.seed,
        "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    main()
