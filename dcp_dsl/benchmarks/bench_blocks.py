"""Measure compiling a mask and counting its blocks, beside PyTorch's `create_block_mask`.

Run it as a script; ``--json FILE`` writes the numbers, ``--table FILE`` prints the table of such a
file. Every measurement is warmed up and repeated; the median and the spread (10th and 90th
percentile) are in milliseconds. PyTorch runs in a process of its own (`torch_block_mask.py`), at
lengths where it fits into memory.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl import Form, Sample, Spec, block_sparsity

SPEC = """
segment part = question[question_len] answer[answer_lens]*
segment doc = [doc_lens]*
segment seq = (text[text_lens] image[image_lens])*
segment rollouts = group(prompt[prompt_lens] rollout[rollout_lens]*)*
segment half = noisy[len // 2] clean[..]
token evict
token subtree_end
mask shared = causal and (k in question or same(answer))
mask packed = causal per doc
mask mixed = causal or same(image)
mask grouped = causal and same(group) and (k in prompt or same(rollout))
mask streams = streaming(sink = 4, window = 1k) per doc
mask diffusion(block: tokens) =
  same(b) or (q in noisy and k in clean and k.b < q.b) or (q in clean and k in clean and k.b <= q.b)
  where b = every block in half
mask neighbours(w: tokens, h: tokens, r: int) =
  abs(clamp(y(q), r, h - 1 - r) - y(k)) <= r and abs(clamp(x(q), r, w - 1 - r) - x(k)) <= r
  where y(t) = t // w, x(t) = t % w
mask evicted = causal and q < k.evict
mask branches = k <= q < k.subtree_end
mask dilated_window = sliding(4k) and (q - k) % 2 == 0
"""
QUICK = {
    "causal": "causal", "sliding 4k": "sliding(4k)", "streaming 64 + 4k": "streaming(64, 4k)",
    "shared question, 8 answers": "shared", "packed, 200 documents": "packed",
    "multimodal, 64 images": "mixed", "GRPO, 4 prompts of 8 rollouts": "grouped",
}  # fmt: skip
MEDIUM = {
    "blockwise 256": "blockwise(256, 2)", "streaming per document": "streams",
    "block diffusion 1k": "diffusion(1k)",
}  # fmt: skip
HARD = {
    "NATTEN 13 x 13, canvas 512 wide": "neighbours(512, {height}, 6)", "tree": "branches",
    "eviction": "evicted", "dilated 4k, step 2": "dilated_window",
}  # fmt: skip
GROUPS = {"quick": QUICK, "medium": MEDIUM, "hard": HARD}
SIZES = ((131_072, 512), (1_048_576, 1024))
# Goals in ms by group and size: compile, blocks; of the hard ones together.
GOALS = {
    "quick": ((1, 0.5), (3, 20)), "medium": ((4, 1), (25, 30)), "hard": ((60, None), (600, None)),
}  # fmt: skip


def columns(length: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return columns of every layout for one sample; Any: integers and lists of them."""

    def cut(parts: int) -> list[int]:
        borders = np.sort(rng.choice(np.arange(1, length), parts - 1, replace=False))
        return np.diff([0, *borders, length]).tolist()

    question, *answers = cut(9)
    pairs, groups = cut(128), cut(36)
    return {
        "question_len": question, "answer_lens": answers, "doc_lens": cut(200),
        "text_lens": pairs[::2], "image_lens": pairs[1::2], "prompt_lens": groups[::9],
        "rollout_lens": [groups[i + 1 : i + 9] for i in range(0, 36, 9)],
        "evict": (np.arange(length) + rng.integers(1, length // 4, length)).tolist(),
        "subtree_end": tree(length, rng),
    }  # fmt: skip


def tree(length: int, rng: np.random.Generator) -> list[int]:
    """Return the end of each token's subtree in a random tree, tokens in depth-first order."""
    ends = np.zeros(length, np.int64)
    open_: list[int] = []
    closing = rng.geometric(0.5, length) - 1
    for token in range(length):
        for _ in range(min(int(closing[token]), len(open_) - 1)):
            ends[open_.pop()] = token
        open_.append(token)
    ends[open_] = length
    return ends.tolist()


def measure(run: Callable[[], object], budget_s: float) -> dict[str, float]:
    """Return median and spread in milliseconds, of 5 to 50 runs that take about `budget_s`."""
    run()
    spent: list[float] = []
    while len(spent) < 5 or (sum(spent) < budget_s * 1e3 and len(spent) < 50):
        started = time.perf_counter()
        run()
        spent.append((time.perf_counter() - started) * 1e3)
    low, median, high = np.percentile(spent, [10, 50, 90])
    return {"median_ms": float(median), "p10_ms": float(low), "p90_ms": float(high)}


def bench(length: int, block: int, budget_s: float, seed: int) -> Iterator[dict[str, Any]]:
    """Measure every mask at one length."""
    spec, values = Spec.from_text(SPEC), columns(length, np.random.default_rng(seed))
    for group, masks in GROUPS.items():
        for name, call in masks.items():
            mask = spec.mask(call.format(height=length // 512))
            sample = Sample({c: values[c] for c in mask.columns}, length)
            form: Form = mask.compile(sample)
            blocks = block_sparsity([form], block, block)
            yield {
                "mask": name, "group": group, "tokens": length, "block": block, "form": form.form,
                "pairs": blocks.num_pairs, "blocks": blocks.num_blocks,
                "compile": measure(lambda m=mask, s=sample: m.compile(s), budget_s),
                "count": measure(lambda f=form: block_sparsity([f], block, block), budget_s),
            }  # fmt: skip
            print(f"{length:>9,} {name}", file=sys.stderr)


def bench_torch(tokens: list[int], seed: int) -> list[dict[str, Any]]:
    """Measure `create_block_mask` and, on the same masks, this package; [] without PyTorch."""
    script = Path(__file__).with_name("torch_block_mask.py")
    rows: list[dict[str, Any]] = []
    for length in tokens:
        done = subprocess.run(
            [sys.executable, str(script), "--tokens", str(length)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1:], file=sys.stderr)
            continue
        spec = Spec.from_text(SPEC)
        for row in json.loads(done.stdout):
            mask = spec.mask(row["mask"])
            both = measure(
                lambda m=mask, n=length: block_sparsity([m.compile(Sample(length=n))], 128, 128), 1
            )
            rows.append({**row, "ours": both})
    return rows


def bench_bind(seed: int) -> dict[str, Any]:
    """Measure a 131,072-token sample of nine segments."""
    values = columns(131_072, np.random.default_rng(seed))
    mask = Spec.from_text(SPEC).mask("shared")
    sample = Sample({c: values[c] for c in mask.columns}, 131_072)
    return {"segments": 9, "tokens": 131_072, "compile": measure(lambda: mask.compile(sample), 1)}


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


def table(document: dict[str, Any]) -> str:
    """Return the Markdown table of a result."""
    lines = [
        "| mask | form | tokens | block | blocks | compile ms | count ms | goal ms |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        goals = GOALS[row["group"]][[s[0] for s in SIZES].index(row["tokens"])]
        goal = f"{goals[0]} + {goals[1]}" if goals[1] is not None else f"{goals[0]} all four"
        lines.append(
            f"| {row['mask']} | {row['form']} | {row['tokens']:,} | {row['block']} | "
            f"{row['blocks']:,} | {row['compile']['median_ms']:.2f} | "
            f"{row['count']['median_ms']:.2f} | {goal} |"
        )
    if document["torch"]:
        lines += [
            "", "| mask, block 128 | tokens | `create_block_mask` eager ms | compiled, warm ms | "
            "compile + count ms | faster than compiled |", "|---|---:|---:|---:|---:|---:|",
        ]  # fmt: skip
    for row in document["torch"]:
        ours, compiled = row["ours"]["median_ms"], row["compiled_ms"]
        eager = "-" if row["eager_ms"] is None else f"{row['eager_ms']:,.0f}"
        lines.append(
            f"| {row['mask']} | {row['tokens']:,} | {eager} | {compiled:,.0f} | {ours:.2f} | "
            f"{compiled / ours:,.0f}x |"
        )
    where = document["machine"]
    lines += ["", f"{where['cpu']}, one core, numpy {where['numpy']}, commit {where['commit']}."]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the numbers there")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the table of a result")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per measurement")
    parser.add_argument("--torch", type=int, nargs="*", default=[8192, 32_768], metavar="TOKENS",
                        help="lengths for create_block_mask; none: leave PyTorch out")  # fmt: skip
    options = parser.parse_args()
    if options.table is not None:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))))
        return
    rows = [row for size in SIZES for row in bench(*size, options.budget, options.seed)]
    document = {
        "schema": "dcp.bench_blocks/1", "machine": machine(), "seed": options.seed, "rows": rows,
        "nine_segments": bench_bind(options.seed),
        "torch": bench_torch(options.torch, options.seed),
    }  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
