"""Does training under DCP give the losses of training on one process? Measure and draw it.

```
python examples/loss_parity.py --steps 200 --out docs/loss_parity.json      # make loss-parity
```

For every mask: one process with dense masked attention and four with DCP, the same seed and
batches, in float32; and in bfloat16, where two dense runs that add in another order say how far
apart runs may be. Writes the JSON, and the curves as a picture beside it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
MASKS = ("causal", "streaming_llm", "shared_question")


def main() -> None:
    """Run everything, write JSON and picture, print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--skip-bfloat16", action="store_true", help="only float32, a third of the time"
    )
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "schema": "dcp.loss_parity/1",
        "steps": arguments.steps,
        "ranks": arguments.ranks,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {"torch": version("torch"), "python": platform.python_version()},
        "max_relative_difference": {},
        "bfloat16": {},
        "losses": {},
    }
    for mask in arguments.masks.split(","):
        measure(mask, arguments.steps, arguments.ranks, document)
        if not arguments.skip_bfloat16:
            measure_bfloat16(mask, arguments.steps, arguments.ranks, document)
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(document, arguments.out.with_suffix(".svg"))


def measure(mask: str, steps: int, ranks: int, document: dict[str, Any]) -> None:
    """Train under one mask in float32 and add the differences to the document."""
    dense = run(mask, steps, 1, "dense", "float32")
    dcp = run(mask, steps, ranks, "dcp", "float32")
    difference = max(relative_difference(dense, dcp))
    document["losses"][mask] = {"dense": dense, "dcp": dcp}
    document["max_relative_difference"][mask] = difference
    print(
        f"{mask}: loss {dense[0]:.3f} to {dense[-1]:.3f} in {steps} steps; largest relative "
        f"difference {difference:.1e} in float32",
        flush=True,
    )


def measure_bfloat16(mask: str, steps: int, ranks: int, document: dict[str, Any]) -> None:
    """The same in bfloat16, with a second dense run that adds in another order."""
    dense = run(mask, steps, 1, "dense", "bfloat16")
    other = run(mask, steps, 1, "dense-math", "bfloat16")
    dcp = run(mask, steps, ranks, "dcp", "bfloat16")
    moved, spread = (max(relative_difference(dense, x)) for x in (dcp, other))
    runs = {"dense_bfloat16": dense, "dense_math_bfloat16": other, "dcp_bfloat16": dcp}
    document["losses"][mask] |= runs
    document["bfloat16"][mask] = {"dcp": moved, "two_dense_runs": spread}
    print(f"{mask}: {moved:.1e} in bfloat16, two dense runs {spread:.1e}", flush=True)


def run(mask: str, steps: int, ranks: int, attention: str, dtype: str) -> list[float]:
    """Train in processes of their own and give the loss of every step."""
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder, "losses.json")
        options = {
            "--mask": mask, "--steps": str(steps), "--attention": attention, "--dtype": dtype,
            "--losses": str(losses),
        }  # fmt: skip
        flat = [word for option in options.items() for word in option]
        done = subprocess.run(
            [*start, str(EXAMPLES / "train_gpt.py"), *flat],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"training {' '.join(flat)} failed:\n{done.stderr[-4000:]}")
        return json.loads(losses.read_text(encoding="utf-8"))


def relative_difference(one: list[float], other: list[float]) -> list[float]:
    """Give ``|a - b| / |a|`` of every step."""
    return [abs(a - b) / abs(a) for a, b in zip(one, other, strict=True)]


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the curves of all masks above their differences."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "dcp"  # the same picture for the same numbers
    from matplotlib import pyplot as plt

    masks = list(document["losses"])
    size = (4 * len(masks), 5)
    figure, axes = plt.subplots(2, len(masks), figsize=size, sharex=True, squeeze=False)
    for column, mask in enumerate(masks):
        runs = document["losses"][mask]
        above, below = axes[0][column], axes[1][column]
        above.set_title(mask)
        above.plot(
            runs["dense"], color="#0072b2", linewidth=3, alpha=0.45, label="dense, 1 process"
        )
        label = f"DCP, {document['ranks']} ranks"
        above.plot(runs["dcp"], color="#d55e00", linewidth=1, label=label)
        below.plot(relative_difference(runs["dense"], runs["dcp"]), color="#d55e00", linewidth=1)
        below.axhline(1e-4, color="#666666", linewidth=0.8, linestyle="--")
        below.set_yscale("log")
        below.set_ylim(1e-9, 1e-3)
        below.set_xlabel("step")
    axes[0][0].set_ylabel("loss per token")
    axes[1][0].set_ylabel("relative difference, float32")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
