"""Measure compiling masks and counting their blocks, refusing large ones, and binding a batch.

Run it as a script; ``--json FILE`` writes the numbers, ``--table FILE`` prints the tables of such a
file. Times are CPU milliseconds of one process, the median of repeated runs after a first one,
which is not counted; shapes seen before are bound anew. Refusals are measured in processes of their
own, with the memory they add. PyTorch's `create_block_mask` runs in another process
(`torch_block_mask.py`), at lengths where it fits into memory.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import mask_cases
from recording import machine, provenance, write

from dcp_dsl import DCPError, Sample, Spec, block_sparsity
from dcp_dsl.core.binding import bind_core, bind_cross
from dcp_dsl.forms import as_slabs

REFUSED_S, REFUSED_MB = 0.3, 200
BATCH_MS = 1.0
BATCH = ("document", "shared_question", "grpo", "multimodal", "streaming(64, 4k)", "causal",
         "blockwise", "dpo")  # fmt: skip


def measure(run: Callable[[], object], budget_s: float) -> dict[str, float]:
    """Return median and spread in CPU milliseconds, of 5 to 50 runs that take about `budget_s`."""
    run()
    spent: list[float] = []
    while len(spent) < 5 or (sum(spent) < budget_s * 1e3 and len(spent) < 50):
        started = time.process_time()
        run()
        spent.append((time.process_time() - started) * 1e3)
    low, median, high = np.percentile(spent, [10, 50, 90])
    return {"median_ms": float(median), "p10_ms": float(low), "p90_ms": float(high)}


def bench_cases(budget_s: float, seed: int) -> Iterator[dict[str, Any]]:
    """Measure every mask: compiling it, and counting its blocks."""
    spec = mask_cases.spec()
    for case in mask_cases.CASES:
        mask, size = spec.mask(case.call), case.block
        sample = mask_cases.sample(mask, case.tokens, seed)

        def compile_(m: Any = mask, s: Sample = sample) -> Any:  # Any: a mask and its form
            if m.keys is None:
                return bind_core(m.core, s.columns, s.length)
            return bind_cross(m.core, m.keys, s.columns, s.length)

        form = compile_()
        blocks = block_sparsity([form], size, size)
        yield {
            "mask": case.name, "tokens": case.tokens, "block": size, "form": form.form,
            "pairs": blocks.num_pairs, "blocks": blocks.num_blocks, "wanted_ms": case.wanted_ms,
            "compile": measure(compile_, budget_s),
            "count": measure(lambda f=form, b=size: block_sparsity([f], b, b), budget_s),
        }  # fmt: skip
        print(f"{case.tokens:>9,} {case.name}", file=sys.stderr)


def refuse(index: int, seed: int) -> dict[str, Any]:
    """Have one mask refused here; return CPU seconds, additional megabytes and the message."""
    name, call, tokens, how = mask_cases.REFUSALS[index]
    mask = mask_cases.spec().mask(call)
    sample = mask_cases.sample(mask, tokens, seed)
    as_slabs(mask_cases.spec().mask("strided(4)").compile(Sample(length=64)))  # all is imported
    before, started = most_memory(is_from_now=True), time.process_time()
    try:
        getattr(mask, how)(sample)
        words = "is not refused"
    except DCPError as error:
        words = str(error).splitlines()[0]
    spent = time.process_time() - started
    more = most_memory() - before
    return {"mask": name, "tokens": tokens, "cpu_s": spent, "mb": more, "message": words}


def most_memory(*, is_from_now: bool = False) -> float:
    """Return the most megabytes this process has held (Linux), or begin to watch from now on."""
    own = Path("/proc/self")
    if is_from_now:
        (own / "clear_refs").write_text("5")
    lines = (own / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def bench_refusals(seed: int) -> list[dict[str, Any]]:
    """Refuse every mask of the cases, each in a fresh process."""
    found = []
    for index in range(len(mask_cases.REFUSALS)):
        run = [sys.executable, __file__, "--refuse", str(index), "--seed", str(seed)]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300)
        found.append(json.loads(done.stdout))
    return found


def bench_batch(budget_s: float, seed: int) -> dict[str, Any]:
    """Bind a batch of eight sequences of 16,384 tokens, for the first time and again."""
    spec = mask_cases.spec()
    masks = [spec.mask(call) for call in BATCH]
    batch = [(mask, mask_cases.sample(mask, 16_384, seed)) for mask in masks]
    return {
        "first": measure(
            lambda: [bind_core(m.core, s.columns, s.length) for m, s in batch], budget_s
        ),
        "again": measure(lambda: [mask.bind(sample) for mask, sample in batch], budget_s),
    }


def bench_torch(tokens: list[int]) -> list[dict[str, Any]]:
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
        spec = Spec.from_text("")
        for row in json.loads(done.stdout):
            core = spec.mask(row["mask"]).core
            both = measure(
                lambda c=core, n=length: block_sparsity([bind_core(c, {}, n)], 128, 128), 1
            )
            rows.append({**row, "ours": both})
    return rows


def table(document: dict[str, Any], *, is_whole: bool) -> str:
    """Return the Markdown tables of a result: masks and PyTorch, or the whole of it."""
    lines = [
        "| mask | form | tokens | block | blocks | compile ms | count ms | wanted, both | met |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in document["rows"]:
        parts = row["compile"]["median_ms"], row["count"]["median_ms"]
        lines.append(
            f"| {row['mask']} | {row['form']} | {row['tokens']:,} | {row['block']} | "
            f"{row['blocks']:,} | {parts[0]:.2f} | {parts[1]:.2f} | {row['wanted_ms']:g} | "
            f"{'yes' if sum(parts) <= row['wanted_ms'] else 'no'} |"
        )
    if is_whole:
        lines += batch_and_refusals(document)
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
    if "torch_note" in document:  # rows that were taken over from another run
        lines += ["", document["torch_note"]]
    return "\n".join([*lines, provenance(document, "one core")])


def _taken_over(earlier: dict[str, Any]) -> str:
    where = earlier["machine"]
    return (
        f"The rows of PyTorch come from an earlier run: {where['processor']}, commit "
        f"{where['commit']}."
    )


def batch_and_refusals(document: dict[str, Any]) -> list[str]:
    """Return the tables of binding a batch, and of masks that are refused."""
    batch = document["batch"]
    lines = [
        "", "| binding a batch of 8 sequences | ms | wanted |", "|---|---:|---:|",
        f"| for the first time | {batch['first']['median_ms']:.2f} | - |",
        f"| shapes seen before | {batch['again']['median_ms']:.3f} | {BATCH_MS:g} |", "",
        f"| refused, wanted within {REFUSED_S} s and {REFUSED_MB} MB | tokens | CPU s | MB more |",
        "|---|---:|---:|---:|",
    ]  # fmt: skip
    return lines + [
        f"| {row['mask']} | {row['tokens']:,} | {row['cpu_s']:.2f} | {row['mb']:.0f} |"
        for row in document["refusals"]
    ]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the numbers there")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the tables of a result")
    parser.add_argument("--whole", action="store_true", help="with --table: batches, refusals too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per measurement")
    parser.add_argument("--refuse", type=int, metavar="N", help="refuse one case; print JSON")
    parser.add_argument("--torch-from", type=Path, metavar="JSON",
                        help="take the rows of PyTorch over from this earlier result")  # fmt: skip
    parser.add_argument("--torch", type=int, nargs="*", default=[8192, 32_768], metavar="TOKENS",
                        help="lengths for create_block_mask; none: leave PyTorch out")  # fmt: skip
    options = parser.parse_args()
    if options.table is not None:
        document = json.loads(options.table.read_text(encoding="utf-8"))
        print(table(document, is_whole=options.whole))
        return
    if options.refuse is not None:
        print(json.dumps(refuse(options.refuse, options.seed)))
        return
    document = {
        "schema": "dcp.bench_blocks/2", "machine": machine(), "seed": options.seed,
        "rows": list(bench_cases(options.budget, options.seed)),
        "batch": bench_batch(options.budget, options.seed),
        "refusals": bench_refusals(options.seed),
    }  # fmt: skip
    if options.torch_from is None:
        document["torch"] = bench_torch(options.torch)
    else:
        earlier = json.loads(options.torch_from.read_text(encoding="utf-8"))
        document |= {"torch": earlier["torch"], "torch_note": _taken_over(earlier)}
    if options.json is not None:
        write(options.json, document)
    print(table(document, is_whole=True))


if __name__ == "__main__":
    main()
