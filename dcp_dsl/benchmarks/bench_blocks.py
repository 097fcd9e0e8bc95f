"""How long binding a mask and counting its blocks take, beside the dense oracle where it fits.

Run it as a script; ``--json`` gives the numbers. Every measurement is warmed up and repeated; the
median and the spread (10th and 90th percentile) are reported in milliseconds.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl import Mask, Sample, Spec, block_sparsity, dense_mask

SPEC = """
segment part = question[question_len] answer[answer_lens]*
segment doc = [doc_lens]*
segment seq = (text[text_lens] image[image_lens])*
mask shared_question_cut = causal and (k in question or same(answer))
mask packed = causal and same(doc)
mask multimodal_cut = causal or same(image)
"""
MASKS = {
    "causal": "causal",
    "streaming": "streaming(64, 4k)",
    "shared question": "shared_question_cut",
    "blockwise 256": "blockwise(256, 2)",
    "chunked 8k": "chunked(8k)",
    "packed, 64 documents": "packed",
    "multimodal, 64 images": "multimodal_cut",
}


def columns(length: int, rng: np.random.Generator) -> dict[str, Any]:
    """Give columns of every layout for one sample; Any: integers and lists of them."""

    def cut(parts: int) -> list[int]:
        borders = np.sort(rng.integers(0, length, parts - 1))
        return np.diff([0, *borders, length]).tolist()

    question, *answers = cut(9)
    pairs = cut(128)
    return {
        "question_len": question, "answer_lens": answers, "doc_lens": cut(64),
        "text_lens": pairs[::2], "image_lens": pairs[1::2],
    }  # fmt: skip


def measure(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Give median and spread in milliseconds."""
    for _ in range(2):
        run()
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        spent.append((time.perf_counter() - started) * 1e3)
    low, median, high = np.percentile(spent, [10, 50, 90])
    return {"median_ms": float(median), "p10_ms": float(low), "p90_ms": float(high)}


def bench(length: int, block: int, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Measure every mask at one length."""
    spec, rng = Spec.from_text(SPEC), np.random.default_rng(seed)
    values, rows = columns(length, rng), []
    for name, call in MASKS.items():
        mask: Mask = spec.mask(call)
        sample = Sample({c: values[c] for c in mask.columns}, length)
        slabs = mask.bind(sample)
        blocks = block_sparsity([slabs], block, block)
        row: dict[str, Any] = {
            "mask": name, "tokens": length, "block": block, "slabs": len(slabs),
            "pairs": slabs.num_pairs, "blocks": blocks.num_blocks,
            "bind": measure(lambda m=mask, s=sample: m.bind(s), repeats),
            "count": measure(lambda s=slabs: block_sparsity([s], block, block), repeats),
        }  # fmt: skip
        if length <= 8192:
            row["dense oracle"] = measure(lambda m=mask, s=sample: dense_mask(m, s), 3)
        rows.append(row)
    return rows


def machine() -> dict[str, str]:
    """Describe where and of what the numbers are."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()  # fmt: skip
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":")[1].strip() if names else cpu
    return {
        "cpu": cpu, "python": platform.python_version(), "numpy": version("numpy"),
        "dcp-dsl": version("dcp-dsl"), "commit": commit,
    }  # fmt: skip


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 131_072, 1_048_576])
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        row
        for length in options.tokens
        for row in bench(length, options.block, options.repeats, options.seed)
    ]
    if options.json:
        document = {"schema": "dcp.bench_blocks/1", "machine": machine(), "rows": rows}
        json.dump(document | {"seed": options.seed}, sys.stdout, indent=2)
        return
    print(", ".join(f"{k} {v}" for k, v in machine().items()))
    print(f"{'mask':<24}{'tokens':>9}{'slabs':>7}{'blocks':>9}", end="")
    print(f"{'bind ms':>20}{'count ms':>20}{'dense ms':>10}")
    for row in rows:
        print(f"{row['mask']:<24}{row['tokens']:>9}{row['slabs']:>7}{row['blocks']:>9}", end="")
        for part in ("bind", "count"):
            m = row[part]
            print(f"{m['median_ms']:>9.2f} ({m['p10_ms']:.2f}-{m['p90_ms']:.2f})", end="")
        dense = row.get("dense oracle")
        print(f"{dense['median_ms']:>10.0f}" if dense else f"{'-':>10}")


if __name__ == "__main__":
    main()
